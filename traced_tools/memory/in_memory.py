"""Conversations in the memory of the process."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from traced_tools.core.fork import on_fork
from traced_tools.memory.conversation import Conversation, EntrySelection, StoredEntry
from traced_tools.memory.repository import EXPIRE_AFTER, ChatMemoryRepository


class _Log:
    """The entries of a conversation, and their positions by id, turn and kind."""

    def __init__(self) -> None:
        self.entries: list[StoredEntry] = []
        self.by_id: dict[str, int] = {}
        self.by_turn: defaultdict[int, list[int]] = defaultdict(list)
        self.compactions: list[int] = []

    def add(self, entry: StoredEntry) -> None:
        self.entries.append(entry)
        self.by_id[entry.id] = entry.position
        self.by_turn[entry.turn].append(entry.position)
        if entry.kind == "compaction":
            self.compactions.append(entry.position)

    def select(self, selection: EntrySelection) -> Sequence[StoredEntry]:
        first, through = selection.after + 1, min(selection.through, len(self.entries))
        candidates: Sequence[int] = range(first, through + 1)
        if selection.ids is not None:
            candidates = sorted(self.by_id[each] for each in selection.ids if each in self.by_id)
        elif selection.kind == "compaction":
            candidates = self.compactions
        elif selection.from_turn > 1:
            candidates = sorted(p for turn, found in self.by_turn.items() if turn >= selection.from_turn for p in found)
        elif selection.kind is None:
            candidates = selection.cut(candidates)
        return selection.select(self.entries[position - 1] for position in candidates)


class InMemoryChatMemoryRepository(ChatMemoryRepository):
    """Keeps conversations in the memory of this process, for tests and for conversations that end with it.

    Args:
        expire_after: how long a conversation is kept after its last append; None for ever.
    """

    def __init__(self, *, expire_after: timedelta | None = EXPIRE_AFTER) -> None:
        super().__init__(expire_after=expire_after)
        self._conversations: dict[str, Conversation] = {}
        self._logs: dict[str, _Log] = {}
        self._begin()
        on_fork(self._begin)

    def _begin(self) -> None:
        """Make a new lock, also in a forked child, which may inherit a lock that another thread holds."""
        self._lock = threading.Lock()

    def find_conversation(self, conversation_id: str) -> Conversation | None:
        """Return the conversation with this id."""
        with self._lock:
            return self._conversations.get(conversation_id)

    def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Sequence[StoredEntry]:
        """Return the selected entries of a conversation."""
        with self._lock:
            log = self._logs.get(conversation.key)
            return [] if log is None else log.select(selection)

    def commit(self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]) -> bool:
        """Replace `before` by `after` and add `entries`."""
        with self._lock:
            if not self._is_current(before, after.id):
                return False
            log = self._logs.get(after.key) or _Log()
            if any(entry.id in log.by_id for entry in entries):
                return False
            for entry in entries:
                log.add(entry)
            self._logs[after.key] = log
            self._conversations[after.id] = after
            return True

    def remove(self, conversation: Conversation) -> bool:
        """Remove a conversation and its entries."""
        with self._lock:
            if not self._is_current(conversation, conversation.id):
                return False
            del self._conversations[conversation.id]
            self._logs.pop(conversation.key, None)
            return True

    def find_conversations(
        self, principal: str | None, attributes: Mapping[str, str], expired_by: datetime | None
    ) -> Iterable[Conversation]:
        """Return the conversations that match all conditions, the oldest first."""
        with self._lock:
            conversations = sorted(self._conversations.values(), key=lambda each: each.key)
        return [each for each in conversations if each.matches(principal, attributes, expired_by)]

    def _is_current(self, expected: Conversation | None, conversation_id: str) -> bool:
        found = self._conversations.get(conversation_id)
        if found is None or expected is None:
            return found is expected
        return found.revision == expected.revision
