"""Checks that an SQLite store has the schema that this version creates, and that its indexes match its table.

Readers find records through indexes. If an index omits a record or lists it under another value, queries miss it. So
`verify` checks the structure before it checks any record.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from typing import Final, NamedTuple

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from traced_tools.audit.schema import RECORDS

_TOKEN: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^]]*]|\w+|\S""", re.ASCII)
"""Matches one SQL token."""
_WORD: Final = re.compile(r"\w+", re.ASCII)
_QUOTES: Final = '"`[]'


class SqliteObject(NamedTuple):
    """A schema entry of an SQLite file as stored, before SQLite parses it."""

    type: str
    name: str
    table: str
    sql: str | None
    is_plain: bool = True
    """Whether SQLite reads the same values: it ends text at a NUL character and reads a BLOB as text."""


def sqlite_objects(connection: sqlite3.Connection) -> list[SqliteObject]:
    """Return the schema of a newly opened file, including malformed entries."""
    connection.execute("PRAGMA writable_schema = ON")  # continues after entries that SQLite cannot parse
    try:
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    finally:
        connection.execute("PRAGMA writable_schema = RESET")
    return [_object(*row) for row in rows]


def _object(*values: object) -> SqliteObject:
    kind, name, table = map(str, values[:3])
    sql = None if values[3] is None else str(values[3])
    is_plain = all(isinstance(value, str) and "\0" not in value for value in (*values[:3], values[3] or ""))
    return SqliteObject(kind, name, table, sql, is_plain)


def holds_records(objects: Iterable[SqliteObject]) -> bool:
    """Return whether a file has the table or a view of the same name."""
    return any(_lower(entry.name) == RECORDS.name for entry in objects if entry.type in ("table", "view"))


def sqlite_difference(connection: sqlite3.Connection, objects: Iterable[SqliteObject]) -> str | None:
    """Return the first difference between a file's schema and the schema that this version creates.

    Other objects may be in the file as long as they don't refer to the trail.
    """
    expected = dict(_expected_objects())
    names = {*expected}
    for entry in objects:
        if not entry.is_plain:
            return f"the schema's entry {entry.name} holds a BLOB, a NULL or a NUL character where a text belongs"
        declared = expected.pop(entry.name, None)
        if declared is not None:
            if (difference := _difference(declared, entry)) is not None:
                return difference
        elif entry.name in names:
            return f"{entry.name} is there twice"
        elif not names.isdisjoint(map(_lower, (entry.name, entry.table, *_WORD.findall(entry.sql or "")))):
            return f"the {entry.type} {entry.name} isn't part of a trail but refers to it"
    if (missing := next(iter(expected.values()), None)) is not None:
        return f"the {missing.type} {missing.name} is missing"
    encoding = _answer(connection, "PRAGMA encoding")
    if encoding in ("UTF-8", _MALFORMED):  # _MALFORMED is reported as damage
        return None
    return f"the file's encoding is {encoding}, not UTF-8, which orders texts otherwise"


def sqlite_damage(connection: sqlite3.Connection) -> str | None:
    """Return the first problem with the pages, indexes or constraints of the trail's table.

    Other tables are not checked: SQLite would evaluate their constraints and indexes, which may never end.
    """
    answer = _answer(connection, f"PRAGMA integrity_check({RECORDS.name})")  # the first one is enough
    return None if answer == "ok" else answer


_MALFORMED: Final = "SQLite finds the file malformed"


def _answer(connection: sqlite3.Connection, pragma: str) -> str:
    try:
        (answer,) = connection.execute(pragma).fetchone()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        return _MALFORMED
    return " ".join(str(answer).split())


@cache
def _expected_objects() -> tuple[tuple[str, SqliteObject], ...]:
    """Return the schema that this version creates, by object name."""
    from traced_tools.audit.indexes import INDEXES  # readers that verify nothing start faster without it

    dialect = sqlite.dialect()
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(str(CreateTable(RECORDS).compile(dialect=dialect)))
        for index in INDEXES:
            connection.execute(str(CreateIndex(index).compile(dialect=dialect)))
        return tuple((entry.name, entry) for entry in sqlite_objects(connection))


def _difference(expected: SqliteObject, actual: SqliteObject) -> str | None:
    if actual.type != expected.type:
        return f"{actual.name} is a {actual.type}, not a {expected.type}"
    if actual.table != expected.table:
        return f"{actual.name} belongs to {actual.table}, not to {expected.table}"
    expected_tokens, actual_tokens = (_tokens(entry.sql or "") for entry in (expected, actual))
    if expected_tokens == actual_tokens:
        return None
    return f"the {actual.type} {actual.name} {_first_difference(expected_tokens, actual_tokens)}"


def _first_difference(expected_tokens: list[str], actual_tokens: list[str]) -> str:
    pairs = enumerate(zip(actual_tokens, expected_tokens, strict=False))
    shorter = min(len(expected_tokens), len(actual_tokens))
    place = next((place for place, (actual, expected) in pairs if actual != expected), shorter)
    both = (actual_tokens, expected_tokens)
    actual, expected = [(tokens[place] if place < len(tokens) else "nothing") for tokens in both]
    previous_token = actual_tokens[place - 1] if place else "nothing"
    return f"is declared otherwise: {actual} follows {previous_token}, where {expected} belongs"


def _tokens(sql: str) -> list[str]:
    """Return the tokens of a statement without white space, quotes of names and the case of words."""
    return [token if token.startswith("'") else _lower(token.strip(_QUOTES)) for token in _TOKEN.findall(sql)]


def _lower(text: str) -> str:
    """Return a name in lower case as SQLite compares names: only ASCII letters have two cases."""
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
