"""Where a SQL store is: an SQLite file beside the application, or a database of a PostgreSQL server."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError

from traced_tools.errors import ConfigurationError
from traced_tools.stores.engine import durable_engine

_LIVENESS: Final = {"connect_timeout": "5", "tcp_user_timeout": "10000"}
"""Connection options that keep an unresponsive server from blocking a caller for minutes."""


class Address:
    """The address of a store, which is checked, and neither opened nor created.

    Args:
        location: the path of an SQLite file, or an SQLAlchemy URL such as `postgresql+psycopg://user@host/database`,
            which needs the extra `postgresql`.
        store: what errors call the store, such as `chat memory`.
        argument: the name of the argument that has the location, for an error about its type.

    Attributes:
        url: the URL, with an absolute path.
        path: the absolute path of an SQLite file; None for a server.

    Raises:
        ConfigurationError: for a URL that cannot be used.
    """

    def __init__(self, location: str | os.PathLike[str], store: str, argument: str = "url") -> None:
        url = _checked_url(location, store, argument)
        is_sqlite = url.get_backend_name() == "sqlite"
        if is_sqlite and url.database in (None, "", ":memory:"):
            raise ConfigurationError(
                f"{_with_article(store)} in SQLite needs a file: pass a path, or a URL such as sqlite:///file.db"
            )
        # resolved now, because the current folder may change
        self.path: Final = Path(url.database or "").absolute() if is_sqlite else None
        self.url: Final = url if self.path is None else url.set(database=str(self.path))

    def engine(self, *, busy: float, connect_args: dict[str, Any] | None = None, **options: Any) -> Engine:
        """Return an engine for writing; see `durable_engine`.

        Args:
            busy: seconds that SQLite waits for another writer.
            connect_args: more options for the driver.
            options: more options for SQLAlchemy's `create_engine`.
        """
        if self.path is not None:
            arguments: dict[str, Any] = {"timeout": busy}
        else:
            arguments = {name: value for name, value in _LIVENESS.items() if name not in self.url.query}
        return durable_engine(self.url, connect_args={**arguments, **(connect_args or {})}, **options)

    def __str__(self) -> str:
        return self.url.set(query={}).render_as_string(hide_password=True)  # the query may hold a password, too


def _checked_url(location: str | os.PathLike[str], store: str, argument: str) -> URL:
    text = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(text, str):
        raise TypeError(f"{argument} must be a path or a URL as str, not {type(text).__name__}")
    if isinstance(location, os.PathLike) or "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url: URL | None = make_url(text)
    except (ArgumentError, ValueError):
        url = None  # the error's text may hold the password
    if url is None:
        raise ConfigurationError(f"the URL of the {store} is invalid: pass a path, or a URL such as sqlite:///file.db")
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "postgresql+psycopg" and find_spec("psycopg") is None:
        raise ConfigurationError(
            f"{_with_article(store)} on PostgreSQL needs psycopg: pip install 'traced_tools[postgresql]'"
        )
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigurationError(f"no {store} for {url.drivername}: pass a path or a postgresql+psycopg URL")
    return url


def _with_article(store: str) -> str:
    return f"{'an' if store[0] in 'aeiou' else 'a'} {store}"
