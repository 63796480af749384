from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.audit.postgresql import Server, serving
from tests.memory.conftest import new_database


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL for all tests of what stores share."""
    with serving() as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql: Server) -> str:
    """The URL of a new, empty database on PostgreSQL."""
    return new_database(postgresql)
