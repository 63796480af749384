from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from tests.audit.postgresql import OWNER, Server, serving

numbers = itertools.count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL for all tests of vector stores; skips if it lacks the extension pgvector."""
    with serving() as server:
        with server.connect(OWNER) as connection:
            found = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
        if found is None:
            pytest.skip("this PostgreSQL has no pgvector")
        yield server


@pytest.fixture
def postgresql_url(postgresql: Server) -> str:
    """The URL of a new, empty database."""
    name = f"vectors_{next(numbers)}"
    with postgresql.connect(OWNER) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return postgresql.url(name)
