"""A SQL store, as somebody else than the repository sees it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
from sqlalchemy import make_url


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement as somebody else who has access to the store."""
    parsed = make_url(url)
    if parsed.database and parsed.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(parsed.database)) as connection, connection:
            return connection.execute(statement).fetchall()
    plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as server:
        cursor = server.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []
