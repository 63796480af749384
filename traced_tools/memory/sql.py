"""Conversations in a SQL database: an SQLite file beside the application, or a PostgreSQL server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import chain
from typing import Any, Final, TypeAlias, get_args

from pydantic import ValidationError
from sqlalchemy import (
    ClauseElement,
    Select,
    and_,
    bindparam,
    delete,
    insert,
    literal_column,
    select,
    update,
)

from traced_tools.core.escaping import escaped, unescaped
from traced_tools.core.fork import on_fork
from traced_tools.errors import ChatMemoryUnavailable, UnreadableConversation
from traced_tools.memory.conversation import Conversation, EntrySelection, StoredEntry, load_row
from traced_tools.memory.entries import EntryKind, MessageEntry
from traced_tools.memory.loaded import LoadedLogs
from traced_tools.memory.repository import EXPIRE_AFTER, ChatMemoryRepository
from traced_tools.memory.sql_schema import ATTRIBUTES, CHAT_MEMORY, CONVERSATIONS, ENTRIES
from traced_tools.memory.sql_search import Fts5Index, TsvectorIndex, WordIndex
from traced_tools.memory.words import WordSearch, words_of
from traced_tools.stores.columns import microseconds, time_of
from traced_tools.stores.database import Database
from traced_tools.stores.errors import sql_problem, translate_errors

Execute: TypeAlias = Callable[[ClauseElement, Mapping[str, Any]], Any]
"""Executes a statement with its values, and returns the driver's cursor."""

_MOST_IDLE: Final = 5
"""Connections to SQLite that wait for the next transaction."""
_MOST_LOADED: Final = 20_000
"""How many entries stay in memory after they were read, so that they need not be read again."""
_MOST_IDS: Final = 500
"""The number of ids in one statement; databases limit it."""


_SYNCED: Final = "PRAGMA synchronous=FULL"
_UNSYNCED: Final = "PRAGMA synchronous=NORMAL"
"""For words alone: the sync of two commits would take a third of the time of a turn."""
_OF_TOOLS: Final = '"type":"tool_'
"""Part of the body of an entry with tool calls or results. JSON escapes quotes, so no text contains it."""
_without_texts: Final = translate_errors(sql_problem, ChatMemoryUnavailable)


