from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.audit.postgresql import Database, Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL for all tests. Who stops it starts it again."""
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def database(server: Server, request: pytest.FixtureRequest) -> Database:
    """A database of the module's own."""
    return Database(server, request.module.__name__.rpartition(".")[2])
