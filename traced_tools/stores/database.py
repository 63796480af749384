"""A SQL database: an SQLite file beside the application, or a PostgreSQL server."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine

from traced_tools.core.disk import create_private
from traced_tools.core.file_access import READABLE_BY_ALL, WRITABLE, sqlite_files, warn_of_access
from traced_tools.core.fork import on_fork
from traced_tools.stores.address import Address
from traced_tools.stores.schema import Schema

_BUSY: Final = 30.0
"""Seconds that SQLite waits for another writer."""
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
        self._address: Final = Address(url, schema.store)
        self.engine: Final = _engine(self._address)
        self.is_sqlite: Final = self._address.path is not None
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
        if self._address.path is not None and not self._address.path.exists():
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
            if self._address.path is not None:
                _prepare_file(self._address.path, self._schema.store)
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
                driver: Any = connection.connection.driver_connection
                driver.execute("BEGIN IMMEDIATE")  # which SQLAlchemy would make a result of
            yield connection

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    def __str__(self) -> str:
        return str(self._address)


def _engine(address: Address) -> Engine:
    if address.path is not None:
        return address.engine(busy=_BUSY, paramstyle="named")
    return address.engine(busy=_BUSY, pool_pre_ping=True)


def _prepare_file(path: Path, store: str) -> None:
    """Create a missing file for its owner alone, as SQLite then does with its other files; warn of one for others."""
    with suppress(OSError):  # SQLite reports why it cannot be opened
        create_private(path)
    warn_of_access(_LOG, f"the {store}", *sqlite_files(path), forbidden=WRITABLE | READABLE_BY_ALL)
