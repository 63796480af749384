"""The read-only connection to a store. It leaves no files behind, changes no record and blocks no writer."""

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

from traced_tools.audit import schema_check_sqlite
from traced_tools.audit.schema import RECORDS
from traced_tools.audit.schema_check_sqlite import SqliteObject
from traced_tools.audit.store import Store, problem_of
from traced_tools.errors import AuditError

StorePath = str | os.PathLike[str]
"""A path, or an SQLAlchemy URL such as `postgresql+psycopg://auditor@host/database`."""
_SETTINGS: Final = (
    "PRAGMA trusted_schema = OFF",  # no function that the file's schema calls has side effects
    "PRAGMA cell_size_check = ON",
    "PRAGMA query_only = ON",
    "BEGIN",  # one transaction until the connection closes, so that all reads see one snapshot
)
_MUCH_CACHE: Final = "PRAGMA cache_size = -65536"
"""64 MiB, because the records of several chains share pages and are read chain by chain."""
_BATCH: Final = 1000
"""Rows per fetch."""


class ReadConnection:
    """A read-only connection to a store.

    Attributes:
        name: the store's path or URL, without a password.
        embedded: whether the store is an SQLite file.
    """

    def __init__(self, name: str, connection: Connection, objects: Sequence[SqliteObject] | None) -> None:
        self.name: Final = name
        self.embedded: Final = objects is not None
        self._connection = connection
        self._objects = objects

    def rows(self, statement: Select[Any] | CompoundSelect[Any], size: int = _BATCH) -> Generator[Any]:
        """Yield the rows of a statement, which are fetched in batches of `size`."""
        with closing(self.batches(statement, size)) as batches:
            for batch in batches:
                yield from batch

    def batches(self, statement: Select[Any] | CompoundSelect[Any], size: int = _BATCH) -> Generator[Sequence[Any]]:
        """Yield the rows of a statement in batches of `size`."""
        with _convert_errors(self.name):
            if self.embedded:
                yield from self._batches_of_file(statement, size)
                return
            with self._connection.execute(statement, execution_options={"yield_per": size}) as rows:
                yield from rows.partitions()

    def _batches_of_file(self, statement: Select[Any] | CompoundSelect[Any], size: int) -> Generator[Sequence[Any]]:
        """Yield the rows as the driver's tuples, which cost less than SQLAlchemy's rows.

        The driver decodes text columns until a value is not UTF-8. Then the statement runs again with `_decode` in its
        place. In the same transaction it finds the same rows, so the batches that were yielded are skipped.
        """
        yielded = 0
        try:
            for batch in self._fetch_batches(statement, size):
                yield batch
                yielded += 1
            return
        except sqlite3.OperationalError as error:
            if hasattr(error, "sqlite_errorcode"):  # an error of SQLite; a decoding error of the driver has no code
                raise
            _driver(self._connection).text_factory = _decode
        yield from islice(self._fetch_batches(statement, size), yielded, None)

    def _fetch_batches(self, statement: Select[Any] | CompoundSelect[Any], size: int) -> Iterator[Sequence[Any]]:
        with self._connection.execute(statement) as rows:
            cursor: Any = rows.cursor
            while batch := cursor.fetchmany(size):
                yield batch

    def difference(self) -> str | None:
        """Return the first difference between the store's structure and what this version makes."""
        with _convert_errors(self.name):
            if self._objects is None:
                from traced_tools.audit import schema_check_postgresql

                return schema_check_postgresql.difference(self._connection)
            return schema_check_sqlite.sqlite_difference(_driver(self._connection), self._objects)

    def damage(self) -> str | None:
        """Return the first damaged page or index of the store, or index that disagrees with its records."""
        with _convert_errors(self.name):
            if self._objects is None:
                from traced_tools.audit import schema_check_postgresql

                return schema_check_postgresql.damage(self._connection)
            return schema_check_sqlite.sqlite_damage(_driver(self._connection))

    @contextmanager
    def without_indexes(self) -> Iterator[None]:
        """Make PostgreSQL read tables only. In SQLite, `damage` has already checked the indexes."""
        if self.embedded:
            yield
            return
        from traced_tools.audit import schema_check_postgresql

        with _convert_errors(self.name):
            schema_check_postgresql.without_indexes(self._connection, begin=True)
        yield
        with _convert_errors(self.name):
            schema_check_postgresql.without_indexes(self._connection, begin=False)


