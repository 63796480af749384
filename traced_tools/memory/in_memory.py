"""Conversations in the memory of the process."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, product
from typing import Any, TypeVar, get_args

from traced_tools.core.fork import on_fork
from traced_tools.flow.steps import Call, InlineCall
from traced_tools.memory.conversation import Conversation, EntrySelection, StoredEntry
from traced_tools.memory.entries import EntryKind
from traced_tools.memory.repository import EXPIRE_AFTER, ChatMemoryRepository, MaybeAwaitable

T = TypeVar("T")


class _Log:
    """The entries of a conversation, and their positions by id, by turn, by kind, and by branch and kind."""

    def __init__(self) -> None:
        self.entries: list[StoredEntry] = []
        self.by_id: dict[str, int] = {}
        self.by_turn: defaultdict[int, list[int]] = defaultdict(list)
        self.by_kind: defaultdict[tuple[str | None, str], list[int]] = defaultdict(list)  # None for all branches

    def add(self, entry: StoredEntry) -> None:
        self.entries.append(entry)
        self.by_id[entry.id] = entry.position
        self.by_turn[entry.turn].append(entry.position)
        for branch in (None, entry.branch):
            self.by_kind[branch, entry.kind].append(entry.position)

    def select(self, selection: EntrySelection) -> Sequence[StoredEntry]:
        return selection.select(self.entries[position - 1] for position in self._candidates(selection))

    def _candidates(self, selection: EntrySelection) -> Sequence[int]:
        """Return positions in order, which include those of the selected entries."""
        if selection.ids is not None:
            return sorted(self.by_id[entry_id] for entry_id in selection.ids if entry_id in self.by_id)
        if selection.from_turn > 1:
            turns = (positions for turn, positions in self.by_turn.items() if turn >= selection.from_turn)
            return sorted(chain.from_iterable(turns))
        if selection.kind is None and selection.branches is None:
            return selection.cut(range(selection.after + 1, min(selection.through, len(self.entries)) + 1))
        kinds = get_args(EntryKind) if selection.kind is None else (selection.kind,)
        lists = [self.by_kind.get(key, []) for key in product(selection.branches or (None,), kinds)]
        return sorted(chain.from_iterable(_between(positions, selection) for positions in lists))


def _between(positions: Sequence[int], selection: EntrySelection) -> Sequence[int]:
    """Return the positions in the range of a selection, cut to its number."""
    beginning, end = bisect_right(positions, selection.after), bisect_right(positions, selection.through)
    if selection.first is not None:
        end = min(end, beginning + selection.first)
    if selection.last is not None:
        beginning = max(beginning, end - selection.last)
    return positions[beginning:end]


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

    def _step(self, method: Callable[..., MaybeAwaitable[T]], *arguments: Any) -> Call[T]:
        """Return a step that needs no thread, because the methods of this class do not wait. Those of others may."""
        function = getattr(method, "__func__", method)
        is_own = vars(InMemoryChatMemoryRepository).get(function.__name__) is function
        return InlineCall(method, *arguments) if is_own else Call(method, *arguments)

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
            conversations = sorted(self._conversations.values(), key=lambda conversation: conversation.key)
        return [
            conversation for conversation in conversations if conversation.matches(principal, attributes, expired_by)
        ]

    def _is_current(self, expected: Conversation | None, conversation_id: str) -> bool:
        current = self._conversations.get(conversation_id)
        if current is None or expected is None:
            return current is expected
        return current.revision == expected.revision
