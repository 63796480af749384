"""The verdict of a policy about a tool call, as it is recorded."""

from __future__ import annotations

from typing import Final

from traced_tools.core.enums import Decision, PolicyDecision
from traced_tools.core.frozen import frozen

_BEFORE_POLICIES: Final = ("limited", "repeated", "unknown_tool", "invalid_arguments")
"""The decisions on calls that no policy decides about."""


@frozen
class PolicyVerdict:
    """What a policy decides about a tool call.

    Attributes:
        advisor: the name of the policy advisor.
        decision: what the policy decides: `allow`, `deny` or `require_approval`.
        reason_code: the id of the rule, `policy_default` or `policy_error`.
        policy_digest: the digest of the policy.
        rule: the id of the rule that decided, or whose predicate failed; None if no rule is for the call.
        becomes: of a policy that is only evaluated, what the decision on the call would be if the policy were enforced;
            None if there is no decision, and of a policy that is enforced.
        changes: of a policy that is only evaluated, whether that is another decision.
    """

    advisor: str
    decision: PolicyDecision
    reason_code: str
    policy_digest: str
    rule: str | None = None
    becomes: Decision | None = None
    changes: bool = False


def evaluation_fields(verdict: PolicyVerdict) -> dict[str, str]:
    """Return a verdict of a policy that is only evaluated, as the audit trail has it."""
    fields = {
        "advisor": verdict.advisor,
        "decision": verdict.decision,
        "reason_code": verdict.reason_code,
        "rule": verdict.rule,
        "policy_digest": verdict.policy_digest,
        "becomes": verdict.becomes,
    }
    return {name: value for name, value in fields.items() if value is not None}


def decision_with(
    policy: PolicyDecision, was: Decision, enforced: PolicyDecision | None, *, tool_asks: bool = False
) -> Decision:
    """Return the decision on a call if another policy were enforced.

    Args:
        policy: what the other policy decides.
        was: the decision on the call.
        enforced: what the enforced policy has decided; None if no policy has, such as about a call that another advisor
            has denied.
        tool_asks: whether the tool itself requires approval of each call, whatever a policy allows.
    """
    if tool_asks:
        policy = "require_approval" if policy == "allow" else policy
        enforced = "require_approval" if enforced == "allow" else enforced
    if policy == enforced:
        return was
    if policy == "deny":
        return was if was in _BEFORE_POLICIES else "denied"
    by_policy = was == "denied" and enforced is not None and enforced != "allow"
    if policy == "require_approval":
        return "pending" if was == "allowed" or by_policy else was
    needed_approval = enforced == "require_approval" and was in ("approved", "rejected", "pending")
    return "allowed" if by_policy or needed_approval else was
