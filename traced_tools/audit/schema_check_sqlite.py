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

from traced_tools.audit.schema import INDEXES, RECORDS

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
    return any(_lower(each.name) == RECORDS.name for each in objects if each.type in ("table", "view"))


def sqlite_difference(connection: sqlite3.Connection, objects: Iterable[SqliteObject]) -> str | None:
    """Return the first difference between a file's schema and the schema that this version creates.

    Other objects may be in the file as long as they don't refer to the trail.
    """
    expected = dict(_expected())
    known = {*expected}
    for each in objects:
        if not each.is_plain:
            return f"the schema's entry {each.name} holds a BLOB, a NULL or a NUL character where a text belongs"
        wanted = expected.pop(each.name, None)
        if wanted is not None:
            if (difference := _difference(wanted, each)) is not None:
                return difference
        elif each.name in known:
            return f"{each.name} is there twice"
        elif not known.isdisjoint(map(_lower, (each.name, each.table, *_WORD.findall(each.sql or "")))):
            return f"the {each.type} {each.name} isn't part of a trail but refers to it"
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
    found = _answer(connection, f"PRAGMA integrity_check({RECORDS.name})")  # the first one is enough
    return None if found == "ok" else found


_MALFORMED: Final = "SQLite finds the file malformed"


def _answer(connection: sqlite3.Connection, pragma: str) -> str:
    try:
        (found,) = connection.execute(pragma).fetchone()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        return _MALFORMED
    return " ".join(str(found).split())


@cache
def _expected() -> tuple[tuple[str, SqliteObject], ...]:
    """Return the schema that this version creates, by object name."""
    dialect = sqlite.dialect()
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(str(CreateTable(RECORDS).compile(dialect=dialect)))
        for index in INDEXES:
            connection.execute(str(CreateIndex(index).compile(dialect=dialect)))
        return tuple((each.name, each) for each in sqlite_objects(connection))


def _difference(expected: SqliteObject, found: SqliteObject) -> str | None:
    if found.type != expected.type:
        return f"{found.name} is a {found.type}, not a {expected.type}"
    if found.table != expected.table:
        return f"{found.name} belongs to {found.table}, not to {expected.table}"
    wanted, there = (_tokens(each.sql or "") for each in (expected, found))
    if wanted == there:
        return None
    return f"the {found.type} {found.name} {_first_difference(wanted, there)}"


def _first_difference(wanted: list[str], there: list[str]) -> str:
    place = next((n for n, (one, other) in enumerate(zip(wanted, there, strict=False)) if one != other), None)
    place = min(len(wanted), len(there)) if place is None else place
    found, expected = [(each[place] if place < len(each) else "nothing") for each in (there, wanted)]
    behind = there[place - 1] if place else "nothing"
    return f"is declared otherwise: {found} follows {behind}, where {expected} belongs"


def _tokens(sql: str) -> list[str]:
    """Return the tokens of a statement without white space, quotes of names and the case of words."""
    return [each if each.startswith("'") else _lower(each.strip(_QUOTES)) for each in _TOKEN.findall(sql)]


def _lower(text: str) -> str:
    """Return a name in lower case as SQLite compares names: only ASCII letters have two cases."""
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
