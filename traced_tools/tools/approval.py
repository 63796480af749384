"""A request to decide about a tool call, and the approval of one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from traced_tools.core.approval import PendingCall

if TYPE_CHECKING:
    from traced_tools.run.context import RunContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest(PendingCall):
    """A tool call that requires approval, as `decide_approval` receives it.

    Attributes:
        run: the run, with its agent, conversation, principal and attributes.
    """

    run: RunContext

    def pending(self) -> PendingCall:
        """Return the call without its run."""
        return PendingCall(**{each.name: getattr(self, each.name) for each in fields(PendingCall)})


@dataclass(frozen=True, slots=True)
class Approval:
    """The approval of a tool call with certain arguments.

    Attributes:
        by: the person or service that approved, if the application named one.
        code: the reason code of the approval, if it has one.
        arguments: the canonical arguments that it is for; None for the arguments of the call before any advisor.
        instead: JSON text of the arguments that the tool gets instead of those of the model; None for those.
    """

    by: str | None = field(default=None, repr=False)
    code: str | None = None
    arguments: str | None = field(default=None, repr=False)
    instead: str | None = field(default=None, repr=False)
