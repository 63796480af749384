"""What every run emits: the tree, the closed list of names, status and error types, and no content anywhere."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import AfterValidator, BaseModel

from tests.helpers import MARKER, MODES, Point, Recorder, Telemetry, context_of, everything, run
from tests.support import PATIENCE
from tests.telemetry.embedders import RemoteEmbedder
from traced_tools import (
    Advisor,
    AssistantMessage,
    BaseAdvisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    InvalidResponse,
    LoopLimitExceeded,
    LoopLimits,
    TelemetryOptions,
    ToolCall,
    ToolCallingAdvisor,
    ToolContext,
    ToolDefinition,
    ToolErrors,
    ToolExecutionError,
    ToolInvocation,
    ToolMetadata,
    ToolNotFoundError,
    ToolResult,
    Usage,
    tool,
)
from traced_tools.advisors.base import AdviseNext
from traced_tools.models import ChatModel, ChatRequest, ChatResponse, OpenAIChatModel, OpenAIEmbeddingModel
from traced_tools.telemetry import names
from traced_tools.telemetry.declared import Metric, SpanType
from traced_tools.telemetry.scope import Scope
from traced_tools.telemetry.words import HOOKS
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel
from traced_tools.tools.execution import CallNext

MODEL_TYPES = {"string": str, "int": int, "double": float, "boolean": bool, "string[]": tuple}
TIMES = {
    names.ADVISOR_SELF_TIME,
    names.TOOL_QUEUE_TIME,
    names.RESPONSE_TIME_TO_FIRST_CHUNK,
    names.RUN_ID,
    names.TOOL_CALL_ID,
}
OPERATIONS = ("invoke_agent", "chat", "embeddings", "execute_tool")
STREAMING = {names.REQUEST_STREAM, names.RESPONSE_TIME_TO_FIRST_CHUNK}
STREAMING_METRICS = {names.TIME_TO_FIRST_CHUNK.name, names.TIME_PER_OUTPUT_CHUNK.name}

USAGE = Usage(input_tokens=9, output_tokens=4, cache_read_tokens=3, cache_write_tokens=2, reasoning_tokens=1)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(reason: str = "no") -> str:
    """Fail."""
    raise RuntimeError(reason)


@tool(return_direct=True)
def direct(text: str) -> str:
    """Answer directly."""
    return text


def adds(a: int, b: int) -> ToolCall:
    return ToolCall("add", {"a": a, "b": b})


class Remote(ScriptedChatModel):
    """Speaks, as far as telemetry can tell, to a server."""

    server_address = "models.example.invalid"
    server_port = 8443


class Guard(Advisor):
    """Decides about calls by the tool's name."""

    name, order = "guard", 350

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        if call.name == "fail":
            return call.denied("not here")
        if call.name == "direct":
            return call.answered("cached")
        return await call_next(call)


class Outside(BaseAdvisor):
    """Stands outside the loop, with both of its hooks."""

    name, order = "outside", 100

    def before(self, request: ChatClientRequest) -> ChatClientRequest:
        return request

    async def after(self, response: ChatClientResponse) -> ChatClientResponse:
        return response


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    exported = Telemetry()
    yield exported
    assert_consistent(exported)


def values_apart_from_times(span: ReadableSpan) -> dict[str, Any]:
    return {key: "…" if key in TIMES else value for key, value in (span.attributes or {}).items()}


# The scenario.


def scenario(telemetry: Telemetry, mode: str) -> ChatClientResponse:
    """Two passes with two tools at once, of which one fails; a memory outside the loop, an observer inside."""
    model = Remote([["let me see", adds(1, 2), ToolCall("fail")], "three it is"], usage=USAGE)
    client = ChatClient(
        model,
        name="travel",
        tools=[add, fail],
        advisors=[Recorder("memory", 200), Recorder("observer", 400)],
        options=ChatOptions(temperature=0.5, top_p=0.9, max_tokens=100, stop=("END",), seed=7),
        limits=LoopLimits(max_tokens=1000, max_seconds=60.0),
        telemetry=telemetry.options,
    )
    return run(client.prompt("1+2?", conversation_id="c-1"), mode)


def test_the_tree_of_a_run_is_the_one_of_the_contract(telemetry: Telemetry) -> None:
    scenario(telemetry, "call")
    passes = [
        "before tool_calling",
        ("advise observer", ["chat scripted"]),
        "after tool_calling",
    ]
    loop = (
        "advise tool_calling",
        [
            "initialize tool_calling",
            ("iteration", [*passes, "execute_tool add", "execute_tool fail"]),
            ("iteration", passes),
            "finalize tool_calling",
        ],
    )
    tree = telemetry.tree()
    first = tree[0][1][0][1][0][1][1][1]
    first[3:] = sorted(first[3:])  # two tools at once start in either order
    assert tree == [("invoke_agent travel", [("advise memory", [loop])])]


@pytest.mark.parametrize("mode", MODES)
def test_the_scenario_is_told_the_same_in_each_mode(telemetry: Telemetry, mode: str) -> None:
    reference = Telemetry()
    expected, response = scenario(reference, "call"), scenario(telemetry, mode)

    def told(answer: ChatClientResponse) -> Any:
        calls = [
            (each.name, each.content, each.decision, each.outcome, each.error_type) for each in answer.tool_results
        ]
        return (answer.content, answer.messages, answer.usage, answer.stop_reason, answer.finish_reason, calls)

    assert told(response) == told(expected)
    assert lineage(telemetry) == lineage(reference)
    assert [point_shape(each) for each in steady(telemetry)] == [point_shape(each) for each in steady(reference)]


def lineage(telemetry: Telemetry) -> list[Any]:
    """Each span with the names above it, its kind, status and attributes, apart from times and ids."""
    by_id = {context_of(span).span_id: span for span in telemetry.spans}

    def path(span: ReadableSpan) -> tuple[str, ...]:
        index = (span.attributes or {}).get(names.ITERATION_INDEX, "")
        above = () if span.parent is None else path(by_id[span.parent.span_id])
        return (*above, f"{span.name} {index}")

    found = []
    for span in telemetry.spans:
        attributes = {key: value for key, value in values_apart_from_times(span).items() if key not in STREAMING}
        found.append((path(span), span.kind.name, span.status.status_code.name, sorted(attributes.items(), key=str)))
    return sorted(found, key=str)


def steady(telemetry: Telemetry) -> list[Point]:
    return sorted((each for each in telemetry.points() if each.name not in STREAMING_METRICS), key=lambda p: str(p.key))


def point_shape(point: Point) -> Any:
    is_time = names.METRICS[point.name].unit == "s"
    return point.key, point.count, "…" if is_time else point.total


