"""Engines of SQLAlchemy for stores: a commit survives a power failure, and no log has a value or a row."""

from __future__ import annotations

import logging
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine, event

_LOGGED_AS: Final = "traced_tools"
"""Names the logger of these engines, so that the engines of the application log as before."""


def store_engine(url: URL | str, **options: Any) -> Engine:
    """Return an engine whose log has statements at most, at any level.

    Args:
        url: the database.
        options: what SQLAlchemy's `create_engine` takes.
    """
    return create_engine(url, hide_parameters=True, logging_name=_LOGGED_AS, **options)


def durable_engine(url: URL, **options: Any) -> Engine:
    """Return such an engine for writing: a commit returns when it is on disk, whatever the server's default is."""
    engine = store_engine(url, **options)
    event.listen(engine, "connect", sync_sqlite if url.get_backend_name() == "sqlite" else _sync_postgresql)
    return engine


def sync_sqlite(connection: Any, _: object) -> None:
    """Make SQLite sync each commit. In WAL mode, it would otherwise sync only some of them."""
    connection.execute("PRAGMA synchronous=FULL")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode=WAL")


def _sync_postgresql(connection: Any, _: object) -> None:
    if connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
        connection.execute("SET synchronous_commit = on")
    connection.commit()  # a rollback would take the setting back


def _is_a_statement(record: logging.LogRecord) -> bool:
    """Drop what SQLAlchemy logs at DEBUG: each row of a result, which `hide_parameters` does not cover."""
    return record.levelno > logging.DEBUG


logging.getLogger(f"sqlalchemy.engine.Engine.{_LOGGED_AS}").addFilter(_is_a_statement)
