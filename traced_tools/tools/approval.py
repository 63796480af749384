"""A request to decide about a tool call, the approval of one, and the tool that a decision is about."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from traced_tools.core.approval import PendingCall
from traced_tools.core.tool_definition import ToolCallback, definition_digest
from traced_tools.errors import ResumeError

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


def check_unchanged(call_id: str, name: str, digest: str, source: str, tool: ToolCallback | None) -> None:
    """Check that the tool of a call that waited for approval is still the tool that the decision is about.

    Args:
        call_id: the call's id.
        name: the tool's name.
        digest: the digest of its definition when the call began to wait.
        source: where it came from then.
        tool: the tool of that name now; None if there is none.

    Raises:
        ResumeError: if the tool is gone, or has another definition or source.
    """
    if tool is None:
        raise ResumeError(f"the tool {name!r} of the waiting call {call_id!r} is gone: pass it in tools=")
    if definition_digest(tool.definition) != digest:
        raise ResumeError(
            f"the definition of the tool {name!r} has changed since the call {call_id!r} began to wait: "
            "a decision about it is for the former definition"
        )
    if tool.metadata.source != source:
        raise ResumeError(
            f"the tool {name!r} comes from {tool.metadata.source!r}, and from {source!r} when the call {call_id!r} "
            "began to wait: a decision about it is for the former tool"
        )