class SqlChatMemoryRepository(ChatMemoryRepository):
    """Keeps conversations in SQLite or PostgreSQL. It connects, and creates missing tables, when it is first used.

    Args:
        url: the path of an SQLite file, or an SQLAlchemy URL such as `postgresql+psycopg://user@host/database`, which
            needs the extra `postgresql`. A missing SQLite file is created for its owner alone.
        expire_after: how long a conversation is kept after its last append; None for ever.

    Raises:
        ConfigurationError: for a URL that cannot be used.
    """

    def __init__(self, url: str | os.PathLike[str], *, expire_after: timedelta | None = EXPIRE_AFTER) -> None:
        super().__init__(expire_after=expire_after)
        self._database: Final = Database(url, CHAT_MEMORY)
        self._loaded = LoadedLogs(_MOST_LOADED)
        self._texts: Final[dict[ClauseElement, str]] = {}
        self._index: Final[WordIndex] = Fts5Index() if self._database.is_sqlite else TsvectorIndex()
        self._idle: list[Any] = []
        on_fork(self._begin_in_child)

    def _begin_in_child(self) -> None:
        """Leave the parent's connections to the parent."""
        self._parents_idle, self._idle = self._idle, []  # a connection without a reference is closed

    @_without_texts
    def find_conversation(self, conversation_id: str) -> Conversation | None:
        """Return the conversation with this id."""
        with self._transaction() as execute:
            row = execute(_FIND, {"wanted": escaped(conversation_id)}).fetchone()
        return None if row is None else _conversation(row)

    @_without_texts
    def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Sequence[StoredEntry]:
        """Return the selected entries of a conversation."""
        if selection.ids is None:
            with self._transaction() as execute:
                return _select_entries(execute, conversation.key, selection)
        ids = [escaped(entry_id) for entry_id in selection.ids]
        with self._database.connect() as connection:
            rows = [
                row
                for start in range(0, len(ids), _MOST_IDS)
                for row in connection.execute(
                    select(*_STORED).where(
                        ENTRIES.c.conversation_key == conversation.key, ENTRIES.c.id.in_(ids[start : start + _MOST_IDS])
                    )
                )
            ]
        return selection.select(sorted(map(_stored_entry, rows)))

    @_without_texts
    def commit(self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]) -> bool:
        """Replace `before` by `after` and add `entries` in one transaction."""
        has_tool_messages = any(_OF_TOOLS in entry.body for entry in entries)
        try:
            with self._transaction(synced=has_tool_messages) as execute:
                if not _replace(execute, before, after):
                    return False
                for entry in entries:
                    execute(_ADD, _row(after.key, entry))
                if before is None or before.attributes != after.attributes:
                    execute(_CLEAR_ATTRIBUTES, {"of_key": after.key})
                    for name, value in after.attributes.items():
                        values = {"name": escaped(name), "value": escaped(value), "conversation_key": after.key}
                        execute(_ADD_ATTRIBUTE, values)
        except self._database.integrity_error:  # another process has stored a row with the same key
            return False
        return True

    @_without_texts
    def remove(self, conversation: Conversation) -> bool:
        """Remove a conversation and its entries in one transaction."""
        with self._database.connect() as connection, connection.begin():
            removed = connection.execute(_REMOVE, _identity(conversation))
            if removed.rowcount != 1:
                return False
            for table in (ENTRIES, ATTRIBUTES):
                connection.execute(delete(table).where(table.c.conversation_key == conversation.key))
            self._index.forget(connection, conversation.key)
        self._loaded.forget(conversation.id)
        return True

    @_without_texts
    def search_entries(self, conversation: Conversation, search: WordSearch) -> Sequence[StoredEntry] | None:
        """Return the messages that a search finds in the full text; None if the database has none."""
        with self._database.connect() as connection:
            if not self._index.is_supported(connection):
                return None
            self._index.update(connection, conversation, partial(_row_words, conversation.id))
            branches = None if search.branches is None else tuple(map(escaped, search.branches))
            rows = self._index.find(connection, conversation.key, replace(search, branches=branches))
        return [_stored_entry(row) for row in rows]

    @_without_texts
    def find_conversations(
        self, principal: str | None, attributes: Mapping[str, str], expired_by: datetime | None
    ) -> Iterable[Conversation]:
        """Return the conversations that match all conditions, the oldest first."""
        query = select(CONVERSATIONS).order_by(CONVERSATIONS.c.key)
        if principal is not None:
            query = query.where(CONVERSATIONS.c.principal == escaped(principal))
        for name, value in attributes.items():
            has = and_(ATTRIBUTES.c.name == escaped(name), ATTRIBUTES.c.value == escaped(value))
            query = query.where(CONVERSATIONS.c.key.in_(select(ATTRIBUTES.c.conversation_key).where(has)))
        if expired_by is not None:
            query = query.where(CONVERSATIONS.c.expires_at <= microseconds(expired_by))
        with self._database.connect() as connection:
            rows = connection.execute(query).all()
        return [_conversation(row) for row in rows]

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()
        self._database.close()

    @contextmanager
    def _transaction(self, *, synced: bool = False) -> Iterator[Execute]:
        """Return what executes statements in a transaction. They go to the driver, as text that is made once.

        SQLAlchemy takes several times as long to execute a statement as SQLite.

        Args:
            synced: whether SQLite syncs the commit, and with it all commits before. PostgreSQL always does.
        """
        self._database.prepare()
        connection = self._check_out()
        try:
            if synced and self._database.is_sqlite:
                connection.execute(_SYNCED)
            cursor = connection.cursor()

            def execute(statement: ClauseElement, values: Mapping[str, Any]) -> Any:
                cursor.execute(self._text(statement), values)
                return cursor

            yield execute
            connection.commit()
            if synced and self._database.is_sqlite:
                connection.execute(_UNSYNCED)
        except BaseException:
            connection.close()  # which rolls back, and gives it back to a pool
            raise
        self._check_in(connection)

    def _check_out(self) -> Any:
        """Return a connection: an idle one to SQLite, because SQLAlchemy's pool takes longer than a statement."""
        with suppress(IndexError):
            return self._idle.pop()
        connection = self._database.engine.raw_connection()
        if not self._database.is_sqlite:
            return connection
        connection.detach()
        driver: Any = connection.dbapi_connection
        driver.execute(_UNSYNCED)
        return driver

    def _check_in(self, connection: Any) -> None:
        if self._database.is_sqlite and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def _text(self, statement: ClauseElement) -> str:
        """Return a statement in the language of the database."""
        if (text := self._texts.get(statement)) is None:
            text = self._texts[statement] = str(statement.compile(self._database.engine))
        return text

    def __repr__(self) -> str:
        return f"SqlChatMemoryRepository({str(self._database)!r})"


_STORED: Final = tuple(ENTRIES.c[name] for name in StoredEntry._fields)


_FIND: Final = select(CONVERSATIONS).where(CONVERSATIONS.c.id == bindparam("wanted"))
_IS_CURRENT: Final = and_(
    CONVERSATIONS.c.key == bindparam("at_key"), CONVERSATIONS.c.version == bindparam("at_version")
)
_CHANGED: Final = ("version", "last_turn", "attributes", "updated_at", "expires_at")
_UPDATE: Final = (
    update(CONVERSATIONS).where(_IS_CURRENT).values({column: bindparam(f"new_{column}") for column in _CHANGED})
)
_BEGIN: Final = insert(CONVERSATIONS)
_REMOVE: Final = delete(CONVERSATIONS).where(_IS_CURRENT)
_ADD: Final = insert(ENTRIES)
_CLEAR_ATTRIBUTES: Final = delete(ATTRIBUTES).where(ATTRIBUTES.c.conversation_key == bindparam("of_key"))
_ADD_ATTRIBUTE: Final = insert(ATTRIBUTES)
_ZERO: Final[Any] = literal_column("0")
_KINDS: Final[Mapping[str, Any]] = {kind: literal_column(f"'{kind}'") for kind in get_args(EntryKind)}
"""Kinds as literals, because a database matches no parameter with the condition of a partial index."""


