"""The advisor that asks a person or service about tool calls that require approval."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic import Field

from traced_tools.core.approval import ApprovalAnswer, Approve, Denied, Reject, Undecided
from traced_tools.core.checks import expect, expect_callable, expect_positive, expect_whole
from traced_tools.core.enums import STANDING_APPROVAL
from traced_tools.core.messages import Value
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import definition_digest
from traced_tools.errors import ToolTimeout
from traced_tools.flow.attempt import Attempt
from traced_tools.flow.steps import Call, perform
from traced_tools.flow.workers import UnboundedPool, UsePool
from traced_tools.loop.advisor import TOOL_LOOP_ORDER, Advisor
from traced_tools.loop.state import AnyText
from traced_tools.observe.failures import error_type
from traced_tools.run.context import RunContext
from traced_tools.tools.approval import ApprovalRequest

_LOG = logging.getLogger(__name__)
_NOT_LONG = 0.001
_PEOPLE: Final = UnboundedPool()
"""Asks wait for people, so each has its own thread, and tools don't wait for one."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a standing approval is for: the tool of a source, and its arguments unless all are approved."""

    source: str
    definition: str
    arguments: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _StandingApproval:
    """An approval of more than one call; `ends` is on the clock of `time.monotonic()`."""

    id: str
    by: str | None = field(repr=False)
    ends: float | None = None


class _KeptApproval(Value):
    """An approval of all calls of a tool for the rest of a run."""

    source: AnyText
    definition: AnyText
    id: AnyText
    by: AnyText | None = Field(repr=False)


class _PausedApprovals(Value):
    """What is kept of a run that pauses."""

    approvals: tuple[_KeptApproval, ...]


class ApprovalAdvisor(Advisor):
    """Asks about each tool call that requires approval, while its run waits; the other calls of the answer go on.

    Args:
        ask: a blocking or async function that receives an `ApprovalRequest` and returns an `Approve`, a `Reject`, or an
            `Undecided` if nobody can decide now. If it fails, does not answer in time or returns something else, the
            call is denied with the reason code `approval_failed` or `approval_timeout`.
        timeout: seconds to wait for an answer, at most until the deadline of the run; None for no limit.
        name: the advisor's name in telemetry. It is a metric label, so use a fixed name.
        order: the position among the advisors. If there are several approvers, the outermost is asked first.

    Raises:
        TypeError, ValueError: for an invalid argument.
    """

    def __init__(
        self,
        ask: Callable[[ApprovalRequest], Any],
        timeout: float | None = 300,
        *,
        name: str = "approval",
        order: int = TOOL_LOOP_ORDER + 120,
    ) -> None:
        expect("name", name, str, "a str")
        if ask is None:
            raise TypeError("ask must be a function that receives an ApprovalRequest")
        expect_callable("ask", ask)
        expect_positive("timeout", timeout)
        expect_whole("order", order, -sys.maxsize)
        self.name = name
        self.order = order
        self._ask = ask
        self._timeout = timeout
        self._of_owners: dict[tuple[str, str | None, _Subject], _StandingApproval] = {}
        self._of_runs: WeakKeyDictionary[RunContext, dict[_Subject, _StandingApproval]] = WeakKeyDictionary()

    async def decide_approval(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Return the answer of a standing approval, or ask."""
        if (standing := self._standing(request)) is not None:
            return Approve(by=standing.by, code=standing.id)
        try:
            with UsePool(_PEOPLE):
                answer = await self._ask_in_time(request)
        except ToolTimeout:
            return Denied("nobody decided about it in time.", "approval_timeout")
        except Exception as error:
            return self._deny(request, error_type(error))  # its text may quote arguments
        if not isinstance(answer, Approve | Reject | Undecided):
            return self._deny(
                request, f"it returned {type(answer).__name__}, and must return an Approve, a Reject or an Undecided"
            )
        if isinstance(answer, Approve):
            self._remember(request, answer)
        return answer

    def paused_state(self, run: RunContext) -> Mapping[str, Any] | None:
        """Return the approvals for the rest of the run."""
        standing = self._of_runs.get(run)
        if standing is None:
            return None
        approvals = [
            _KeptApproval(source=tool.source, definition=tool.definition, id=approval.id, by=approval.by)
            for tool, approval in standing.items()
        ]
        return _PausedApprovals(approvals=tuple(approvals)).model_dump(mode="json")

    def restore(self, run: RunContext, state: Mapping[str, Any]) -> None:
        """Take the approvals for the rest of the run that `run` resumes."""
        approvals = _PausedApprovals.model_validate_json(json.dumps(state)).approvals
        self._of_runs[run] = {
            _Subject(entry.source, entry.definition): _StandingApproval(entry.id, entry.by) for entry in approvals
        }

    async def _ask_in_time(self, request: ApprovalRequest) -> Any:
        deadline = request.run.tally.deadline
        remaining = None if deadline is None else deadline - time.monotonic()
        timeouts = [timeout for timeout in (self._timeout, remaining) if timeout is not None]
        if not timeouts:
            return await perform(self._ask, request)
        context = ToolContext(call_id=request.call_id, tool=request.tool)
        return await Attempt(Call(self._ask, request), context, max(_NOT_LONG, min(timeouts)), self._answered_late)

    def _answered_late(self) -> None:
        _LOG.warning("%s: an answer came after the time-out and has no effect: the call was denied", self.name)

    def _deny(self, request: ApprovalRequest, problem: str) -> Denied:
        _LOG.warning("%s: asking about a call of %s failed: %s; the call is denied", self.name, request.tool, problem)
        return Denied("asking for approval failed.", "approval_failed")

    # Standing approvals.

    def _standing(self, request: ApprovalRequest) -> _StandingApproval | None:
        tool, exact = _subjects(request)
        of_run, run = self._of_runs.get(request.run, {}), request.run
        if (approval := of_run.get(tool)) is not None:
            return approval
        for subject in (tool, exact):
            approval = self._of_owners.get((run.agent, run.principal, subject))
            if approval is not None and (approval.ends is None or time.monotonic() < approval.ends):
                return approval
        return None

    def _remember(self, request: ApprovalRequest, answer: Approve) -> None:
        if answer.scope == "call":
            return
        tool, exact = _subjects(request)
        ends = None if answer.expires is None else time.monotonic() + answer.expires.total_seconds()
        standing = _StandingApproval(f"{STANDING_APPROVAL}:{request.call_id}", answer.by, ends)
        if answer.scope == "run":
            self._of_runs.setdefault(request.run, {})[tool] = standing
            return
        run, now = request.run, time.monotonic()
        for key, approval in [*self._of_owners.items()]:
            if approval.ends is not None and approval.ends <= now:
                self._of_owners.pop(key, None)
        self._of_owners[run.agent, run.principal, tool if answer.scope == "tool" else exact] = standing

    def __repr__(self) -> str:
        return f"<ApprovalAdvisor {self.name!r}: order {self.order}, timeout {self._timeout}>"


def _subjects(request: ApprovalRequest) -> tuple[_Subject, _Subject]:
    """Return the tool, and the tool with the arguments of the call. Another definition is another tool."""
    tool = _Subject(request.source, definition_digest(request.definition))
    return tool, replace(tool, arguments=request.arguments)
