"""The advisor that lets a policy decide about tool calls."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypedDict
from weakref import WeakKeyDictionary

from pydantic_core import from_json, to_json

from traced_tools.core.checks import expect, expect_callable, expect_whole
from traced_tools.core.enums import LOCAL
from traced_tools.core.part_check import PartCheck
from traced_tools.core.policy_verdict import PolicyVerdict
from traced_tools.core.tool_definition import own_name_of
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import ConfigurationError
from traced_tools.flow.call_once import CallFailedError, CallOnce
from traced_tools.flow.steps import perform
from traced_tools.loop.advisor import TOOL_LOOP_ORDER, Advisor
from traced_tools.observe.failures import error_type, type_name
from traced_tools.policy.conditions import NoValueError
from traced_tools.policy.policy import Policy, Verdict
from traced_tools.policy.rule import CallFacts
from traced_tools.run.context import RunContext, current_run
from traced_tools.tools.invocation import CallNext, ToolInvocation
from traced_tools.tools.toolset import SourceNames

_LOG = logging.getLogger(__name__)
_NOT_ALLOWED = "the policy does not allow it"
_REQUIRED = "the policy requires approval"
_ENFORCED: Final = ("policy", TOOL_LOOP_ORDER + 110)
_EVALUATED: Final = ("evaluated_policy", TOOL_LOOP_ORDER + 105)
"""The default names and orders."""

PrincipalAttributes = Callable[[str], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""Takes the principal of a run; returns its attributes, a mapping of names to JSON values."""


class _Why(TypedDict):
    code: str
    rule: str | None
    policy: PolicyVerdict


