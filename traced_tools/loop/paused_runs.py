"""What the client asks of a store of runs that wait, without the state of a run, which takes long to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from traced_tools.core.approval import CallDecision, Denied
from traced_tools.core.enums import ResumeRefusal, RunStatus
from traced_tools.core.frozen import frozen
from traced_tools.core.messages import Message
from traced_tools.run.context import Journal, RunContext

if TYPE_CHECKING:
    from traced_tools.core.state_key import StateKey
    from traced_tools.loop.state import KeptByAdvisor, RunState


@runtime_checkable
class KeepsPausedRuns(Protocol):
    """A store of runs that wait; see `PendingStore`. `keep` and `claim` are flows."""

    async def keep(self, state: RunState, text: str) -> None:
        """Store a state and its text; the calls in it wait for decisions from now on."""

    async def claim(
        self, state: RunState, decisions: Mapping[str, CallDecision]
    ) -> Mapping[str, CallDecision | Denied]:
        """Spend a state, and return the decisions about its calls: the given ones and those that are stored.

        Raises:
            ResumeError: if the state is spent or not known, or a call was decided otherwise.
        """

    def refuse(self, state: str, reason: ResumeRefusal) -> None:
        """Record, blocking, why a run can never resume from a text, so that it is no longer ready."""

    def withdraw(self, run_id: str) -> bool:
        """Withdraw a run that waits, blocking, so that it never resumes; return whether it waited."""

    def is_withdrawn(self, run_id: str) -> bool:
        """Return whether a run was withdrawn, blocking, so that no run has resumed from it or ever will."""


@frozen
class Question:
    """What a durable run is asked.

    Attributes:
        messages: the messages of the request.
        conversation_id: the id of the conversation; None for none.
        principal: on whose behalf the run is; None if it is not known.
        attributes: the attributes of the run.
    """

    messages: tuple[Message, ...] = field(repr=False)
    conversation_id: str | None
    principal: str | None = field(repr=False)
    attributes: Mapping[str, Any] = field(repr=False)


class RunLife(Journal, Protocol):
    """One life of a durable run, which a process drives; see `durable.Life`. Its methods are flows."""

    @property
    def question(self) -> Question:
        """What the run is asked."""

    @property
    def state(self) -> RunState | None:
        """Where the run goes on; None if it begins."""

    @property
    def number(self) -> int:
        """The number of the life, from 1."""

    async def began(
        self, run: RunContext, traceparent: str | None, advisor_states: Callable[[], Sequence[KeptByAdvisor]]
    ) -> None:
        """Take the run over, before anything happens in it."""

    async def check_taken(self) -> None:
        """Raise `RunTaken` if another process has taken the run over."""

    async def pause(self, state: RunState, text: str) -> None:
        """Keep the state of a run that waits, and record that it waits."""

    async def claim(
        self, state: RunState, decisions: Mapping[str, CallDecision]
    ) -> Mapping[str, CallDecision | Denied]:
        """Return the decisions about the calls of a state; see `KeepsPausedRuns.claim`."""

    async def finished(self, content: str, stop_reason: str) -> None:
        """Record the end of the run."""

    async def failed(self, error: BaseException, *, lasting: bool, refusal: ResumeRefusal | None = None) -> None:
        """Record that an error has ended the life; if `lasting`, no other one begins by itself."""


@frozen
class OpenedRun:
    """Where a durable run is.

    Attributes:
        status: where it is.
        life: its next life; None if it has ended or waits.
        content: the text of the answer, if it has ended with one.
        stop_reason: why it has ended; None if it has not.
    """

    status: RunStatus
    life: RunLife | None = None
    content: str = field(default="", repr=False)
    stop_reason: str | None = None


@runtime_checkable
class KeepsDurableRuns(KeepsPausedRuns, Protocol):
    """A store of runs that wait for a person or for a process; see `PendingStore`. These methods are flows."""

    async def submit(
        self, key: str, agent: str, question: Question, state_keys: Sequence[StateKey], priority: int = 0
    ) -> None:
        """Keep a run with what it is asked; a run with the key is kept once.

        Workers begin runs of a higher `priority` first.
        """

    async def open_run(self, key: str, agent: str, state_keys: Sequence[StateKey]) -> OpenedRun:
        """Return where a run is, with its next life if it can go on.

        Raises:
            UnknownRun: if no run of this agent has the key.
            ResumeError: if the log was altered.
        """
