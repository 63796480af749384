"""Conversations in Redis."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from importlib.util import find_spec
from itertools import product
from typing import Any, Final, get_args
from urllib.parse import quote, unquote

from pydantic import ValidationError

from traced_tools.errors import ChatMemoryUnavailable, ConfigurationError, UnreadableConversation
from traced_tools.memory.conversation import Conversation, EntrySelection, StoredEntry
from traced_tools.memory.entries import EntryKind
from traced_tools.memory.repository import EXPIRE_AFTER, ChatMemoryRepository
from traced_tools.stores.errors import translate_errors

_PREFIX: Final = "traced_tools:memory"
_PART: Final = 500
"""How many values a command reads at once."""
_ALL_BRANCHES: Final = "*"
"""Stands for all branches in an index of positions. A branch with this name is escaped."""


def _redis_problem(error: Exception) -> str | None:
    """Return the class of an error of Redis; None for other errors."""
    import redis

    return type(error).__name__ if isinstance(error, redis.RedisError) else None


_without_texts: Final = translate_errors(_redis_problem, ChatMemoryUnavailable)


class RedisChatMemoryRepository(ChatMemoryRepository):
    """Keeps conversations in Redis, under keys that begin with `traced_tools:memory:`. Needs the extra `redis`.

    An append is one transaction (`WATCH`, `MULTI`). Whether it survives a crash of the server is up to the server's
    settings for persistence. Redis Cluster is not supported, because a transaction changes several keys.

    Args:
        url: where the server is: `redis://host:6379/0`, or `rediss://` with TLS.
        expire_after: how long a conversation is kept after its last append; None for ever.

    Raises:
        ConfigurationError: for a URL that cannot be used, or without redis-py.
    """

    def __init__(self, url: str, *, expire_after: timedelta | None = EXPIRE_AFTER) -> None:
        super().__init__(expire_after=expire_after)
        if find_spec("redis") is None:
            raise ConfigurationError("a chat memory in Redis needs redis-py: pip install 'traced_tools[redis]'")
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, not {type(url).__name__}")
        self._client: Final[Any] = _client(url)  # redis-py opens new connections in a forked child

    @_without_texts
    def find_conversation(self, conversation_id: str) -> Conversation | None:
        """Return the conversation with this id."""
        text = self._client.get(_conversation_key(conversation_id))
        return None if text is None else _conversation(text, conversation_id)

    @_without_texts
    def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Sequence[StoredEntry]:
        """Return the selected entries of a conversation."""
        key = conversation.key
        if selection.ids is not None:
            values = self._many(f"{_PREFIX}:ids:{key}", selection.ids)
            return selection.select(self._entries(key, sorted(int(value) for value in values if value is not None)))
        return self._entries(key, self._positions(key, selection))

    def _entries(self, key: str, positions: Sequence[int]) -> list[StoredEntry]:
        texts = self._many(f"{_PREFIX}:entries:{key}", positions)
        pairs = zip(positions, texts, strict=True)
        return [_stored_entry(position, text) for position, text in pairs if text is not None]

    def _positions(self, key: str, selection: EntrySelection) -> Sequence[int]:
        """Return the positions of the entries that a selection without ids selects."""
        if selection.from_turn > 1:
            positions = self._in_turns(key, selection)
        elif selection.kind is None and selection.branches is None:
            return selection.cut(range(selection.after + 1, selection.through + 1))
        else:
            branches = [_ALL_BRANCHES] if selection.branches is None else map(_escape, selection.branches)
            kinds = get_args(EntryKind) if selection.kind is None else (selection.kind,)
            positions = [
                position for place in product(branches, kinds) for position in self._of_kind(key, *place, selection)
            ]
        return selection.cut(sorted(positions))

    def _in_turns(self, key: str, selection: EntrySelection) -> list[int]:
        """Return the positions that match a selection by turn."""
        members = self._client.zrangebyscore(f"{_PREFIX}:turns:{key}", selection.from_turn, "+inf")
        places = [member.decode().split("|") for member in members]
        return [
            int(position)
            for branch, kind, position in places
            if selection.after < int(position) <= selection.through
            and selection.kind in (None, kind)
            and (selection.branches is None or unquote(branch) in selection.branches)
        ]

    def _of_kind(self, key: str, branch: str, kind: str, selection: EntrySelection) -> list[int]:
        """Return the positions of a branch and a kind in the range of a selection, cut to its number."""
        name = f"{_PREFIX}:kinds:{key}"
        least, most = (f"[{_place(branch, kind, position)}" for position in (selection.after + 1, selection.through))
        if selection.last is not None:
            members = self._client.zrevrangebylex(name, most, least, start=0, num=selection.last)
        else:
            limit = -1 if selection.first is None else selection.first
            members = self._client.zrangebylex(name, least, most, start=0, num=limit)
        return [int(member.rpartition(b"|")[2]) for member in members]

    def _many(self, name: str, fields: Sequence[object]) -> list[Any]:
        return [
            value
            for start in range(0, len(fields), _PART)
            for value in self._client.hmget(name, list(fields[start : start + _PART]))
        ]

    @_without_texts
    def commit(self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]) -> bool:
        """Replace `before` by `after` and add `entries` in one transaction."""
        key, name = after.key, _conversation_key(after.id)
        with self._watching(name, before, after.id) as transaction:
            if transaction is None or any(transaction.hmget(f"{_PREFIX}:ids:{key}", [entry.id for entry in entries])):
                return False
            transaction.multi()
            transaction.set(name, after.model_dump_json())
            for entry in entries:
                position = entry.position
                body = json.dumps([entry.id, entry.turn, entry.branch, entry.kind, entry.body])
                place = _place(_escape(entry.branch), entry.kind, position)
                transaction.hset(f"{_PREFIX}:entries:{key}", position, body)
                transaction.hset(f"{_PREFIX}:ids:{key}", entry.id, position)
                transaction.zadd(f"{_PREFIX}:turns:{key}", {place: entry.turn})
                transaction.zadd(f"{_PREFIX}:kinds:{key}", {place: 0, _place(_ALL_BRANCHES, entry.kind, position): 0})
            for index in _indexes(after):
                transaction.sadd(index, _escape(after.id))
            _expire(transaction, after)
            return _execute(transaction)

    @_without_texts
    def remove(self, conversation: Conversation) -> bool:
        """Remove a conversation and its entries in one transaction."""
        key, name = conversation.key, _conversation_key(conversation.id)
        with self._watching(name, conversation, conversation.id) as transaction:
            if transaction is None:
                return False
            transaction.multi()
            parts = ("entries", "ids", "turns", "kinds")
            transaction.delete(name, *(f"{_PREFIX}:{part}:{key}" for part in parts))
            for index in _indexes(conversation):
                transaction.srem(index, _escape(conversation.id))
            transaction.zrem(f"{_PREFIX}:expiry", _escape(conversation.id))
            return _execute(transaction)

    @_without_texts
    def find_conversations(
        self, principal: str | None, attributes: Mapping[str, str], expired_by: datetime | None
    ) -> Iterable[Conversation]:
        """Return the conversations that match all conditions, the oldest first."""
        indexes = [_attribute_index(name, value) for name, value in attributes.items()]
        if principal is not None:
            indexes.append(_principal_index(principal))
        if expired_by is not None:
            names = self._client.zrangebyscore(f"{_PREFIX}:expiry", "-inf", _milliseconds(expired_by))
        else:
            names = self._client.smembers((indexes or [f"{_PREFIX}:all"])[0])
        ids = [unquote(name.decode()) for name in names]
        keys = [_conversation_key(conversation_id) for conversation_id in ids]
        parts = [self._client.mget(keys[start : start + _PART]) for start in range(0, len(keys), _PART)]
        texts = [text for part in parts for text in part]
        conversations = [
            _conversation(text, conversation_id)
            for conversation_id, text in zip(ids, texts, strict=True)
            if text is not None
        ]
        matching = [
            conversation for conversation in conversations if conversation.matches(principal, attributes, expired_by)
        ]
        return sorted(matching, key=lambda conversation: conversation.key)

    @contextmanager
    def _watching(self, name: str, expected: Conversation | None, conversation_id: str) -> Iterator[Any]:
        """Watch the key of a conversation; return its transaction, None if the conversation is no longer `expected`."""
        with self._client.pipeline() as transaction:
            transaction.watch(name)
            text = transaction.get(name)
            current = None if text is None else _conversation(text, conversation_id)
            yield transaction if _revision(current) == _revision(expected) else None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __repr__(self) -> str:
        options = self._client.connection_pool.connection_kwargs
        return f"RedisChatMemoryRepository({options.get('host')}:{options.get('port')}/{options.get('db')})"


def _client(url: str) -> Any:
    import redis

    try:
        return redis.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=30)
    except ValueError:
        pass  # the error's text may hold the password
    raise ConfigurationError("the chat memory's URL is invalid: pass a URL such as redis://host:6379/0")


def _execute(transaction: Any) -> bool:
    import redis

    try:
        transaction.execute()
    except redis.WatchError:
        return False
    return True


def _revision(conversation: Conversation | None) -> tuple[str, int] | None:
    return None if conversation is None else conversation.revision


def _conversation(text: bytes, conversation_id: str) -> Conversation:
    try:
        conversation = Conversation.model_validate_json(text)
    except ValidationError:
        conversation = None  # the error's text may name what the value has
    if conversation is None or conversation.id != conversation_id:
        raise UnreadableConversation(conversation_id, "the value", "its JSON is no conversation of this version")
    return conversation


def _stored_entry(position: int, text: bytes) -> StoredEntry:
    """Return the entry in a value; its body is empty if the value is not ours, which is reported when it is read."""
    try:
        return StoredEntry(position, *json.loads(text))
    except (ValueError, TypeError):
        return StoredEntry(position, "", 0, "", "", "")


def _place(branch: str, kind: str, position: int) -> str:
    """Return the member of an index of positions; members of a branch and a kind sort by position."""
    return f"{branch}|{kind}|{position:019}"


def _escape(text: str) -> str:
    return quote(text, safe="")


def _expire(transaction: Any, conversation: Conversation) -> None:
    name, member = f"{_PREFIX}:expiry", _escape(conversation.id)
    if conversation.expires_at is None:
        transaction.zrem(name, member)
    else:
        transaction.zadd(name, {member: _milliseconds(conversation.expires_at)})


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def _conversation_key(conversation_id: str) -> str:
    return f"{_PREFIX}:conversation:{_escape(conversation_id)}"


def _indexes(conversation: Conversation) -> list[str]:
    """Return the keys of the sets that list a conversation."""
    owned = [] if conversation.principal is None else [_principal_index(conversation.principal)]
    return [f"{_PREFIX}:all", *owned, *(_attribute_index(*attribute) for attribute in conversation.attributes.items())]


def _principal_index(principal: str) -> str:
    return f"{_PREFIX}:principal:{_escape(principal)}"


def _attribute_index(name: str, value: str) -> str:
    return f"{_PREFIX}:attribute:{_escape(name)}:{_escape(value)}"
