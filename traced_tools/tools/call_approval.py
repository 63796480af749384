"""The approval of one tool call: whether the call requires one, who is asked, and for which arguments it counts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from traced_tools.core.approval import Approve, Denied, PendingCall, Reject, Undecided
from traced_tools.core.conversation import NOT_RUN
from traced_tools.core.messages import ToolCall
from traced_tools.core.tool_result import ToolResult
from traced_tools.flow.steps import AwaitOthers, perform
from traced_tools.observe.failures import error_type
from traced_tools.observe.observations import observe_approval, observe_hook
from traced_tools.tools.approval import Approval, ApprovalRequest
from traced_tools.tools.refusals import rejected_result

if TYPE_CHECKING:
    from traced_tools.core.tool_definition import ToolCallback
    from traced_tools.observe.time_ledger import TimeLedger
    from traced_tools.run.context import RunContext
    from traced_tools.tools.invocation import ToolInvocation

_LOG: Final = logging.getLogger(__name__)


@runtime_checkable
class WaitingTool(Protocol):
    """A tool whose calls wait in a framework, which asks a person and goes on in another run."""

    def framework_decision(self, pending: PendingCall) -> Approve | Reject | None:
        """Return what the person has decided about a call that waits; None if nobody has decided yet."""


class CallApproval:
    """The approval of one tool call, from the question whether the call requires one to the decision.

    Args:
        run: the run that the call belongs to; its approvers are asked.
        tool: the tool; None if the request does not contain it.
        ledger: books the time of the approvers; None if the time of the call is not separated.
        approved: the approval that the call already has; None if it has none.
        may_run: for a call that waits until all calls of the answer are decided, returns whether they are; else None.

    Attributes:
        granted: the approval that the call has; None if it has none yet.
        edit: the approval with other arguments than those of the model, which the call gets instead; None if there is
            none.
        bound: the canonical arguments of the call before any advisor; None until the advisors see it.
        is_held: whether the call is decided and waits for the other calls of the answer.
        may_run: as above.
    """

    granted: Approval | None = None
    edit: Approval | None = None
    bound: str | None = None
    is_held = False

    def __init__(
        self,
        run: RunContext,
        tool: ToolCallback | None,
        ledger: TimeLedger | None,
        approved: Approval | None = None,
        may_run: Callable[[], bool] | None = None,
    ) -> None:
        self._run = run
        self._tool = tool
        self._ledger = ledger
        self._decisions: dict[str, Approval | ToolResult] = {}
        self.may_run: Final = may_run
        if approved is None or approved.instead is None:
            self.granted = approved
        else:
            self.edit = approved

    def begin(self, arguments: str) -> None:
        """Set the canonical arguments of the call before any advisor, which an approval without arguments is for."""
        self.bound = arguments
        if self.granted is not None and self.granted.arguments is None:
            self.granted = replace(self.granted, arguments=arguments)

    def covers(self, arguments: str) -> bool:
        """Return whether the call has an approval for these canonical arguments."""
        return self.granted is not None and self.granted.arguments == arguments

    def take_edit(self) -> str | None:
        """Approve the call with the arguments of `edit` from its beginning, and return them; None if there are none."""
        if self.edit is None:
            return None
        self.granted, self.edit = self.edit, None
        return self.granted.instead

    def edited_arguments(self, source: str) -> str | None:
        """Return the approved arguments if they are others than those of the model; else None.

        Args:
            source: the text that the arguments of the call were bound from at first.
        """
        granted = self.granted
        if granted is None or granted.instead is None:
            return None
        # the source is the edit if the arguments of the model were invalid, and `bound` is then not the model's
        return granted.arguments if source is granted.instead or granted.arguments != self.bound else None

    async def decide(self, call: ToolInvocation) -> Approval | ToolResult | None:
        """Return what is decided now: an approval, or the result if the call may not run; None if nothing must be.

        If the approval has arguments in `instead`, the caller validates them and sets `granted` for them.
        """
        if self.covers(call.arguments):
            return None
        if self.edit is None and call.approval_reason is None:
            requirement = call.metadata.requires_approval
            if requirement is False or (requirement is not True and not await _is_required(requirement, call)):
                return None
        decision = self.edit or self._decisions.get(call.arguments) or self._resumed(call, await self._ask(call))
        self._decisions[call.arguments] = decision  # an advisor that runs the call again doesn't ask again
        if isinstance(decision, Approval):
            self.granted = decision
        return decision

    async def wait_for_others(self, call: ToolInvocation) -> ToolResult | None:
        """Wait until the other calls of the answer are decided or wait; return the result if any of them waits."""
        assert self.may_run is not None
        self.is_held = True  # before the step, because `may_run` of the other calls counts this call as decided
        await AwaitOthers()
        if self.may_run():
            return None
        return _pending_result(self.request(call), call.code, "it waits until other calls are decided.")

    async def _ask(self, call: ToolInvocation) -> Approval | ToolResult:
        """Ask the approvers, the outermost first, until one decides; return the result if the call may not run."""
        request = self.request(call)
        if not self._run.approvers:
            return _pending_result(request, call.code)
        assert self._tool is not None
        telemetry, ledger = self._run.telemetry, self._ledger
        with observe_approval(self._run, self._tool, call.id, call.iteration, ledger) as waiting:
            for approver in self._run.approvers:
                place = approver.name, approver.order, call.iteration
                with observe_hook(telemetry, "decide_approval", *place, ledger=ledger, kind="approval"):
                    answer: Any = approver.decide_approval(request)
                    if hasattr(answer, "__await__"):
                        answer = await answer
                if not isinstance(answer, Approve | Reject | Undecided | Denied):
                    must = "an Approve, a Reject, an Undecided or a Denied"
                    raise TypeError(
                        f"decide_approval of {approver.name} must return {must}, not {type(answer).__name__}"
                    )
                if not isinstance(answer, Undecided):
                    break
            if isinstance(answer, Approve):
                waiting.decided("approved", answer.by, answer.code or call.code)
                return _granted(call, answer)
            if isinstance(answer, Undecided):
                result = _pending_result(request, call.code)
            elif isinstance(answer, Reject):
                result = rejected_result(call.id, call.name, answer, call.code, call.rule)
            else:
                result = call.denied(answer.reason, code=answer.code, rule=call.rule)
            waiting.decided(result.decision, result.by, result.reason_code)
        return result if isinstance(answer, Undecided) else replace(result, advisor=approver.name)

    def _resumed(self, call: ToolInvocation, decision: Approval | ToolResult) -> Approval | ToolResult:
        """Return a decision, or that of the framework if the call would wait and has waited there in another run."""
        if isinstance(decision, Approval) or decision.pending is None or not isinstance(self._tool, WaitingTool):
            return decision
        answer = self._tool.framework_decision(decision.pending)
        if isinstance(answer, Reject):
            return rejected_result(call.id, call.name, answer, call.code, call.rule)
        return decision if answer is None else _granted(call, answer)

    def request(self, call: ToolInvocation) -> ApprovalRequest:
        """Return the request for approval of the call, as it has passed the advisors."""
        return ApprovalRequest(
            call_id=call.id,
            tool=call.name,
            arguments=call.arguments,
            bound=self.bound,
            definition=call.definition,
            source=call.metadata.source,
            reason=call.approval_reason,
            rule=call.approval_code,
            policy_rule=call.rule,
            policy=call.policy,
            intent=call.intent,
            requested_at=time(),
            held=self.is_held and not self.covers(call.arguments),
            run=self._run,
        )


async def _is_required(requirement: Callable[..., object], call: ToolInvocation) -> bool:
    """Ask the tool's own function whether the call requires approval; a failure of the function means that it does."""
    try:
        return await perform(requirement, call.args) is not False
    except Exception as error:
        kind = error_type(error)  # its text may quote arguments
        _LOG.warning("requires_approval of the tool %s failed: %s; the call requires approval", call.name, kind)
        return True


def _granted(call: ToolInvocation, answer: Approve) -> Approval:
    instead = None if answer.arguments is None else ToolCall(call.name, answer.arguments).arguments
    return Approval(answer.by, answer.code, call.arguments, instead)


def _pending_result(request: ApprovalRequest, code: str | None, reason: str = "it waits for approval.") -> ToolResult:
    return ToolResult(
        request.call_id,
        request.tool,
        f"{NOT_RUN}{reason}",
        decision="pending",
        reason_code=code,
        rule=request.policy_rule,
        pending=request.pending(),
    )
