from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.approvals.made import NOW, set_microseconds
from tests.audit.postgresql import OWNER, Server, serving
from traced_tools.approvals import PendingStore

numbers = itertools.count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL for all tests of pending stores."""
    with serving() as server:
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of an SQLite file that does not exist yet."""
    return tmp_path / "pending.db"


@pytest.fixture
def postgresql_url(postgresql: Server) -> str:
    """The URL of a new, empty database on PostgreSQL."""
    name = f"pending_{next(numbers)}"
    with postgresql.connect(OWNER) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return postgresql.url(name)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    """The URL of an empty store of each kind."""
    return f"sqlite:///{path}" if request.param == "sqlite" else str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def store(url: str) -> Iterator[PendingStore]:
    """An empty store of each kind, whose calls never expire."""
    with PendingStore(url) as store:
        yield store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the seconds that have passed since the first call began to wait."""

    def set_time(passed: float) -> None:
        set_microseconds(monkeypatch, round((NOW + passed) * 1_000_000))

    set_time(0)
    return set_time
