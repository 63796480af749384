"""An error of an advisor's hook is the advisor's: not the model's, and not the tool's that the hook ran beside."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from tests.captured import Telemetry, total
from tests.clock import SECOND, Clock
from tests.modes import MODES, run
from tests.sample_tools import add
from traced_tools import Advisor, ApprovalRequest, ChatClient, ChatClientRequest, ChatClientResponse, ToolCall, tool
from traced_tools.core import ToolExecutionResult
from traced_tools.core.approval import ApprovalAnswer
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.observe import Event, names
from traced_tools.testing import ScriptedChatModel


def failed_models(telemetry: Telemetry) -> list[Any]:
    return [
        each.attributes
        for each in telemetry.metric(names.INFERENCE_DURATION.name)
        if names.ERROR_TYPE in each.attributes
    ]


def hooks(telemetry: Telemetry) -> set[tuple[Any, ...]]:
    """The hooks that were measured, each with its advisor and the type of its error."""
    labels = (names.ADVISOR_HOOK, names.ADVISOR_NAME, names.ERROR_TYPE)
    return {tuple(map(each.attributes.get, labels)) for each in telemetry.metric(names.ADVISOR_DURATION.name)}


def failed_step(telemetry: Telemetry) -> Any:
    (span,) = [each for each in telemetry.spans if each.name.startswith("invoke_agent")]
    return (span.attributes or {}).get(names.FAILED_STEP)


class Hears(Advisor):
    """Fails in a method."""

    name, order = "hears", 400


class FailsOnChunk(Hears):
    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        raise KeyError("mine")


@pytest.mark.parametrize("detail", ["run", "hooks"])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_an_error_of_on_chunk_is_the_advisors_and_not_the_models(mode: str, detail: Any) -> None:
    telemetry = Telemetry(detail=detail)
    client = ChatClient(ScriptedChatModel(["x"]), advisors=[FailsOnChunk()], telemetry=telemetry.options)
    with pytest.raises(KeyError, match="mine"):
        run(mode, client.prompt("?"))
    assert failed_step(telemetry) == "on_chunk hears: KeyError"
    chat, failed = telemetry.one("chat scripted"), telemetry.one("on_chunk hears")
    assert (chat.status.status_code, failed.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert failed_models(telemetry) == []
    assert ("on_chunk", "hears", "KeyError") in hooks(telemetry)


class FailsOnEvent(Hears):
    def __init__(self, *kinds: str, ends_run: bool = False) -> None:
        self._kinds = kinds
        self.event_errors_end_run = ends_run

    def on_event(self, event: Event) -> None:
        if event.type in self._kinds:
            raise KeyError("mine")


EVENTS = [
    "run_started",
    "iteration_started",
    "text_delta",
    "model_responded",
    "tool_intended",
    "tool_decided",
    "tool_started",
    "tool_finished",
    "iteration_finished",
    "run_finished",
]


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_on_event_ends_no_run_and_is_counted(mode: str) -> None:
    telemetry, model = Telemetry(), ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "done"])
    client = ChatClient(model, tools=[add], advisors=[FailsOnEvent(*EVENTS)], telemetry=telemetry.options)
    response = run(mode, client.prompt("?"))
    assert (response.content, response.stop_reason, response.tool_results[0].content) == ("done", "answered", "2")
    failed = telemetry.named("on_event hears")
    (lost,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert total(lost) == len(failed) >= 12
    assert {each.status.status_code for each in failed} == {StatusCode.ERROR}
    others = [each for each in telemetry.spans if each.name != "on_event hears"]
    assert {each.status.status_code for each in others} == {StatusCode.UNSET}
    assert failed_models(telemetry) == []
    assert ("on_event", "hears", "KeyError") in hooks(telemetry)


class FailsLate(Hears):
    """Fails in one of two hooks, after eight seconds."""

    def __init__(self, hook: str, clock: Clock) -> None:
        self._hook, self._clock = hook, clock

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        self._fail("on_chunk")
        return chunk

    def on_event(self, event: Event) -> None:
        if event.type == "model_responded":
            self._fail("on_event")

    def _fail(self, hook: str) -> None:
        if hook == self._hook:
            self._clock.take(8)
            raise KeyError("mine")


@pytest.mark.parametrize("hook", ["on_chunk", "on_event"])
@pytest.mark.parametrize("detail", ["run", "hooks"])
def test_a_hook_that_fails_late_has_its_time_once_and_its_span_within_the_run(
    hook: str, detail: Any, clock: Clock
) -> None:
    telemetry = Telemetry(detail=detail)
    client = ChatClient(ScriptedChatModel(["x"]), advisors=[FailsLate(hook, clock)], telemetry=telemetry.options)
    with suppress(KeyError):
        run("stream", client.prompt("?"))
    failed, whole = telemetry.one(f"{hook} hears"), telemetry.one("invoke_agent assistant")
    assert (failed.end_time or 0) - (failed.start_time or 0) == 8 * SECOND
    assert (failed.end_time or 0) <= (whole.end_time or 0)
    times = [
        total(point)
        for point in telemetry.metric(names.ADVISOR_DURATION.name)
        if point.attributes[names.ADVISOR_HOOK] == hook
    ]
    assert sum(times) == 8


@pytest.mark.parametrize("kind", ["model_responded", "tool_started", "tool_finished"])
@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_on_event_that_ends_the_run_is_the_advisors(mode: str, kind: str) -> None:
    telemetry, model = Telemetry(), ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "done"])
    advisors = [FailsOnEvent(kind, ends_run=True)]
    with pytest.raises(KeyError, match="mine"):
        run(mode, ChatClient(model, tools=[add], advisors=advisors, telemetry=telemetry.options).prompt("?"))
    assert failed_step(telemetry) == "on_event hears: KeyError"
    assert telemetry.one("invoke_agent assistant").status.status_code is StatusCode.ERROR
    beside = [each for each in telemetry.spans if each.name.startswith(("chat", "execute_tool", "refuse_tool"))]
    assert {each.status.status_code for each in beside} == {StatusCode.UNSET}
    assert failed_models(telemetry) == []
    tools = telemetry.metric(names.EXECUTE_TOOL_DURATION.name)
    assert all(names.ERROR_TYPE not in each.attributes for each in tools)


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_decide_approval_names_the_advisor(mode: str) -> None:
    class Absent(Hears):
        async def decide_approval(self, request: ApprovalRequest) -> ApprovalAnswer:
            raise KeyError("mine")

    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    telemetry, model = Telemetry(), ScriptedChatModel([ToolCall("pay"), "x"])
    with pytest.raises(KeyError, match="mine"):
        run(mode, ChatClient(model, tools=[pay], advisors=[Absent()], telemetry=telemetry.options).prompt("?"))
    assert failed_step(telemetry) == "decide_approval hears: KeyError"
    asked = telemetry.one("decide_approval hears")
    assert asked.parent is not None
    assert asked.parent.span_id == telemetry.one("await_approval pay").get_span_context().span_id


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_next_instructions_is_a_hook(mode: str, fails: bool) -> None:
    class Instructs(ToolCallingAdvisor):
        def next_instructions(
            self, request: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
        ) -> Any:
            if fails:
                raise KeyError("mine")
            return result.conversation_history

    telemetry, model = Telemetry(), ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "x"])
    client = ChatClient(model, tools=[add], tool_calling_advisor=Instructs(), telemetry=telemetry.options)
    if fails:
        with pytest.raises(KeyError, match="mine"):
            run(mode, client.prompt("?"))
        assert failed_step(telemetry) == "next_instructions tool_calling: KeyError"
    else:
        run(mode, client.prompt("?"))
    span = telemetry.one("next_instructions tool_calling")
    assert (span.attributes or {})[names.ITERATION_INDEX] == 1
    assert ("next_instructions", "tool_calling", "KeyError" if fails else None) in hooks(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_that_does_not_override_next_instructions_has_no_span_of_it(mode: str, telemetry: Telemetry) -> None:
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "x"])
    run(mode, ChatClient(model, tools=[add], telemetry=telemetry.options).prompt("?"))
    assert telemetry.named("next_instructions tool_calling") == []
