"""The results of calls whose tool does not run, or does not finish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from traced_tools.core.approval import Denied, PendingCall, Reject
from traced_tools.core.checks import check_by, expect
from traced_tools.core.conversation import NOT_RUN, UNKNOWN_OUTCOME
from traced_tools.core.enums import SUPERSEDED
from traced_tools.core.messages import ToolCall, ToolResultPart, result_part_of_text
from traced_tools.core.tool_result import ToolResult
from traced_tools.observe.observations import observe_tool_call

if TYPE_CHECKING:
    from traced_tools.run.context import RunContext
    from traced_tools.tools.toolset import ToolSet


def denied_result(call_id: str, name: str, reason: str, code: str | None, by: str | None) -> ToolResult:
    """Return the result of a call that may not run; raises `TypeError` or `ValueError` for an invalid argument."""
    expect("reason", reason, str, "a str")
    expect("code", code, (str, type(None)), "a str or None")
    check_by(by)
    text = f"{NOT_RUN}{reason}"
    return ToolResult(call_id, name, text, decision="denied", reason_code=code, by=by)


def rejected_result(call_id: str, name: str, rejection: Reject, code: str | None, rule: str | None) -> ToolResult:
    """Return the result of a call that a person or service rejected.

    `code` is the reason code unless the rejection has one, `rule` the id of the policy's rule that is for the call.
    """
    text, by = f"{NOT_RUN}{rejection.reason}", rejection.by
    code = rejection.code or code
    return ToolResult(call_id, name, text, decision="rejected", reason_code=code, rule=rule, by=by)


def refuse_superseded(run: RunContext, calls: Sequence[ToolCall], tools: ToolSet) -> None:
    """Report the calls of an earlier run without a result, which no run can run any more.

    Args:
        run: the run in which the conversation goes on.
        calls: the calls.
        tools: the tools of the run.
    """
    reason = "the conversation went on without its result."
    for index, call in enumerate(calls):
        place, tool = (index, len(calls)), tools.by_name.get(call.name)
        with observe_tool_call(
            run, call, tool, 0, place, queued=0.0, may_refuse=False, refused=True, ledger=run.telemetry.ledger
        ) as observed:
            observed.decided(denied_result(call.id or "", call.name, reason, SUPERSEDED, None))


def ended_result(call: ToolCall, decision: Reject | Denied, pending: PendingCall | None) -> ToolResult:
    """Return the result of a call that a decision ends.

    Args:
        call: the call.
        decision: the decision. If the tool of the call has begun and waited, its outcome is unknown.
        pending: the call as it has waited, with the rule and the verdict of a policy that it waited under; None if it
            has not waited.
    """
    code, rule = (None, None) if pending is None else (pending.rule, pending.policy_rule)
    if isinstance(decision, Reject):
        result = rejected_result(call.id or "", call.name, decision, code, rule)
    else:
        result = replace(denied_result(call.id or "", call.name, decision.reason, decision.code, None), rule=rule)
    if pending is None:
        return result
    if pending.has_begun:
        why = "its agent waited" if pending.input is None else "it asked for input and did not get any"
        result = replace(result, content=f"{UNKNOWN_OUTCOME}{why}: {decision.reason}")
    return replace(result, policy=pending.policy)


def waiting_result(call: PendingCall) -> ToolResult:
    """Return the result of a call that has waited for input, and still waits."""
    text = f"{UNKNOWN_OUTCOME}it waits for input."
    rule, policy = call.policy_rule, call.policy
    return ToolResult(call.call_id, call.tool, text, decision="pending", rule=rule, policy=policy, pending=call)


def interrupted_result(call: ToolCall, *, has_begun: bool) -> ToolResultPart:
    """Return the result of a call whose run was interrupted: its outcome is unknown if its tool has begun."""
    text = f"{UNKNOWN_OUTCOME}the run was interrupted." if has_begun else f"{NOT_RUN}the run ended before."
    return result_part_of_text(call.id or "", call.name, text, is_error=True)
