"""What the client asks of a store of runs that wait, without the state of a run, which takes long to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from traced_tools.core.approval import CallDecision, Denied
from traced_tools.core.enums import ResumeRefusal

if TYPE_CHECKING:
    from traced_tools.loop.state import RunState


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
