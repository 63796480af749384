"""The advisor that lets a policy decide about tool calls."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping

from traced_tools.advisors.base import TOOL_LOOP_ORDER, Advisor
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.enums import LOCAL
from traced_tools.core.part_check import PartCheck
from traced_tools.core.tool_definition import own_name_of
from traced_tools.core.tool_result import ToolResult
from traced_tools.flow.steps import perform
from traced_tools.observe.failures import error_type
from traced_tools.policy.policy import Policy, Verdict
from traced_tools.policy.rule import CallFacts
from traced_tools.run.context import RunContext, current_run
from traced_tools.tools.invocation import CallNext, ToolInvocation
from traced_tools.tools.toolset import SourceNames

_LOG = logging.getLogger(__name__)
_NOT_ALLOWED = "the policy does not allow it"
_REQUIRED = "the policy requires approval"


class PolicyAdvisor(Advisor):
    """Lets a policy allow or deny each tool call before its tool runs, or require approval of it.

    The policy reads the validated arguments, as the tool gets them. If an inner advisor changes the arguments, the
    policy decides about the new ones before the call goes on. The policy does not see a call that an advisor around
    this one answers itself.

    The reason code of each call that the policy decides is the id of the rule; `policy_default` if no rule is for the
    call; `policy_error` if a predicate failed. Spans, events, the decisions metric and the audit trail record it. They
    also record the id of the rule that decided, or whose predicate failed, which stays if somebody who approves the
    call gives another reason code. The model reads the rule's `reason` of a denied call.

    If a rule spells out the name of a tool and no tool of its source has that name, the log says so once, when the run
    begins: the rule is for no call of such a tool.

    Args:
        policy: the policy.
        name: the advisor's name in telemetry. It is a metric label, so use a fixed name.
        order: the position among the advisors, by default next inside the audit advisor, which records the intent
            before the policy decides.

    Raises:
        TypeError: if an argument has a wrong type.

    Attributes:
        policy: the policy.
    """

    checks_changes = True

    def __init__(self, policy: Policy, *, name: str = "policy", order: int = TOOL_LOOP_ORDER + 110) -> None:
        expect("policy", policy, Policy, "a Policy, such as Policy([Rule(...)], default='deny')")
        expect("name", name, str, "a str")
        expect_whole("order", order, -sys.maxsize)
        self.name = name
        self.order = order
        self.policy = policy

    def checks(self) -> Iterable[PartCheck]:
        """Return the check that the file of the policy is as it was loaded."""
        return () if self.policy.path is None else (PartCheck(f"policy: {self.name}", self._check_file),)

    async def _check_file(self) -> None:
        await perform(self.policy.check_file)

    def review_tools(self, run: RunContext, tools: Mapping[str, SourceNames]) -> None:
        """Log the names in rules that no tool has."""
        for missing in self.policy.new_missing_names(run.agent, run.attributes, tools):
            if run.resolver_fallback is None or LOCAL not in missing.sources:  # a resolver has further local tools
                _LOG.warning("%s: %s", self.name, missing)

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Pass the call on, or deny it, as the policy decides."""
        verdict = await self.policy.decide(_facts(call))
        if verdict.error is not None:
            self._log_error(verdict)
        rule = None if verdict.rule is None else verdict.rule.id
        if verdict.decision == "deny":
            return call.denied(verdict.reason or _NOT_ALLOWED, code=verdict.code, rule=rule)
        if verdict.decision == "require_approval":
            return await call_next(call.requiring_approval(verdict.reason or _REQUIRED, code=verdict.code, rule=rule))
        return await call_next(call.replace(code=verdict.code, rule=rule))

    def _log_error(self, verdict: Verdict) -> None:
        assert verdict.rule is not None and verdict.error is not None
        kind = error_type(verdict.error)  # its text may quote arguments
        _LOG.warning("%s: the predicate of rule %s failed: %s; the call is denied", self.name, verdict.rule.id, kind)

    def __repr__(self) -> str:
        return f"<PolicyAdvisor {self.name!r}: {self.policy!r}, order {self.order}>"


def _facts(call: ToolInvocation) -> CallFacts:
    run = current_run()
    assert run is not None  # a tool is called in a run
    return CallFacts(
        tool=call.name,
        source=call.metadata.source,
        agent=run.agent,
        attributes=run.attributes,
        read_annotations=lambda: call.metadata.annotations,
        read_arguments=lambda: call.args,
        own_name=own_name_of(call.metadata),
    )
