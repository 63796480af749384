"""Whatever becomes of a call is on record, and agrees with its span and with the metrics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.audit.draft_trails import RAN, KeptTrail, Twice, assert_reconciled, client_of, person_of
from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.observe.runs import Broken, Guard, adds
from tests.sample_tools import add, direct, fail
from tests.waiting import patiently
from traced_tools import Advisor, LoopLimitExceeded, LoopLimits, ToolCall, ToolExecutionError, ToolResult, tool
from traced_tools.audit.records import AUDIT_DECISIONS, AUDIT_OUTCOMES, Content
from traced_tools.core import InputRequest, PendingInput, ToolErrors
from traced_tools.errors import InputRequired, ToolOutcomeUnknown
from traced_tools.loop import TOOL_LOOP_ORDER
from traced_tools.tools import ExecuteTools, ToolInvocation
from traced_tools.tools.invocation import CallNext


@pytest.fixture
def trail() -> KeptTrail:
    return KeptTrail()


class Spoiling(Advisor):
    """Gives tools other arguments than they take."""

    name, order = "spoiling", 500

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(arguments="[]"))


class GuardOutside(Guard):
    """Decides before anything is on record."""

    name, order = "guard outside", TOOL_LOOP_ORDER - 50


class GuardInside(Guard):
    """Decides after the intent is on record."""

    name, order = "guard inside", 500


@tool
def lost() -> None:
    raise ToolOutcomeUnknown("the line went dead")


@tool
def asks() -> None:
    raise InputRequired(PendingInput(requests=(InputRequest(key="k", method="roots/list", params={}),)))


@tool(timeout=0.01)
async def stuck() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


@tool(requires_approval=True)
def guarded() -> str:
    """Never run."""
    return ""


class Turns(list[Any]):
    """What the model asks for, one answer after the other."""


FATES: dict[str, tuple[Any, list[Advisor], LoopLimits, list[list[str]]]] = {
    "ran": (adds(1, 1), [], LoopLimits(), [RAN]),
    "failed": (ToolCall("fail", ""), [], LoopLimits(), [["intent fail", "allowed", "error"]]),
    "lost": (ToolCall("lost", ""), [], LoopLimits(), [["intent lost", "allowed", "unknown"]]),
    "asks": (ToolCall("asks", ""), [], LoopLimits(), [["intent asks", "allowed", "input_required"]]),
    "timed out": (ToolCall("stuck", ""), [], LoopLimits(), [["intent stuck", "allowed", "timeout"]]),
    "unfit": (ToolCall("add", "{}"), [], LoopLimits(), [["intent add", "invalid_arguments", "invalid_arguments"]]),
    "made unfit": (adds(1, 1), [Spoiling()], LoopLimits(), [["intent add", "invalid_arguments", "invalid_arguments"]]),
    "unknown": (ToolCall("nobody"), [], LoopLimits(), [["intent _unknown", "unknown_tool"]]),
    "needs approval": (ToolCall("guarded", ""), [], LoopLimits(), [["intent guarded", "pending"]]),
    "denied inside": (ToolCall("fail", ""), [GuardInside()], LoopLimits(), [["intent fail", "denied"]]),
    "denied outside": (ToolCall("fail", ""), [GuardOutside()], LoopLimits(), [["intent fail", "denied"]]),
    "answered inside": (
        ToolCall("direct", {"text": "x"}),
        [GuardInside()],
        LoopLimits(),
        [["intent direct", "answered"]],
    ),
    "answered outside": (
        ToolCall("direct", {"text": "x"}),
        [GuardOutside()],
        LoopLimits(),
        [["intent direct", "answered"]],
    ),
    "limited": ([adds(1, 1), adds(2, 2)], [], LoopLimits(max_tool_calls=1), [RAN, ["intent add", "limited"]]),
    "repeated": (
        Turns([adds(1, 1), adds(1, 1)]),
        [],
        LoopLimits(max_repeated_calls=1),
        [RAN, ["intent add", "limited"]],
    ),
    "same id": (
        [ToolCall("add", {"a": 1, "b": 1}, id="1"), ToolCall("fail", "", id="1")],
        [],
        LoopLimits(),
        [RAN, ["intent fail", "allowed", "error"]],
    ),
    "run twice inside": (adds(1, 1), [Twice(500)], LoopLimits(), [[*RAN, "ok"]]),
    "run twice outside": (adds(1, 1), [Twice(350)], LoopLimits(), [[*RAN, "ok"]]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fate", FATES)
def test_each_fate_of_a_call_is_on_record_and_agrees_with_spans_and_metrics(
    trail: KeptTrail, fate: str, mode: str
) -> None:
    asked, advisors, limits, stories = FATES[fate]
    telemetry = Telemetry()
    client = client_of(
        trail,
        [*(asked if isinstance(asked, Turns) else [asked]), "x"],
        *advisors,
        tools=[add, fail, direct, stuck, guarded, lost, asks],
        limits=limits,
        telemetry=telemetry.options,
    )
    run(mode, client.prompt("?"))
    assert trail.stories() == stories
    assert_reconciled(trail, telemetry)


def test_the_words_of_the_records_are_those_of_the_trail(trail: KeptTrail) -> None:
    for asked, advisors, limits, _ in FATES.values():
        tools = [add, fail, direct, stuck, guarded, lost, asks]
        turns = asked if isinstance(asked, Turns) else [asked]
        client_of(trail, [*turns, "x"], *advisors, tools=tools, limits=limits).prompt("?").call()
    assert {each.fields["decision"] for each in trail.of("decision")} == set(AUDIT_DECISIONS) - {"approved", "rejected"}
    assert {each.fields["outcome"] for each in trail.of("outcome")} == set(AUDIT_OUTCOMES) - {"cancelled"}


def test_the_decision_records_who_decided_and_why(trail: KeptTrail) -> None:
    class Coded(Advisor):
        name, order = "policy", 500

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.denied(MARKER, code="rule-7", by="ana")

    client_of(trail, [adds(1, 1), "x"], Coded()).prompt("?").call()
    assert trail.one("decision").fields == {"decision": "denied", "advisor": "policy", "reason_code": "rule-7"}
    (decided,) = trail.one("decision").contents.values()
    assert replace(decided, pseudonym=None) == Content("ana", may_be_stored=True)
    repeated = KeptTrail()
    client_of(repeated, [adds(1, 1), adds(1, 1), "x"], limits=LoopLimits(max_repeated_calls=1)).prompt("?").call()
    refused = {"decision": "limited", "reason_code": "repeated_call"}
    assert sorted(len(each.fields) for each in repeated.of("decision")) == [1, 2]
    assert refused in [each.fields for each in repeated.of("decision")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [350, 500])
def test_a_call_whose_advice_raises_has_its_intent_and_nothing_more(trail: KeptTrail, mode: str, order: int) -> None:
    telemetry = Telemetry()
    client = client_of(trail, [[adds(1, 1), adds(2, 2)]], Broken("advise_tool", order), telemetry=telemetry.options)
    with pytest.raises(LookupError):
        run(mode, client.prompt("?"))
    assert trail.stories() == [["intent add"], ["intent add"]]
    assert_reconciled(trail, telemetry)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", [ToolErrors(always_raise=True), ToolErrors(raise_on=(RuntimeError,))])
def test_a_tool_error_that_ends_the_run_is_on_record(trail: KeptTrail, mode: str, policy: ToolErrors) -> None:
    with pytest.raises(ToolExecutionError):
        run(mode, client_of(trail, [[ToolCall("fail", ""), adds(1, 1)]], tool_errors=policy).prompt("?"))
    assert trail.stories() == [["intent fail", "allowed", "error"], RAN]


@pytest.mark.parametrize("on_limit", ["conclude", "stop", "raise"])
def test_calls_of_a_run_over_its_limit_are_on_record(trail: KeptTrail, on_limit: Any) -> None:
    telemetry = Telemetry()
    limits = LoopLimits(max_iterations=1, on_limit=on_limit)
    client = client_of(trail, [adds(1, 1), adds(2, 2)], limits=limits, telemetry=telemetry.options)
    if on_limit == "raise":
        with pytest.raises(LoopLimitExceeded):
            client.prompt("?").call()
    else:
        client.prompt("?").call()
    assert trail.stories() == ([RAN, ["intent add", "limited"]] if on_limit == "conclude" else [RAN])
    assert_reconciled(trail, telemetry)


@pytest.mark.parametrize("mode", ["perform", "aperform"])
def test_what_a_driver_decides_is_on_record(trail: KeptTrail, mode: str) -> None:
    telemetry = Telemetry()
    calls = [
        ToolCall("guarded", "", id="yes"),
        ToolCall("guarded", "", id="no"),
        ToolCall("add", "{}", id="mine"),
        adds(1, 1),
    ]
    client = client_of(trail, [calls, adds(2, 2), "x"], tools=[add, guarded], telemetry=telemetry.options)

    async def drive() -> None:
        driven = client.prompt("?").start()
        while step := driven.next():
            if isinstance(step, ExecuteTools) and len(step.calls) > 1:
                step.approve("yes", by="ana")
                step.deny("no", MARKER, code="rule-7", by="bob")
                step.answer("mine", MARKER)
            elif isinstance(step, ExecuteTools):
                driven.answer(step, [ToolResult(step.calls[0].id or "", "add", MARKER)])
                continue
            driven.perform(step) if mode == "perform" else await driven.aperform(step)

    asyncio.run(patiently(drive()))
    assert trail.stories() == [
        ["intent guarded", "approved", "ok"],
        ["intent guarded", "denied"],
        ["intent add", "answered"],
        RAN,
        ["intent add", "answered"],
    ]
    people = [(each.fields["decision"], person_of(each)) for each in trail.of("decision") if person_of(each)]
    assert sorted(people) == [("approved", "ana"), ("denied", "bob")]
    assert_reconciled(trail, telemetry)