class PolicyAdvisor(Advisor):
    """Lets a policy allow or deny each tool call before its tool runs, or require approval of it.

    The policy reads the validated arguments, as the tool gets them. If an inner advisor changes the arguments, the
    policy decides about the new ones before the call goes on. The policy does not see a call that an advisor around
    this one answers itself.

    The reason code of each call that the policy decides is the id of the rule; `policy_default` if no rule is for the
    call; `policy_error` if a predicate failed. Spans, events, the decisions metric and the audit trail record it. They
    also record the id of the rule that decided, or whose predicate failed, which stays if somebody who approves the
    call gives another reason code. The model reads the rule's `reason` of a denied call.

    A policy that is only evaluated refuses no call, requires no approval, and changes neither the reason code nor the
    rule of a decision. Its verdict about each call is recorded, with what would become of the decision. By default, the
    advisor is around the one whose policy is enforced: it has verdicts about the calls that the latter denies, too.

    If a rule spells out the name of a tool and no tool of its source has that name, the log says so once, when the run
    begins: the rule is for no call of such a tool.

    Args:
        policy: the policy.
        evaluate_only: whether the policy is only evaluated, and not enforced.
        principal_attributes: a plain or async function that returns the attributes of a principal, a mapping of names
            to JSON values. It is called at most once in a run, when a rule needs them. If it raises, or returns
            anything else, the call is denied. Runs without a principal have no attributes.
        name: the advisor's name in telemetry, by default `policy`, or `evaluated_policy` with `evaluate_only`. It is a
            metric label, so use a fixed name.
        order: the position among the advisors, by default next inside the audit advisor, which records the intent
            before the policy decides; with `evaluate_only`, between the audit advisor and the other policies.

    Raises:
        TypeError: if an argument has a wrong type.
        ConfigurationError: if a rule has a condition on attributes of the principal, and no function returns them.

    Attributes:
        policy: the policy.
        evaluate_only: whether the policy is only evaluated.
    """

    checks_changes = True

    def __init__(
        self,
        policy: Policy,
        *,
        evaluate_only: bool = False,
        principal_attributes: PrincipalAttributes | None = None,
        name: str | None = None,
        order: int | None = None,
    ) -> None:
        expect("policy", policy, Policy, "a Policy, such as Policy([Rule(...)], default='deny')")
        expect("evaluate_only", evaluate_only, bool, "True or False")
        expect_callable("principal_attributes", principal_attributes)
        expect("name", name, (str, type(None)), "a str")
        if order is not None:
            expect_whole("order", order, -sys.maxsize)
        if policy.reads_principal and principal_attributes is None:
            raise ConfigurationError(
                "the policy has conditions on attributes of the principal: pass principal_attributes=, a function that "
                "returns them"
            )
        default_name, default_order = _EVALUATED if evaluate_only else _ENFORCED
        self.name: str = default_name if name is None else name
        self.order: int = default_order if order is None else order
        self.policy = policy
        self.evaluate_only: Final = evaluate_only
        self.policy_digest: str | None = None if evaluate_only else policy.digest
        self._attributes_of = principal_attributes
        self._read: WeakKeyDictionary[RunContext, CallOnce[Mapping[str, Any]]] = WeakKeyDictionary()

    def checks(self) -> Iterable[PartCheck]:
        """Return the check that the file of the policy is as it was loaded."""
        return () if self.policy.path is None else (PartCheck(f"policy: {self.name}", self._check_file),)

    async def _check_file(self) -> None:
        await perform(self.policy.check_file)

    def review_tools(self, run: RunContext, tools: Mapping[str, SourceNames]) -> None:
        """Log the names in rules that no tool has."""
        for missing in self.policy.new_missing_names(run.agent, run.principal, run.attributes, tools):
            if run.resolver_fallback is None or LOCAL not in missing.sources:  # a resolver has further local tools
                _LOG.warning("%s: %s", self.name, missing)

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Pass the call on, or deny it, as the policy decides."""
        verdict = await self.policy.decide(self._facts(call))
        if verdict.error is not None:
            self._log_error(verdict)
        rule = None if verdict.rule is None else verdict.rule.id
        recorded = PolicyVerdict(self.name, verdict.decision, verdict.code, self.policy.digest, rule)
        if self.evaluate_only:
            return await call_next(call.replace(evaluated=recorded))
        why: _Why = {"code": verdict.code, "rule": rule, "policy": recorded}
        if verdict.decision == "deny":
            return call.denied(verdict.reason or _NOT_ALLOWED, **why)
        if verdict.decision == "require_approval":
            return await call_next(call.requiring_approval(verdict.reason or _REQUIRED, **why))
        return await call_next(call.replace(**why))

    def _log_error(self, verdict: Verdict) -> None:
        rule, error = verdict.rule, verdict.error
        assert rule is not None and error is not None
        kind = error_type(error)  # its text may quote arguments, or the principal
        problem = f"the predicate of rule {rule.id} failed: {kind}"
        if isinstance(error, CallFailedError):
            problem = f"principal_attributes, which rule {rule.id} needs, failed: {type_name(error.kind)}"
        elif isinstance(error, NoValueError):
            problem = f"rule {rule.id} compares a value that the call or its principal does not have"
        then = "would be" if self.evaluate_only else "is"
        _LOG.warning("%s: %s; the call %s denied", self.name, problem, then)

    def _facts(self, call: ToolInvocation) -> CallFacts:
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
            principal=run.principal,
            read_principal=partial(self._read_principal, run),
        )

    async def _read_principal(self, run: RunContext) -> Mapping[str, Any]:
        if run.principal is None:
            return {}
        if (step := self._read.get(run)) is None:
            assert self._attributes_of is not None
            step = self._read.setdefault(run, CallOnce(_as_json, self._attributes_of, run.principal))
        return await step

    def __repr__(self) -> str:
        evaluated = ", only evaluated" if self.evaluate_only else ""
        return f"<PolicyAdvisor {self.name!r}: {self.policy!r}, order {self.order}{evaluated}>"


def _as_json(attributes: Any) -> Mapping[str, Any]:
    """Return the attributes of a principal as a JSON object of its own, which the application cannot change."""
    expect("principal_attributes", attributes, Mapping, "a function that returns a mapping")
    # NaN, which JSON does not have, would meet no condition of a rule that denies
    value: dict[str, Any] = from_json(to_json(dict(attributes)), allow_inf_nan=False)
    return value
