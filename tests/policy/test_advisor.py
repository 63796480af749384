"""The policy advisor: what it decides about calls, in all modes, and what telemetry and the audit trail record."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tests.audit.draft_trails import KeptTrail
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
    AssistantMessage,
    AuditAdvisor,
    ChatClient,
    ChatClientResponse,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    ToolResult,
    UserMessage,
    tool,
)
from traced_tools.core import ToolAnnotations
from traced_tools.models import ChatResponse
from traced_tools.observe import ToolDecided, names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext

SMALL = Rule("small", then="allow", tool="add", where=lambda args: args["a"] < 100)
LARGE = Rule("large", then="deny", tool="add", reason="only small numbers")
EVEN = Rule("even", then="require_approval", tool="add", where=lambda args: args["a"] % 2 == 0)
SECRET = "my mother's maiden name"


def ask(mode: str, policy: Policy, *others: Advisor, call: ToolCall | None = None, **client: Any) -> ChatClientResponse:
    model = ScriptedChatModel([adds(1, 1) if call is None else call, "done"])
    settings = {"tools": [add, fail], "advisors": [*others, PolicyAdvisor(policy)], **client}
    return run(mode, ChatClient(model, **settings).prompt("?"))


def decided(result: ToolResult) -> tuple[str, str | None, str | None]:
    return result.decision, result.reason_code, result.advisor


@pytest.mark.parametrize("mode", MODES)
def test_the_first_rule_that_is_for_a_call_decides(mode: str) -> None:
    policy = Policy([SMALL, LARGE])
    (small,) = ask(mode, policy).tool_results
    (large,) = ask(mode, policy, call=adds(500, 1)).tool_results
    assert (decided(small), small.content) == (("allowed", "small", None), "2")
    assert (decided(large), large.outcome) == (("denied", "large", "policy"), None)
    assert large.content == "The call was not run: only small numbers"


@pytest.mark.parametrize("mode", MODES)
def test_the_default_decides_about_a_call_that_no_rule_is_for(mode: str) -> None:
    (refused,) = ask(mode, Policy([SMALL]), call=ToolCall("fail")).tool_results
    assert decided(refused) == ("denied", "policy_default", "policy")
    assert refused.content == "The call was not run: the policy does not allow it"
    (ran,) = ask(mode, Policy([LARGE], default="allow"), call=ToolCall("fail")).tool_results
    assert (decided(ran), ran.outcome) == (("allowed", "policy_default", None), "error")


@pytest.mark.parametrize("mode", MODES)
def test_a_predicate_that_fails_denies_the_call_and_its_text_is_not_logged(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(args: Mapping[str, Any]) -> bool:
        raise LookupError(SECRET)

    rule = Rule("broken", then="allow", where=broken)
    (result,) = ask(mode, Policy([rule], default="allow")).tool_results
    assert decided(result) == ("denied", "policy_error", "policy")
    (record,) = [each for each in caplog.records if each.name == "traced_tools.policy.advisor"]
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "policy: the predicate of rule broken failed: LookupError; the call is denied"
    assert SECRET not in caplog.text + result.content + repr(result)


@pytest.mark.parametrize("answer", [None, 1, "yes", []], ids=repr)
def test_a_predicate_that_returns_no_bool_denies_the_call(answer: Any) -> None:
    rule = Rule("odd", then="allow", where=lambda args: answer)
    assert decided(ask("call", Policy([rule])).tool_results[0]) == ("denied", "policy_error", "policy")


@pytest.mark.parametrize("mode", MODES)
def test_a_predicate_may_be_async(mode: str) -> None:
    async def is_small(args: Mapping[str, Any]) -> bool:
        await asyncio.sleep(0)
        return bool(args["a"] < 100)

    (result,) = ask(mode, Policy([Rule("small", then="allow", where=is_small)])).tool_results
    assert decided(result) == ("allowed", "small", None)


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_predicate_runs_where_the_run_is(mode: str) -> None:
    threads: list[threading.Thread] = []

    def is_small(args: Mapping[str, Any]) -> bool:
        threads.append(threading.current_thread())
        return True

    ask(mode, Policy([Rule("small", then="allow", where=is_small)]))
    assert threads == [threading.current_thread()]


@pytest.mark.parametrize("mode", MODES)
def test_rules_read_the_agent_and_the_attributes_of_the_run(mode: str) -> None:
    policy = Policy([Rule("desk", then="allow", agent="desk-*", attributes={"tenant": ["acme", "globex"]})])
    seen = [
        ask(mode, policy, name=name, attributes={"tenant": tenant}).tool_results[0].decision
        for name, tenant in [("desk-1", "globex"), ("desk-1", "other"), ("lab", "acme")]
    ]
    assert seen == ["allowed", "denied", "denied"]


@pytest.mark.parametrize("mode", MODES)
def test_rules_read_what_the_author_says_about_a_tool(mode: str) -> None:
    @tool(annotations=ToolAnnotations(read_only=True))
    def look(a: int) -> str:
        """Look."""
        return "seen"

    policy = Policy([Rule("reads", then="allow", annotations={"read_only": True})])
    calls = [ToolCall("look", {"a": 1}), adds(1, 1)]
    client = ChatClient(ScriptedChatModel([calls, "done"]), tools=[look, add], advisors=[PolicyAdvisor(policy)])
    seen, other = run(mode, client.prompt("?")).tool_results
    assert decided(seen) == ("allowed", "reads", None)
    assert decided(other) == ("denied", "policy_default", "policy")


# Approval.


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_requires_approval_waits_for_it(mode: str) -> None:
    policy = Policy([EVEN], default="allow")
    [even] = ask(mode, policy, call=adds(2, 1)).pending
    assert (even.tool, even.rule, even.reason) == ("add", "even", "the policy requires approval")
    assert ask(mode, policy).tool_results[0].decision == "allowed"


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_no_rule_is_for_requires_approval_by_default(mode: str) -> None:
    policy = Policy([LARGE], default="require_approval")
    [waiting] = ask(mode, policy, call=ToolCall("fail")).pending
    assert (waiting.tool, waiting.rule, waiting.reason) == ("fail", "policy_default", "the policy requires approval")
    approver = ApprovalAdvisor(lambda request: Approve(by="ana"))
    (ran,) = ask(mode, policy, approver, call=ToolCall("fail")).tool_results
    assert (decided(ran), ran.by, ran.outcome) == (("approved", "policy_default", None), "ana", "error")
    (refused,) = ask(mode, policy, approver).tool_results
    assert decided(refused) == ("denied", "large", "policy")


def test_a_call_that_was_approved_runs_with_the_rule_as_its_reason_code() -> None:
    model = ScriptedChatModel([[adds(2, 1), adds(500, 1)], "done"])
    policy = PolicyAdvisor(Policy([Rule("large", then="deny", where=lambda args: args["a"] > 100), EVEN]))
    driven = ChatClient(model, tools=[add], advisors=[policy]).prompt("?").start()
    while step := driven.next():
        if isinstance(step, ExecuteTools):
            for call in step.calls:
                step.approve(call.id or "", by="ana")
        driven.perform(step)
    even, large = driven.response.tool_results
    assert (decided(even), even.by) == (("approved", "even", None), "ana")
    assert decided(large) == ("denied", "large", "policy")  # no approval overrules a policy that denies


# Without a loop.


@pytest.mark.parametrize("how", ["execute_tool_calls", "aexecute_tool_calls"])
def test_a_policy_decides_about_calls_that_are_executed_by_hand(how: str) -> None:
    calls = tuple(adds(a, 1).replace(id=f"call_{a}") for a in (1, 500, 4))
    response = ChatResponse(AssistantMessage("", tool_calls=calls))
    settings: dict[str, Any] = {"tools": [add], "advisors": [PolicyAdvisor(Policy([EVEN, SMALL, LARGE]))]}
    done = getattr(ToolCallingManager(), how)(
        [UserMessage("?")], response, decisions={"call_4": Approve(by="ana")}, **settings
    )
    results = (asyncio.run(done) if asyncio.iscoroutine(done) else done).results
    assert [decided(each) for each in results] == [
        ("allowed", "small", None),
        ("pending", "even", None),
        ("approved", "even", None),
    ]
    assert results[2].by == "ana"


# Advisors around and inside.


class Changing(Advisor):
    """Changes the arguments of each call."""

    name = "changing"

    def __init__(self, order: int, arguments: str) -> None:
        self.order = order
        self._arguments = arguments

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(arguments=self._arguments))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [405, 500], ids=["around the policy", "inside the policy"])
def test_arguments_that_an_advisor_changes_do_not_pass_the_policy(mode: str, order: int) -> None:
    (result,) = ask(mode, Policy([SMALL, LARGE]), Changing(order, '{"a": 500, "b": 1}')).tool_results
    assert decided(result) == ("denied", "large", "policy")
    (result,) = ask(mode, Policy([SMALL, LARGE]), Changing(order, '{"a": 50, "b": 1}')).tool_results
    assert (decided(result), result.content) == (("allowed", "small", None), "51")


def test_every_policy_around_a_change_decides_again_and_the_innermost_rule_is_the_reason_code() -> None:
    seen: list[tuple[str, int]] = []

    def noting(name: str) -> PolicyAdvisor:
        def note(args: Mapping[str, Any]) -> bool:
            seen.append((name, args["a"]))
            return True

        return PolicyAdvisor(Policy([Rule(name, then="allow", where=note)]), name=name)

    changing = (Changing(500, '{"a": 2, "b": 1}'), Changing(600, '{"a": 3, "b": 1}'))
    model = ScriptedChatModel([adds(1, 1), "done"])
    client = ChatClient(model, tools=[add], advisors=[noting("first"), noting("second"), *changing])
    (result,) = client.prompt("?").call().tool_results
    assert seen == [(name, a) for a in (1, 2, 3) for name in ("first", "second")]
    assert (result.reason_code, result.content) == ("second", "4")


# What is recorded.


@pytest.mark.parametrize("mode", MODES)
def test_spans_events_metric_and_audit_have_the_rule_of_allowed_and_denied_calls(mode: str) -> None:
    telemetry, watching, trail = Telemetry(), Watching(), KeptTrail()
    model = ScriptedChatModel([[adds(1, 1), adds(500, 1)], "done"])
    audit: Any = AuditAdvisor(trail)  # type: ignore[arg-type]  # it stands for a trail
    advisors = [audit, PolicyAdvisor(Policy([SMALL, LARGE])), watching]
    run(mode, ChatClient(model, tools=[add], advisors=advisors, telemetry=telemetry.options).prompt("?"))
    expected = {"small": ("allowed", None), "large": ("denied", "policy")}
    typed = {
        each.reason_code: (each.decision, each.advisor) for each in watching.events if isinstance(each, ToolDecided)
    }
    recorded = {each.fields["reason_code"]: each.fields for each in trail.of("decision")}
    assert typed == expected
    assert {code: (each["decision"], each.get("advisor")) for code, each in recorded.items()} == expected
    for attributes in (
        [each.attributes for each in telemetry.events_named(names.TOOL_DECISION_EVENT.name)],
        [each.attributes for each in telemetry.metric(names.TOOL_DECISIONS.name)],
        [telemetry.one(f"{span} add").attributes for span in ("execute_tool", "refuse_tool")],
    ):
        found: Any = attributes
        assert {
            each[names.REASON_CODE]: (each[names.TOOL_DECISION], each.get(names.ADVISOR_NAME)) for each in found
        } == expected
    assert_consistent(telemetry)


def failing(args: Mapping[str, Any]) -> bool:
    raise LookupError(SECRET)


RULES = {
    "allowed": (SMALL, ("allowed", "small", "small")),
    "denied": (Rule("no", then="deny"), ("denied", "no", "no")),
    "failed": (Rule("odd", then="allow", where=failing), ("denied", "policy_error", "odd")),
    "approved with a code": (Rule("ask", then="require_approval"), ("approved", "ticket", "ask")),
    "default": (LARGE, ("allowed", "policy_default", None)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("rule", "expected"), RULES.values(), ids=RULES)
def test_the_rule_is_recorded_beside_the_reason_code(mode: str, rule: Rule, expected: Any) -> None:
    telemetry, watching, trail = Telemetry(), Watching(), KeptTrail()
    audit: Any = AuditAdvisor(trail)  # type: ignore[arg-type]  # it stands for a trail
    approver = ApprovalAdvisor(lambda request: Approve(code="ticket"))
    call = ToolCall("fail") if expected[2] is None else adds(1, 1)
    response = ask(
        mode, Policy([rule], default="allow"), audit, watching, approver, call=call, telemetry=telemetry.options
    )
    [result] = response.tool_results
    assert (result.decision, result.reason_code, result.rule) == expected
    [typed] = [each for each in watching.events if isinstance(each, ToolDecided)]
    assert (typed.decision, typed.reason_code, typed.rule) == expected
    recorded = trail.one("decision").fields
    assert (recorded["decision"], recorded["reason_code"], recorded.get("rule")) == expected
    span = telemetry.one(f"{'refuse_tool' if expected[0] == 'denied' else 'execute_tool'} {call.name}")
    [event] = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    [point] = telemetry.metric(names.TOOL_DECISIONS.name)
    for each in (span, event, point):
        found: Any = each.attributes
        carried = found[names.TOOL_DECISION], found[names.REASON_CODE], found.get(names.POLICY_RULE)
        assert carried == expected
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("answer", ["live", "later"])
def test_a_rejection_has_the_rule_and_the_code_of_the_advisor_that_requires_approval(mode: str, answer: str) -> None:
    policy = Policy([EVEN])
    approvers = [ApprovalAdvisor(lambda request: Reject("no"))] if answer == "live" else []
    response = ask(mode, policy, *approvers, call=ToolCall("add", {"a": 2, "b": 1}, id="a"))
    if response.state is not None:
        client = ChatClient(ScriptedChatModel(["done"]), tools=[add, fail], advisors=[PolicyAdvisor(policy)])
        response = run(mode, client.resume(response.state, {"a": Reject("no")}))
    [result] = response.tool_results
    assert (result.decision, result.reason_code, result.rule) == ("rejected", "even", "even")


@pytest.mark.parametrize("mode", MODES)
def test_a_rule_that_allows_a_call_does_not_require_approval_of_it(mode: str) -> None:
    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    policy = Policy([Rule("pays", then="allow", tool="pay")])
    response = ask(mode, policy, call=ToolCall("pay", {"amount": 5}), tools=[pay])
    [waits] = response.pending
    assert (waits.rule, waits.reason, waits.policy_rule) == (None, None, "pays")
