"""A SQL database: an SQLite file beside the application, or a PostgreSQL server."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError

from traced_tools.core.disk import create_private
from traced_tools.core.file_access import READABLE_BY_ALL, WRITABLE, sqlite_files, warn_of_access
from traced_tools.core.fork import on_fork
from traced_tools.errors import ConfigurationError
from traced_tools.stores.engine import durable_engine
from traced_tools.stores.schema import Schema

_BUSY: Final = 30.0
"""Seconds that SQLite waits for another writer."""
_LIVENESS: Final = {"connect_timeout": "5", "tcp_user_timeout": "10000"}
"""Connection options that keep an unresponsive server from blocking a caller for minutes."""
_LOG: Final = logging.getLogger(__name__)


class Database:
    """A database with the tables of a store. It connects, and creates missing tables, when it is first used.

    A commit that has returned survives a power failure. A file of SQLite that other users of the machine can read or
    change is logged once.

    Args:
        url: the path of an SQLite file, or an SQLAlchemy URL such as `postgresql+psycopg://user@host/database`, which
            needs the extra `postgresql`. A missing SQLite file is created for its owner alone.
        schema: the tables.

    Attributes:
        engine: makes connections, to a database that may not have its tables yet.
        is_sqlite: whether the database is an SQLite file.
        integrity_error: the driver's error about a row that a constraint refuses.

    Raises:
        ConfigurationError: for a URL that cannot be used.
    """

    def __init__(self, url: str | os.PathLike[str], schema: Schema) -> None:
        self._schema: Final = schema
        self._url: Final = _checked_url(url, schema.store)
        self.engine: Final = _engine(self._url)
        self.is_sqlite: Final = self._url.get_backend_name() == "sqlite"
        self.integrity_error: Final[type[Exception]] = self.engine.dialect.loaded_dbapi.IntegrityError
        self._begin()
        on_fork(self._begin_in_child)

    def _begin(self) -> None:
        self._preparing = threading.Lock()
        self._is_prepared = False

    def _begin_in_child(self) -> None:
        """Leave the parent's connections to the parent."""
        self.engine.dispose(close=False)
        self._begin()

    def exists(self) -> bool:
        """Return whether the database has the tables of the store, of any version. This creates none of them."""
        if self.is_sqlite and not Path(self._url.database or "").exists():
            return False
        with self.engine.connect() as connection:
            return self._schema.exists(connection)

    def connect(self) -> Connection:
        """Return a connection to the database, which has its tables."""
        self.prepare()
        return self.engine.connect()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection to the database, which has its tables. It commits at the end of the block.

        In SQLite, the connection is the only writer from the beginning of the block.
        """
        self.prepare()
        with self._writing() as connection:
            yield connection

    def prepare(self) -> None:
        """Create missing tables, or migrate those of an earlier version."""
        with self._preparing:
            if self._is_prepared:
                return
            if self.is_sqlite:
                _prepare_file(Path(self._url.database or ""), self._schema.store)
            with self.engine.connect() as connection:
                is_prepared = self._schema.is_current(connection)
            if not is_prepared:
                with self._writing() as connection:
                    self._schema.prepare(connection)
            self._is_prepared = True

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.engine.connect() as connection, connection.begin():
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    def __str__(self) -> str:
        return self._url.set(query={}).render_as_string(hide_password=True)


def _checked_url(location: str | os.PathLike[str], store: str) -> URL:
    text = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(text, str):
        raise TypeError(f"url must be a path or a URL as str, not {type(text).__name__}")
    if isinstance(location, os.PathLike) or "://" not in text:
        return _checked_file(URL.create("sqlite", database=text), store)
    try:
        url: URL | None = make_url(text)
    except (ArgumentError, ValueError):
        url = None  # the error's text may hold the password
    if url is None:
        raise ConfigurationError(f"the URL of the {store} is invalid: pass a path, or a URL such as sqlite:///file.db")
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "postgresql+psycopg" and find_spec("psycopg") is None:
        raise ConfigurationError(f"a {store} on PostgreSQL needs psycopg: pip install 'traced_tools[postgresql]'")
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigurationError(f"no {store} for {url.drivername}: pass a path or a postgresql+psycopg URL")
    return _checked_file(url, store) if url.get_backend_name() == "sqlite" else url


def _checked_file(url: URL, store: str) -> URL:
    if url.database in (None, "", ":memory:"):
        raise ConfigurationError(f"a {store} in SQLite needs a file: pass a path, or a URL such as sqlite:///file.db")
    return url.set(database=str(Path(url.database or "").absolute()))


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        return durable_engine(url, connect_args={"timeout": _BUSY}, paramstyle="named")
    liveness = {name: value for name, value in _LIVENESS.items() if name not in url.query}
    return durable_engine(url, connect_args=liveness, pool_pre_ping=True)


def _prepare_file(path: Path, store: str) -> None:
    """Create a missing file for its owner alone, as SQLite then does with its other files; warn of one for others."""
    with suppress(OSError):  # SQLite reports why it cannot be opened
        create_private(path)
    warn_of_access(_LOG, f"the {store}", *sqlite_files(path), forbidden=WRITABLE | READABLE_BY_ALL)
