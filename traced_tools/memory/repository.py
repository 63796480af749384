"""The repository of conversations: append-only logs with versions and owners.

The rules of a log are written once, in `ChatMemoryRepository`, as flows. A repository of your own implements five
methods that only load and store; each of them is a blocking or an `async def` method:

    find_conversation      load a conversation by its id
    fetch_entries          load the selected entries of a conversation
    commit                 store a conversation and new entries in one step, unless it has changed meanwhile
    remove                 remove a conversation and its entries, unless it has changed meanwhile
    find_conversations     load the conversations that match

A repository with an index of words also implements `search_entries`; by default, a search reads messages from the end.

`check_chat_memory_repository` in `traced_tools.memory` checks a repository against the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast, get_args

from traced_tools.core.checks import checked_mapping, expect, expect_whole
from traced_tools.core.identity import check_principal
from traced_tools.core.ids import time_ordered_id
from traced_tools.core.messages import make_unvalidated
from traced_tools.errors import ChatMemoryError, ConversationConflict, ConversationDenied, UnreadableConversation
from traced_tools.flow.flow import acall, call
from traced_tools.flow.steps import Call
from traced_tools.memory.conversation import (
    MOST_ATTRIBUTE_NAME,
    MOST_BRANCH,
    MOST_ID,
    Conversation,
    ConversationLog,
    EntrySelection,
    StoredEntry,
    dump_row,
    load_row,
)
from traced_tools.memory.entries import (
    CompactionEntry,
    EntryKind,
    MemoryEntry,
    MessageEntry,
    check_entries,
)
from traced_tools.memory.loaded import LoadedLogs
from traced_tools.memory.words import MOST_WORD, MOST_WORDS, Match, WordSearch, words_in

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]
EXPIRE_AFTER: Final = timedelta(days=60)
_PAGE: Final = 100
"""How many messages a search reads at once."""


class LogPart(TypedDict, total=False):
    """The keyword arguments that select a part of a log. An entry must meet all of them.

    Args:
        after: the position after which to begin.
        limit: the maximum number of entries, from the beginning.
        last: the maximum number of entries, from the end.
        last_turns: how many turns, from the end.
        kind: entries of one kind only.
        branches: entries of these branches only, such as `[""]` for those of the main agent.
    """

    after: int
    limit: int | None
    last: int | None
    last_turns: int | None
    kind: EntryKind | None
    branches: Sequence[str] | None


class SearchOptions(TypedDict, total=False):
    """The keyword arguments of a search for words.

    Args:
        match: whether a message must have all of the words, or any.
        branches: messages of these branches only, such as `[""]` for those of the main agent.
        through: the last position to search; None for all.
        before: the position before which to search, such as that of the last message found; None for all.
        limit: the maximum number of messages; None for all.
    """

    match: Match
    branches: Sequence[str] | None
    through: int | None
    before: int | None
    limit: int | None


class ChatMemoryRepository(ABC):
    """Keeps conversations, each as an append-only log. Threads, event loops and processes may share a store.

    Every operation has a blocking and an async method. `append` names the version of the log that its caller has read,
    and fails if the log has changed since. A conversation belongs to the `principal` of the append that began it;
    requests that name another principal, or none, are refused. A conversation without an owner is only for requests
    without a principal.

    Conversation ids, principals and values of attributes are any text of 1 to 256 characters; a principal is not blank.

    Args:
        expire_after: how long a conversation is kept after its last append; None for ever. An expired conversation
            counts as missing; `delete_expired` removes it from the store.
    """

    def __init__(self, *, expire_after: timedelta | None = EXPIRE_AFTER) -> None:
        expect("expire_after", expire_after, (timedelta, type(None)), "a timedelta or None")
        if expire_after is not None and expire_after <= timedelta(0):
            raise ValueError("expire_after must be above 0, or None to keep conversations for ever")
        self.expire_after: Final = expire_after
        self._loaded = LoadedLogs(0)

    # What a repository implements.

    @abstractmethod
    def find_conversation(self, conversation_id: str) -> MaybeAwaitable[Conversation | None]:
        """Return the conversation with this id, expired or not; None if there is none."""

    @abstractmethod
    def fetch_entries(
        self, conversation: Conversation, selection: EntrySelection
    ) -> MaybeAwaitable[Sequence[StoredEntry]]:
        """Return the selected entries of the conversation with this key, by position; none if it is deleted."""

    @abstractmethod
    def commit(
        self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]
    ) -> MaybeAwaitable[bool]:
        """Replace `before` by `after` and add `entries`: all of it, or nothing. Return whether it is stored.

        Nothing is stored if the store no longer has a conversation with the key and the version of `before`, or,
        without `before`, if it has a conversation with the id of `after`. The same goes if the conversation already has
        an entry with the id of a new entry.
        """

    @abstractmethod
    def remove(self, conversation: Conversation) -> MaybeAwaitable[bool]:
        """Remove a conversation and all its entries, unless its key or version has changed. Return whether it is."""

    @abstractmethod
    def find_conversations(
        self, principal: str | None, attributes: Mapping[str, str], expired_by: datetime | None
    ) -> MaybeAwaitable[Iterable[Conversation]]:
        """Return the conversations that match all conditions, the oldest first.

        Args:
            principal: the owner; None for any or no owner.
            attributes: attributes that each conversation has with these values, beside others.
            expired_by: the time at or before which each conversation expires; None for all conversations.
        """

    def search_entries(
        self, conversation: Conversation, search: WordSearch
    ) -> MaybeAwaitable[Sequence[StoredEntry] | None]:
        """Return the messages that a search finds, the newest first. By default None, and then messages are read."""
        return None

    def close(self) -> None:  # noqa: B027
        """Close connections. By default, there is nothing to close."""

    def _step(self, method: Callable[..., MaybeAwaitable[T]], *arguments: Any) -> Call[T]:
        """Return the step that calls a method of the store."""
        return Call(method, *arguments)

    # What an application calls.

    def append(
        self,
        conversation_id: str,
        entries: Sequence[MemoryEntry],
        expected_version: int,
        *,
        principal: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> int:
        """Append entries, all or none, and return the version that the log has with the last of them.

        If the log already has all of these entries, nothing changes, so that an append can be repeated when its
        outcome is unknown.

        Args:
            conversation_id: the conversation, which begins with its first append.
            entries: at least one entry.
            expected_version: the version of the log that the caller has read; 0 for a new conversation.
            principal: who asks: the owner of the conversation.
            attributes: what `conversations` finds the conversation by; added to those it has.

        Raises:
            ConversationConflict: if the log has another version; read the entries after yours, and decide again.
            ConversationDenied: if the conversation belongs to another principal.
            ChatMemoryError: if the store fails.
        """
        return call(self._append_flow(conversation_id, entries, expected_version, principal, attributes))

    async def aappend(
        self,
        conversation_id: str,
        entries: Sequence[MemoryEntry],
        expected_version: int,
        *,
        principal: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> int:
        """Append entries on asyncio; see `append`."""
        return await acall(self._append_flow(conversation_id, entries, expected_version, principal, attributes))

    def read(self, conversation_id: str, *, principal: str | None = None, **part: Unpack[LogPart]) -> ConversationLog:
        """Return a part of the log, by default all of it. The cost depends on the part and not on the log.

        Args:
            conversation_id: the conversation; the log of a missing one is empty.
            principal: who asks: the owner of the conversation.
            **part: which part, see `LogPart`.

        Raises:
            ConversationDenied: if the conversation belongs to another principal.
            UnreadableConversation: if an entry cannot be read, or is missing.
            ChatMemoryError: if the store fails.
        """
        return call(self.read_flow(conversation_id, principal=principal, **part))

    async def aread(
        self, conversation_id: str, *, principal: str | None = None, **part: Unpack[LogPart]
    ) -> ConversationLog:
        """Return a part of the log on asyncio; see `read`."""
        return await acall(self.read_flow(conversation_id, principal=principal, **part))

    def search(
        self,
        conversation_id: str,
        words: Sequence[str],
        *,
        principal: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> tuple[MessageEntry, ...]:
        """Return the messages that have some words, the newest first.

        A word is a run of letters and digits, without regard to case; in Chinese and Japanese, it is a character. It is
        found in the text and the reasoning of a message, in the names and arguments of its tool calls, and in its tool
        results, but not as a part of another word. There are no operators and no wildcards.

        Args:
            conversation_id: the conversation.
            words: 1 to 20 texts of 1 to 200 characters. If one of them has several words, a message must have all of
                these, in any order.
            principal: who asks: the owner of the conversation.
            **options: how, and in which part of the log, see `SearchOptions`.

        Raises:
            ConversationDenied: if the conversation belongs to another principal.
            UnreadableConversation: if an entry cannot be read.
            ChatMemoryError: if the store fails.
        """
        return call(self.search_flow(conversation_id, words, principal=principal, **options))

    async def asearch(
        self,
        conversation_id: str,
        words: Sequence[str],
        *,
        principal: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> tuple[MessageEntry, ...]:
        """Return the messages that have some words on asyncio; see `search`."""
        return await acall(self.search_flow(conversation_id, words, principal=principal, **options))

    def version(self, conversation_id: str, *, principal: str | None = None) -> int:
        """Return the number of entries in the log; 0 if there is no conversation."""
        return call(self._version_flow(conversation_id, principal))

    async def aversion(self, conversation_id: str, *, principal: str | None = None) -> int:
        """Return the number of entries in the log on asyncio; see `version`."""
        return await acall(self._version_flow(conversation_id, principal))

    def delete(self, conversation_id: str, *, principal: str | None = None) -> bool:
        """Delete a conversation with its log, and return whether there was one."""
        return call(self._delete_flow(conversation_id, principal))

    async def adelete(self, conversation_id: str, *, principal: str | None = None) -> bool:
        """Delete a conversation with its log on asyncio; see `delete`."""
        return await acall(self._delete_flow(conversation_id, principal))

    def conversations(
        self, *, attributes: Mapping[str, str] | None = None, principal: str | None = None
    ) -> tuple[Conversation, ...]:
        """Return the conversations that match, the oldest first. This is for the application, not for its users.

        Args:
            attributes: attributes that each conversation has with these values, beside others.
            principal: the owner; None for any or no owner.
        """
        return call(self._conversations_flow(attributes, principal))

    async def aconversations(
        self, *, attributes: Mapping[str, str] | None = None, principal: str | None = None
    ) -> tuple[Conversation, ...]:
        """Return the conversations that match on asyncio; see `conversations`."""
        return await acall(self._conversations_flow(attributes, principal))

    def delete_expired(self, by: datetime | None = None) -> int:
        """Delete the conversations that expire at or before a time, and return their number.

        A conversation that a run continues meanwhile is kept.

        Args:
            by: the time, with a time zone; None for now.
        """
        return call(self._delete_expired_flow(by))

    async def adelete_expired(self, by: datetime | None = None) -> int:
        """Delete expired conversations on asyncio; see `delete_expired`."""
        return await acall(self._delete_expired_flow(by))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    # The rules of a log, as flows, which the memory of an agent awaits.

    async def extend_flow(
        self,
        log: ConversationLog,
        entries: Sequence[MemoryEntry],
        *,
        principal: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> ConversationLog:
        """Append to a log as it was read, without reading anything again; see `append`. This is a flow.

        Args:
            log: what `read_flow` or `extend_flow` returned.
            entries: at least one entry.
            principal: who asks: the owner of the conversation.
            attributes: what `conversations` finds the conversation by; added to those it has.

        Returns:
            The log with its new version. Its entries are those that were appended, with their positions.

        Raises:
            ConversationConflict: if the log has changed since it was read.
        """
        check_entries(entries)
        new_attributes = _checked_attributes(attributes)
        conversation_id, version, head = log.conversation_id, log.version, log.conversation
        _check_request(conversation_id, principal, head)
        rows = [dump_row(entry, version + index) for index, entry in enumerate(entries, 1)]
        if _version(head) == version and not (head and _is_expired(head, utc_now())):
            after = self._next_conversation(head, conversation_id, rows, principal, new_attributes)
            if await self._step(self.commit, head, after, rows):
                return _extended_log(after, entries, rows)
        # The log has changed, or the store refused the entries; only now is it read, so that most appends read nothing.
        current = await self._find_flow(conversation_id, principal)
        # An append whose outcome is unknown is repeated: if the log has its entries, it has succeeded before.
        if current is not None and (existing := await self._find_rows(current, rows)):
            return _extended_log(current, entries, existing)
        if current is None or head is None or current.revision != (head.key, version):
            raise ConversationConflict(conversation_id, version, _version(current))
        raise ChatMemoryError(f"the store refuses entries of the conversation {conversation_id!r}: check its rows")

    async def _append_flow(
        self,
        conversation_id: str,
        entries: Sequence[MemoryEntry],
        expected_version: int,
        principal: str | None,
        attributes: Mapping[str, str] | None,
    ) -> int:
        expect_whole("expected_version", expected_version, 0)
        conversation = await self._find_flow(conversation_id, principal)
        log = ConversationLog(conversation_id, expected_version, (), conversation)
        return (await self.extend_flow(log, entries, principal=principal, attributes=attributes)).version

    def _next_conversation(
        self,
        conversation: Conversation | None,
        conversation_id: str,
        rows: Sequence[StoredEntry],
        principal: str | None,
        attributes: Mapping[str, str],
    ) -> Conversation:
        """Return the conversation after an append of `rows`."""
        now = utc_now()
        values: dict[str, Any] = {
            "version": rows[-1].position,
            "last_turn": max(conversation.last_turn if conversation else 1, *(row.turn for row in rows)),
            "attributes": {**(conversation.attributes if conversation else {}), **attributes},
            "updated_at": now,
            "expires_at": None if self.expire_after is None else now + self.expire_after,
        }
        if conversation is not None and values["last_turn"] == conversation.last_turn:  # nothing of it can be invalid
            return make_unvalidated(Conversation, {**vars(conversation), **values})
        key, created_at = (conversation.key, conversation.created_at) if conversation else (time_ordered_id(), now)
        return Conversation(key=key, id=conversation_id, principal=principal, created_at=created_at, **values)

    async def _find_rows(self, conversation: Conversation, rows: Sequence[StoredEntry]) -> Sequence[StoredEntry]:
        """Return `rows` with their positions in the log if it has all of them; an empty sequence if it has none."""
        ids = tuple(row.id for row in rows)
        selection = EntrySelection(0, conversation.version, ids=ids)
        existing = await self._step(self.fetch_entries, conversation, selection)
        if existing and [(row.id, row.body) for row in existing] != [(row.id, row.body) for row in rows]:
            raise ValueError(
                "the conversation has some of these entries, or other entries with their ids: "
                "repeat an append with the same entries, and make each new entry with an id of its own"
            )
        return existing

    async def read_flow(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        last: int | None = None,
        last_turns: int | None = None,
        kind: EntryKind | None = None,
        branches: Sequence[str] | None = None,
        ids: tuple[str, ...] | None = None,
        principal: str | None = None,
    ) -> ConversationLog:
        """Return a part of the log; see `read`. This is a flow.

        With `ids`, it returns the entries with these ids, which must all be there.
        """
        expect_whole("after", after, 0)
        for name, number in (("limit", limit), ("last", last), ("last_turns", last_turns)):
            if number is not None:
                expect_whole(name, number, 1)
        if limit is not None and last is not None:
            raise ValueError("limit counts from the beginning and last from the end: pass one of them")
        if kind not in (None, "message", "compaction"):
            raise ValueError("kind must be message, compaction or None")
        branch_names = _checked_branches(branches)
        while (conversation := await self._find_flow(conversation_id, principal)) is not None:
            from_turn = 1 if last_turns is None else max(1, conversation.last_turn - last_turns + 1)
            selection = EntrySelection(after, conversation.version, from_turn, kind, branch_names, ids, limit, last)
            loaded = self._loaded.find(conversation, selection)
            unknown = loaded.missing(selection)
            rows = await self._step(self.fetch_entries, conversation, unknown)
            missing = unknown.first_missing(rows)
            if missing is None and (log := loaded.extended(rows, conversation_id)) is not None:
                self._loaded.keep(conversation, selection, log)
                entries = log.entries_after(after)
                return ConversationLog(conversation_id, conversation.version, entries, conversation)
            self._loaded.forget(conversation_id)
            if missing is None:
                continue
            # Between the two loads, another caller may delete the conversation and begin a new one with its id.
            current = await self._find_flow(conversation_id, principal)
            if current is not None and current.key == conversation.key:
                raise UnreadableConversation(conversation_id, f"entry {missing}", "it is missing")
        self._loaded.forget(conversation_id)
        return ConversationLog(conversation_id, 0)

    async def search_flow(
        self,
        conversation_id: str,
        words: Sequence[str],
        *,
        match: Match = "all",
        branches: Sequence[str] | None = None,
        through: int | None = None,
        before: int | None = None,
        limit: int | None = None,
        principal: str | None = None,
    ) -> tuple[MessageEntry, ...]:
        """Return the messages that have some words; see `search`. This is a flow."""
        word_sets = _checked_words(words)
        if match not in get_args(Match):
            raise ValueError("match must be all or any")
        for name, number in (("through", through), ("before", before), ("limit", limit)):
            if number is not None:
                expect_whole(name, number, 1)
        branch_names = _checked_branches(branches)
        conversation = await self._find_flow(conversation_id, principal)
        if conversation is None or not (all(word_sets) if match == "all" else any(word_sets)):
            return ()
        most = min(conversation.version, through or conversation.version, (before or conversation.version + 1) - 1)
        search = WordSearch(tuple(filter(None, word_sets)), match, most, branch_names, limit or conversation.version)
        rows = await self._step(self.search_entries, conversation, search)
        if rows is None:
            return await self._scan_flow(conversation, search)
        entries = (load_row(row, conversation_id) for row in rows)
        return tuple(entry for entry in entries if isinstance(entry, MessageEntry))

    async def _scan_flow(self, conversation: Conversation, search: WordSearch) -> tuple[MessageEntry, ...]:
        """Return the matches of a search by reading messages from the end of the log."""
        entries: list[MessageEntry] = []
        through = search.through
        while through > 0 and len(entries) < search.limit:
            selection = EntrySelection(0, through, kind="message", branches=search.branches, last=_PAGE)
            rows = await self._step(self.fetch_entries, conversation, selection)
            entries += await Call[Sequence[MessageEntry]](_matching_messages, rows, conversation.id, search)
            through = rows[0].position - 1 if len(rows) == _PAGE else 0
        return tuple(entries[: search.limit])

    async def _version_flow(self, conversation_id: str, principal: str | None) -> int:
        return _version(await self._find_flow(conversation_id, principal))

    async def _delete_flow(self, conversation_id: str, principal: str | None) -> bool:
        # `remove` refuses a conversation that has changed since it was loaded, so the next round loads it again.
        while (conversation := await self._find_flow(conversation_id, principal)) is not None:
            if await self._step(self.remove, conversation):
                return True
        return False

    async def _conversations_flow(
        self, attributes: Mapping[str, str] | None, principal: str | None
    ) -> tuple[Conversation, ...]:
        check_principal("principal", principal)
        conditions = _checked_attributes(attributes)
        conversations = await self._step(self.find_conversations, principal, conditions, None)
        now = utc_now()
        return tuple(conversation for conversation in conversations if not _is_expired(conversation, now))

    async def _delete_expired_flow(self, by: datetime | None) -> int:
        time = utc_now() if by is None else by
        expect("by", time, datetime, "a datetime or None")
        if time.tzinfo is None:
            raise ValueError("by must have a time zone: pass a time such as datetime.now(timezone.utc)")
        expired = await self._step(self.find_conversations, None, {}, time)
        return sum([await self._step(self.remove, conversation) for conversation in expired])

    async def _find_flow(self, conversation_id: str, principal: str | None) -> Conversation | None:
        """Return the caller's conversation; None if there is none. An expired conversation is removed."""
        _check_request(conversation_id, principal, None)
        conversation = await self._step(self.find_conversation, conversation_id)
        if conversation is None:
            return None
        if _is_expired(conversation, utc_now()):
            # If another caller has continued or removed it meanwhile, the conversation in the store decides.
            removed = await self._step(self.remove, conversation)
            return None if removed else await self._find_flow(conversation_id, principal)
        _check_request(conversation_id, principal, conversation)
        return conversation


