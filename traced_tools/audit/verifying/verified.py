"""Reads verified records only: `verify` copies each record it checks, and queries run on the copy."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any, Final

from sqlalchemy import NullPool
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from traced_tools.audit.reading.read_connection import ReadConnection, StorePath
from traced_tools.audit.reading.reader import AuditReader
from traced_tools.audit.schema import RECORDS, searchable
from traced_tools.audit.store import problem_of
from traced_tools.audit.verifying.attestations import PublicKey
from traced_tools.audit.verifying.findings import Verification
from traced_tools.audit.verifying.walk import COLUMNS, examine
from traced_tools.errors import AuditError
from traced_tools.stores.engine import store_engine

_NAMES: Final = [column.name for column in COLUMNS]
_RUN_ID: Final = _NAMES.index("run_id")
_INSERT: Final = f"INSERT INTO {RECORDS.name} ({', '.join(_NAMES)}) VALUES ({', '.join('?' * len(_NAMES))})"
_BATCH: Final = 1000
_SETTINGS: Final = ("PRAGMA journal_mode = OFF", "PRAGMA cache_size = -65536", "BEGIN")


class UnverifiedError(AuditError):
    """Raised if the verification of a store finds a problem.

    Attributes:
        verification: the result, with the problem.
    """

    def __init__(self, verification: Verification) -> None:
        problem = verification.problem
        super().__init__(f"the audit store is not verified: {problem.finding}: {problem.text}" if problem else "")
        self.verification: Final = verification


class VerifiedReader(AuditReader):
    """Reads the records that a verification checked, as they were then. Use it in the thread that opened it.

    Attributes:
        verification: the result, which has no problem but may have notes.
    """

    def __init__(self, store: StorePath, verification: Verification, copy: ReadConnection) -> None:
        super().__init__(store)
        self.verification: Final = verification
        self._copy = copy

    @contextmanager
    def _open(self) -> Iterator[ReadConnection]:
        yield self._copy


@contextmanager
def read_verified(
    store: StorePath,
    *,
    run: str | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    public_key: PublicKey | None = None,
    archived_before: datetime | None = None,
) -> Iterator[VerifiedReader]:
    """Verify a store, and read the records that were verified.

    The verification copies each valid record into a private temporary database, and every answer comes
    from there. The copy takes about as much space as the records. SQLite keeps up to 64 MiB of it in memory and the
    rest in a file of the temporary folder (`SQLITE_TMPDIR`, `TMPDIR`). SQLite unlinks that file as soon as it is open,
    so no other process can open it by name.

    Args:
        store: a path, or an SQLAlchemy URL.
        run: prefix of the run ids to copy; None for all records.
        checkpoints: as for `verify`.
        public_key: as for `verify`.
        archived_before: as for `verify`.

    Raises:
        UnverifiedError: if `verify` finds a problem.
        AuditError: if the store or the checkpoint file cannot be read, or the copy cannot be written.
        ConfigurationError: as for `verify`.
    """
    with closing(_Copy(run)) as copy:
        verification = examine(store, checkpoints, public_key, archived_before, copy.add)
        if not verification.ok:
            raise UnverifiedError(verification)
        yield VerifiedReader(store, verification, copy.finished())


class _Copy:
    """A private temporary database with the records."""

    def __init__(self, run: str | None) -> None:
        self._run = None if run is None else searchable(run)
        self._rows: list[Any] = []
        engine = store_engine("sqlite://", creator=lambda: sqlite3.connect(""), poolclass=NullPool)  # "" is temporary
        self._connection = engine.connect()
        driver: Any = self._connection.connection.driver_connection
        driver.isolation_level = None
        self._driver = driver
        with _convert_errors():
            for setting in _SETTINGS:
                self._driver.execute(setting)
            self._driver.execute(str(CreateTable(RECORDS).compile(dialect=sqlite.dialect())))

    def add(self, row: Any) -> None:
        """Add a row if its run is selected."""
        if self._run is not None and not str(row[_RUN_ID] or "").startswith(self._run):
            return
        self._rows.append(tuple(row))
        if len(self._rows) == _BATCH:
            self._flush()

    def finished(self) -> ReadConnection:
        """Create the indexes and return the connection for reading."""
        from traced_tools.audit.indexes import INDEXES  # unverified readers start faster without it

        self._flush()
        with _convert_errors():
            for index in INDEXES:
                self._driver.execute(str(CreateIndex(index).compile(dialect=sqlite.dialect())))
            self._driver.execute("COMMIT")
        return ReadConnection("(a verified copy)", self._connection, objects=())

    def close(self) -> None:
        """Remove the copy."""
        self._connection.close()

    def _flush(self) -> None:
        with _convert_errors():
            self._driver.executemany(_INSERT, self._rows)
        self._rows.clear()


@contextmanager
def _convert_errors() -> Iterator[None]:
    try:
        yield
        return
    except sqlite3.Error as error:
        problem = problem_of(error)
    raise AuditError(
        f"the verified records cannot be copied to the temporary folder ({problem}): set TMPDIR to another folder"
    )
