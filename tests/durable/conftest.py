from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.audit.postgresql import OWNER, Server, serving

numbers = itertools.count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL for all tests of durable runs."""
    with serving() as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql: Server) -> str:
    """The URL of a new, empty database on PostgreSQL."""
    name = f"durable_{next(numbers)}"
    with postgresql.connect(OWNER) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return postgresql.url(name)
