"""Where a run paused, and what a run that resumes it starts from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import field
from typing import Protocol

from traced_tools.core.approval import CallDecision, Denied, WaitingRun
from traced_tools.core.frozen import frozen
from traced_tools.core.messages import AssistantMessage, Message, Usage
from traced_tools.core.tool_definition import ToolCallback
from traced_tools.core.tool_result import ToolExecutionResult


@frozen
class RunPause:
    """Where a run ended because calls of an answer wait for approval or input.

    Attributes:
        added: what the loop added to its first request before the answer.
        answer: the answer with the calls.
        result: the results of the calls, and the calls that wait. A call that neither waits nor has a result has one
            with the decision `pending`, which is not a result yet.
        iteration: the iteration of the answer.
        new_ids: the ids of the calls whose results the conversation does not have.
        cut_ids: the ids of the calls whose tools had begun when their process ended, so that their outcome is unknown.
    """

    added: tuple[Message, ...] = field(repr=False)
    answer: AssistantMessage = field(repr=False)
    result: ToolExecutionResult
    iteration: int
    new_ids: Set[str] = frozenset()
    cut_ids: Set[str] = frozenset()


class PausedRun(Protocol):
    """The facts of a run that paused; see `RunState`."""

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The ids of the run and of the runs that it resumed, the first one first."""

    @property
    def answer(self) -> AssistantMessage | None:
        """The answer whose calls have no results yet; None if the run ended before its first answer with calls."""

    @property
    def iteration(self) -> int:
        """The iteration of the answer."""

    @property
    def usage(self) -> Usage | None:
        """What the run and the runs before it have used, without the runs nested in them; None if it is not known."""

    @property
    def discovered_tools(self) -> tuple[str, ...]:
        """The names of the tools that a tool search had found for the model."""

    @property
    def is_logged(self) -> bool:
        """Whether only the log of the conversation decides which run resumes, because no store keeps the state."""

    def messages(self) -> tuple[Message, ...]:
        """Return what the loop added to its first request, with the answer and the results of the calls that ran."""

    def nested_runs(self) -> Sequence[tuple[str, WaitingRun]]:
        """Return the runs that calls of the run wait for, each with the name of the tool that has begun it."""

    def pause(self, tools: Mapping[str, ToolCallback]) -> RunPause:
        """Return where the run paused; raises `ResumeError` if the tool of a waiting call is not what it was."""


@frozen
class Resumption:
    """What a run that resumes a paused one starts from.

    Attributes:
        paused: the run that paused.
        claim: a flow that claims the decisions about the calls that wait, by the call's id; a call without a decision
            keeps waiting. If a store keeps the run, the flow succeeds once.
        has_begun: whether the decisions are claimed, so that the calls that waited never run again.
    """

    paused: PausedRun
    claim: Callable[[], Awaitable[Mapping[str, CallDecision | Denied]]] = field(repr=False)
    has_begun: bool = False