def utc_now() -> datetime:
    """Return the time by which conversations expire."""
    return datetime.now(UTC)


def _version(conversation: Conversation | None) -> int:
    return 0 if conversation is None else conversation.version


def _is_expired(conversation: Conversation, now: datetime) -> bool:
    return conversation.expires_at is not None and conversation.expires_at <= now


def _extended_log(
    conversation: Conversation, entries: Sequence[MemoryEntry], rows: Sequence[StoredEntry]
) -> ConversationLog:
    """Return the log after an append of `entries`, which are stored in `rows`."""
    placed_entries = [entry.at(conversation.id, row.position) for entry, row in zip(entries, rows, strict=True)]
    appended = cast(Sequence[MessageEntry | CompactionEntry], placed_entries)
    return ConversationLog(conversation.id, rows[-1].position, tuple(appended), conversation)


def _matching_messages(rows: Sequence[StoredEntry], conversation_id: str, search: WordSearch) -> Sequence[MessageEntry]:
    """Return the matches of a search among `rows`, the newest first."""
    entries = (load_row(row, conversation_id) for row in reversed(rows))
    return [entry for entry in entries if isinstance(entry, MessageEntry) and search.finds(entry.message)]


def _check_text(argument: str, value: object, most: int, least: int = 1) -> None:
    expect(argument, value, str, "a str")
    assert isinstance(value, str)
    if not least <= len(value) <= most:
        raise ValueError(f"{argument} must have {least} to {most} characters; it has {len(value)}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{argument} must be text that UTF-8 can encode: replace its lone surrogates")


