"""The store of audit records: an SQLite file beside the application, or a PostgreSQL database.

One connection writes, in the writer's thread. It appends in whole transactions: if `append` returns, its rows are
durable; if it raises, the store has all of them or none.

It shares its address and its engines with other stores, but not `stores.database`, which creates and migrates tables by
a version. The table of a trail has no version: `verify` compares its structure with what this release makes, so that
nothing can be added to it unseen. On a server, the roles that write and read it may not create it.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, NullPool, select, text
from sqlalchemy.schema import CreateIndex, CreateTable

from traced_tools.audit.schema import RECORDS
from traced_tools.core.disk import create_private
from traced_tools.stores.address import Address
from traced_tools.stores.engine import store_engine

Row = tuple[Any, ...]
"""The values of `schema.RECORDS`, column by column."""
Heads = Mapping[str, tuple[int, str, int]]
"""The last sequence number, hash and time of chains."""

_BUSY: Final = 1.0
"""Seconds that SQLite waits for another writer before the whole attempt is repeated."""
_MOST_HEADS: Final = 32
_LEFT_BEHIND: Final = ("-wal", "-journal")
"""Files beside an embedded store that contain a part of it unless they are empty."""
_COLUMNS: Final = [column.name for column in RECORDS.columns]
_REMEDIES: Final = {
    "OperationalError": "no connection; check that the server runs there, and the role, the password and the database",
    "UndefinedTable": "the table audit_records is missing; run the SQL that `traced-tools audit sql` prints",
    "InsufficientPrivilege": "the role lacks a privilege; grant it a role that `traced-tools audit sql` creates",
    "ReadOnlySqlTransaction": "the server accepts no writes; connect to the primary server instead of a replica",
}
_NO_DATABASE: Final = "it is no SQLite database, or a damaged one; check the path, or restore a backup"
_OF_SQLITE: Final = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space",
    sqlite3.SQLITE_BUSY: "another process has locked the store; end its transaction",
    sqlite3.SQLITE_LOCKED: "another connection has locked the store; end its transaction",
    sqlite3.SQLITE_READONLY: "the file or its folder cannot be written; check their permissions",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened or created; check that its folder exists, and the permissions",
    sqlite3.SQLITE_IOERR: "the disk fails or is full, or a quota is used up; check the disk",
    sqlite3.SQLITE_NOTADB: _NO_DATABASE,
    sqlite3.SQLITE_CORRUPT: _NO_DATABASE,
}

_SAME_KEY: Final = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)


class Store:
    """The store at a path or URL; it opens and creates nothing before the first connection.

    Args:
        store: a path, or an SQLAlchemy URL: `sqlite:///audit.db`, `postgresql+psycopg://host/database`.

    Attributes:
        path: the file of an embedded store; None for a server.
        name: the name for messages, without the password and the query part, which may hold a password too.

    Raises:
        ConfigurationError: for a URL that cannot be used.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._address: Final = Address(store, "audit store", "store")
        self.path: Final = self._address.path
        self.name: Final = str(self._address if self.path is None else self.path)

    def writing(self) -> WriteConnection:
        """Return a connection for writing, for one thread; create a missing embedded store."""
        return _Sqlite(self._engine(), self.path) if self.path is not None else _Postgresql(self._engine())

    def connect_changing(self) -> Connection:
        """Return a connection that may change records if the file or the server permits it; for erasures only."""
        return self._engine().connect()

    @property
    def must_rest(self) -> bool:
        """Whether an embedded store must not be written while it is read.

        SQLite creates files beside the store for readers too, and a reader without write access cannot remove them.
        Such a reader therefore opens the store without these files, and so without protection from concurrent writes.
        """
        if self.path is None or self._has_rest(self.path):
            return False
        return not (os.access(self.path.resolve().parent, os.W_OK) and os.access(self.path, os.W_OK))

    def connect_reading(self) -> Connection:
        """Return a connection that only reads; raise the driver's error if there is no such store.

        The last connection with write access to an embedded store moves the content of SQLite's files beside it into
        the store and removes them. A killed process may have left such files; the store is then opened read-only, so
        that they stay as they are. If a rollback journal exists, the store must not be opened as immutable.
        """
        if self.path is None:
            return self._engine().connect()
        mode = "mode=ro&immutable=1" if self.must_rest else "mode=ro" if self._has_rest(self.path) else "mode=rw"
        uri = f"{self.path.as_uri()}?{mode}"
        engine = store_engine("sqlite://", creator=lambda: sqlite3.connect(uri, uri=True), poolclass=NullPool)
        return engine.connect()

    @staticmethod
    def _has_rest(path: Path) -> bool:
        """Return whether files beside an embedded store contain a part of it."""
        return any(_size(f"{os.path.realpath(path)}{end}") for end in _LEFT_BEHIND)

    def _engine(self) -> Engine:
        # Each transaction is one statement, or begun and ended by hand: SQLAlchemy adds none around it. The connection
        # moves from the thread that opens it to the one that forks, which closes it.
        across_threads = {} if self.path is None else {"check_same_thread": False}
        return self._address.engine(
            busy=_BUSY, connect_args=across_threads, poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )

    def __repr__(self) -> str:
        return f"Store({self.name!r})"