@pytest.mark.parametrize("mode", MODES)
def test_only_a_streamed_answer_has_chunk_times(telemetry: Telemetry, mode: str) -> None:
    scenario(telemetry, mode)
    streamed = mode.endswith("stream")
    for span in telemetry.named("chat scripted"):
        assert set(span.attributes or {}) >= STREAMING if streamed else not STREAMING & set(span.attributes or {})
    found = {each.name for each in telemetry.points()} & STREAMING_METRICS
    assert found == (STREAMING_METRICS if streamed else set())


@pytest.mark.parametrize("mode", MODES)
def test_the_run_says_what_it_used(telemetry: Telemetry, mode: str) -> None:
    response = scenario(telemetry, mode)
    span = telemetry.one("invoke_agent travel")
    assert values_apart_from_times(span) == {
        names.OPERATION_NAME: "invoke_agent",
        names.AGENT_NAME: "travel",
        names.REQUEST_MODEL: "scripted",
        names.CONVERSATION_ID: "c-1",
        names.RUN_ID: "…",
        names.USAGE_INPUT_TOKENS: 18,
        names.USAGE_OUTPUT_TOKENS: 8,
        names.RESPONSE_FINISH_REASONS: ("stop",),
        names.LOOP_ITERATIONS: 2,
        names.LOOP_TOOL_CALLS: 2,
        names.LOOP_STOP_REASON: "answered",
        names.LIMIT_MAX_ITERATIONS: 50,
        names.LIMIT_MAX_TOOL_CALLS: 150,
        names.LIMIT_MAX_TOKENS: 1000,
        names.LIMIT_MAX_SECONDS: 60.0,
    }
    assert (span.attributes or {})[names.RUN_ID] == response.run_id
    assert response.trace_id == f"{context_of(span).trace_id:032x}"


@pytest.mark.parametrize("mode", MODES)
def test_a_model_call_says_what_was_asked_and_answered(telemetry: Telemetry, mode: str) -> None:
    scenario(telemetry, mode)
    first, second = telemetry.named("chat scripted")
    attributes = {key: value for key, value in (first.attributes or {}).items() if key not in STREAMING}
    assert attributes == {
        names.OPERATION_NAME: "chat",
        names.PROVIDER_NAME: "scripted",
        names.REQUEST_MODEL: "scripted",
        names.SERVER_ADDRESS: "models.example.invalid",
        names.SERVER_PORT: 8443,
        names.AGENT_NAME: "travel",
        names.CONVERSATION_ID: "c-1",
        names.ITERATION_INDEX: 1,
        names.REQUEST_TEMPERATURE: 0.5,
        names.REQUEST_TOP_P: 0.9,
        names.REQUEST_MAX_TOKENS: 100,
        names.REQUEST_STOP_SEQUENCES: ("END",),
        names.REQUEST_SEED: 7,
        names.RESPONSE_ID: "scripted_1",
        names.RESPONSE_MODEL: "scripted",
        names.RESPONSE_FINISH_REASONS: ("tool_call",),
        names.USAGE_INPUT_TOKENS: 9,
        names.USAGE_OUTPUT_TOKENS: 4,
        names.USAGE_CACHE_READ_TOKENS: 3,
        names.USAGE_CACHE_WRITE_TOKENS: 2,
        names.USAGE_REASONING_TOKENS: 1,
    }
    assert (second.attributes or {})[names.ITERATION_INDEX] == 2
    assert first.kind is SpanKind.CLIENT


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_call_says_where_it_stood_and_how_it_ended(telemetry: Telemetry, mode: str) -> None:
    response = scenario(telemetry, mode)
    ran, failed = telemetry.one("execute_tool add"), telemetry.one("execute_tool fail")
    common = {
        names.OPERATION_NAME: "execute_tool",
        names.TOOL_TYPE: "function",
        names.AGENT_NAME: "travel",
        names.CONVERSATION_ID: "c-1",
        names.ITERATION_INDEX: 1,
        names.TOOL_DECISION: "allowed",
        names.TOOL_BATCH_SIZE: 2,
        names.TOOL_SOURCE: "local",
        names.TOOL_ATTEMPTS: 1,
        names.TOOL_QUEUE_TIME: "…",
        names.TOOL_CALL_ID: "…",
    }
    assert values_apart_from_times(ran) == {
        **common,
        names.TOOL_NAME: "add",
        names.TOOL_BATCH_INDEX: 0,
        names.TOOL_ARGUMENTS_SIZE: len('{"a": 1, "b": 2}'),
        names.TOOL_RESULT_SIZE: 1,
        names.TOOL_OUTCOME: "ok",
    }
    assert values_apart_from_times(failed) == {
        **common,
        names.TOOL_NAME: "fail",
        names.TOOL_BATCH_INDEX: 1,
        names.TOOL_ARGUMENTS_SIZE: 2,
        names.TOOL_RESULT_SIZE: len(response.tool_results[1].content),
        names.TOOL_OUTCOME: "error",
        names.ERROR_TYPE: "RuntimeError",
    }
    ids = [(span.attributes or {})[names.TOOL_CALL_ID] for span in (ran, failed)]
    assert ids == [each.call_id for each in response.tool_results]


@pytest.mark.parametrize("mode", MODES)
def test_the_metrics_of_the_scenario_are_counted(telemetry: Telemetry, mode: str) -> None:
    scenario(telemetry, mode)
    agent = {names.AGENT_NAME: "travel"}
    chat = {
        names.OPERATION_NAME: "chat",
        names.PROVIDER_NAME: "scripted",
        names.REQUEST_MODEL: "scripted",
        names.RESPONSE_MODEL: "scripted",
        names.SERVER_ADDRESS: "models.example.invalid",
        names.SERVER_PORT: 8443,
    }
    found = {point.key: (point.count, point.total) for point in telemetry.points()}

    def of(metric: Metric, labels: dict[str, Any]) -> tuple[int, float]:
        return found[metric.name, tuple(sorted(labels.items()))]

    assert of(names.INVOKE_AGENT_DURATION, {**agent, names.REQUEST_MODEL: "scripted"})[0] == 1
    assert of(names.INVOKE_AGENT_INFERENCE_CALLS, agent) == (1, 2)
    assert of(names.INVOKE_AGENT_TOOL_CALLS, agent) == (1, 2)
    assert of(names.LOOP_ITERATIONS_METRIC, {**agent, names.LOOP_STOP_REASON: "answered"}) == (1, 2)
    assert of(names.OPERATION_DURATION, chat)[0] == 2
    assert of(names.TOKEN_USAGE, {**chat, names.TOKEN_TYPE: "input"}) == (2, 18)
    assert of(names.TOKEN_USAGE, {**chat, names.TOKEN_TYPE: "output"}) == (2, 8)
    assert of(names.ITERATION_DURATION, {**agent, names.ITERATION_OUTCOME: "tool_calls"})[0] == 1
    assert of(names.ITERATION_DURATION, {**agent, names.ITERATION_OUTCOME: "answer"})[0] == 1
    called = {names.TOOL_TYPE: "function", **agent}
    assert of(names.EXECUTE_TOOL_DURATION, {**called, names.TOOL_NAME: "add"})[0] == 1
    assert (
        of(names.EXECUTE_TOOL_DURATION, {**called, names.TOOL_NAME: "fail", names.ERROR_TYPE: "RuntimeError"})[0] == 1
    )
    for name in ("add", "fail"):
        assert of(names.TOOL_DECISIONS, {names.TOOL_NAME: name, names.TOOL_DECISION: "allowed"}) == (1, 1)
    assert of(names.TOOL_ACTIVE, agent)[1] == of(names.RUN_ACTIVE, agent)[1] == 0
    assert of(names.RUN_OLDEST_ACTIVE, agent)[1] == 0
    for advisor, count in (("memory", 1), ("tool_calling", 1), ("observer", 2)):
        assert of(names.ADVISOR_DURATION, {names.ADVISOR_NAME: advisor, names.ADVISOR_HOOK: "advise"})[0] == count