@cache
def _selecting(by_turn: bool, by_branch: bool, kind: str | None, backward: bool, is_limited: bool) -> Select[Any]:
    """Return the statement of a selection with these conditions."""
    position: Any = ENTRIES.c.position
    query = select(*_STORED).where(ENTRIES.c.conversation_key == bindparam("conversation"))
    if by_turn:
        position = ENTRIES.c.position + _ZERO  # so that the database searches by the turn
        query = query.where(ENTRIES.c.turn >= bindparam("from_turn"))
    if by_branch:
        query = query.where(ENTRIES.c.branch == bindparam("of_branch"))
    if kind is not None:
        query = query.where(ENTRIES.c.kind == _KINDS[kind])
    query = query.where(position > bindparam("after"), position <= bindparam("through"))
    query = query.order_by(position.desc() if backward else position)
    if is_limited:  # without an offset, SQLAlchemy adds one as a parameter
        query = query.limit(bindparam("most")).offset(_ZERO)
    return query


def _select_entries(execute: Execute, key: str, selection: EntrySelection) -> Sequence[StoredEntry]:
    if selection.branches is None:
        return _select_branch(execute, key, selection, None)
    parts = [_select_branch(execute, key, selection, branch) for branch in selection.branches]
    return selection.cut(sorted(chain.from_iterable(parts)))


def _select_branch(execute: Execute, key: str, selection: EntrySelection, branch: str | None) -> list[StoredEntry]:
    """Return the selected entries of a branch, or of all branches."""
    backward = selection.last is not None
    values: dict[str, Any] = {"conversation": key, "after": selection.after, "through": selection.through}
    if by_turn := selection.from_turn > 1:
        values["from_turn"] = selection.from_turn
    if branch is not None:
        values["of_branch"] = escaped(branch)
    if is_limited := backward or selection.first is not None:
        values["most"] = selection.last if backward else selection.first
    rows = execute(_selecting(by_turn, branch is not None, selection.kind, backward, is_limited), values)
    entries = [_stored_entry(row) for row in rows]
    return entries[::-1] if backward else entries


def _replace(execute: Execute, before: Conversation | None, after: Conversation) -> bool:
    values = {
        "version": after.version,
        "last_turn": after.last_turn,
        "attributes": json.dumps(dict(after.attributes)),
        "updated_at": microseconds(after.updated_at),
        "expires_at": None if after.expires_at is None else microseconds(after.expires_at),
    }
    if before is not None:
        new_values = {f"new_{name}": values[name] for name in _CHANGED}
        return bool(execute(_UPDATE, {**new_values, **_identity(before)}).rowcount == 1)
    own = {
        "key": after.key,
        "id": escaped(after.id),
        "principal": None if after.principal is None else escaped(after.principal),
        "created_at": microseconds(after.created_at),
    }
    execute(_BEGIN, {**values, **own})
    return True


def _identity(conversation: Conversation) -> Mapping[str, Any]:
    return {"at_key": conversation.key, "at_version": conversation.version}


def _conversation(row: Sequence[Any]) -> Conversation:
    """Return the conversation in a row of `CONVERSATIONS`."""
    key, escaped_id, version, last_turn, principal, attributes, created_at, updated_at, expires_at = row
    conversation_id = unescaped(str(escaped_id))
    try:
        return Conversation(
            key=key,
            id=conversation_id,
            version=version,
            last_turn=last_turn,
            principal=None if principal is None else unescaped(principal),
            attributes=json.loads(attributes),
            created_at=time_of(created_at),
            updated_at=time_of(updated_at),
            expires_at=None if expires_at is None else time_of(expires_at),
        )
    except (ValidationError, ValueError, TypeError, OverflowError):
        pass  # their texts may quote the row
    raise UnreadableConversation(conversation_id, f"the row in {CONVERSATIONS.name}", "a column has no valid value")


def _row(key: str, entry: StoredEntry) -> Mapping[str, Any]:
    """Return the row of an entry of the conversation with this key."""
    return {
        **entry._asdict(),
        "conversation_key": key,
        "id": escaped(entry.id),
        "branch": escaped(entry.branch),
    }


def _stored_entry(row: Sequence[Any]) -> StoredEntry:
    entry = StoredEntry._make(row)
    if "\\" not in row[1] and "\\" not in row[3]:
        return entry
    return entry._replace(id=unescaped(str(entry.id)), branch=unescaped(str(entry.branch)))


def _row_words(conversation_id: str, row: Sequence[Any]) -> Set[str]:
    entry = load_row(_stored_entry(row), conversation_id)
    return words_of(entry.message) if isinstance(entry, MessageEntry) else set()