class WriteConnection(ABC):
    """A connection that appends records; used by one thread at a time."""

    def __init__(self, engine: Engine) -> None:
        self._connection = engine.connect()
        self._driver: Any = self._connection.connection.driver_connection

    @abstractmethod
    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in one transaction. The rows are durable when this method returns."""

    def head(self, chain_id: str) -> tuple[int, str, int] | None:
        """Return the last sequence number, hash and time of a chain; None if the store has no record of it."""
        columns = RECORDS.c.sequence, RECORDS.c.hash, RECORDS.c.time
        query = select(*columns).where(RECORDS.c.chain_id == chain_id).order_by(RECORDS.c.sequence.desc()).limit(1)
        row = self._connection.execute(query).first()
        return None if row is None else (row[0], row[1], row[2])

    def heads(self) -> Heads:
        """Return the heads of the 32 newest chains; their ids sort by when they began."""
        newest = self._connection.execute(text(_NEWEST), {"most": _MOST_HEADS}).scalars().all()
        heads = {chain_id: self.head(chain_id) for chain_id in newest if chain_id is not None}
        return {chain_id: head for chain_id, head in heads.items() if head is not None}

    def close(self) -> None:
        """Close the connection; never raises."""
        with suppress(Exception):
            self._connection.close()


_NEWEST: Final = """
WITH RECURSIVE newest(chain_id, place) AS (
    SELECT (SELECT max(chain_id) FROM audit_records), 1
    UNION ALL
    SELECT (SELECT max(chain_id) FROM audit_records WHERE audit_records.chain_id < newest.chain_id), place + 1
    FROM newest WHERE newest.chain_id IS NOT NULL AND place < :most
)
SELECT chain_id FROM newest
"""
"""Jumps from chain to chain on the primary key, so that its cost does not grow with the number of records."""


class StoreReplaced(Exception):
    """Another file has replaced the open file of an embedded store."""


class _Sqlite(WriteConnection):
    def __init__(self, engine: Engine, path: Path) -> None:
        create_private(path)
        super().__init__(engine)
        try:
            self._make_tables()
            self._files = _identities(path)
        except BaseException:
            self.close()
            raise
        self._path = path
        self._most_rows = _most_rows(self._driver)

    def _make_tables(self) -> None:
        from traced_tools.audit.indexes import INDEXES  # readers start faster without it

        with self._transaction():
            self._connection.execute(CreateTable(RECORDS, if_not_exists=True))
            for index in INDEXES:
                self._connection.execute(CreateIndex(index, if_not_exists=True))

    def append(self, rows: Sequence[Row]) -> None:
        with self._transaction():
            for start, end in _powers_of_two(len(rows), self._most_rows):
                values = [value for row in rows[start:end] for value in row]
                self._driver.execute(_insert(end - start), values)
        if _identities(self._path) != self._files:
            raise StoreReplaced

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._driver.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._driver.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._driver.execute("ROLLBACK")
            raise


class _Postgresql(WriteConnection):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)

    def append(self, rows: Sequence[Row]) -> None:
        with self._driver.cursor() as cursor, cursor.copy(_COPY) as copy:
            for row in rows:
                copy.write_row(row)


_COPY: Final = f"COPY audit_records ({', '.join(_COLUMNS)}) FROM STDIN"


def _insert(rows: int) -> str:
    """Return a statement that inserts many rows in one step.

    Each step releases the interpreter's lock. With one step per row, a busy event loop delays each row by 5 ms.
    """
    row = f"({','.join('?' * len(_COLUMNS))})"
    return f"INSERT INTO audit_records ({','.join(_COLUMNS)}) VALUES {','.join([row] * rows)}"


def _most_rows(connection: sqlite3.Connection) -> int:
    """Return how many rows a statement may insert, because SQLite builds limit the values of a statement."""
    values = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
    return min(1024, 1 << ((values // len(_COLUMNS)).bit_length() - 1))


def _powers_of_two(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Split `count` rows into few groups of few sizes, so that the statements stay prepared."""
    start = 0
    while start < count:
        size = min(most, 1 << ((count - start).bit_length() - 1))
        yield start, start + size
        start += size


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _identities(path: Path) -> list[tuple[int, int] | None]:
    """Return the identities of a store's files, which differ from those of other files with the same names."""
    return [_identity(path), _identity(f"{os.path.realpath(path)}-wal")]


def _identity(path: Path | str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def is_refusal(error: BaseException) -> bool:
    """Return whether a store refuses rows because of their values, so that none is stored and a retry cannot help."""
    if isinstance(error, sqlite3.IntegrityError):
        return getattr(error, "sqlite_errorcode", None) not in _SAME_KEY
    if isinstance(error, sqlite3.Error):  # DatabaseError itself is about the file
        return isinstance(error, sqlite3.DataError | sqlite3.InterfaceError | sqlite3.ProgrammingError)
    state = getattr(error, "sqlstate", None)
    if state is not None:  # https://www.postgresql.org/docs/current/errcodes-appendix.html
        return state[:2] in ("22", "23", "54") and state != "23505"  # data, constraints except keys, limits
    return isinstance(error, ValueError | TypeError | OverflowError) or type(error).__name__ == "DataError"


def problem_of(error: BaseException) -> str:
    """Return the class of a store error and, if known, what to do about it; never the text of the error."""
    original = getattr(error, "orig", None) or error
    name = type(original).__name__
    if isinstance(original, sqlite3.Error):
        remedy = _OF_SQLITE.get(getattr(original, "sqlite_errorcode", 0) & 0xFF)  # without the extended code
    else:
        remedy = _REMEDIES.get(name)
    return name if remedy is None else f"{name}: {remedy}"
