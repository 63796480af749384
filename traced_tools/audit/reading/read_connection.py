"""A store opened for reading: nothing that is made stays, no record changes, and whoever writes it goes on writing."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import Select
from sqlalchemy.sql.selectable import CompoundSelect

from traced_tools.audit import structure, structure_postgresql
from traced_tools.audit.schema import RECORDS
from traced_tools.audit.store import Store, problem_of
from traced_tools.audit.structure import SqliteObject
from traced_tools.errors import AuditError

StorePath = str | os.PathLike[str]
"""A path, or an SQLAlchemy URL such as `postgresql+psycopg://auditor@host/database`."""
_SETTINGS: Final = (
    "PRAGMA trusted_schema = OFF",  # what a file declares calls no function that does something
    "PRAGMA cell_size_check = ON",
    "PRAGMA query_only = ON",
    "BEGIN",  # until it is closed, so that all that is read is of one instant
)
_MUCH_CACHE: Final = "PRAGMA cache_size = -65536"
"""64 MiB: records of several chains lie among each other, and are read chain by chain."""
_AT_ONCE: Final = 1000
"""Rows that are fetched at once."""


class ReadConnection:
    """A store that is being read.

    Attributes:
        name: the store, without a password.
        embedded: whether it is a file.
    """

    def __init__(self, name: str, connection: Connection, objects: Sequence[SqliteObject] | None) -> None:
        self.name: Final = name
        self.embedded: Final = objects is not None
        self._connection = connection
        self._objects = objects

    def rows(self, statement: Select[Any] | CompoundSelect[Any], at_once: int = _AT_ONCE) -> Generator[Any]:
        """Give the rows that a statement finds, however many there are; so many are looked for at once."""
        with closing(self.batches(statement, at_once)) as batches:
            for batch in batches:
                yield from batch

    def batches(
        self, statement: Select[Any] | CompoundSelect[Any], at_once: int = _AT_ONCE
    ) -> Generator[Sequence[Any]]:
        """Give the rows that a statement finds, so many at a time."""
        with _errors_of(self.name):
            if self.embedded:
                yield from self._batches_of_file(statement, at_once)
                return
            with self._connection.execute(statement, execution_options={"yield_per": at_once}) as found:
                yield from found.partitions()

    def _batches_of_file(self, statement: Select[Any] | CompoundSelect[Any], at_once: int) -> Generator[Sequence[Any]]:
        """Give the rows as the driver's tuples, which cost less than SQLAlchemy's rows.

        The driver decodes texts itself until one is not UTF-8. From there on `_text` decodes them, and the statement,
        which finds the same rows again within the transaction, goes on behind the batches that were given.
        """
        given = 0
        try:
            for batch in self._fetched(statement, at_once):
                yield batch
                given += 1
            return
        except sqlite3.OperationalError as error:
            if hasattr(error, "sqlite_errorcode"):  # SQLite's own; that of decoding is the driver's
                raise
            _driver(self._connection).text_factory = _text
        yield from islice(self._fetched(statement, at_once), given, None)

    def _fetched(self, statement: Select[Any] | CompoundSelect[Any], at_once: int) -> Iterator[Sequence[Any]]:
        with self._connection.execute(statement) as found:
            cursor: Any = found.cursor
            while batch := cursor.fetchmany(at_once):
                yield batch

    def difference(self) -> str | None:
        """Return the first difference between the store's structure and what this version makes."""
        with _errors_of(self.name):
            if self._objects is None:
                return structure_postgresql.difference(self._connection)
            return structure.sqlite_difference(_driver(self._connection), self._objects)

    def damage(self) -> str | None:
        """Return the first sign that pages or indexes of the store are damaged or disagree with its records."""
        with _errors_of(self.name):
            if self._objects is None:
                return structure_postgresql.damage(self._connection)
            return structure.sqlite_damage(_driver(self._connection))

    @contextmanager
    def without_indexes(self) -> Iterator[None]:
        """Have a server answer from the tables alone; in a file, `damage` has proved the indexes."""
        if self.embedded:
            yield
            return
        with _errors_of(self.name):
            structure_postgresql.without_indexes(self._connection, begin=True)
        yield
        with _errors_of(self.name):
            structure_postgresql.without_indexes(self._connection, begin=False)


@contextmanager
def open_for_reading(store: StorePath) -> Iterator[ReadConnection]:
    """Open a store for reading.

    Raises:
        AuditError: when there is none, or it cannot be read.
        ConfigurationError: for a URL that cannot be used.
    """
    place = Store(store)
    if place.path is not None:
        _must_exist(place.path)
    with _undisturbed(place):
        connection = _connected(place)
        _OPEN.add(connection)
        try:
            yield _opened(place, connection)
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
    if not isinstance(body, str):
        return None
    body = body.strip(_BLANKS)
    try:
        fields, end = _DECODER.raw_decode(body)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and end == len(body) else None


def _no_number(_: str) -> NoReturn:
    raise ValueError


_DECODER: Final = json.JSONDecoder(parse_constant=_no_number)
"""Made once, which `json.loads` would do for each record."""
_BLANKS: Final = " \t\n\r"
"""What JSON allows around a value: `decode` would look for it with two regular expressions."""


def _connected(place: Store) -> Connection:
    with _errors_of(place.name):
        connection = place.connect_reading()
        if place.path is None:
            return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        driver = _driver(connection)
        driver.isolation_level = None
        for setting in _SETTINGS:
            driver.execute(setting)
        return connection


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _text(written: bytes) -> str | bytes:
    """Return a text of the store, and its bytes if they are not UTF-8.

    An error would hide the records beside it. A replacement character would make the text equal to another one, which
    SQLite tells apart from it.
    """
    try:
        return written.decode()
    except UnicodeDecodeError:
        return written


def _must_exist(path: Path) -> None:
    if not path.is_file():  # never opened: closing it would give up the locks of a trail of this process
        raise AuditError(f"there is no audit store {path}: name its file, or the URL of a server's")


@contextmanager
def _undisturbed(place: Store) -> Iterator[None]:
    """Raise `AuditError` if a store that must rest was written meanwhile: what was read may be of no one instant."""
    if place.path is None or not place.must_rest:
        yield
        return
    before = _version(place.path)
    try:
        yield
    except AuditError:
        if before == _version(place.path):
            raise
    else:
        if before == _version(place.path):
            return
    raise AuditError(
        f"the audit store {place.name} was written while a user read it who may not write it or its folder: "
        "read it again, or read a copy"
    )


def _version(path: Path) -> tuple[int, int, int]:
    """Return what changes when the file is written or replaced."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _opened(place: Store, connection: Connection) -> ReadConnection:
    """Return the store, which must hold a trail."""
    objects = None
    with _errors_of(place.name):
        if place.path is None:
            found = structure_postgresql.pin_schema(connection)
        else:
            driver = _driver(connection)
            driver.text_factory = _text
            objects = structure.sqlite_objects(driver)
            driver.text_factory = str
            found = structure.holds_records(objects)
            with suppress(sqlite3.Error):  # of a malformed schema, which the first question meets again
                driver.execute(_MUCH_CACHE)
    if not found:
        raise AuditError(f"{place.name} holds no audit trail: it has no table {RECORDS.name}; is it the right one?")
    return ReadConnection(place.name, connection, objects)


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Turn the errors of a driver into one that names the store, and holds no text of theirs."""
    try:
        yield
        return
    except (SQLAlchemyError, sqlite3.Error) as error:
        problem = problem_of(error)
    raise AuditError(f"the audit store {name} cannot be read: {problem}")