def test_without_reported_usage_there_is_no_token_metric(telemetry: Telemetry) -> None:
    run(ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?"), "call")
    assert telemetry.metric(names.TOKEN_USAGE.name) == []
    assert names.USAGE_INPUT_TOKENS not in (telemetry.one("invoke_agent assistant").attributes or {})


def test_a_model_in_this_process_has_internal_spans(telemetry: Telemetry) -> None:
    run(ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?"), "call")
    assert telemetry.one("chat scripted").kind is SpanKind.INTERNAL


@pytest.mark.parametrize("mode", MODES)
def test_a_duration_metric_is_the_spans_duration(telemetry: Telemetry, mode: str) -> None:
    scenario(telemetry, mode)
    pairs = {
        names.INVOKE_AGENT_DURATION.name: "invoke_agent travel",
        names.OPERATION_DURATION.name: "chat scripted",
        names.ITERATION_DURATION.name: "iteration",
    }
    for metric, span in pairs.items():
        spans = sum((each.end_time or 0) - (each.start_time or 0) for each in telemetry.named(span))
        assert sum(point.total for point in telemetry.metric(metric)) == pytest.approx(spans / 1e9, abs=2e-9)
    for point in telemetry.metric(names.EXECUTE_TOOL_DURATION.name):
        each = telemetry.one(f"execute_tool {point.labels[names.TOOL_NAME]}")
        assert point.total == pytest.approx(((each.end_time or 0) - (each.start_time or 0)) / 1e9, abs=2e-9)
    for point in telemetry.metric(names.ADVISOR_DURATION.name):
        advisor, hook = point.labels[names.ADVISOR_NAME], point.labels[names.ADVISOR_HOOK]
        if hook == "advise":
            own = sum(
                float((s.attributes or {})[names.ADVISOR_SELF_TIME]) for s in telemetry.named(f"advise {advisor}")
            )  # type: ignore[arg-type]
            assert point.total == pytest.approx(own)


def test_children_lie_within_their_parents(telemetry: Telemetry) -> None:
    scenario(telemetry, "call")
    for span in telemetry.spans:
        for child in telemetry.children(span):
            assert (span.start_time or 0) <= (child.start_time or 0)


# Status and errors.


def assert_consistent(telemetry: Telemetry) -> None:
    """What holds for whatever was exported: the closed list, declared types, ERROR with `error.type`, no events."""
    for span in telemetry.spans:
        assert_declared_span(span)
    ids = [context_of(span).span_id for span in telemetry.spans]
    assert len(ids) == len(set(ids)), "a span was ended twice"
    for point in telemetry.points():
        metric = names.METRICS[point.name]
        assert set(point.labels) <= set(metric.attributes), point
        for label, value in point.labels.items():
            assert_declared_value(label, value)


def span_type(span: ReadableSpan) -> SpanType:
    word = span.name.split(" ")[0]
    found = [each for each in names.SPANS if each.name.split(" ")[0] in (word, "{hook}" if word in HOOKS else word)]
    assert len(found) == 1, f"{span.name} is not in the table"
    return found[0]


def assert_declared_span(span: ReadableSpan) -> None:
    declared = span_type(span)
    attributes = span.attributes or {}
    assert set(attributes) <= set(declared.attributes), span.name
    for key, value in attributes.items():
        assert_declared_value(key, value)
    has_error = names.ERROR_TYPE in attributes
    assert span.status.status_code is (StatusCode.ERROR if has_error else StatusCode.UNSET), span.name
    assert span.status.description is None
    assert list(span.events) == []
    assert (names.OPERATION_NAME in attributes) is (word_of(span) in OPERATIONS), span.name
    assert span.kind is SpanKind.INTERNAL or (declared.kind == "client" and span.kind is SpanKind.CLIENT)
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == names.SCOPE


def word_of(span: ReadableSpan) -> str:
    return span.name.split(" ")[0]


def assert_declared_value(name: str, value: Any) -> None:
    declared = names.ATTRIBUTES[name]
    assert type(value) is MODEL_TYPES[declared.type], (name, value)
    if declared.values:
        words = set(value) if isinstance(value, tuple) else {value}
        assert words <= set(declared.values), (name, value)


@pytest.mark.parametrize("mode", MODES)
def test_an_error_handed_back_to_the_model_fails_the_tools_span_and_nothing_above(
    telemetry: Telemetry, mode: str
) -> None:
    scenario(telemetry, mode)
    assert [span.name for span in telemetry.spans if not span.status.is_unset] == ["execute_tool fail"]


class Failing(ScriptedChatModel):
    """Gives one chunk and then fails, when it is streamed."""

    def stream(self, request: ChatRequest) -> Iterator[Any]:
        chunks = list(super().stream(request))
        yield chunks[0]
        raise RuntimeError("the line went dead")

    async def astream(self, request: ChatRequest) -> Any:
        for chunk in self.stream(request):
            yield chunk


class Broken(Advisor):
    """Raises where it is told to."""

    def __init__(self, hook: str, order: int = 400) -> None:
        self.name = "broken"
        self.order = order
        self._hook = hook

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        if self._hook == "advise":
            raise LookupError(MARKER)
        return await call_next(request)

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        if self._hook == "advise_tool":
            raise LookupError(MARKER)
        return await call_next(call)


@pytest.mark.parametrize("mode", MODES)
def test_a_failing_model_fails_its_span_and_all_above(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(ScriptedChatModel([RuntimeError("no")]), telemetry=telemetry.options)
    with pytest.raises(RuntimeError):
        run(client.prompt("?"), mode)
    failed = {
        span.name: (span.attributes or {})[names.ERROR_TYPE] for span in telemetry.spans if not span.status.is_unset
    }
    assert failed == dict.fromkeys(
        ["invoke_agent assistant", "advise tool_calling", "iteration", "chat scripted"], "RuntimeError"
    )
    (run_span,) = telemetry.named("invoke_agent assistant")
    assert (run_span.attributes or {})[names.LOOP_STOP_REASON] == "error"
    labels = {names.AGENT_NAME: "assistant", names.REQUEST_MODEL: "scripted", names.ERROR_TYPE: "RuntimeError"}
    assert [point.labels for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)] == [labels]
    outcome = telemetry.metric(names.ITERATION_DURATION.name)[0].labels[names.ITERATION_OUTCOME]
    assert outcome == "error"


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_that_breaks_off_fails_its_span(telemetry: Telemetry, mode: str) -> None:
    with pytest.raises(RuntimeError):
        run(ChatClient(Failing(["one two"]), telemetry=telemetry.options).prompt("?"), mode)
    span = telemetry.one("chat scripted")
    assert (span.attributes or {})[names.ERROR_TYPE] == "RuntimeError"
    assert (span.attributes or {})[names.REQUEST_STREAM] is True


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_whose_failure_raises_fails_every_span_above(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(
        ScriptedChatModel([[adds(1, 1), ToolCall("fail")]]),
        tools=[add, fail],
        tool_errors=ToolErrors(always_raise=True),
        telemetry=telemetry.options,
    )
    with pytest.raises(ToolExecutionError):
        run(client.prompt("?"), mode)
    failed = {
        span.name: (span.attributes or {})[names.ERROR_TYPE] for span in telemetry.spans if not span.status.is_unset
    }
    above = dict.fromkeys(
        ["invoke_agent assistant", "advise tool_calling", "iteration"], "traced_tools.errors.ToolExecutionError"
    )
    assert failed == {"execute_tool fail": "RuntimeError", **above}
    assert telemetry.one("execute_tool add").status.is_unset


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_left_early_ends_every_span_as_cancelled(telemetry: Telemetry, mode: str) -> None:
    spec = ChatClient(ScriptedChatModel(["one two"]), telemetry=telemetry.options).prompt("?")

    async def leave() -> None:
        async with spec.astream() as stream:
            await anext(stream)

    if mode == "stream":
        with spec.stream() as stream:
            next(stream)
    else:
        asyncio.run(leave())
    failed = {
        span.name: (span.attributes or {})[names.ERROR_TYPE] for span in telemetry.spans if not span.status.is_unset
    }
    assert failed == dict.fromkeys(
        ["invoke_agent assistant", "advise tool_calling", "iteration", "chat scripted"], "cancelled"
    )
    assert (telemetry.one("invoke_agent assistant").attributes or {})[names.LOOP_STOP_REASON] == "cancelled"
    assert [point.total for point in telemetry.metric(names.RUN_ACTIVE.name)] == [0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("calls", "tool_name", "decision", "error"),
    [
        ([ToolCall("invented")], "_unknown", "unknown_tool", "unknown_tool"),
        ([ToolCall("add", {"a": "x"})], "add", "invalid_arguments", "invalid_arguments"),
        ([ToolCall("fail")], "fail", "denied", None),
        ([ToolCall("direct", {"text": "x"})], "direct", "answered", None),
        ([adds(1, 1)], "add", "limited", None),
    ],
    ids=["unknown", "invalid", "denied", "answered", "limited"],
)
def test_a_refused_call_leaves_a_span_that_executed_nothing(
    telemetry: Telemetry, mode: str, calls: list[ToolCall], tool_name: str, decision: str, error: str | None
) -> None:
    limits = LoopLimits(max_tokens=5) if decision == "limited" else LoopLimits()
    model = ScriptedChatModel([calls, "done"], usage=USAGE)
    client = ChatClient(
        model, tools=[add, fail, direct], advisors=[Guard()], limits=limits, telemetry=telemetry.options
    )
    run(client.prompt("?"), mode)
    span = telemetry.one(f"refuse_tool {tool_name}")
    attributes = span.attributes or {}
    assert attributes[names.TOOL_DECISION] == decision
    assert attributes.get(names.ERROR_TYPE) == error
    assert names.OPERATION_NAME not in attributes
    assert not {names.TOOL_OUTCOME, names.TOOL_ATTEMPTS} & set(attributes)
    assert telemetry.metric(names.EXECUTE_TOOL_DURATION.name) == []
    (counted,) = telemetry.metric(names.TOOL_DECISIONS.name)
    advisor = {names.ADVISOR_NAME: "guard"} if decision in ("denied", "answered") else {}
    assert counted.labels == {names.TOOL_NAME: tool_name, names.TOOL_DECISION: decision, **advisor}


@pytest.mark.parametrize("mode", MODES)
def test_a_fourth_identical_call_is_a_repeated_one(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(ScriptedChatModel([*[adds(1, 1)] * 4, "ok"]), tools=[add], telemetry=telemetry.options)
    run(client.prompt("?"), mode)
    assert len(telemetry.named("execute_tool add")) == 3
    assert (telemetry.one("refuse_tool add").attributes or {})[names.TOOL_DECISION] == "repeated"


@pytest.mark.parametrize("mode", MODES)
def test_a_registered_tool_keeps_its_name_in_the_concluding_pass(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(ScriptedChatModel([adds(1, 1), adds(2, 2)]), tools=[add], telemetry=telemetry.options)
    run(client.prompt("?", limits=LoopLimits(max_iterations=1)), mode)
    assert [span.name for span in telemetry.spans if "_tool " in span.name] == ["execute_tool add", "refuse_tool add"]


@pytest.mark.parametrize("mode", MODES)
def test_advice_around_a_tool_hangs_below_the_tools_span(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(
        ScriptedChatModel([adds(1, 1), "two"]), tools=[add], advisors=[Guard()], telemetry=telemetry.options
    )
    run(client.prompt("?"), mode)
    (hook,) = telemetry.children(telemetry.one("execute_tool add"))
    assert hook.name == "advise_tool guard"
    assert dict(hook.attributes or {}) == {
        names.ADVISOR_NAME: "guard",
        names.ADVISOR_HOOK: "advise_tool",
        names.ADVISOR_ORDER: 350,
        names.ITERATION_INDEX: 1,
    }


@pytest.mark.parametrize("mode", MODES)
def test_attempts_are_counted_on_one_span(telemetry: Telemetry, mode: str) -> None:
    class Again(Advisor):
        name, order = "again", 400

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            await call_next(call)
            return await call_next(call)

    client = ChatClient(
        ScriptedChatModel([ToolCall("fail"), "x"]), tools=[fail], advisors=[Again()], telemetry=telemetry.options
    )
    run(client.prompt("?"), mode)
    assert (telemetry.one("execute_tool fail").attributes or {})[names.TOOL_ATTEMPTS] == 2
    assert [point.total for point in telemetry.metric(names.TOOL_ACTIVE.name)] == [0]


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_cannot_be_understood_still_counts_as_a_model_call(telemetry: Telemetry, mode: str) -> None:
    odd = ChatResponse.model_validate({"message": {"parts": []}, "finish_reason": "tool_call", "usage": USAGE})
    client = ChatClient(ScriptedChatModel([odd]), telemetry=telemetry.options)
    with pytest.raises(InvalidResponse):
        run(client.prompt("?"), mode)
    assert [point.total for point in telemetry.metric(names.INVOKE_AGENT_INFERENCE_CALLS.name)] == [1]
    assert (telemetry.one("invoke_agent assistant").attributes or {})[names.USAGE_INPUT_TOKENS] == 9


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_compares_by_value_is_traced_like_any_other(telemetry: Telemetry, mode: str) -> None:
    @dataclass
    class Valued(ChatModel):
        model: str = "valued"
        provider: str = "test"

        def call(self, request: ChatRequest) -> ChatResponse:
            return ChatResponse(AssistantMessage("x"))

    assert run(ChatClient(Valued(), telemetry=telemetry.options).prompt("?"), mode).content == "x"
    assert telemetry.one("chat valued").status.is_unset


# Switches.


def hook_names(telemetry: Telemetry) -> set[str]:
    return {span.name for span in telemetry.spans if word_of(span) in HOOKS}


@pytest.mark.parametrize("mode", MODES)
def test_without_hook_spans_the_tree_is_what_the_conventions_know(mode: str) -> None:
    telemetry = Telemetry(hooks="none")
    scenario(telemetry, mode)
    assert_consistent(telemetry)
    assert hook_names(telemetry) == set()
    ((root, passes),) = telemetry.tree()
    assert (root, [name for name, _ in passes]) == ("invoke_agent travel", ["iteration", "iteration"])
    reference = Telemetry()
    scenario(reference, mode)
    metric = names.ADVISOR_DURATION.name
    assert {p.key: p.count for p in telemetry.metric(metric)} == {p.key: p.count for p in reference.metric(metric)}


@pytest.mark.parametrize("mode", MODES)
def test_only_hooks_that_a_subclass_wrote_can_be_asked_for(mode: str) -> None:
    class Loop(ToolCallingAdvisor):
        def before(self, request: ChatClientRequest) -> ChatClientRequest:
            return request

    telemetry = Telemetry(hooks="implemented")
    client = ChatClient(
        ScriptedChatModel(["x"]), advisors=[Outside()], tool_calling_advisor=Loop(), telemetry=telemetry.options
    )
    run(client.prompt("?"), mode)
    assert_consistent(telemetry)
    assert hook_names(telemetry) == {
        "advise outside",
        "before outside",
        "after outside",
        "advise tool_calling",
        "before tool_calling",
    }


@pytest.mark.parametrize("mode", MODES)
def test_without_iteration_spans_the_index_stays(mode: str) -> None:
    telemetry = Telemetry(iterations=False)
    scenario(telemetry, mode)
    assert_consistent(telemetry)
    assert telemetry.named("iteration") == []
    loop = telemetry.one("advise tool_calling")
    below = {span.name for span in telemetry.children(loop)}
    assert {"advise observer", "execute_tool add", "execute_tool fail"} <= below
    indexes = [(span.attributes or {})[names.ITERATION_INDEX] for span in telemetry.named("chat scripted")]
    assert indexes == [1, 2]
    assert (telemetry.one("execute_tool add").attributes or {})[names.ITERATION_INDEX] == 1
    assert sum(point.count for point in telemetry.metric(names.ITERATION_DURATION.name)) == 2


def test_an_unknown_switch_is_refused() -> None:
    with pytest.raises(ValueError, match="hooks"):
        TelemetryOptions(hooks="some")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_for_a_run_that_is_not_sampled_nothing_is_built(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = list(scopes(Scope))
    assert len(kinds) >= 5

    def never(self: Scope) -> Any:
        raise AssertionError("attributes were built for a span that is not recording")

    for kind in kinds:
        if "_final_attributes" in vars(kind):
            monkeypatch.setattr(kind, "_final_attributes", never)
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    scenario(telemetry, mode)
    assert telemetry.spans == []
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []
    assert [point.count for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)] == [1]


def scopes(kind: type[Scope]) -> Iterator[type[Scope]]:
    for below in kind.__subclasses__():
        yield below
        yield from scopes(below)


@pytest.mark.parametrize("mode", MODES)
def test_without_an_sdk_a_run_is_the_same_and_has_no_trace(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two"])
    options = TelemetryOptions(trace.NoOpTracerProvider(), metrics.NoOpMeterProvider())
    response = run(ChatClient(model, tools=[add], telemetry=options).prompt("?"), mode)
    assert (response.content, response.trace_id) == ("two", None)


class BrokenSampler(Sampler):
    """Raises instead of deciding."""

    def should_sample(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError(MARKER)

    def get_description(self) -> str:
        return "broken"


@pytest.mark.parametrize("mode", MODES)
def test_a_tracing_set_up_that_raises_is_counted_and_does_not_disturb_the_run(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.telemetry.scope._reported", set())
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry(sampler=BrokenSampler())
    assert scenario(telemetry, mode).content == "three it is"
    assert telemetry.spans == []
    (lost,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert lost.total > 5
    assert MARKER not in caplog.text
    assert "RuntimeError" in caplog.text


# The closed list, from both sides.


def runs_of_everything(telemetry: Telemetry) -> None:
    """Runs that between them emit every span, metric and attribute of the table."""
    for mode in ("call", "stream"):
        scenario(telemetry, mode)
    guarded = ChatClient(
        ScriptedChatModel([[adds(1, 1), ToolCall("fail", ""), ToolCall("invented")], "x"]),
        tools=[add, fail],
        advisors=[Guard(), Outside()],
        telemetry=telemetry.options,
    )
    run(guarded.prompt("?"), "call")
    run_of_a_stuck_tool(telemetry)
    RemoteEmbedder().embed(["one"], telemetry=telemetry.options)
    run_that_is_sent_again(telemetry)
    broken = ChatClient(ScriptedChatModel([]), advisors=[Broken("advise")], telemetry=telemetry.options)
    with pytest.raises(LookupError):
        run(broken.prompt("?"), "call")
    lost = TelemetryOptions(Telemetry(sampler=BrokenSampler()).tracer_provider, telemetry.meter_provider)
    run(ChatClient(ScriptedChatModel(["x"]), telemetry=lost).prompt("?"), "call")


def run_that_is_sent_again(telemetry: Telemetry) -> None:
    """Ask a provider that is busy at first, for words and for vectors."""
    busy = Reply.json({}, 429, {"Retry-After": "0"})
    said = Reply.json({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
    vectors = Reply.json({"data": [{"index": 0, "embedding": [1.0]}]})
    with ReplayServer([busy, said, busy, vectors]) as server:
        with OpenAIChatModel("m", base_url=server.url, retries=1) as model:
            run(ChatClient(model, telemetry=telemetry.options).prompt("?"), "call")
        with OpenAIEmbeddingModel("m", base_url=server.url, retries=1) as embedder:
            embedder.embed(["one"], telemetry=telemetry.options)


def run_of_a_stuck_tool(telemetry: Telemetry) -> None:
    """Run a tool that is timed out twice and ends after all, and one that says too much."""
    released = threading.Event()

    @tool(timeout=0.01, retries=1)
    def stuck() -> None:
        """Wait."""
        assert released.wait(PATIENCE)

    def talk() -> str:
        """Talk."""
        return "on and on " * 100_000

    model = ScriptedChatModel([[ToolCall("stuck", ""), ToolCall("talk", "")], "x"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
        run(ChatClient(model, tools=[stuck, talk], telemetry=telemetry.options).prompt("?"), "call")
    assert telemetry.metric(names.TOOL_LATE_RESULTS.name) == []
    released.set()
    deadline = time.monotonic() + PATIENCE
    while sum(point.total for point in telemetry.metric(names.TOOL_LATE_RESULTS.name)) < 2:
        assert time.monotonic() < deadline


@pytest.fixture
def all_emitted() -> Telemetry:
    telemetry = Telemetry()
    runs_of_everything(telemetry)
    assert_consistent(telemetry)
    return telemetry


def test_every_span_of_the_table_is_emitted(all_emitted: Telemetry) -> None:
    emitted = {span_type(span).name for span in all_emitted.spans}
    assert emitted == {each.name for each in names.SPANS}
    assert {word_of(span) for span in all_emitted.spans} >= set(HOOKS)


def test_every_metric_of_the_table_is_emitted(all_emitted: Telemetry) -> None:
    assert {point.name for point in all_emitted.points()} == set(names.METRICS)


def test_every_attribute_of_the_table_is_emitted_where_it_is_declared(all_emitted: Telemetry) -> None:
    on_spans: dict[str, set[str]] = {each.name: set() for each in names.SPANS}
    for span in all_emitted.spans:
        on_spans[span_type(span).name] |= set(span.attributes or {})
    on_metrics: dict[str, set[str]] = {name: set() for name in names.METRICS}
    for point in all_emitted.points():
        on_metrics[point.name] |= set(point.labels)
    assert set().union(*on_spans.values(), *on_metrics.values()) == set(names.ATTRIBUTES)
    missing = {each.name: set(each.attributes) - on_spans[each.name] for each in names.SPANS}
    # what only other endings show: each is seen by a test of its own above
    missing["iteration"] -= {names.ERROR_TYPE}
    missing["chat {model}"] -= {names.ERROR_TYPE}
    missing["embeddings {model}"] -= {names.ERROR_TYPE}
    missing["refuse_tool {tool}"] -= {names.CONVERSATION_ID, names.TOOL_RESULT_CUT}
    missing["invoke_agent {agent}"] -= {names.ERROR_TYPE}
    assert missing == {each.name: set() for each in names.SPANS}


def test_every_metric_has_the_instrument_unit_and_buckets_of_the_table(all_emitted: Telemetry) -> None:
    data = all_emitted.reader.get_metrics_data()
    assert data is not None
    seen = set()
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                declared = names.METRICS[metric.name]
                seen.add(metric.name)
                assert (metric.unit, metric.description) == (declared.unit, declared.brief)
                kind = type(metric.data).__name__
                monotonic = getattr(metric.data, "is_monotonic", None)
                instrument = {
                    ("Histogram", None): "histogram",
                    ("Sum", True): "counter",
                    ("Sum", False): "updowncounter",
                    ("Gauge", None): "gauge",
                }[kind, monotonic]
                assert instrument == declared.instrument
                for point in metric.data.data_points:
                    if declared.boundaries:
                        assert tuple(getattr(point, "explicit_bounds", ())) == declared.boundaries
    assert seen == set(names.METRICS)


def test_the_table_is_consistent_with_itself() -> None:
    for each in names.SPANS:
        assert set(each.attributes) <= set(names.ATTRIBUTES), each.name
        assert len(each.attributes) == len(set(each.attributes)), each.name
    for metric in names.METRICS.values():
        assert set(metric.attributes) <= set(names.ATTRIBUTES), metric.name
        assert (metric.instrument == "histogram") is bool(metric.boundaries), metric.name
        assert list(metric.boundaries) == sorted(metric.boundaries)
        assert not metric.name.endswith((".total", "_total"))
    pattern = re.compile(r"(gen_ai|traced_tools|server|error|http)(\.[a-z][a-z_]*)+")
    assert all(pattern.fullmatch(name) for name in [*names.ATTRIBUTES, *names.METRICS])
    assert all(each.brief for each in [*names.SPANS, *names.ATTRIBUTES.values(), *names.METRICS.values()])


def test_no_id_and_no_index_is_a_metric_label() -> None:
    forbidden = {
        names.RUN_ID,
        names.TOOL_CALL_ID,
        names.CONVERSATION_ID,
        names.RESPONSE_ID,
        names.ITERATION_INDEX,
        names.TOOL_ATTEMPTS,
        names.TOOL_BATCH_INDEX,
    }
    for metric in names.METRICS.values():
        assert not forbidden & set(metric.attributes), metric.name


# Cardinality.


def test_the_number_of_series_does_not_grow_with_the_number_of_runs() -> None:
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    numbers = itertools.count()

    def invent(request: ChatRequest) -> ToolCall:
        return ToolCall(f"invented_{next(numbers)}", {"a": next(numbers)}, id=f"id-{next(numbers)}")

    def runs(count: int) -> int:
        model = ScriptedChatModel([invent, adds(1, 1), "x"] * count, usage=USAGE)
        client = ChatClient(model, tools=[add], telemetry=telemetry.options)
        for number in range(count):
            client.prompt(f"question {next(numbers)}", conversation_id=f"c-{number}-{next(numbers)}").call()
        return len(telemetry.points())

    first = runs(10)
    assert runs(1990) == first


def test_the_kinds_of_error_a_tool_may_show_are_bounded() -> None:
    telemetry = Telemetry()
    kinds = iter([type(f"Error{number}", (Exception,), {}) for number in range(100)])

    def inventive() -> str:
        """Fail in a new way each time."""
        raise next(kinds)

    model = ScriptedChatModel([ToolCall("inventive"), "x"] * 100)
    client = ChatClient(model, tools=[inventive], telemetry=telemetry.options)
    for _ in range(100):
        client.prompt("?").call()
    found = {point.labels[names.ERROR_TYPE] for point in telemetry.metric(names.EXECUTE_TOOL_DURATION.name)}
    assert len(found) == names.MAX_ERROR_TYPES_PER_TOOL + 1
    assert names.OTHER_ERROR in found


# No content.


def leak_free(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    for span in telemetry.spans:
        text = everything(dict(span.attributes or {})) + span.name + repr(span) + str(span.status.description)
        text += " ".join(everything(dict(event.attributes or {})) + event.name for event in span.events)
        assert MARKER not in text + span.to_json(), span.name
    assert MARKER not in everything([[point.name, point.labels, point.total] for point in telemetry.points()])
    data = telemetry.reader.get_metrics_data()
    assert data is None or MARKER not in data.to_json()
    assert MARKER not in caplog.text
    for record in caplog.records:
        assert MARKER not in everything([record.getMessage(), record.exc_text or "", dict(record.__dict__)])


def rejected(secret: str, checked: int = 0) -> str:
    """Raise, quoting the argument."""
    raise ValueError(f"cannot use {secret}")


def echo(secret: str) -> str:
    """Return the secret."""
    return secret


@tool(return_direct=True)
def hand_back(secret: str) -> str:
    """Return the secret directly."""
    return secret


class Secretive(Advisor):
    """Says secrets in context and in its own words, and raises where it is told to."""

    name, order = "secretive", 400

    def __init__(self, raises_in: str = "") -> None:
        self._raises_in = raises_in

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        response = await call_next(request.replace(context={**request.context, MARKER: MARKER}))
        if self._raises_in == "advise":
            raise LookupError(MARKER)
        return response

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        if self._raises_in == "advise_tool":
            raise LookupError(MARKER)
        if self._raises_in == "denies":
            return call.denied(MARKER)
        if self._raises_in == "answers":
            return call.answered(MARKER, MARKER)
        if self._raises_in == "changes":
            return await call_next(call.replace(arguments=f'{{"{MARKER}": "{MARKER}"}}'))
        return await call_next(call)


class Checked(BaseModel):
    """Quotes what it is given."""

    secret: Annotated[str, AfterValidator(lambda secret: rejected(secret))]


def validated(checked: Checked) -> str:
    """Never run."""
    return ""


@tool(result_converter=lambda value: rejected(value))
def unreadable(secret: str) -> str:
    """Return what cannot be converted."""
    return secret


@tool(timeout=0.01)
async def stuck(secret: str) -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return secret


@tool(requires_approval=True)
def guarded(secret: str) -> str:
    """Never run."""
    return secret


def broken_off(secret: str) -> Iterator[str]:
    """Yield, then raise."""
    yield secret
    rejected(secret)


class RemoteTool:
    """A tool that has only a schema."""

    definition = ToolDefinition(
        name="remote",
        input_schema={"type": "object", "properties": {"n": {"multipleOf": 0.01}, "secret": {"maxLength": 2}}},
    )
    metadata = ToolMetadata()

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        raise ValueError(f"{MARKER} {tool_input}")


SECRET = {"secret": MARKER}
SECRET_CALLS: dict[str, Any] = {
    "result": ToolCall("echo", SECRET, id="1"),
    "direct": ToolCall("hand_back", SECRET, id="1"),
    "failure": ToolCall("rejected", SECRET, id="1"),
    "two failures": [ToolCall("rejected", SECRET, id="1"), ToolCall("rejected", {"secret": f"2 {MARKER}"}, id="2")],
    "failure beside a success": [ToolCall("echo", SECRET, id="1"), ToolCall("rejected", SECRET, id="2")],
    "unknown": ToolCall(MARKER, SECRET, id="1"),
    "invalid": ToolCall("rejected", {"checked": MARKER, MARKER: MARKER}, id="1"),
    "no JSON": ToolCall("rejected", MARKER, id="1"),
    "mended": ToolCall("rejected", f'```json\n{{"secret": "{MARKER}", "checked": null}}\n```', id="1"),
    "validator": ToolCall("validated", SECRET, id="1"),
    "converter": ToolCall("unreadable", SECRET, id="1"),
    "time-out": ToolCall("stuck", SECRET, id="1"),
    "approval": ToolCall("guarded", SECRET, id="1"),
    "iterator": ToolCall("broken_off", SECRET, id="1"),
    "schema": ToolCall("remote", {**SECRET, MARKER: MARKER}, id="1"),
    "uncheckable": ToolCall("remote", f'{{"n": 1e400, "{MARKER}": "{MARKER}"}}', id="1"),
    "remote failure": ToolCall("remote", {"n": 1, "more": MARKER}, id="1"),
    "text beside": [MARKER, ToolCall("echo", SECRET, id="1")],
    "model": RuntimeError(MARKER),
}
POLICIES: dict[str, ToolErrors] = {
    "answer": ToolErrors(),
    "raise": ToolErrors(always_raise=True, unknown_tool="raise"),
    "raise on": ToolErrors(raise_on=(ValueError,)),
    "message": ToolErrors(message=lambda name, error: f"{MARKER} {name} {error}"),
}


def secret_spec(telemetry: Telemetry, what: str, policy: str, raises_in: str, limits: LoopLimits) -> Any:
    model = ScriptedChatModel([SECRET_CALLS[what], MARKER], usage=USAGE)
    client = ChatClient(
        model,
        system=MARKER,
        tools=[rejected, echo, hand_back, validated, unreadable, stuck, guarded, broken_off, RemoteTool()],
        advisors=[Secretive(raises_in)],
        tool_context={MARKER: MARKER},
        options=ChatOptions(extra={MARKER: MARKER}),
        telemetry=telemetry.options,
        tool_errors=POLICIES[policy],
        limits=limits,
    )
    return client.prompt(MARKER, tool_context={"token": MARKER}, params={MARKER: MARKER})


def run_in_secret(telemetry: Telemetry, mode: str, *scene: Any) -> BaseException | None:
    """Run below a span of the application's own, which records what is raised through it."""
    tracer = telemetry.tracer_provider.get_tracer("application")
    spec = secret_spec(telemetry, *scene)
    try:
        with tracer.start_as_current_span("request"):
            run(spec, mode)
    except Exception as error:
        return error
    return None


def without_the_application(telemetry: Telemetry) -> Telemetry:
    kept = [span for span in telemetry.exporter.get_finished_spans() if span.name != "request"]
    telemetry.exporter.clear()
    telemetry.exporter.export(kept)
    return telemetry


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("what", SECRET_CALLS)
def test_no_content_is_exported_logged_or_raised(
    mode: str, what: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry()
    error = run_in_secret(telemetry, mode, what, policy, "", LoopLimits())
    if what == "model":
        assert isinstance(error, RuntimeError)
        without_the_application(telemetry)  # the model's own exception passes unchanged
    leak_free(telemetry, caplog)
    if error is not None and what != "model":
        assert isinstance(error, ToolExecutionError | ToolNotFoundError)
        printed = "".join(traceback.format_exception(error))
        assert MARKER not in str(error) + repr(error) + printed
    assert (error is not None) == (what == "model" or what in raising(policy))


def raising(policy: str) -> set[str]:
    failures = {"failure", "two failures", "failure beside a success", "mended", "converter", "iterator"}
    failures.add("remote failure")
    invalid = {"invalid", "no JSON", "validator", "schema", "uncheckable"}
    return {"raise": {*failures, *invalid, "unknown", "time-out"}, "raise on": failures}.get(policy, set())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("raises_in", ["advise", "advise_tool", "denies", "answers", "changes"])
def test_no_word_of_an_advisor_is_exported(mode: str, raises_in: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry()
    error = run_in_secret(telemetry, mode, "result", "answer", raises_in, LoopLimits())
    if raises_in in ("advise", "advise_tool"):
        assert isinstance(error, LookupError)
        without_the_application(telemetry)  # an advisor's own exception passes unchanged
    else:
        assert error is None
    leak_free(telemetry, caplog)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_limit", ["conclude", "stop", "raise"])
def test_no_content_is_exported_when_a_limit_is_broken(
    mode: str, on_limit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry()
    limits = LoopLimits(max_iterations=1, on_limit=on_limit)
    error = run_in_secret(telemetry, mode, "text beside", "answer", "", limits)
    assert isinstance(error, LoopLimitExceeded) == (on_limit == "raise")
    if error is not None:
        assert MARKER not in "".join(traceback.format_exception(error)) + repr(error)
    leak_free(telemetry, caplog)


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_error_that_raises_names_the_tool_and_the_kind_and_carries_the_original(mode: str) -> None:
    telemetry = Telemetry()
    error = run_in_secret(telemetry, mode, "failure", "raise", "", LoopLimits())
    assert isinstance(error, ToolExecutionError)
    assert "rejected" in str(error)
    assert "ValueError" in str(error)
    assert MARKER in str(error.original)
    assert error.__cause__ is None
    (request,) = telemetry.named("request")
    assert [event.name for event in request.events] == ["exception"]


@pytest.mark.parametrize("mode", MODES)
def test_a_name_the_model_invented_appears_nowhere(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(ScriptedChatModel([ToolCall(MARKER), "ok"]), tools=[add], telemetry=telemetry.options)
    run(client.prompt("?"), mode)
    assert telemetry.one("refuse_tool _unknown").attributes
    assert not [span for span in telemetry.spans if MARKER in span.to_json()]
    assert MARKER not in everything([[each.name, each.labels] for each in telemetry.points()])


# Where it stands in the application.


@pytest.mark.parametrize("mode", MODES)
def test_a_run_hangs_below_the_applications_span_and_is_not_current_for_its_consumer(
    telemetry: Telemetry, mode: str
) -> None:
    tracer = telemetry.tracer_provider.get_tracer(names.SCOPE)
    currents: list[object] = []
    spec = ChatClient(ScriptedChatModel(["one two"]), telemetry=telemetry.options).prompt("?")

    async def consume() -> None:
        async with spec.astream() as stream:
            async for _ in stream:
                currents.append(trace.get_current_span())

    with tracer.start_as_current_span("invoke_agent application") as outer:
        outer.set_attribute(names.OPERATION_NAME, names.INVOKE_AGENT)
        if mode == "stream":
            for _ in spec.stream():
                currents.append(trace.get_current_span())
        elif mode == "astream":
            asyncio.run(consume())
        else:
            run(spec, mode)
        currents.append(trace.get_current_span())
    assert set(currents) == {outer}
    (child,) = telemetry.children(telemetry.one("invoke_agent application"))
    assert child.name == "invoke_agent assistant"


@pytest.mark.parametrize("mode", MODES)
def test_spans_of_a_tool_and_a_model_hang_below_theirs(telemetry: Telemetry, mode: str) -> None:
    tracer = telemetry.tracer_provider.get_tracer(names.SCOPE)

    def inside(label: str) -> str:
        with tracer.start_as_current_span("iteration"):
            return label

    class Spanning(ChatModel):
        model, provider = "spanning", "test"

        def __init__(self) -> None:
            self._script = ScriptedChatModel([ToolCall("inside", {"label": "x"}), "done"])

        def call(self, request: ChatRequest) -> ChatResponse:
            inside("model")
            return self._script.call(request)

    run(ChatClient(Spanning(), tools=[inside], telemetry=telemetry.options).prompt("?"), mode)
    assert [span.name for span in telemetry.children(telemetry.one("execute_tool inside"))] == ["iteration"]
    for chat in telemetry.named("chat spanning"):
        assert [span.name for span in telemetry.children(chat)] == ["iteration"]


@pytest.mark.parametrize("mode", MODES)
def test_self_time_leaves_out_what_is_downstream(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0, 1_000)  # each look at the clock costs a microsecond, and the model a second
    extra = [0]

    def clock() -> int:
        return next(now) + extra[0]

    for module in ("scope", "calls"):
        monkeypatch.setattr(f"traced_tools.telemetry.{module}.perf_counter_ns", clock)

    def slow(request: ChatRequest) -> str:
        extra[0] += 1_000_000_000
        return "x"

    telemetry = Telemetry()
    client = ChatClient(ScriptedChatModel([slow]), advisors=[Recorder("outer", 100)], telemetry=telemetry.options)
    run(client.prompt("?"), mode)
    for span in telemetry.spans:
        if word_of(span) == "advise":
            assert float((span.attributes or {})[names.ADVISOR_SELF_TIME]) < 0.001  # type: ignore[arg-type]
    assert sum(each.total for each in telemetry.metric(names.OPERATION_DURATION.name)) > 1


def test_runs_under_way_are_counted_and_their_age_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry()
    active: Callable[[], float] = lambda: telemetry.metric(names.RUN_ACTIVE.name)[0].total  # noqa: E731
    oldest: Callable[[], float] = lambda: telemetry.metric(names.RUN_OLDEST_ACTIVE.name)[0].total  # noqa: E731
    stream = ChatClient(ScriptedChatModel(["one two"]), telemetry=telemetry.options).prompt("?").stream()
    next(stream)
    assert active() == 1
    assert oldest() > 0
    later = time.monotonic() + 100
    with monkeypatch.context() as patched:
        patched.setattr("traced_tools.telemetry.metrics.time.monotonic", lambda: later)
        assert oldest() > 99
    stream.close()
    assert (active(), oldest()) == (0, 0)
