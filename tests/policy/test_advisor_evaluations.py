"""Policies that are only evaluated: they change nothing, and their verdicts are recorded everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from tests.audit.draft_trails import KeptTrail, client_of
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.modes import MODES, run
from tests.observe.closed_list import assert_consistent
from tests.observe.runs import adds
from tests.sample_tools import add, fail
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    Approve,
    AuditAdvisor,
    ChatClient,
    ChatClientResponse,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    ToolResult,
    tool,
)
from traced_tools.core.enums import DECISIONS, Decision, PolicyDecision
from traced_tools.core.policy_verdict import decision_with
from traced_tools.observe import ToolDecided, names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

SECRET = "my mother's maiden name"
STRICT = Policy([Rule("small", then="allow", tool="add", where={"a": {"lt": 100}})])
LAX = Policy([Rule("large", then="deny", tool="add", where={"a": {"ge": 1000}})], default="allow")


def evaluated(policy: Policy, **settings: Any) -> PolicyAdvisor:
    return PolicyAdvisor(policy, evaluate_only=True, **settings)


def ask(mode: str, *advisors: Advisor, call: ToolCall, **client: Any) -> ChatClientResponse:
    settings = {"tools": [add, fail], "advisors": advisors, **client}
    return run(mode, ChatClient(ScriptedChatModel([call, "done"]), **settings).prompt("?"))


CALLS: dict[str, tuple[ToolCall, str | None, str, str]] = {
    "denied instead": (adds(500, 1), None, "deny", "denied"),
    "the same": (adds(5, 1), "small", "allow", "allowed"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [None, 505], ids=["around", "inside"])
@pytest.mark.parametrize(("call", "rule", "decision", "becomes"), CALLS.values(), ids=CALLS)
def test_the_verdict_is_recorded_beside_a_decision_that_it_does_not_change(
    mode: str, order: int | None, call: ToolCall, rule: str | None, decision: str, becomes: str
) -> None:
    telemetry, watching, trail = Telemetry(), Watching(), KeptTrail()
    audit: Any = AuditAdvisor(trail)  # type: ignore[arg-type]  # it stands for a trail
    advisors = [audit, evaluated(STRICT, order=order), PolicyAdvisor(LAX), watching]
    [result] = ask(mode, *advisors, call=call, telemetry=telemetry.options).tool_results
    assert (result.decision, result.reason_code, result.rule, result.outcome) == (
        *("allowed", "policy_default", None),
        "ok",
    )
    code, changes = rule or "policy_default", becomes != "allowed"
    [typed] = [each for each in watching.events if isinstance(each, ToolDecided)]
    [verdict] = typed.evaluated
    assert (verdict.advisor, verdict.decision, verdict.reason_code, verdict.rule, verdict.policy_digest) == (
        *("evaluated_policy", decision, code, rule),
        STRICT.digest,
    )
    assert (verdict.becomes, verdict.changes, typed.policy_digest) == (becomes, changes, LAX.digest)
    assert ToolDecided.model_validate_json(typed.model_dump_json()) == typed
    recorded = trail.one("decision").fields
    expected = {
        "advisor": "evaluated_policy",
        "decision": decision,
        "reason_code": code,
        "policy_digest": STRICT.digest,
    }
    expected |= {"becomes": becomes} | ({} if rule is None else {"rule": rule})
    assert (recorded["evaluated"], recorded["policy_digest"]) == ([expected], LAX.digest)
    span: Any = telemetry.one("execute_tool add").attributes
    [event] = telemetry.events_named(names.POLICY_EVALUATION_EVENT.name)
    for attributes in (span, event.attributes):
        assert attributes[names.POLICY_MODE] == "evaluated"
        assert attributes[names.EVALUATED_ADVISOR] == "evaluated_policy"
        assert attributes[names.EVALUATED_DECISION] == decision
        assert attributes[names.EVALUATED_CODE] == code
        assert attributes.get(names.EVALUATED_RULE) == rule
        assert attributes[names.EVALUATED_DIGEST] == STRICT.digest
        assert attributes[names.EVALUATED_BECOMES] == becomes
        assert attributes.get(names.EVALUATED_CHANGES, False) is changes
        assert attributes[names.TOOL_DECISION] == "allowed"
    assert span[names.POLICY_DIGEST] == LAX.digest
    [decided] = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    assert decided.attributes[names.POLICY_DIGEST] == LAX.digest
    [point] = telemetry.metric(names.POLICY_EVALUATIONS.name)
    labels = {
        names.EVALUATED_ADVISOR: "evaluated_policy",
        names.EVALUATED_DECISION: decision,
        names.EVALUATED_CODE: code,
    }
    labels |= {names.TOOL_NAME: "add", names.AGENT_NAME: "assistant"}
    labels |= ({} if rule is None else {names.EVALUATED_RULE: rule}) | (
        {names.EVALUATED_CHANGES: True} if changes else {}
    )
    assert (point.attributes, point.value) == (labels, 1)
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_the_enforced_policy_denies_is_evaluated_around_it_and_not_inside(mode: str) -> None:
    for order, becomes in ((None, ["allowed"]), (505, [])):
        watching = Watching()
        advisors = [evaluated(Policy([Rule("all", then="allow")]), order=order), PolicyAdvisor(STRICT), watching]
        [result] = ask(mode, *advisors, call=adds(500, 1)).tool_results
        assert (result.decision, result.advisor, result.reason_code) == ("denied", "policy", "policy_default")
        [typed] = [each for each in watching.events if isinstance(each, ToolDecided)]
        assert [each.becomes for each in typed.evaluated] == becomes


def raising(given: Any) -> Any:
    raise LookupError(SECRET)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["predicate", "resolver"])
def test_what_raises_in_a_policy_that_is_only_evaluated_refuses_nothing(
    mode: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    where: Any = raising if what == "predicate" else {"principal.team": {"eq": "finance"}}
    watching = Watching()
    advisor = evaluated(Policy([Rule("odd", then="allow", where=where)]), principal_attributes=raising)
    model = ScriptedChatModel([adds(1, 1), "done"])
    client = ChatClient(model, tools=[add], advisors=[advisor, watching])
    [result] = run(mode, client.prompt("?", principal="ana")).tool_results
    assert (result.decision, result.reason_code, result.outcome) == ("allowed", None, "ok")
    [typed] = [each for each in watching.events if isinstance(each, ToolDecided)]
    [verdict] = typed.evaluated
    assert (verdict.decision, verdict.reason_code, verdict.rule, verdict.becomes) == (
        *("deny", "policy_error", "odd"),
        "denied",
    )
    [said] = [each.getMessage() for each in caplog.records if each.name == "traced_tools.policy.advisor"]
    assert said.endswith("failed: LookupError; the call would be denied")
    assert SECRET not in caplog.text


class Changing(Advisor):
    """Changes the arguments of each call."""

    name = "changing"
    order = 600

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(arguments='{"a": 500, "b": 1}'))


@pytest.mark.parametrize("mode", MODES)
def test_the_last_arguments_are_evaluated_and_each_advisor_has_one_verdict(mode: str) -> None:
    telemetry, watching = Telemetry(), Watching()
    advisors = [evaluated(STRICT, name="strict"), evaluated(LAX, name="lax", order=506), Changing(), watching]
    ask(mode, *advisors, call=adds(5, 1), telemetry=telemetry.options)
    [typed] = [each for each in watching.events if isinstance(each, ToolDecided)]
    found = [(each.advisor, each.decision, each.becomes) for each in typed.evaluated]
    assert found == [("strict", "deny", "denied"), ("lax", "allow", "allowed")]
    assert (telemetry.one("execute_tool add").attributes or {})[names.EVALUATED_ADVISOR] == "lax"
    assert {
        each.attributes[names.EVALUATED_ADVISOR]: each.value for each in telemetry.metric(names.POLICY_EVALUATIONS.name)
    } == {
        "strict": 1,
        "lax": 1,
    }


@tool
def pay(a: int) -> str:
    """Pay."""
    return "paid"


@tool(requires_approval=True)
def refund(a: int) -> str:
    """Refund."""
    return "refunded"


ASKS = Policy([Rule("asks", then="require_approval")])
ALL = Policy([Rule("all", then="allow")])
NONE = Policy([Rule("none", then="deny")])
APPROVALS: dict[str, tuple[str, Policy | None, Policy, Any, Decision, Decision]] = {
    "approved for the policy": ("pay", ASKS, ALL, Approve(), "approved", "allowed"),
    "rejected for the policy": ("pay", ASKS, ALL, Reject("no"), "rejected", "allowed"),
    "pending for the policy": ("pay", ASKS, ALL, None, "pending", "allowed"),
    "approved for both": ("refund", ASKS, ALL, Approve(), "approved", "approved"),
    "approved for the tool": ("refund", ALL, ALL, Approve(), "approved", "approved"),
    "rejected for the tool": ("refund", ALL, ASKS, Reject("no"), "rejected", "rejected"),
    "pending for the tool": ("refund", None, ALL, None, "pending", "pending"),
    "denied, and the tool asks": ("refund", NONE, ALL, None, "denied", "pending"),
    "denied instead": ("pay", ASKS, NONE, Approve(), "approved", "denied"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "enforced", "other", "answer", "was", "becomes"), APPROVALS.values(), ids=APPROVALS)
def test_what_would_become_of_a_decision_counts_who_requires_approval(
    mode: str, name: str, enforced: Policy | None, other: Policy, answer: Any, was: str, becomes: str
) -> None:
    watching = Watching()
    advisors: list[Advisor] = [evaluated(other), watching]
    advisors += [] if enforced is None else [PolicyAdvisor(enforced)]
    advisors += [] if answer is None else [ApprovalAdvisor(lambda request: answer)]
    ask(mode, *advisors, call=ToolCall(name, {"a": 1}), tools=[pay, refund])
    typed = [each for each in watching.events if isinstance(each, ToolDecided)][-1]
    assert (typed.decision, [each.becomes for each in typed.evaluated]) == (was, [becomes])


def test_the_same_verdict_changes_nothing_and_no_verdict_changes_what_comes_before_policies() -> None:
    for was in DECISIONS:
        for each in get_args(PolicyDecision):
            assert decision_with(each, was, each) == was
            if was in ("limited", "repeated", "unknown_tool", "invalid_arguments"):
                assert decision_with(each, was, None) == was
    assert decision_with("allow", "denied", None) == "denied"  # by another advisor
    assert decision_with("require_approval", "denied", "deny") == "pending"
    assert decision_with("require_approval", "allowed", "allow") == "pending"


def test_an_evaluated_policy_has_a_name_and_an_order_of_its_own() -> None:
    advisor = evaluated(STRICT)
    assert (advisor.name, advisor.order < PolicyAdvisor(STRICT).order) == ("evaluated_policy", True)
    assert repr(advisor).endswith("only evaluated>")


def is_small(args: Mapping[str, Any]) -> bool:
    return bool(args["a"] < 100)


@pytest.mark.parametrize("mode", MODES)
def test_without_an_evaluated_policy_nothing_of_it_is_recorded(mode: str) -> None:
    telemetry, watching, trail = Telemetry(), Watching(), KeptTrail()
    audit: Any = AuditAdvisor(trail)  # type: ignore[arg-type]  # it stands for a trail
    policy = Policy([Rule("small", then="allow", where=is_small)])
    for call, span in ((adds(1, 1), "execute_tool add"), (adds(500, 1), "refuse_tool add")):
        ask(mode, audit, PolicyAdvisor(policy), watching, call=call, telemetry=telemetry.options)
        attributes = telemetry.one(span).attributes or {}
        assert attributes[names.POLICY_DIGEST] == policy.digest
        assert not {*names.EVALUATION_OF_POLICY} & {*attributes}
    assert [each.evaluated for each in watching.events if isinstance(each, ToolDecided)] == [(), ()]
    assert ["evaluated" in each.fields for each in trail.of("decision")] == [False, False]
    assert telemetry.events_named(names.POLICY_EVALUATION_EVENT.name) == []
    assert telemetry.metric(names.POLICY_EVALUATIONS.name) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("decision", [Approve(), Reject("Too much.")])
def test_a_decision_in_a_run_that_resumes_has_the_digest_of_the_policy_that_asked(mode: str, decision: Any) -> None:
    policy = Policy([Rule("ask_first", tool="add", then="require_approval")], default="allow")
    trail = KeptTrail()
    turns = [ToolCall("add", {"a": 1, "b": 2}, "c1"), "done"]
    client = client_of(trail, turns, PolicyAdvisor(policy))
    state = run(mode, client.prompt("1 + 2?")).state
    run(mode, client.resume(state, {"c1": decision}))
    decisions = trail.of("decision")
    assert [record.fields.get("policy_digest") for record in decisions] == [policy.digest] * 2
    assert [record.fields.get("rule") for record in decisions] == ["ask_first"] * 2
