"""The attributes of the spans of a run."""

from __future__ import annotations

import itertools
import sys

import pytest
from opentelemetry.trace import SpanKind

from tests.captured import Telemetry, context_of, total
from tests.modes import MODES, run
from tests.observe.closed_list import word_of
from tests.observe.comparable import STREAMING, STREAMING_METRICS, values_apart_from_times
from tests.observe.runs import scenario
from tests.recorder import Recorder
from tests.sample_tools import add, fail
from tests.search.deciding import DecidingModel
from tests.search.searching import looks, zoo
from traced_tools import Advisor, ChatClient, LoopLimits, ToolCall, ToolResult, ToolSearchToolCallingAdvisor
from traced_tools.models import ChatRequest, ChatResponse
from traced_tools.observe import names
from traced_tools.search import DecisionToolIndex, RegexToolIndex
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation, tool_callbacks
from traced_tools.tools.invocation import CallNext
from traced_tools.tools.toolset import ToolSet


@pytest.mark.parametrize("mode", MODES)
def test_only_a_streamed_answer_has_chunk_times(telemetry: Telemetry, mode: str) -> None:
    scenario(telemetry, mode)
    streamed = mode.endswith("stream")
    for span in telemetry.named("chat scripted"):
        assert set(span.attributes or {}) >= STREAMING if streamed else not STREAMING & set(span.attributes or {})
    found = {each.name for each in telemetry.metrics} & STREAMING_METRICS
    assert found == (STREAMING_METRICS if streamed else set())


@pytest.mark.parametrize("mode", MODES)
def test_the_run_span_has_its_totals(telemetry: Telemetry, mode: str) -> None:
    response = scenario(telemetry, mode)
    span = telemetry.one("invoke_agent travel")
    assert values_apart_from_times(span) == {
        names.OPERATION_NAME: "invoke_agent",
        names.AGENT_NAME: "travel",
        names.AGENT_VERSION: "2.1",
        names.TOOLS_DIGEST: ToolSet(tool_callbacks(add, fail)).fingerprint[:16],
        names.AGENT_ID: "urn:agent:travel",
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
def test_the_agents_id_is_on_the_run_and_its_end_and_no_label(telemetry: Telemetry, mode: str) -> None:
    scenario(telemetry, mode)
    (stop,) = telemetry.events_named(names.LOOP_STOP_EVENT.name)
    assert stop.attributes[names.AGENT_ID] == "urn:agent:travel"
    assert [span.name for span in telemetry.spans if names.AGENT_ID in (span.attributes or {})] == [
        "invoke_agent travel"
    ]
    assert [point.name for point in telemetry.metrics if names.AGENT_ID in point.attributes] == []


@pytest.mark.parametrize("mode", MODES)
def test_a_chat_span_has_request_and_response_attributes(telemetry: Telemetry, mode: str) -> None:
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
        names.REQUEST_REASONING_LEVEL: "low",
        names.OUTPUT_TYPE: "json",
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
def test_a_tool_span_has_its_batch_position_and_outcome(telemetry: Telemetry, mode: str) -> None:
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


def test_a_model_in_this_process_has_internal_spans(telemetry: Telemetry) -> None:
    run("call", ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?"))
    assert telemetry.one("chat scripted").kind is SpanKind.INTERNAL


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
    run(mode, client.prompt("?"))
    assert (telemetry.one("execute_tool fail").attributes or {})[names.TOOL_ATTEMPTS] == 2
    assert [total(point) for point in telemetry.metric(names.TOOL_ACTIVE.name)] == [0]


@pytest.mark.parametrize("mode", MODES)
def test_self_time_leaves_out_what_is_downstream(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0, 1_000)  # each look at the clock costs a microsecond, and the model a second
    extra = [0]

    def clock() -> int:
        return next(now) + extra[0]

    for name, module in sys.modules.items():
        if name.startswith(("traced_tools.observe.", "traced_tools.observe.")) and hasattr(module, "perf_counter_ns"):
            monkeypatch.setattr(module, "perf_counter_ns", clock)

    def slow(request: ChatRequest) -> str:
        extra[0] += 1_000_000_000
        return "x"

    telemetry = Telemetry()
    client = ChatClient(ScriptedChatModel([slow]), advisors=[Recorder("outer", 100)], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    for span in telemetry.spans:
        if word_of(span) == "advise":
            assert float((span.attributes or {})[names.ADVISOR_SELF_TIME]) < 0.001  # type: ignore[arg-type]
    assert sum(total(each) for each in telemetry.metric(names.INFERENCE_DURATION.name)) > 1


@pytest.mark.parametrize("mode", MODES)
def test_self_time_leaves_out_once_what_a_tool_asks_a_model(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    for name, module in sys.modules.items():
        if name.startswith("traced_tools.") and hasattr(module, "perf_counter_ns"):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])

    class Deciding(DecidingModel):
        def call(self, request: ChatRequest) -> ChatResponse:
            now[0] += 1_000_000_000
            return super().call(request)

    telemetry = Telemetry()
    search = ToolSearchToolCallingAdvisor(index=DecisionToolIndex(Deciding(), RegexToolIndex()))
    model = ScriptedChatModel([looks("ant"), "x"])
    run(mode, ChatClient(model, tools=zoo("ant", "bat"), advisors=[search], telemetry=telemetry.options).prompt("?"))
    assert (telemetry.one("advise tool_search").attributes or {})[names.ADVISOR_SELF_TIME] == 0


@pytest.mark.parametrize("mode", MODES)
def test_options_and_usage_that_are_absent_have_no_attributes(telemetry: Telemetry, mode: str) -> None:
    limits = LoopLimits(max_iterations=None, max_tool_calls=None)
    model = ScriptedChatModel([ToolCall("fail"), "x"])
    run(mode, ChatClient(model, tools=[fail], limits=limits, telemetry=telemetry.options).prompt("?"))
    attribute_names = {name for span in telemetry.spans for name in span.attributes or {}}
    attribute_names |= {name for event in telemetry.events for name in event.attributes}
    assert not {name for name in attribute_names if name.startswith(("gen_ai.request.", "gen_ai.usage."))} - {
        names.REQUEST_MODEL,
        names.REQUEST_STREAM,
    }
    assert not {name for name in attribute_names if name.startswith("traced_tools.loop.limit.")}
    assert not {names.CONVERSATION_ID, names.SERVER_ADDRESS, names.SERVER_PORT, names.RESEND_COUNT} & attribute_names


def test_run_ids_are_ordered_by_start_time(telemetry: Telemetry) -> None:
    client = ChatClient(ScriptedChatModel(["x"] * 50), telemetry=telemetry.options)
    run_ids = [client.prompt("?").call().run_id for _ in range(50)]
    assert len(set(run_ids)) == len(run_ids)
    milliseconds = [each[:13] for each in run_ids]  # in front of every version 7 UUID, see RFC 9562
    assert milliseconds == sorted(milliseconds)
    assert [(span.attributes or {})[names.RUN_ID] for span in telemetry.named("invoke_agent assistant")] == run_ids
