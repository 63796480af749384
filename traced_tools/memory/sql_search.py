"""Full text in a SQL database: which messages of a conversation have which words.

A conversation is indexed when it is searched: what was appended since its last search. So an append costs nothing for
those who never search. The tables of the index are made for the first search.

Words are split in Python (`words_in`), so that all repositories find the same. The database only finds them again:
SQLite with FTS5, PostgreSQL with `tsvector`. In the index, a message also has the word `=` followed by the key of its
conversation, which no text has. A search demands it, so that it reads nothing of other conversations.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, text
from sqlalchemy.exc import OperationalError

from traced_tools.memory.conversation import Conversation, StoredEntry
from traced_tools.memory.sql_schema import ONE_AT_A_TIME
from traced_tools.memory.words import WordSearch

_PAGE: Final = 100
"""How many messages a transaction indexes, so that it is short."""
_MOST_BYTES: Final = 500_000
"""The bytes of the words in a row of PostgreSQL, which limits a `tsvector` to a megabyte."""
_PART: Final = "=part"
"""The word of a row that has only a part of the words of its message."""
_HAS_FTS5: Final = "SELECT fts5_source_id()"
_SECURE_DELETE: Final = (3, 42)
"""The version of SQLite since which FTS5 can overwrite what it deletes."""

_COLUMNS: Final = ", ".join(f"chat_memory_entries.{name}" for name in StoredEntry._fields)
_PROGRESS: Final = (
    "CREATE TABLE IF NOT EXISTS chat_memory_indexed (conversation_key TEXT PRIMARY KEY, position BIGINT NOT NULL)"
)
_BEGIN: Final = text("INSERT INTO chat_memory_indexed VALUES (:key, 0) ON CONFLICT DO NOTHING")
_INDEXED: Final = "SELECT position FROM chat_memory_indexed WHERE conversation_key = :key"
_ADVANCE: Final = text("UPDATE chat_memory_indexed SET position = :position WHERE conversation_key = :key")
_END: Final = text("DELETE FROM chat_memory_indexed WHERE conversation_key = :key")
_CONVERSATION: Final = "SELECT 1 FROM chat_memory_conversations WHERE key = :key"
_NEXT: Final = text(f"""
    SELECT {_COLUMNS} FROM chat_memory_entries
    WHERE conversation_key = :key AND kind = 'message' AND position > :after ORDER BY position LIMIT {_PAGE}
