"""Which workers of a store live: locks that end with the process that holds them."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol

from sqlalchemy import Connection, CursorResult, TextClause, text
from sqlalchemy.exc import SQLAlchemyError

from traced_tools.core.disk import create_private
from traced_tools.errors import ConfigurationError, PendingStoreUnavailable
from traced_tools.stores.advisory_locks import lock_number
from traced_tools.stores.database import Database
from traced_tools.stores.errors import sql_problem, translate_errors

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

PATIENCE: float = 5.0
"""Seconds to wait for the name of a worker that may just have died."""
_RETRY: Final = 0.25
_TRY_LOCK: Final = text("SELECT pg_try_advisory_lock(:number)")
_NUMBERS: Final = text(
    "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
    " AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_DEAD_WITHIN_SECONDS: Final = (
    "tcp_keepalives_idle = 1",
    "tcp_keepalives_interval = 1",
    "tcp_keepalives_count = 2",
    "tcp_user_timeout = 3000",  # milliseconds, for an answer of the server that is on its way
)
"""When the server drops the session of a machine that no longer answers. The system closes that of a killed process."""
_without_texts: Final = translate_errors(sql_problem, PendingStoreUnavailable)


class Presence(Protocol):
    """Tells the workers of a store that this one lives."""

    def enter(self) -> None:
        """Take the name.

        Raises:
            ConfigurationError: if a living worker has it.
        """

    def leads(self) -> bool:
        """Return whether this worker is the one that looks for runs; one worker is, for as long as it lives."""

    def living(self, processes: Collection[str]) -> set[str]:
        """Return those of the processes, by their ids, that live."""

    def leave(self) -> None:
        """Give everything back."""


def presence(database: Database, name: str, process: str) -> Presence:
    """Return what tells the workers of a store that this one lives.

    Args:
        database: the database of the store.
        name: the name of the worker, which one process has at a time.
        process: the id of the process, which no other one ever has.
    """
    if database.is_sqlite:
        return _FilePresence(Path(str(database.engine.url.database)), process)
    return _SessionPresence(database, name, process)


class _SessionPresence:
    """Locks of a session of PostgreSQL, which the server ends with the process or its machine."""

    def __init__(self, database: Database, name: str, process: str) -> None:
        self._database = database
        self._name, self._process = name, process
        self._session: Connection | None = None

    @_without_texts
    def enter(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self._begin():
            if time.monotonic() > until:
                raise ConfigurationError(
                    f"a worker with the name {self._name!r} lives: pass a name that no other worker of the store has"
                )
            time.sleep(_RETRY)

    @_without_texts
    def leads(self) -> bool:
        return self._locks("lookout")

    @_without_texts
    def living(self, processes: Collection[str]) -> set[str]:
        numbers = {*self._execute(_NUMBERS).scalars()}
        return {process for process in processes if lock_number("process", process) in numbers}

    def leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(SQLAlchemyError):
                session.close()

    def __repr__(self) -> str:
        return f"the session of the worker {self._name!r} in {str(self._database)!r}"

    def _begin(self) -> bool:
        """Open a session with the locks of this worker; return whether the name was free."""
        engine = self._database.engine.execution_options(isolation_level="AUTOCOMMIT")
        session = self._session = engine.connect()
        session.detach()  # in the pool, it would keep its locks
        for setting in _DEAD_WITHIN_SECONDS:
            session.execute(text(f"SET {setting}"))
        if self._locks("worker", self._name) and self._locks("process", self._process):
            return True
        self.leave()
        return False

    def _own_session(self) -> Connection:
        """Return the session. If it was lost, its locks are taken again: what ran here may be in other hands."""
        if self._session is None and not self._begin():
            raise ConfigurationError(f"another worker has taken the name {self._name!r}")
        assert self._session is not None
        return self._session

    def _locks(self, *names: str) -> bool:
        """Return whether this session has a lock, now or already."""
        return bool(self._execute(_TRY_LOCK, number=lock_number(*names)).scalar_one())

    def _execute(self, statement: TextClause, **parameters: int) -> CursorResult[Any]:
        session = self._own_session()
        try:
            return session.execute(statement, parameters)
        except SQLAlchemyError:
            self.leave()
            raise


class _FilePresence:
    """A lock on a file beside the store, which the system ends with the process. One process at a time works."""

    def __init__(self, store: Path, process: str) -> None:
        self._path = store.with_name(f"{store.name}-workers.lock")
        self._process = process
        self._file: IO[bytes] | None = None

    def enter(self) -> None:
        if fcntl is None:
            raise ConfigurationError("workers on SQLite need the file locks of POSIX: use a store on PostgreSQL")
        create_private(self._path)
        file = self._file = self._path.open("r+b")
        until = time.monotonic() + PATIENCE
        while not _locks_file(file):
            if time.monotonic() > until:
                self.leave()
                raise ConfigurationError(
                    "another process works on this SQLite store: SQLite has one worker process, PostgreSQL several"
                )
            time.sleep(_RETRY)

    def leads(self) -> bool:
        return True

    def living(self, processes: Collection[str]) -> set[str]:
        return {self._process} & {*processes}

    def leave(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _locks_file(file: IO[bytes]) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock(): a child forked meanwhile would keep that lock
    except OSError:
        return False
    return True
