"""The log of a conversation as one run reads and writes it, while its store may fail and other runs append to it.

An append names the version of the log that the run has read. If another run has appended meanwhile, the run reads what
is new and appends again. Entries that the log lacks wait here until the store is up again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from traced_tools.core.messages import UserMessage
from traced_tools.errors import ChatMemoryUnavailable, ConversationConflict
from traced_tools.memory.conversation import MOST_ATTRIBUTE_NAME, MOST_ID, Conversation
from traced_tools.memory.entries import CompactionEntry, MemoryEntry, MessageEntry
from traced_tools.memory.log_reader import LogReader
from traced_tools.memory.reconciliation import entries_of
from traced_tools.memory.repository import ChatMemoryRepository
from traced_tools.memory.telemetry import memory_failed, observe_memory
from traced_tools.memory.view import MemoryView, Turn
from traced_tools.observe.failures import error_type
from traced_tools.run.context import RunContext

OnFailure = Literal["raise", "warn"]
MOST_ATTEMPTS: Final = 1_000
"""How often an append is repeated because other runs append meanwhile. Each time, one of them makes progress."""
_OUTAGES: Final = (ChatMemoryUnavailable, OSError)
_LOG = logging.getLogger(__name__)


class RunLog:
    """The log of one conversation as one run reads and writes it; a log that keeps nothing without a conversation id.

    Args:
        repository: where the conversation is.
        run: the run.
        branch: the branch that the run appends to; empty for the main agent's.
        on_failure: how to react if the store is down: `raise` fails the run, `warn` goes on without the store.

    Attributes:
        on_failure: the same; a run that fails or ends already sets it to `warn`.
        iteration: the iteration of the tool loop, from 1; 0 outside the loop.
        is_out: whether the store was down at the last attempt, so that the run goes on without it.
        has_read: whether the run has read the log.
    """

    def __init__(
        self, repository: ChatMemoryRepository, run: RunContext, branch: str, on_failure: OnFailure = "raise"
    ) -> None:
        self.on_failure = on_failure
        self.iteration = 0
        self.is_out = self.has_read = False
        self._repository = repository
        self._run = run
        self._reader = LogReader(repository, run.conversation_id or "", run.principal, branch)
        self._is_missing = run.conversation_id is None
        self._has_warned = False
        # Entries wait here from before their append until the log has them, so that no outage or interrupt loses them.
        self._unsaved: list[MessageEntry] = []
        self._is_unsure = False  # whether the log may already have entries of `_unsaved`
        self._placed: dict[str, MessageEntry] = {}

    @property
    def conversation_id(self) -> str:
        """The id of the conversation; empty if there is none."""
        return self._reader.conversation_id

    @property
    def conversation(self) -> Conversation | None:
        """The conversation as the run last saw it; None if there was none."""
        return self._reader.log.conversation

    @property
    def version(self) -> int:
        """The version of the log as the run last saw it."""
        return self._reader.log.version

    @property
    def last_turn(self) -> int:
        """The highest turn of the log as the run last saw it; 0 if there was no conversation."""
        return self._reader.log.last_turn

    @property
    def hidden(self) -> frozenset[str]:
        """The ids of entries that the run has read and does not see, because their runs have not ended."""
        return self._reader.hidden

    @property
    def is_complete(self) -> bool:
        """Whether the log has all entries of the run."""
        return self.has_read and not self.is_out and not self._unsaved and not self._is_missing

    # Reading.

    async def read_view(self, read: Callable[[LogReader], Awaitable[MemoryView]]) -> MemoryView:
        """Return the view that `read` makes of the log, as a flow; an empty one if the store is down."""
        if self._is_missing:
            return MemoryView()
        try:
            with observe_memory(self._run, "search_memory", self.iteration) as observed:
                view = await read(self._reader)
                observed.read(sum([turn.size for turn in view.turns]), view.left_out, lambda: entries_of(view.turns))
        except _OUTAGES as error:
            self._survive("search_memory", error)
            return MemoryView()
        self.has_read = True
        return replace(view, running=Turn()) if view.running.size else view  # only a run that resumes has one already

    async def last_turns(self, count: int) -> tuple[Turn, ...] | None:
        """Return the last turns with all entries, as a flow; None if the log has changed since the view was read."""
        before = self._reader.log
        try:
            turns = await self._reader.last_turns(count)
        except _OUTAGES as error:
            self._survive("search_memory", error)
            return ()
        if self.version == before.version:
            return turns
        self._reader.log = before  # so that `catch_up` reads what has changed
        return None

    async def catch_up(self) -> None:
        """Read what other runs have appended, as a flow; raise an error if the store is down."""
        await self._reader.catch_up()

    # Writing.

    async def append_first(self, entries: Sequence[MessageEntry]) -> bool:
        """Append the first entries of the run, in place of those of an attempt before, as a flow.

        Returns:
            Whether the log is as it was read. Otherwise, nothing is appended: the entries may follow from what has
            changed, so the run has to read and decide again.
        """
        self._unsaved = [*entries]
        return await self._save()

    async def append(self, entries: Sequence[MessageEntry]) -> None:
        """Append entries, whatever other runs append meanwhile, as a flow."""
        self._unsaved += entries
        for _ in range(MOST_ATTEMPTS):
            if self._is_unsure and not self.is_out:  # an append was interrupted, and may have been stored
                await self._place_stored()
            if await self._save():
                return
            await self._place_stored()
        raise self.conflict()

    async def flush(self, *, is_nested: bool) -> None:
        """Append the entries that the log lacks after an outage or an interrupt, if the store is up, as a flow.

        Args:
            is_nested: whether an outer agent has asked for the run, which has the number of the outer agent's turn.
        """
        if not self._unsaved or self._is_missing:
            return
        self.on_failure = "warn"
        for _ in range(MOST_ATTEMPTS):
            self.is_out = False
            await self._place_stored()
            # The number of the last turn was unknown during the outage, so the entries get their turn now.
            if self._unsaved and not self.has_read and not is_nested:
                is_new = isinstance(self._unsaved[0].message, UserMessage)
                turn = max(1, self.last_turn + is_new)
                self._unsaved = [entry.replace(turn=turn) for entry in self._unsaved]
            if await self._save():
                return

    async def append_compaction(self, compaction: CompactionEntry) -> CompactionEntry | None:
        """Append a compaction, as a flow; return it with its place in the log.

        It returns None, and appends nothing, if another run has compacted the branch since this run read it.
        """
        for _ in range(MOST_ATTEMPTS):
            appended = await self.extend([compaction])
            if appended is not None:
                last = appended[-1]
                assert isinstance(last, CompactionEntry)
                return last
            changes = await self._reader.catch_up()
            # Both compactions would cover the same entries, and the later one would win with what it does not know.
            if self._reader.is_replaced or any(isinstance(entry, CompactionEntry) for entry in changes.entries):
                return None
        raise self.conflict()

    async def extend(self, entries: Sequence[MemoryEntry]) -> Sequence[MemoryEntry] | None:
        """Append entries to the log as it was read, as a flow; raise an error if the store is down.

        Returns:
            The entries with their places; None if the log has changed since it was read.

        Raises:
            RunTaken: if another process has taken the run over. One that does so later finds the entries, or this
                append finds that the log has changed.
        """
        if self._run.check_taken is not None:
            await self._run.check_taken()
        with observe_memory(self._run, "upsert_memory", self.iteration) as observed:
            try:
                log = await self._repository.extend_flow(
                    self._reader.log, entries, principal=self._run.principal, attributes=self._attributes()
                )
            except ConversationConflict:
                observed.conflict()
                return None
            self._reader.log = log
            message_entries = [entry for entry in entries if isinstance(entry, MessageEntry)]
            observed.stored(len(message_entries), lambda: message_entries)
        return log.entries

    def take_placed(self) -> Mapping[str, MessageEntry]:
        """Return the run's entries that the log has got since the last call, with their places, by id."""
        placed, self._placed = self._placed, {}
        return placed

    def conflict(self) -> ConversationConflict:
        """Return the error of a run that other runs have kept from appending at each attempt."""
        return ConversationConflict(self.conversation_id, self.version, self.version)

    async def _save(self) -> bool:
        """Append the entries that the log lacks and return True; return False if the log has changed since it was read.

        During an outage, the entries wait for the end of the run.
        """
        if not self._unsaved or self.is_out or self._is_missing:
            return True
        self._is_unsure = True  # an interrupt can end this run's flow after the store has committed
        try:
            appended = await self.extend(self._unsaved)
        except _OUTAGES as error:
            self._survive("upsert_memory", error)
            return True
        self._is_unsure = False
        if appended is None:
            return False
        self._place(appended)
        return True

    async def _place_stored(self) -> None:
        """Read the changes of the log, and place the entries of the run that it already has."""
        try:
            if not self.has_read:
                await self._reader.read(last=1)
                return
            changes = await self._reader.catch_up()
        except _OUTAGES as error:
            self._survive("upsert_memory", error)
            return
        self._is_unsure = False
        self._is_missing |= self._reader.is_replaced  # this run must not bring a deleted conversation back
        self._place(changes.entries)

    def _place(self, entries: Sequence[MemoryEntry]) -> None:
        """Take the entries of the run among those of the log as stored."""
        by_id = {entry.id: entry for entry in entries if isinstance(entry, MessageEntry)}
        self._placed |= {entry.id: by_id[entry.id] for entry in self._unsaved if entry.id in by_id}
        self._unsaved = [entry for entry in self._unsaved if entry.id not in by_id]

    def _attributes(self) -> dict[str, str]:
        """Return the attributes of the run with texts as values, by which an application finds the conversation."""
        return {
            name: value
            for name, value in self._run.attributes.items()
            if isinstance(value, str) and len(name) <= MOST_ATTRIBUTE_NAME and 1 <= len(value) <= MOST_ID
        }

    def _survive(self, operation: Literal["search_memory", "upsert_memory"], error: Exception) -> None:
        """Go on without the store, and count the failure; with `on_failure="raise"`, raise `error`."""
        if self.on_failure == "raise":
            raise error
        memory_failed(self._run, operation, error)
        if not self._has_warned:
            _LOG.warning("a conversation's store fails (%s): the run goes on without it", error_type(error))
        self.is_out = self._has_warned = True