""")


class WordIndex(ABC):
    """The index of the words of messages in a kind of database."""

    tables: Sequence[str]
    exists: str
    begin: Sequence[str]
    """What begins a transaction that writes, beside what SQLAlchemy does."""
    share: str
    """What keeps a row that was selected from being deleted until the end of the transaction."""
    lock: str
    """What lets one transaction at a time select a row."""

    def is_supported(self, connection: Connection) -> bool:
        """Return whether the database can have this index."""
        return True

    def update(
        self, connection: Connection, conversation: Conversation, words_of: Callable[[Row[Any]], Collection[str]]
    ) -> None:
        """Index the messages that were appended to a conversation since it was last indexed.

        Args:
            connection: a connection without a transaction.
            conversation: the conversation.
            words_of: returns the words of the message in a row.
        """
        with connection.begin():
            if not self._exists(connection):
                self._execute(connection, self.tables)
        while not self._is_indexed(connection, conversation):
            with connection.begin():
                self._execute(connection, self.begin)
                if not self._index_page(connection, conversation, words_of):
                    return

    def _is_indexed(self, connection: Connection, conversation: Conversation) -> bool:
        with connection.begin():
            version = connection.execute(text(_INDEXED), {"key": conversation.key}).scalar()
        return version is not None and version >= conversation.version

    def _index_page(
        self, connection: Connection, conversation: Conversation, words_of: Callable[[Row[Any]], Collection[str]]
    ) -> bool:
        """Index some messages; return False if the conversation was deleted meanwhile."""
        key = {"key": conversation.key}
        if connection.execute(text(f"{_CONVERSATION} {self.share}"), key).first() is None:
            return False
        connection.execute(_BEGIN, key)
        after = connection.execute(text(f"{_INDEXED} {self.lock}"), key).scalar_one()
        rows = connection.execute(_NEXT, {**key, "after": after}).all()
        if rows:
            self.add(connection, conversation.key, {row.position: words_of(row) for row in rows})
        last = rows[-1].position if rows else after
        indexed = last if len(rows) == _PAGE else max(last, conversation.version)
        connection.execute(_ADVANCE, {**key, "position": indexed})
        return True

    def forget(self, connection: Connection, key: str) -> None:
        """Remove what the index has of a conversation, in the transaction of `connection`."""
        if self._exists(connection):
            self.remove(connection, key)
            connection.execute(_END, {"key": key})

    def _exists(self, connection: Connection) -> bool:
        return connection.exec_driver_sql(self.exists).first() is not None

    def _execute(self, connection: Connection, statements: Sequence[str]) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    @abstractmethod
    def add(self, connection: Connection, key: str, words: Mapping[int, Collection[str]]) -> None:
        """Add the words of messages, by position and in the order of the log."""

    @abstractmethod
    def find(self, connection: Connection, key: str, search: WordSearch) -> Sequence[Row[Any]]:
        """Return the rows of the indexed messages that a search finds, the newest first."""

    @abstractmethod
    def remove(self, connection: Connection, key: str) -> None:
        """Remove the words of a conversation."""


class Fts5Index(WordIndex):
    """The index in SQLite. Messages are added in the order of their log, so its row numbers sort by position."""

    tables = (
        "BEGIN IMMEDIATE",
        _PROGRESS,
        """CREATE VIRTUAL TABLE IF NOT EXISTS chat_memory_words
           USING fts5 (position UNINDEXED, words, tokenize = "ascii tokenchars '=-'", detail = none, columnsize = 0)""",
        *(
            ["INSERT INTO chat_memory_words (chat_memory_words, rank) VALUES ('secure-delete', 1)"]
            if sqlite3.sqlite_version_info >= _SECURE_DELETE
            else []
        ),
    )
    exists = "SELECT 1 FROM sqlite_master WHERE name = 'chat_memory_indexed'"
    begin = ("BEGIN IMMEDIATE",)  # SQLite has one writer at a time
    share = lock = ""

    def is_supported(self, connection: Connection) -> bool:
        """Return whether the SQLite library has FTS5."""
        with connection.begin():
            try:
                connection.exec_driver_sql(_HAS_FTS5)
            except OperationalError:
                return False
        return True

    def add(self, connection: Connection, key: str, words: Mapping[int, Collection[str]]) -> None:
        """Add the words of messages."""
        rows = [
            {"position": position, "words": " ".join([_mark(key), *message_words])}
            for position, message_words in words.items()
        ]
        connection.execute(text("INSERT INTO chat_memory_words (position, words) VALUES (:position, :words)"), rows)

    def find(self, connection: Connection, key: str, search: WordSearch) -> Sequence[Row[Any]]:
        """Return the rows of the indexed messages that a search finds, the newest first."""
        statement = f"""
            SELECT {_COLUMNS} FROM chat_memory_words CROSS JOIN chat_memory_entries
            ON conversation_key = :key AND chat_memory_entries.position = chat_memory_words.position
            WHERE chat_memory_words MATCH :query AND chat_memory_words.position <= :through AND {_of_branches(search)}
            ORDER BY chat_memory_words.rowid DESC LIMIT :limit
        """
        query = f"{_in_fts5(_mark(key))} AND ({_condition(search, _in_fts5, ' AND ', ' OR ')})"
        return _fetch_rows(connection, statement, key, search, {"query": query})

    def remove(self, connection: Connection, key: str) -> None:
        """Remove the words of a conversation."""
        rows = "SELECT rowid FROM chat_memory_words WHERE chat_memory_words MATCH :query"
        connection.execute(
            text(f"DELETE FROM chat_memory_words WHERE rowid IN ({rows})"), {"query": _in_fts5(_mark(key))}
        )


class TsvectorIndex(WordIndex):
    """The index in PostgreSQL. A message with very many words has several rows."""

    tables = (
        f"SELECT pg_advisory_xact_lock({ONE_AT_A_TIME})",
        _PROGRESS,
        """CREATE TABLE IF NOT EXISTS chat_memory_words (
               conversation_key TEXT, position BIGINT, part INTEGER, words TSVECTOR NOT NULL,
               PRIMARY KEY (conversation_key, position, part)
           )""",
        "CREATE INDEX IF NOT EXISTS chat_memory_words_found ON chat_memory_words USING gin (words)",
    )
    exists = "SELECT 1 WHERE to_regclass('chat_memory_indexed') IS NOT NULL"
    begin = ()
    share = "FOR KEY SHARE"
    lock = "FOR UPDATE"

    def add(self, connection: Connection, key: str, words: Mapping[int, Collection[str]]) -> None:
        """Add the words of messages."""
        rows = []
        for position, message_words in words.items():
            parts = list(_parts(message_words))
            marks = [_mark(key)] if len(parts) == 1 else [_mark(key), _PART]
            rows += [
                {"key": key, "position": position, "part": number, "words": [*marks, *part]}
                for number, part in enumerate(parts)
            ]
        vector = "array_to_tsvector(CAST(:words AS TEXT[]))"
        connection.execute(text(f"INSERT INTO chat_memory_words VALUES (:key, :position, :part, {vector})"), rows)

    def find(self, connection: Connection, key: str, search: WordSearch) -> Sequence[Row[Any]]:
        """Return the rows of the indexed messages that a search finds, the newest first."""
        words = sorted(frozenset().union(*search.words))
        names = {word: f"word{number}" for number, word in enumerate(words)}
        has_words = _condition(
            search, lambda word: f"bool_or(words @@ CAST(:{names[word]} AS TSQUERY))", " AND ", " OR "
        )
        statement = f"""
            SELECT {_COLUMNS} FROM chat_memory_entries JOIN (
                SELECT position FROM chat_memory_words
                WHERE words @@ CAST(:query AS TSQUERY) AND conversation_key = :key AND position <= :through
                GROUP BY position HAVING {has_words}
            ) AS found ON chat_memory_entries.position = found.position
            WHERE conversation_key = :key AND {_of_branches(search)}
            ORDER BY chat_memory_entries.position DESC LIMIT :limit
        """
        part = f"{_in_tsquery(_PART)} & ({' | '.join(map(_in_tsquery, words))})"
        whole = _condition(search, _in_tsquery, " & ", " | ")
        values = {name: _in_tsquery(word) for word, name in names.items()}
        values["query"] = f"{_in_tsquery(_mark(key))} & (({part}) | ({whole}))"
        return _fetch_rows(connection, statement, key, search, values)

    def remove(self, connection: Connection, key: str) -> None:
        """Remove the words of a conversation."""
        connection.execute(text("DELETE FROM chat_memory_words WHERE conversation_key = :key"), {"key": key})


def _mark(key: str) -> str:
    """Return the word of the messages of a conversation."""
    return f"={key}"


def _in_fts5(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def _in_tsquery(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def _condition(search: WordSearch, has_word: Callable[[str], str], both: str, either: str) -> str:
    """Return the condition of a search in the language of a database."""
    parts = [f"({both.join(map(has_word, sorted(words)))})" for words in search.words]
    return (both if search.match == "all" else either).join(parts)


def _of_branches(search: WordSearch) -> str:
    return "TRUE" if search.branches is None else "branch IN :branches"


def _fetch_rows(
    connection: Connection, statement: str, key: str, search: WordSearch, values: Mapping[str, str]
) -> Sequence[Row[Any]]:
    query = text(statement)
    branches = {}
    if search.branches is not None:
        query, branches = query.bindparams(bindparam("branches", expanding=True)), {"branches": search.branches}
    most = {"key": key, "through": search.through, "limit": search.limit}
    return connection.execute(query, {**values, **most, **branches}).all()


def _parts(words: Collection[str]) -> Iterator[Sequence[str]]:
    """Return the words in parts, each of which fits into a row of PostgreSQL; one empty part for no words."""
    part: list[str] = []
    size = 0
    for word in words:
        size += len(word.encode())
        if size > _MOST_BYTES:
            yield part
            part, size = [], len(word.encode())
        part.append(word)
    yield part
