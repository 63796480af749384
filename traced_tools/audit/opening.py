"""A store opened for reading: nothing is made, nothing is changed, and whoever writes it goes on writing."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import Select
from sqlalchemy.sql.selectable import CompoundSelect

from traced_tools.audit.schema import RECORDS
from traced_tools.audit.store import Store, problem_of
from traced_tools.errors import AuditError

StorePath = str | os.PathLike[str]
"""A path, or an SQLAlchemy URL such as `postgresql+psycopg://auditor@host/database`."""
_MUCH_CACHE: Final = "PRAGMA cache_size = -65536"
"""64 MiB: records of several chains lie among each other, and are read chain by chain."""
_AT_ONCE: Final = 1000
"""Rows that are fetched at once."""


class OpenStore:
    """A store that is being read.

    Attributes:
        name: the store, without a password.
        embedded: whether it is a file.
    """

    def __init__(self, place: Store, connection: Connection) -> None:
        self.name: Final = place.name
        self.embedded: Final = place.path is not None
        self._connection = connection

    def rows(self, statement: Select[Any] | CompoundSelect[Any], at_once: int = _AT_ONCE) -> Generator[Any]:
        """Give the rows that a statement finds, however many there are; so many are looked for at once."""
        try:
            with self._connection.execute(statement, execution_options={"yield_per": at_once}) as found:
                yield from found
        except (SQLAlchemyError, sqlite3.Error) as error:
            problem = problem_of(error)
        else:
            return
        _unreadable(self.name, problem)


@contextmanager
def opened(store: StorePath) -> Iterator[OpenStore]:
    """Open a store for reading.

    Raises:
        AuditError: when there is none, or it cannot be read.
        ConfigurationError: for a URL that cannot be used.
    """
    place = Store(store)
    if place.path is not None:
        _must_exist(place.path)
    connection = _connected(place)
    _OPEN.add(connection)
    try:
        _must_hold_records(place.name, connection)
        yield OpenStore(place, connection)
    finally:
        connection.close()
        _OPEN.discard(connection)


_OPEN: Final[set[Connection]] = set()
"""Keeps a connection until it is closed: the garbage collector, which may come upon a half-read iterator, would take it
apart in an order that SQLAlchemy complains about."""


def embedded_path(store: StorePath) -> Path | None:
    """Return the file of an embedded store; None for a server's."""
    return Store(store).path


def parsed(body: object) -> dict[str, Any] | None:
    """Return what a record's body says; None for what no trail has written."""
    try:
        fields = _DECODER.decode(body) if isinstance(body, str) else None
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _no_number(_: str) -> NoReturn:
    raise ValueError


_DECODER: Final = json.JSONDecoder(parse_constant=_no_number)
"""Made once, which `json.loads` would do for each record."""


def _connected(place: Store) -> Connection:
    try:
        connection = place.connect_reading()
        if place.path is not None:
            driver: Any = connection.connection.driver_connection
            driver.text_factory = _text
            driver.execute(_MUCH_CACHE)
            return connection
        return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    except (SQLAlchemyError, sqlite3.Error) as error:
        problem = problem_of(error)
    _unreadable(place.name, problem)


def _text(written: bytes) -> str:
    """Return a text of the store; what is no UTF-8 must not hide the records beside it."""
    return written.decode("utf-8", "replace")


def _must_exist(path: Path) -> None:
    if not path.is_file():  # never opened: closing it would give up the locks of a trail of this process
        raise AuditError(f"there is no audit store {path}: name its file, or the URL of a server's")


def _must_hold_records(name: str, connection: Connection) -> None:
    try:
        found = inspect(connection).has_table(RECORDS.name)
    except (SQLAlchemyError, sqlite3.Error) as error:
        problem = problem_of(error)
    else:
        if found:
            return
        raise AuditError(f"{name} holds no audit trail: it has no table {RECORDS.name}; is it the right one?")
    _unreadable(name, problem)


def _unreadable(name: str, problem: str) -> NoReturn:
    raise AuditError(f"the audit store {name} cannot be read: {problem}")
