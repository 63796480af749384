"""The events of a requested call: intended and decided for every call, started and finished if its tool runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.events.watching import Watching, check_sequence, raising, types
from tests.modes import MODES, run
from tests.sample_tools import add
from tests.waiting import in_time
from traced_tools import Advisor, ChatClient, LoopLimits, ToolCall, ToolExecutionError, ToolResult, tool
from traced_tools.core import ToolErrors
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.observe import Event, ToolDecided, ToolFinished, ToolIntended, names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, ToolInvocation
from traced_tools.tools.batch import ExecuteTools
from traced_tools.tools.invocation import CallNext

REFUSED = ["tool_intended", "tool_decided"]
RAN = [*REFUSED, "tool_started", "tool_finished"]


@tool(requires_approval=True)
def risky() -> str:
    """Do something risky."""
    return "done"


def fail() -> str:
    """Fail."""
    raise OSError("no")


class Advice(Advisor):
    """Does with each call what it is given to do."""

    def __init__(self, act: Callable[[ToolInvocation, CallNext], Any], order: int = 410) -> None:
        self.name, self.order, self._act = "advice", order, act

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        result = self._act(call, call_next)
        return await result if hasattr(result, "__await__") else result  # type: ignore[no-any-return]


def listener_of(calls: Any, mode: str = "call", *advisors: Advisor, **settings: Any) -> Watching:
    """Run calls, and return the event listener."""
    watching = Watching()
    tools = settings.pop("tools", [add, risky, fail])
    client = ChatClient(ScriptedChatModel([calls, "x"]), tools=tools, advisors=[watching, *advisors], **settings)
    run(mode, client.prompt("?"))
    check_sequence(watching.events)
    return watching


def decision_in(watching: Watching, call_id: str = "call_1_1") -> ToolDecided:
    (found,) = [event for event in watching.of_call(call_id) if isinstance(event, ToolDecided)]
    return found


def ending_in(watching: Watching, call_id: str = "call_1_1") -> ToolFinished:
    (found,) = [event for event in watching.of_call(call_id) if isinstance(event, ToolFinished)]
    return found


SUM = ToolCall("add", {"a": 1, "b": 1})


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_runs_is_decided_before_it_starts(mode: str) -> None:
    watching = listener_of(SUM, mode)
    assert types(watching.of_call("call_1_1")) == RAN
    assert decision_in(watching).decision == "allowed"


REFUSALS: dict[str, tuple[ToolCall, str, str | None, str | None]] = {
    "unknown": (ToolCall("invented"), "unknown_tool", None, "unknown_tool"),
    "invalid": (ToolCall("add", {"a": "x"}), "invalid_arguments", None, "invalid_arguments"),
    "approval": (ToolCall("risky"), "pending", None, None),
}


@pytest.mark.parametrize("call, decision, code, error_type", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("mode", MODES)
def test_a_refused_call_has_intended_and_decided_events_only(
    mode: str, call: ToolCall, decision: str, code: str | None, error_type: str | None
) -> None:
    watching = listener_of([SUM, call], mode)
    assert types(watching.of_call("call_1_2")) == REFUSED
    assert types(watching.of_call("call_1_1")) == RAN
    decided = decision_in(watching, "call_1_2")
    assert (decided.decision, decided.reason_code, decided.error_type) == (decision, code, error_type)
    assert decided.advisor is None


@pytest.mark.parametrize(
    "limits, decision, code",
    [
        (LoopLimits(max_tool_calls=1, on_limit="stop"), "limited", "max_tool_calls"),
        (LoopLimits(max_calls_per_tool=1, on_limit="stop"), "limited", "max_calls_per_tool"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_call_beyond_a_limit_has_an_event_with_the_limit(
    mode: str, limits: LoopLimits, decision: str, code: str
) -> None:
    watching = listener_of([SUM, SUM], mode, limits=limits)
    assert types(watching.of_call("call_1_2")) == REFUSED
    decided = decision_in(watching, "call_1_2")
    assert (decided.decision, decided.reason_code) == (decision, code)


@pytest.mark.parametrize("mode", MODES)
def test_a_repeated_call_has_the_decision_repeated(mode: str) -> None:
    watching = Watching()
    limits = LoopLimits(max_repeated_calls=1, on_limit="stop")
    run(mode, ChatClient(ScriptedChatModel([SUM, SUM]), tools=[add], advisors=[watching], limits=limits).prompt("?"))
    decided = decision_in(watching, "call_2_1")
    assert (decided.decision, decided.reason_code) == ("repeated", "repeated_call")


@pytest.mark.parametrize("mode", MODES)
def test_a_denial_has_its_advisor_and_reason_code(mode: str) -> None:
    watching = listener_of(SUM, mode, Advice(lambda call, _: call.denied("not today, Ada", code="weekend")))
    assert types(watching.of_call("call_1_1")) == REFUSED
    decided = decision_in(watching)
    assert (decided.decision, decided.advisor, decided.reason_code) == ("denied", "advice", "weekend")
    assert "Ada" not in decided.model_dump_json()


def test_a_reason_code_that_is_not_an_identifier_is_replaced() -> None:
    watching = listener_of(SUM, "call", Advice(lambda call, _: call.denied("no", code="Ada may not")))
    assert decision_in(watching).reason_code == names.OTHER


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_an_advisor_answers_has_no_tool_started_event(mode: str) -> None:
    watching = listener_of(SUM, mode, Advice(lambda call, _: call.answered("3")))
    assert types(watching.of_call("call_1_1")) == REFUSED
    assert (decision_in(watching).decision, decision_in(watching).advisor) == ("answered", "advice")


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_an_advisor_makes_invalid_have_the_decision_invalid_arguments(mode: str) -> None:
    watching = listener_of(SUM, mode, Advice(lambda call, call_next: call_next(call.replace(arguments="[]"))))
    assert types(watching.of_call("call_1_1")) == REFUSED
    assert decision_in(watching).decision == "invalid_arguments"


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_that_replaces_a_result_changes_no_emitted_event(mode: str) -> None:
    async def spoil(call: ToolInvocation, call_next: CallNext) -> ToolResult:
        await call_next(call)
        return call.denied("too late")

    watching = listener_of(SUM, mode, Advice(spoil))
    assert types(watching.of_call("call_1_1")) == RAN
    assert (decision_in(watching).decision, ending_in(watching).outcome) == ("allowed", "ok")


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_an_advisor_reruns_starts_and_finishes_again(mode: str) -> None:
    async def twice(call: ToolInvocation, call_next: CallNext) -> ToolResult:
        await call_next(call)
        return await call_next(call)

    watching = listener_of(SUM, mode, Advice(twice))
    assert types(watching.of_call("call_1_1")) == [*RAN, "tool_started", "tool_finished"]
    ends = [event for event in watching.events if isinstance(event, ToolFinished)]
    assert [event.attempts for event in ends] == [1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_whose_advisor_raises_has_an_intended_event_and_no_decision(mode: str) -> None:
    def act(call: ToolInvocation, call_next: CallNext) -> ToolResult:
        raise KeyError("advice")

    watching = Watching()
    client = ChatClient(ScriptedChatModel([SUM]), tools=[add], advisors=[watching, Advice(act)])
    with pytest.raises(KeyError, match="advice"):
        run(mode, client.prompt("?"))
    assert types(watching.of_call("call_1_1")) == ["tool_intended"]
    check_sequence(watching.events)


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_tool_has_an_event_with_its_error_type(mode: str) -> None:
    watching = listener_of(ToolCall("fail"), mode)
    assert types(watching.of_call("call_1_1")) == RAN
    ended = ending_in(watching)
    assert (ended.outcome, ended.error_type, ended.attempts) == ("error", "OSError", 1)
    assert ended.result_size


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_whose_error_fails_the_run_has_a_finished_event(mode: str) -> None:
    watching = Watching()
    client = ChatClient(ScriptedChatModel([ToolCall("fail")]), tools=[fail], advisors=[watching])
    with pytest.raises(ToolExecutionError):
        run(mode, client.replace(tool_errors=ToolErrors(always_raise=True)).prompt("?"))
    assert types(watching.of_call("call_1_1")) == RAN
    assert ending_in(watching).error_type == "OSError"


@pytest.mark.parametrize("mode", MODES)
def test_all_attempts_of_a_tool_share_one_started_and_one_finished_event(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
    tried = 0

    @tool(retries=2)
    def flaky() -> str:
        """Fail once."""
        nonlocal tried
        tried += 1
        if tried == 1:
            raise ConnectionError
        return "ok"

    watching = listener_of(ToolCall("flaky"), mode, tools=[flaky])
    assert types(watching.of_call("call_1_1")) == RAN
    assert (ending_in(watching).attempts, ending_in(watching).outcome) == (2, "ok")


@pytest.mark.parametrize("mode", MODES)
def test_a_timed_out_tool_has_the_outcome_timeout(mode: str) -> None:
    @tool(timeout=0.01)
    async def stuck() -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    watching = listener_of(ToolCall("stuck"), mode, tools=[stuck])
    assert types(watching.of_call("call_1_1")) == RAN
    assert (ending_in(watching).outcome, ending_in(watching).error_type) == ("timeout", "timeout")


def test_the_decisions_of_a_driver_are_in_events() -> None:
    watching = Watching()
    calls = [ToolCall("risky"), ToolCall("risky", {"no": 1}), SUM]
    client = ChatClient(ScriptedChatModel([calls, "x"]), tools=[add, risky], advisors=[watching])
    with client.prompt("?").start() as begun:
        while step := begun.next():
            if isinstance(step, ExecuteTools):
                step.approve("call_1_1")
                step.deny("call_1_2", "no")
                step.answer("call_1_3", "2")
            begun.perform(step)
    decisions = {call: decision_in(watching, call).decision for call in ("call_1_1", "call_1_2", "call_1_3")}
    assert decisions == {"call_1_1": "approved", "call_1_2": "denied", "call_1_3": "answered"}
    assert types(watching.of_call("call_1_1")) == RAN
    assert types(watching.of_call("call_1_2")) == types(watching.of_call("call_1_3")) == REFUSED


@pytest.mark.parametrize("fails", [False, True], ids=["", "and whose watcher fails"])
def test_a_call_that_never_starts_has_only_an_intended_event(fails: bool) -> None:
    def interrupt() -> None:
        """Interrupt."""
        raise KeyboardInterrupt

    def act(event: Event) -> None:
        if fails and isinstance(event, ToolIntended) and event.call_id == "call_1_2":
            raise KeyError("mine")

    watching, loop = Watching(400, act), ToolCallingAdvisor(manager=ToolCallingManager(max_concurrency=1))
    model = ScriptedChatModel([[ToolCall("interrupt"), SUM]])
    client = ChatClient(model, tools=[add, interrupt], advisors=[watching, loop])
    with pytest.raises(KeyboardInterrupt):
        client.prompt("?").call()
    assert types(watching.of_call("call_1_2")) == ["tool_intended"]
    check_sequence(watching.events)
    assert watching.types[-1] == "run_finished"


@pytest.mark.parametrize("kind", ["tool_intended", "tool_decided", "tool_started", "tool_finished"])
@pytest.mark.parametrize("mode", MODES)
def test_an_event_listener_error_about_a_call_leaves_no_unpaired_event(mode: str, kind: str) -> None:
    ran = []

    def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    first, last, telemetry = Watching(390), Watching(410), Telemetry()
    advisors = [first, Watching(400, raising(kind)), last]
    model = ScriptedChatModel([ToolCall("work")])
    client = ChatClient(model, tools=[work], advisors=advisors, telemetry=telemetry.options)
    with pytest.raises(KeyError, match=f"mine at {kind}"):
        in_time(lambda: run(mode, client.prompt("?")))
    assert first.events == last.events
    check_sequence(first.events)
    assert first.types.count("tool_started") == first.types.count("tool_finished")
    assert ran == ([1] if kind == "tool_finished" else [])
    assert [total(point) for point in telemetry.metric(names.TOOL_ACTIVE.name)] in ([], [0])


@pytest.mark.parametrize("mode", MODES)
def test_the_decision_event_has_the_stated_reason_if_it_is_captured(mode: str) -> None:
    telemetry = Telemetry(capture="EVENT_ONLY")
    advice = Advice(lambda call, call_next: call_next(call.replace(intent="because")))
    watching = listener_of(SUM, mode, advice, telemetry=telemetry.options)
    assert decision_in(watching).intent == "because"
    silent = listener_of(SUM, mode, advice)
    assert decision_in(silent).intent is None
