from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.audit.postgresql import OWNER, Server, serving
from tests.judges.programs import missing

numbers = itertools.count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL with the extension pgvector, for all tests of vector stores."""
    given = os.environ.get("PGVECTOR")
    with serving(None if given is None else Path(given)) as server:
        with server.connect(OWNER) as connection:
            found = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
        if found is None:
            missing("PostgreSQL has no pgvector: set PGVECTOR to the folder with the programs of one that has it")
        yield server


@pytest.fixture
def postgresql_url(postgresql: Server) -> str:
    """The URL of a new, empty database."""
    name = f"vectors_{next(numbers)}"
    with postgresql.connect(OWNER) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return postgresql.url(name)
