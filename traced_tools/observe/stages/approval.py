"""The observation of the wait for a decision about a tool call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools.observe.sanitize import safe_identifier, safe_person_name
from traced_tools.observe.stages.observation import Observation

if TYPE_CHECKING:
    from traced_tools.core.enums import Decision
    from traced_tools.core.tool_definition import ToolCallback


class ApprovalObservation(Observation):
    """The wait from the request for a decision about a call until there is an answer, or no approver can decide.

    Args:
        tool: the tool of the call.
        call_id: the call's id.
        iteration: the iteration of the loop, from 1; 0 outside a loop.

    Attributes:
        tool, call_id, iteration: as above.
        name: the tool's name.
        decision: the decision; None while the call waits, or if an error ends the wait.
        by: the person or service that decided, if the application named one.
        reason_code: why it was decided so, if that is known.
    """

    __slots__ = ("by", "call_id", "decision", "iteration", "name", "reason_code", "tool")

    def __init__(self, tool: ToolCallback, call_id: str, iteration: int) -> None:
        self.tool = tool
        self.name = tool.definition.name
        self.call_id = safe_identifier(call_id)
        self.iteration = iteration
        self.decision: Decision | None = None
        self.by: str | None = None
        self.reason_code: str | None = None

    def decided(self, decision: Decision, by: str | None, reason_code: str | None) -> None:
        """Record the decision, who made it, and why."""
        self.decision = decision
        self.by = None if by is None else safe_person_name(by)
        self.reason_code = None if reason_code is None else safe_identifier(reason_code)
