"""The observations of conversation memory: its operations, and compactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools.observe.failures import error_type
from traced_tools.observe.stages.observation import Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from traced_tools.core.enums import CompactionOutcome, MemoryOperation
    from traced_tools.observe.stages.subjects import ObservedEntry

    Entries = Callable[[], Iterable[ObservedEntry]]
    """Returns the messages of an operation; called only if content is captured."""


class MemoryObservation(Observation):
    """One reading of a conversation, or one appending to it.

    Args:
        operation: which of them.
        iteration: the iteration of the loop, from 1; 0 outside a loop.

    Attributes:
        operation, iteration: as above.
        messages_read: how many messages were read; None if nothing was reported as read.
        messages_left_out: how many messages of the conversation the model is not sent.
        messages_stored: how many messages were appended; None if nothing was reported as appended.
        conflicts: how often the conversation had changed meanwhile.
        entries: the messages that were read or appended; content.
        lookup: the tool by which the model looked messages up, and its words; content. None for what the model is sent.
    """

    __slots__ = (
        "conflicts",
        "entries",
        "iteration",
        "lookup",
        "messages_left_out",
        "messages_read",
        "messages_stored",
        "operation",
    )

    def __init__(self, operation: MemoryOperation, iteration: int) -> None:
        self.operation = operation
        self.iteration = iteration
        self.messages_read: int | None = None
        self.messages_left_out = 0
        self.messages_stored: int | None = None
        self.conflicts = 0
        self.entries: Entries = tuple
        self.lookup: tuple[str, str] | None = None

    def looks_up(self, tool: str, words: str) -> None:
        """Record the tool by which the model looks messages up, and its words; empty if it asks for an entry."""
        self.lookup = tool, words

    def read(self, messages: int, left_out: int, entries: Entries) -> None:
        """Record how many messages were read, and how many messages of the conversation the model is not sent."""
        self.messages_read = messages
        self.messages_left_out = left_out
        self.entries = entries
        self._events.read()

    def stored(self, messages: int, entries: Entries) -> None:
        """Record how many messages were appended."""
        self.messages_stored = messages
        self.entries = entries
        self._events.stored()

    def conflict(self) -> None:
        """Record that the conversation had changed meanwhile and is appended to again."""
        self.conflicts += 1


class CompactionObservation(Observation):
    """One attempt to send the model less of a conversation.

    Args:
        trigger: the name of what caused it.
        iteration: the iteration of the loop, from 1; 0 outside a loop.

    Attributes:
        trigger, iteration: as above.
        outcome: how it ended.
        strategy: the names of the strategies that made it; None if it is not known.
        entry_id: the id of the entry that records it in the conversation; None unless it was compacted.
        covered: how many entries it covers.
        tokens_before, tokens_after: what the model was and is sent; None if that is not known.
        estimated: whether the tokens are an estimate.
        through: the position up to which it covers entries.
        branch: the path of the sub-agent whose entries it covers.
    """

    __slots__ = (
        "branch",
        "covered",
        "entry_id",
        "estimated",
        "iteration",
        "outcome",
        "strategy",
        "through",
        "tokens_after",
        "tokens_before",
        "trigger",
    )

    def __init__(self, trigger: str, iteration: int) -> None:
        self.trigger = trigger
        self.iteration = iteration
        self.outcome: CompactionOutcome = "unchanged"
        self.strategy: str | None = None
        self.entry_id: str | None = None
        self.covered = 0
        self.tokens_before: int | None = None
        self.tokens_after: int | None = None
        self.estimated = False
        self.through = 0
        self.branch = ""

    def compacted(
        self,
        entry_id: str,
        strategy: str,
        covered: int,
        tokens_before: int | None,
        tokens_after: int | None,
        estimated: bool,
        through: int,
        branch: str,
    ) -> None:
        """Record that the compaction is in the log of the conversation; the arguments are those of the attributes."""
        self.outcome = "compacted"
        self.entry_id = entry_id
        self.strategy = strategy
        self.covered = covered
        self.tokens_before = tokens_before
        self.tokens_after = tokens_after
        self.estimated = estimated
        self.through = through
        self.branch = branch
        self._events.compacted()

    def unchanged(self) -> None:
        """Record that no strategy found anything to leave out."""
        self.outcome = "unchanged"

    def superseded(self) -> None:
        """Record that another run compacted the conversation first."""
        self.outcome = "superseded"

    def failed(self, error: BaseException, strategy: str) -> None:
        """Record that a strategy failed with `error`, which the run survives."""
        self.outcome = "failed"
        self.strategy = strategy
        self.error_type = error_type(error)
        self._scope.failed()

    def _failed(self, error: BaseException) -> None:
        super()._failed(error)
        if self.outcome != "compacted":
            self.outcome = "failed"
