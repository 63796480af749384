"""A conversation in a repository: its owner, the length of its log, and the parts of the log that are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeVar

from pydantic import AwareDatetime, Field, ValidationError

from traced_tools.core.messages import Message, Value
from traced_tools.errors import UnreadableConversation
from traced_tools.memory.entries import (
    CompactionEntry,
    EntryKind,
    MemoryEntry,
    MessageEntry,
    dump_entry,
    load_entry,
)

T = TypeVar("T")
MOST_ID = 256
"""The maximum length in characters of a conversation's id and an attribute's value."""
MOST_ATTRIBUTE_NAME = 128
MOST_BRANCH = 256


class Conversation(Value):
    """A conversation as a repository keeps it, without its entries.

    Args:
        key: identifies the conversation among all that ever were, so that the entries of a deleted conversation never
            appear in a new one with the same id. The repository makes it; keys sort by time.
        id: the id that the application chose.
        version: the number of entries in its log.
        last_turn: the highest turn of its entries.
        principal: the owner; None if it has none.
        attributes: what an application finds it by.
        created_at: the time of its first append.
        updated_at: the time of its last append.
        expires_at: when it expires unless something is appended before; None for never.
    """

    key: str
    id: str
    version: int = Field(ge=1)
    last_turn: int = Field(ge=1, lt=(1 << 31) - 1)  # so that another turn can begin
    principal: str | None = Field(default=None, repr=False)
    attributes: Mapping[str, str] = Field(default={}, repr=False)
    created_at: AwareDatetime
    updated_at: AwareDatetime
    expires_at: AwareDatetime | None = None

    @property
    def revision(self) -> tuple[str, int]:
        """Its key and its version, of which one differs whenever something was changed."""
        return self.key, self.version

    def matches(self, principal: str | None, attributes: Mapping[str, str], expired_by: datetime | None) -> bool:
        """Return whether it meets the conditions of `ChatMemoryRepository.find_conversations`."""
        return (
            principal in (None, self.principal)
            and attributes.items() <= self.attributes.items()
            and (expired_by is None or (self.expires_at is not None and self.expires_at <= expired_by))
        )


@dataclass(frozen=True, slots=True)
class ConversationLog:
    """What was read of the log of a conversation.

    Attributes:
        conversation_id: the id of the conversation.
        version: the number of entries in the whole log, which the next append names; 0 if there is no conversation.
        entries: the entries that were read, in the order of the log.
        conversation: the conversation that was read; None if there was none.
    """

    conversation_id: str
    version: int
    entries: tuple[MessageEntry | CompactionEntry, ...] = ()
    conversation: Conversation | None = field(default=None, repr=False)

    @property
    def last_turn(self) -> int:
        """The highest turn of the whole log; 0 if there is no conversation."""
        return 0 if self.conversation is None else self.conversation.last_turn

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages among the entries."""
        return tuple(entry.message for entry in self.entries if isinstance(entry, MessageEntry))


class StoredEntry(NamedTuple):
    """An entry as a repository stores it. A store only compares and returns these values.

    Attributes:
        position: the place in the log, from 1 without gaps.
        id: the id of the entry, unique in its conversation.
        turn: the turn of the entry.
        branch: the path of the sub-agent that made the entry; empty for the main agent.
        kind: `message` or `compaction`.
        body: the whole entry as JSON text.
    """

    position: int
    id: str
    turn: int
    branch: str
    kind: str
    body: str

    def __repr__(self) -> str:
        return f"StoredEntry(position={self.position})"


def dump_row(entry: MemoryEntry, position: int) -> StoredEntry:
    """Return the row that stores an entry; raise `ValueError` if the entry has text that cannot be stored."""
    assert isinstance(entry, MessageEntry | CompactionEntry)
    try:
        body = dump_entry(entry)
    except ValueError:
        body = None  # the error's text may quote the entry
    if body is None:
        raise ValueError(f"the entry {entry.id!r} has text that UTF-8 cannot encode: replace its lone surrogates")
    return StoredEntry(position, entry.id, entry.turn, entry.branch, entry.kind, body)


def load_row(row: StoredEntry, conversation_id: str) -> MessageEntry | CompactionEntry:
    """Return the entry that `row` stores, with its place in the log.

    Raises:
        UnreadableConversation: if its JSON is not an entry of this version, or if its id, turn, branch or kind differs
            from the row.
    """
    position, entry_id, turn, branch, kind, body = row
    try:
        entry = load_entry(body, kind)
    except (ValidationError, TypeError, KeyError):
        entry = None  # the text of the error may quote the body
    if entry is None or type(position) is not int or (entry.id, entry.turn, entry.branch) != (entry_id, turn, branch):
        problem = "its JSON is no entry of this version" if entry is None else "its id, turn, branch or kind differs"
        raise UnreadableConversation(conversation_id, f"entry {position}", problem)
    fields = vars(entry)
    fields["conversation_id"], fields["position"] = conversation_id, position  # as `at` does, but without a copy
    return entry


@dataclass(frozen=True, slots=True)
class EntrySelection:
    """Which entries to read. All conditions apply; then, of the entries that meet them, the first or the last.

    Attributes:
        after: positions above this number.
        through: positions up to this number.
        from_turn: entries of this turn and later ones.
        kind: entries of one kind; None for both.
        branches: entries of these branches, which differ; None for all.
        ids: entries with these ids; None for all.
        first: how many of them from the beginning; None for all.
        last: how many of them from the end; None for all.
    """

    after: int
    through: int
    from_turn: int = 1
    kind: EntryKind | None = None
    branches: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    first: int | None = None
    last: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it selects all entries after a position, or all of a kind or of branches."""
        return self.from_turn == 1 and self.ids is None and self.first is None and self.last is None

    def select(self, entries: Iterable[StoredEntry]) -> Sequence[StoredEntry]:
        """Return the selected ones of `entries`, which are in the order of the log."""
        return self.cut([entry for entry in entries if self._matches(entry)])

    def _matches(self, entry: StoredEntry) -> bool:
        return (
            self.after < entry.position <= self.through
            and entry.turn >= self.from_turn
            and self.kind in (None, entry.kind)
            and (self.branches is None or entry.branch in self.branches)
            and (self.ids is None or entry.id in self.ids)
        )

    def cut(self, matching: Sequence[T]) -> Sequence[T]:
        """Return the first or the last of what meets the conditions."""
        if self.first is not None:
            return matching[: self.first]
        return matching if self.last is None else matching[-self.last :]

    def first_missing(self, rows: Iterable[StoredEntry]) -> int | str | None:
        """Return the first position or id that `rows` lack; None if it selects by turn, kind or branch, with gaps."""
        if self.ids is not None:
            ids = {row.id for row in rows}
            return next((entry_id for entry_id in self.ids if entry_id not in ids), None)
        if self.from_turn > 1 or self.kind is not None or self.branches is not None:
            return None
        positions = {row.position for row in rows}
        expected = self.cut(range(self.after + 1, self.through + 1))
        return next((position for position in expected if position not in positions), None)