def _check_request(conversation_id: str, principal: str | None, conversation: Conversation | None) -> None:
    """Raise an error if a request is invalid, or if its conversation belongs to another principal."""
    _check_text("conversation_id", conversation_id, MOST_ID)
    check_principal("principal", principal)
    if conversation is not None and conversation.principal != principal:
        raise ConversationDenied(conversation_id, has_owner=conversation.principal is not None)


def _checked_branches(branches: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return `branches` without repetitions."""
    if branches is None:
        return None
    if isinstance(branches, str) or not isinstance(branches, Sequence):
        raise TypeError(f"branches must be a sequence of str or None, not {type(branches).__name__}")
    if not branches:
        raise ValueError("branches must not be empty: pass at least one branch, or None for all")
    for branch in branches:
        _check_text("each of branches", branch, MOST_BRANCH, least=0)
    return tuple(dict.fromkeys(branches))


def _checked_words(words: Sequence[str]) -> Sequence[frozenset[str]]:
    """Return for each of `words` the set of words that a message must have."""
    if isinstance(words, str) or not isinstance(words, Sequence):
        raise TypeError(f"words must be a sequence of str, not {type(words).__name__}")
    if not 1 <= len(words) <= MOST_WORDS:
        raise ValueError(f"words must have 1 to {MOST_WORDS} items; it has {len(words)}")
    for text in words:
        _check_text("each of words", text, MOST_WORD)
    return [frozenset(words_in(text)) for text in words]


def _checked_attributes(attributes: Mapping[str, str] | None) -> Mapping[str, str]:
    checked = checked_mapping("attributes", attributes)
    for name, value in checked.items():
        _check_text("each name in attributes", name, MOST_ATTRIBUTE_NAME)
        _check_text("each value in attributes", value, MOST_ID)
    return checked
