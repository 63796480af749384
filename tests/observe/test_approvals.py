"""What telemetry, events and the audit trail record of calls that require approval."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.audit.draft_trails import KeptTrail, auditing, person_of, word_of
from tests.captured import Telemetry, context_of
from tests.events.watching import Watching
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.observe.closed_list import assert_consistent
from tests.observe.exported import Wiretap
from tests.observe.secrets import SECRET
from tests.waiting import until
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    ApprovalRequest,
    Approve,
    AuditAdvisor,
    AuditTrail,
    ChatClient,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    ToolResult,
    tool,
)
from traced_tools.audit.reading.matching import match
from traced_tools.core import Undecided
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, ToolInvocation
from traced_tools.tools.invocation import CallNext

LABELS = {names.TOOL_NAME: "pay", names.AGENT_NAME: "desk"}


@tool(requires_approval=True)
def pay(secret: str = "") -> str:
    """Pay."""
    return "paid"


def asked(mode: str, answer: Any, telemetry: Telemetry, *advisors: Advisor, turns: Any = None) -> Any:
    ask = answer if callable(answer) else lambda request: answer
    client = ChatClient(
        ScriptedChatModel([*(turns or [ToolCall("pay", {}, id="p")]), "done"]),
        name="desk",
        tools=[pay],
        advisors=[*advisors, ApprovalAdvisor(ask)],
        telemetry=telemetry.options,
    )
    return run(mode, client.prompt("?"))


def waiting(telemetry: Telemetry) -> tuple[Any, Any]:
    """The value and the labels of the gauges: how many calls wait, and for how long the oldest does."""
    [number] = telemetry.metric(names.APPROVAL_PENDING.name)
    [age] = telemetry.metric(names.APPROVAL_OLDEST_PENDING.name)
    assert number.attributes == age.attributes == {names.AGENT_NAME: "desk"}
    return number.value, age.value


@pytest.mark.parametrize("mode", MODES)
def test_gauges_show_a_call_while_it_waits_and_its_age(mode: str, telemetry: Telemetry) -> None:
    seen: list[Any] = []

    def ask(request: ApprovalRequest) -> Approve:
        until(lambda: waiting(telemetry)[1] > 0)
        seen.append(waiting(telemetry)[0])
        return Approve()

    asked(mode, ask, telemetry)
    assert seen == [1]
    assert waiting(telemetry) == (0, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Approve(by="ana", code="ticket"), ("approved", "ana", "ticket")),
        (Approve(by="ana"), ("approved", "ana", "payments")),
        (Reject("no", by="ana", code="too_much"), ("rejected", "ana", "too_much")),
        (Undecided(), ("pending", None, "payments")),
        ("nonsense", ("denied", None, "approval_failed")),
    ],
    ids=["approved", "approved for a rule", "rejected", "pending", "denied"],
)
def test_the_wait_the_call_and_the_trail_record_who_decided_and_why(
    mode: str, answer: Any, expected: tuple[str, str | None, str]
) -> None:
    telemetry = Telemetry("SPAN_AND_EVENT")
    trail, watching = KeptTrail(), Watching()
    policy = PolicyAdvisor(Policy([Rule("payments", then="require_approval")]))
    asked(mode, answer, telemetry, auditing(trail), policy, watching)
    decision, by, code = expected
    wait = telemetry.one("await_approval pay")
    call = telemetry.one(f"{'execute' if decision == 'approved' else 'refuse'}_tool pay")
    [event] = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    for carried in (wait.attributes or {}, call.attributes or {}, event.attributes):
        found = [carried.get(name) for name in (names.TOOL_DECISION, names.APPROVAL_BY, names.REASON_CODE)]
        assert found == [decision, by, code]
    recorded = trail.one("decision")
    assert (recorded.fields["decision"], person_of(recorded), recorded.fields["reason_code"]) == expected
    [typed] = (each for each in watching.events if each.type == "tool_decided")
    assert (typed.decision, typed.by, typed.reason_code) == expected
    [waited] = telemetry.metric(names.APPROVAL_WAIT.name)
    assert (waited.attributes, waited.count) == ({**LABELS, names.TOOL_DECISION: decision}, 1)
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_the_span_of_the_wait_is_a_child_of_the_call(mode: str, telemetry: Telemetry) -> None:
    asked(mode, Approve(), telemetry)
    wait, call = telemetry.one("await_approval pay"), telemetry.one("execute_tool pay")
    assert wait.parent is not None
    assert wait.parent.span_id == context_of(call).span_id
    assert (wait.start_time or 0) >= (call.start_time or 0)


@pytest.mark.parametrize("mode", MODES)
def test_the_intent_is_on_record_before_anybody_is_asked(mode: str, telemetry: Telemetry) -> None:
    trail, watching = KeptTrail(), Watching()
    seen: list[Any] = []

    def ask(request: ApprovalRequest) -> Approve:
        seen.append([word_of(each) for each in trail.drafts])
        seen.append([each for each in watching.types if each.startswith("tool")])
        seen.append([each.name for each in telemetry.events])
        return Approve()

    asked(mode, ask, telemetry, auditing(trail), watching)
    assert seen == [["intent pay"], ["tool_intended"], [names.TOOL_INTENT_EVENT.name]]
    assert trail.waits == 1


@pytest.mark.parametrize("mode", MODES)
def test_each_use_of_a_standing_approval_is_on_record_and_has_no_series_of_its_own(
    mode: str, telemetry: Telemetry
) -> None:
    trail = KeptTrail()
    calls = [ToolCall("pay", {}, id=f"p{number}") for number in range(3)]
    asked(mode, Approve(by="ana", scope="tool"), telemetry, auditing(trail), turns=calls)
    codes = [
        (each.fields["decision"], person_of(each), each.fields.get("reason_code")) for each in trail.of("decision")
    ]
    assert codes == [("approved", "ana", None), *[("approved", "ana", "approval:p0")] * 2]
    spans = telemetry.named("execute_tool pay")
    assert [(each.attributes or {}).get(names.REASON_CODE) for each in spans] == [None, "approval:p0", "approval:p0"]
    points = telemetry.metric(names.TOOL_DECISIONS.name)
    assert {point.attributes.get(names.REASON_CODE): point.value for point in points} == {None: 1, "approval": 2}


def fail(secret: object) -> Any:
    raise LookupError(f"{MARKER} {secret}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "answer",
    [
        Approve(arguments={"secret": MARKER * 2}),
        Approve(arguments={MARKER: MARKER}),
        Reject(MARKER),
        Undecided(),
        MARKER,
        fail,
    ],
    ids=["edited", "invalid", "rejected", "pending", "nonsense", "raises"],
)
def test_no_argument_reason_or_error_of_an_approval_is_exported_or_logged(
    mode: str, answer: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    @tool(requires_approval=fail)
    def guarded(secret: str) -> str:
        """Never shown."""
        return secret

    class Demanding(Advisor):
        name, order = "demanding", 500

        async def advise_tool(self, call: Any, call_next: Any) -> Any:
            return await call_next(call.requiring_approval(MARKER, code="rule-7").replace(intent=MARKER))

    with Wiretap(caplog, capsys) as wiretap:
        ask = answer if callable(answer) else lambda request: answer
        client = ChatClient(
            ScriptedChatModel([[ToolCall("guarded", SECRET, id="1"), ToolCall("pay", SECRET, id="2")], "x"]),
            tools=[guarded, pay],
            advisors=[Demanding(), ApprovalAdvisor(ask)],
            telemetry=wiretap.telemetry.options,
        )
        response = wiretap.run(client.prompt("?"), mode)
        assert MARKER not in repr(response.pending)
        assert_consistent(wiretap.telemetry)
        wiretap.check()


@tool(requires_approval=True)
def pay_out(amount: int) -> str:
    """Pay an amount."""
    return "paid"


def edited_live(mode: str, settings: dict[str, Any]) -> None:
    """Have an approver change the arguments while the run waits."""
    approver = ApprovalAdvisor(lambda request: Approve(arguments={"amount": 7}))
    client = ChatClient(ScriptedChatModel([ToolCall("pay_out", {"amount": 5}, id="p"), "done"]), **settings)
    run(mode, client.prompt("?", advisors=[approver]))


def edited_later(mode: str, settings: dict[str, Any]) -> None:
    """Resume a run with changed arguments."""
    plain = {name: each for name, each in settings.items() if name == "tools"}
    response = run(
        mode, ChatClient(ScriptedChatModel([ToolCall("pay_out", {"amount": 5}, id="p"), "done"]), **plain).prompt("?")
    )
    assert response.state is not None
    run(mode, ChatClient(ScriptedChatModel(["done"]), **settings).resume(response.state, {"p": EDITED}))


def edited_by_driver(mode: str, settings: dict[str, Any]) -> None:
    """Approve a call with changed arguments in a run that the caller drives."""
    driven = (
        ChatClient(ScriptedChatModel([ToolCall("pay_out", {"amount": 5}, id="p"), "done"]), **settings)
        .prompt("?")
        .start()
    )
    while step := driven.next():
        if isinstance(step, ExecuteTools):
            step.approve("p", arguments={"amount": 7})
        driven.perform(step)


def changed_by_advisor(mode: str, settings: dict[str, Any]) -> None:
    """Have an advisor change the arguments."""

    class Less(Advisor):
        name, order = "less", 600

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return await call_next(call.replace(arguments={"amount": 7}))

    approver = ApprovalAdvisor(lambda request: Approve())
    client = ChatClient(ScriptedChatModel([ToolCall("pay_out", {"amount": 5}, id="p"), "done"]), **settings)
    run(mode, client.prompt("?", advisors=[approver, Less()]))


EDITED = Approve(arguments={"amount": 7})
WAYS = [edited_live, edited_later, edited_by_driver, changed_by_advisor]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS, ids=[each.__name__ for each in WAYS])
def test_the_intent_is_what_the_model_wants_and_the_decision_what_the_tool_runs_with(
    mode: str, way: Callable[[str, dict[str, Any]], None], tmp_path: Path
) -> None:
    telemetry, watching, store = Telemetry("SPAN_AND_EVENT"), Watching(), tmp_path / "audit.db"
    with AuditTrail(store) as trail:
        advisors = [AuditAdvisor(trail), watching]
        way(mode, {"tools": [pay_out], "advisors": advisors, "telemetry": telemetry.options})
    assert match(store, "p", '{"amount": 7}')
    assert not match(store, "p", '{"amount": 5}')
    assert match(store, "p", '{"amount": 5}', content="requested_arguments")
    assert not match(store, "p", '{"amount": 7}', content="requested_arguments")
    span = telemetry.one("execute_tool pay_out")
    assert json.loads(str((span.attributes or {})[names.TOOL_CALL_ARGUMENTS])) == {"amount": 7}
    [intent] = telemetry.events_named(names.TOOL_INTENT_EVENT.name)
    [decision] = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    assert [each.attributes[names.TOOL_CALL_ARGUMENTS] for each in (intent, decision)] == [{"amount": 5}, {"amount": 7}]
    typed = [each.arguments for each in watching.events if each.type in ("tool_intended", "tool_decided")]
    assert [json.loads(each or "") for each in typed] == [{"amount": 5}, {"amount": 7}]
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_the_decision_has_no_arguments_if_nobody_changed_them(mode: str) -> None:
    telemetry, watching = Telemetry("SPAN_AND_EVENT"), Watching()
    asked(mode, Approve(by="ana"), telemetry, watching)
    [decision] = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    assert names.TOOL_CALL_ARGUMENTS not in decision.attributes
    [typed] = (each for each in watching.events if each.type == "tool_decided")
    assert typed.arguments is None
