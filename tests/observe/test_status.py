"""Which spans fail, and with which error type."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from opentelemetry.trace import StatusCode

from tests.captured import Telemetry, total
from tests.modes import MODES, run
from tests.observe.runs import USAGE, Broken, Failing, Guard, adds, scenario
from tests.sample_tools import add, direct, fail
from tests.sweeps import sweep
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    LoopLimits,
    RateLimited,
    ToolCall,
    ToolExecutionError,
    tool,
)
from traced_tools.core import ToolErrors
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatModel, ChatRequest, ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel


@pytest.mark.parametrize("mode", MODES)
def test_an_error_handed_back_to_the_model_fails_the_tools_span_and_nothing_above(
    telemetry: Telemetry, mode: str
) -> None:
    scenario(telemetry, mode)
    assert [span.name for span in telemetry.spans if not span.status.is_unset] == ["execute_tool fail"]


@pytest.mark.parametrize("mode", MODES)
def test_a_failing_model_fails_its_span_and_all_above(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(ScriptedChatModel([RuntimeError("no")]), version="1", telemetry=telemetry.options)
    with pytest.raises(RuntimeError):
        run(mode, client.prompt("?"))
    failed = {
        span.name: (span.attributes or {})[names.ERROR_TYPE] for span in telemetry.spans if not span.status.is_unset
    }
    assert failed == dict.fromkeys(
        ["invoke_agent assistant", "advise tool_calling", "iteration", "chat scripted"], "RuntimeError"
    )
    (run_span,) = telemetry.named("invoke_agent assistant")
    assert (run_span.attributes or {})[names.LOOP_STOP_REASON] == "error"
    labels = {names.REQUEST_MODEL: "scripted", names.ERROR_TYPE: "RuntimeError"}
    labels |= {names.AGENT_NAME: "assistant", names.AGENT_VERSION: "1"}
    assert [point.attributes for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)] == [labels]
    outcome = telemetry.metric(names.ITERATION_DURATION.name)[0].attributes[names.ITERATION_OUTCOME]
    assert outcome == "error"


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_that_breaks_off_fails_its_span(telemetry: Telemetry, mode: str) -> None:
    with pytest.raises(RuntimeError):
        run(mode, ChatClient(Failing(["one two"]), telemetry=telemetry.options).prompt("?"))
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
        run(mode, client.prompt("?"))
    failed = {
        span.name: (span.attributes or {})[names.ERROR_TYPE] for span in telemetry.spans if not span.status.is_unset
    }
    above = dict.fromkeys(
        ["invoke_agent assistant", "advise tool_calling", "iteration"], "traced_tools.errors.ToolExecutionError"
    )
    assert failed == {"execute_tool fail": "RuntimeError", **above}
    assert telemetry.one("execute_tool add").status.is_unset


class Retries(Advisor):
    """Asks again, once."""

    name, order = "retries", 400

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        try:
            return await call_next(request)
        except ConnectionError:
            return await call_next(request)


class Nothing(Advisor):
    """Returns nothing, outside the loop."""

    name, order = "nothing", 100

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> Any:
        await call_next(request)


ALWAYS_RAISE = ToolErrors(always_raise=True)
RAISE_UNKNOWN = ToolErrors(unknown_tool="raise")
LIMITED = LoopLimits(max_iterations=1, on_limit="raise")
FAILED_STEPS: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "model": ([RuntimeError("x")], {}, "chat scripted: RuntimeError"),
    "model, asked again": (
        [ConnectionError("x"), RateLimited("x")],
        {"advisors": [Retries()]},
        "chat scripted: traced_tools.errors.RateLimited",
    ),
    "tool": ([[adds(1, 1), ToolCall("fail")]], {"tool_errors": ALWAYS_RAISE}, "execute_tool fail: RuntimeError"),
    "arguments": ([ToolCall("add", "{}")], {"tool_errors": ALWAYS_RAISE}, "refuse_tool add: invalid_arguments"),
    "made-up name": (
        [ToolCall("x y")],
        {"tool_errors": ToolErrors(unknown_tool="raise")},
        "refuse_tool _unknown: unknown_tool",
    ),
    "hook": (["x"], {"advisors": [Broken("advise")]}, "advise broken: LookupError"),
    "hook around a tool": ([adds(1, 1)], {"advisors": [Broken("advise_tool")]}, "advise_tool broken: LookupError"),
    "limit": ([adds(1, 1)], {"limits": LIMITED}, "advise tool_calling: traced_tools.errors.LoopLimitExceeded"),
    "no step": (["x"], {"advisors": [Nothing()]}, "invoke_agent assistant: TypeError"),
    "handed back": ([ToolCall("fail"), "x"], {}, None),
}


@sweep(mode=MODES, what=FAILED_STEPS, detail=["run", "hooks"])
def test_the_run_names_the_step_that_failed_it(mode: str, what: str, detail: str) -> None:
    script, settings, expected = FAILED_STEPS[what]
    telemetry = Telemetry(detail=detail, capture="SPAN_AND_EVENT")
    client = ChatClient(ScriptedChatModel(script), tools=[add, fail], telemetry=telemetry.options, **settings)
    with suppress(Exception):
        run(mode, client.prompt("?"))
    (stop,) = telemetry.events_named(names.LOOP_STOP_EVENT.name)
    for attributes in (telemetry.one("invoke_agent assistant").attributes or {}, stop.attributes):
        assert attributes.get(names.FAILED_STEP) == expected
        assert (names.ERROR_TYPE in attributes) is (expected is not None)


def test_the_failed_step_has_the_error_type_of_its_span_however_many_types_there_were() -> None:
    for number in range(names.MAX_LABEL_VALUES + 1):
        telemetry = Telemetry()
        error = type(f"Error{number}", (Exception,), {})("x")
        with suppress(Exception):
            model = ScriptedChatModel([error], model="one of many errors")
            ChatClient(model, telemetry=telemetry.options).prompt("?").call()
    chat, whole = telemetry.one("chat one of many errors"), telemetry.one("invoke_agent assistant")
    step = f"{chat.name}: {(chat.attributes or {})[names.ERROR_TYPE]}"
    assert (whole.attributes or {})[names.FAILED_STEP] == step


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
    run_span = telemetry.one("invoke_agent assistant").attributes or {}
    assert run_span[names.LOOP_STOP_REASON] == "cancelled"
    assert names.FAILED_STEP not in run_span
    assert [total(point) for point in telemetry.metric(names.RUN_ACTIVE.name)] == [0]


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
        model, version="1", tools=[add, fail, direct], advisors=[Guard()], limits=limits, telemetry=telemetry.options
    )
    run(mode, client.prompt("?"))
    span = telemetry.one(f"refuse_tool {tool_name}")
    attributes = span.attributes or {}
    assert attributes[names.TOOL_DECISION] == decision
    assert attributes.get(names.ERROR_TYPE) == error
    assert names.OPERATION_NAME not in attributes
    assert not {names.TOOL_OUTCOME, names.TOOL_ATTEMPTS} & set(attributes)
    assert telemetry.metric(names.EXECUTE_TOOL_DURATION.name) == []
    (counted,) = telemetry.metric(names.TOOL_DECISIONS.name)
    advisor = {names.ADVISOR_NAME: "guard"} if decision in ("denied", "answered") else {}
    code = {names.REASON_CODE: "token_budget"} if decision == "limited" else {}
    agent = {names.AGENT_NAME: "assistant", names.AGENT_VERSION: "1"}
    decided = {**agent, names.TOOL_NAME: tool_name, names.TOOL_DECISION: decision}
    assert counted.attributes == {**decided, **advisor, **code}


@pytest.mark.parametrize("mode", MODES)
def test_a_fourth_identical_call_is_a_repeated_one(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(ScriptedChatModel([*[adds(1, 1)] * 4, "ok"]), tools=[add], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    assert len(telemetry.named("execute_tool add")) == 3
    assert (telemetry.one("refuse_tool add").attributes or {})[names.TOOL_DECISION] == "repeated"


@pytest.mark.parametrize("mode", MODES)
def test_a_registered_tool_keeps_its_name_in_the_concluding_pass(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(ScriptedChatModel([adds(1, 1), adds(2, 2)]), tools=[add], telemetry=telemetry.options)
    run(mode, client.prompt("?", limits=LoopLimits(max_iterations=1)))
    assert [span.name for span in telemetry.spans if "_tool " in span.name] == ["execute_tool add", "refuse_tool add"]


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_compares_by_value_is_traced_like_any_other(telemetry: Telemetry, mode: str) -> None:
    @dataclass
    class Valued(ChatModel):
        model: str = "valued"
        provider: str = "test"

        def call(self, request: ChatRequest) -> ChatResponse:
            return ChatResponse(AssistantMessage("x"))

    assert run(mode, ChatClient(Valued(), telemetry=telemetry.options).prompt("?")).content == "x"
    assert telemetry.one("chat valued").status.is_unset


class Outer:
    """Holds an error whose name has more than one part."""

    class Inner(Exception):
        """Nested."""


ERROR_TYPES = [
    (KeyError("x"), "KeyError"),
    (TimeoutError("x"), "TimeoutError"),
    (Outer.Inner("x"), f"{__name__}.Outer.Inner"),
    (RateLimited("x"), "traced_tools.errors.RateLimited"),
    (httpx.ReadTimeout("x"), "httpx.ReadTimeout"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("error", "kind"), ERROR_TYPES, ids=lambda each: type(each).__name__)
def test_the_type_of_an_error_is_the_name_of_its_class_and_where_that_is_defined(
    telemetry: Telemetry, mode: str, error: BaseException, kind: str
) -> None:
    with pytest.raises(type(error)):
        run(mode, ChatClient(Raising(error), telemetry=telemetry.options).prompt("?"))
    failed = {(span.attributes or {})[names.ERROR_TYPE] for span in telemetry.spans if not span.status.is_unset}
    assert failed == {kind}
    assert telemetry.one("invoke_agent assistant").status.status_code is StatusCode.ERROR


class Raising(ChatModel):
    """Raises what it is given."""

    model, provider = "raising", "tests"

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def call(self, request: ChatRequest) -> ChatResponse:
        raise self._error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_limit", ["conclude", "stop"])
def test_a_limit_that_ends_a_run_fails_no_span(telemetry: Telemetry, mode: str, on_limit: Any) -> None:
    limits = LoopLimits(max_iterations=1, on_limit=on_limit)
    client = ChatClient(ScriptedChatModel([adds(1, 1), "x"]), tools=[add], limits=limits, telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    assert [span.name for span in telemetry.spans if not span.status.is_unset] == []
    assert (telemetry.one("invoke_agent assistant").attributes or {})[names.LOOP_STOP_REASON] == "max_iterations"


@pytest.mark.parametrize("mode", MODES)
def test_a_timed_out_tool_has_the_error_type_timeout(telemetry: Telemetry, mode: str) -> None:
    @tool(timeout=0.01)
    async def stuck() -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    client = ChatClient(ScriptedChatModel([ToolCall("stuck"), "x"]), tools=[stuck], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    attributes = telemetry.one("execute_tool stuck").attributes or {}
    assert (attributes[names.ERROR_TYPE], attributes[names.TOOL_OUTCOME]) == (names.TIMEOUT, "timeout")
