"""Where a run paused, and what a run that resumes it starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traced_tools.core.approval import Approve, Denied, Reject
from traced_tools.core.messages import AssistantMessage, Message, Usage
from traced_tools.core.tool_result import ToolExecutionResult


@dataclass(frozen=True, slots=True)
class Pause:
    """Where a run ended because calls of an answer wait for approval.

    Attributes:
        added: what the loop added to its first request before the answer.
        answer: the answer with the calls.
        result: the results of the calls, and the calls that wait.
        iteration: the iteration of the answer.
    """

    added: tuple[Message, ...] = field(repr=False)
    answer: AssistantMessage = field(repr=False)
    result: ToolExecutionResult
    iteration: int


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a run that resumes a paused one starts from.

    Attributes:
        pause: where the run paused; None once the calls have been decided and the loop goes on.
        decisions: the decisions about the calls that wait, by the call's id; a call without one waits on.
        iterations: how many iterations the runs before had.
        run_ids: the ids of the runs before this one, the first one first.
        traceparent: the W3C trace context of the run that paused; None if it was not traced.
        usage: what the runs before have used; None if it is not known.
        seconds: how long the runs before took, without the time between them.
        discovered_tools: the names of the tools that a tool search had found for the model.
    """

    pause: Pause | None
    decisions: Mapping[str, Approve | Reject | Denied] = field(repr=False)
    iterations: int
    run_ids: tuple[str, ...]
    traceparent: str | None
    usage: Usage | None
    seconds: float
    discovered_tools: tuple[str, ...] = ()
