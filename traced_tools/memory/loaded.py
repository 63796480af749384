"""The logs that a repository has read last, so that a process reads a long log once."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from traced_tools.core.fork import on_fork
from traced_tools.memory.conversation import Conversation, EntrySelection, StoredEntry, load_row
from traced_tools.memory.entries import CompactionEntry, EntryKind, MessageEntry

_MOST_CHARACTERS: Final = 1 << 24

_Key = tuple[str, EntryKind | None, tuple[str, ...] | None]
"""The id of a conversation, a kind, and branches."""


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """All entries of a conversation after a position; with a kind or branches, those of the kind and the branches.

    Attributes:
        key: the key of the conversation, which no other conversation ever has.
        after: the position.
        entries: the entries, in the order of the log.
        characters: the length of their JSON.
    """

    key: str
    after: int
    entries: tuple[MessageEntry | CompactionEntry, ...] = ()
    characters: int = 0

    @property
    def last(self) -> int:
        """The position of the last entry; `after` if there is none."""
        return _position(self.entries[-1]) if self.entries else self.after

    def missing(self, selection: EntrySelection) -> EntrySelection:
        """Return the selection of what it lacks and, to compare it with the store, of its last entry."""
        return replace(selection, after=self.last - 1) if self.entries else selection

    def extended(self, rows: Sequence[StoredEntry], conversation_id: str) -> LoadedLog | None:
        """Return the log with what `missing` selects; None if the store has another log, such as that of a backup."""
        entries = tuple(load_row(row, conversation_id) for row in rows)
        if self.entries and entries[:1] != self.entries[-1:]:
            return None
        characters = self.characters + sum(len(row.body) for row in rows)
        return replace(self, entries=self.entries[:-1] + entries, characters=characters)

    def entries_after(self, position: int) -> tuple[MessageEntry | CompactionEntry, ...]:
        """Return the entries after a position."""
        first = 0 if position <= self.after else bisect_right(self.entries, position, key=_position)
        return self.entries[first:]


class LoadedLogs:
    """The logs that were read last. Entries never change and a log only grows, so a reader needs only what is new.

    A repository asks it after it has checked the owner of the conversation. The logs that were not read for longest
    leave it.

    Args:
        most_entries: the maximum number of entries that it holds, with 16,777,216 characters of JSON at most.
    """

    def __init__(self, most_entries: int) -> None:
        self._most_entries: Final = most_entries
        self._begin()
        on_fork(self._begin)

    def _begin(self) -> None:
        """Begin without logs, also in a forked child, which may inherit a lock that another thread holds."""
        self._lock = threading.Lock()
        self._logs: OrderedDict[_Key, LoadedLog] = OrderedDict()
        self._entries = self._characters = 0

    def find(self, conversation: Conversation, selection: EntrySelection) -> LoadedLog:
        """Return what was read before of the entries that a selection selects, from the first one; maybe nothing."""
        key = _key(conversation, selection)
        with self._lock:
            log = self._logs.get(key) if selection.is_open else None
            if log is not None and log.key == conversation.key and log.after <= selection.after < log.last:
                self._logs.move_to_end(key)
                if log.last <= selection.through:
                    return log
        return LoadedLog(conversation.key, selection.after)

    def keep(self, conversation: Conversation, selection: EntrySelection, log: LoadedLog) -> None:
        """Keep a log that was read, unless more of it was read before."""
        if not selection.is_open or not log.entries:
            return
        key = _key(conversation, selection)
        with self._lock:
            before = self._logs.get(key)
            if before is not None and before.key == log.key and before.after < log.after:
                return
            self._remove(key)
            self._logs[key] = log
            self._entries += len(log.entries)
            self._characters += log.characters
            while self._entries > self._most_entries or self._characters > _MOST_CHARACTERS:
                self._remove(next(iter(self._logs)))

    def forget(self, conversation_id: str) -> None:
        """Forget a conversation, such as one that was removed."""
        with self._lock:
            for key in [key for key in self._logs if key[0] == conversation_id]:
                self._remove(key)

    def _remove(self, key: _Key) -> None:
        if (log := self._logs.pop(key, None)) is not None:
            self._entries -= len(log.entries)
            self._characters -= log.characters


def _position(entry: MessageEntry | CompactionEntry) -> int:
    return entry.position or 0


def _key(conversation: Conversation, selection: EntrySelection) -> _Key:
    return conversation.id, selection.kind, selection.branches
