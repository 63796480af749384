from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from tests.audit.postgresql import OWNER, Server, serving
from tests.judges.programs import missing

numbers = itertools.count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL with the extension pgvector, for all tests of vector stores."""
    with serving() as server:
        with server.connect(OWNER) as connection:
            found = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
        if found is None:
            missing("this PostgreSQL has no pgvector: apt-get install postgresql-17-pgvector, or that of your version")
        yield server


@pytest.fixture
def postgresql_url(postgresql: Server) -> str:
    """The URL of a new, empty database."""
    name = f"vectors_{next(numbers)}"
    with postgresql.connect(OWNER) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return postgresql.url(name)