@contextmanager
def open_for_reading(store: StorePath) -> Iterator[ReadConnection]:
    """Open a store for reading.

    Raises:
        AuditError: if the store does not exist or cannot be read.
        ConfigurationError: for a URL that cannot be used.
    """
    place = Store(store)
    if place.path is not None:
        _must_exist(place.path)
    with _checking_for_writes(place):
        connection = _connect(place)
        _OPEN.add(connection)
        try:
            yield _read_connection(place, connection)
        finally:
            connection.close()
            _OPEN.discard(connection)


_OPEN: Final[set[Connection]] = set()
"""Keeps connections alive until they are closed. Otherwise, if an iterator was read in part, the garbage collector
could finalize the connection's objects in an order that makes SQLAlchemy log errors."""


def embedded_path(store: StorePath) -> Path | None:
    """Return the file of an embedded store; None for a server store."""
    return Store(store).path


def parsed(body: object) -> dict[str, Any] | None:
    """Return the fields of a record's body; None if the body is not a JSON object."""
    if not isinstance(body, str):
        return None
    body = body.strip(_BLANKS)
    try:
        fields, end = _DECODER.raw_decode(body)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and end == len(body) else None


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
"""Created once; `json.loads` with arguments creates a decoder for each call. Refuses `NaN` and `Infinity`."""
_BLANKS: Final = " \t\n\r"
"""The white space that JSON allows around a value. `JSONDecoder.decode` skips it with two regular expressions."""


def _connect(place: Store) -> Connection:
    with _convert_errors(place.name):
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


def _decode(value: bytes) -> str | bytes:
    """Return a text column's value, or its bytes if they are not UTF-8.

    An error would hide the other records. A replacement character would make the value equal to another one that is
    different in SQLite.
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _must_exist(path: Path) -> None:
    if not path.is_file():  # not opened, because closing it would drop the locks of a trail in this process
        raise AuditError(f"no audit store at {path}: pass the path of an existing SQLite file or a database URL")


@contextmanager
def _checking_for_writes(place: Store) -> Iterator[None]:
    """Raise `AuditError` if a store that is read without locks was written: the reads may mix two states."""
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
        f"the audit store {place.name} was written while it was read by a user who may not write it or its folder: "
        "read it again, or read a copy"
    )


def _version(path: Path) -> tuple[int, int, int]:
    """Return values that change if the file is written or replaced."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read_connection(place: Store, connection: Connection) -> ReadConnection:
    """Return the connection; raise `AuditError` if the store holds no audit trail."""
    objects = None
    with _convert_errors(place.name):
        if place.path is None:
            from traced_tools.audit import schema_check_postgresql  # imports PostgreSQL's dialect

            is_trail = schema_check_postgresql.pin_schema(connection)
        else:
            driver = _driver(connection)
            driver.text_factory = _decode
            objects = schema_check_sqlite.sqlite_objects(driver)
            driver.text_factory = str
            is_trail = schema_check_sqlite.holds_records(objects)
            with suppress(sqlite3.Error):  # a malformed schema, which the first query reports
                driver.execute(_MUCH_CACHE)
    if not is_trail:
        raise AuditError(
            f"{place.name} holds no audit trail: it has no table {RECORDS.name}; pass the store of a trail"
        )
    return ReadConnection(place.name, connection, objects)


@contextmanager
def _convert_errors(name: str) -> Iterator[None]:
    """Turn a driver's error into an `AuditError` that names the store and omits the driver's text."""
    try:
        yield
        return
    except (SQLAlchemyError, sqlite3.Error) as error:
        problem = problem_of(error)
    raise AuditError(f"the audit store {name} cannot be read: {problem}")
