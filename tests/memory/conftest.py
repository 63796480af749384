from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.audit.postgresql import OWNER, Server
from tests.audit.postgresql import serving as serving_postgresql
from tests.memory.made import NOW
from tests.memory.redis_server import RedisServer
from tests.memory.redis_server import serving as serving_redis
from traced_tools.memory import (
    ChatMemoryRepository,
    InMemoryChatMemoryRepository,
    RedisChatMemoryRepository,
    SqlChatMemoryRepository,
)
from traced_tools.memory import (
    repository as module,
)

numbers = itertools.count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL for all tests of the chat memory."""
    with serving_postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis for all tests of the chat memory."""
    with serving_redis() as server:
        yield server


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'memory.db'}"


@pytest.fixture
def postgresql_url(postgresql: Server) -> str:
    """The URL of a new, empty database on PostgreSQL."""
    return new_database(postgresql)


def new_database(postgresql: Server) -> str:
    name = f"memory_{next(numbers)}"
    with postgresql.connect(OWNER) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return postgresql.url(name)


@pytest.fixture
def open_redis(redis_server: RedisServer) -> Callable[[], ChatMemoryRepository]:
    """Return a repository in an emptied database of Redis."""

    def open_repository() -> ChatMemoryRepository:
        with redis_server.client() as client:
            client.flushall()
        return RedisChatMemoryRepository(redis_server.url())

    return open_repository


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.slow),
        pytest.param("redis", marks=pytest.mark.slow),
    ]
)
def open_repository(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ChatMemoryRepository]:
    """Return, at each call, a repository with an empty store: one of those that this package has."""
    if request.param == "memory":
        return InMemoryChatMemoryRepository
    if request.param == "sqlite":
        return lambda: SqlChatMemoryRepository(f"sqlite:///{tmp_path}/memory{next(numbers)}.db")
    if request.param == "redis":
        found: Callable[[], ChatMemoryRepository] = request.getfixturevalue("open_redis")
        return found
    server = request.getfixturevalue("postgresql")
    return lambda: SqlChatMemoryRepository(new_database(server))


@pytest.fixture
def repository(open_repository: Callable[[], ChatMemoryRepository]) -> Iterator[ChatMemoryRepository]:
    """A repository with an empty store: one of those that this package has."""
    with open_repository() as repository:
        yield repository


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Sets the time that has passed since a conversation began."""

    def set_time(passed: timedelta) -> None:
        monkeypatch.setattr(module, "utc_now", lambda: NOW + passed)

    set_time(timedelta(0))
    return set_time


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store of each kind."""
    return str(request.getfixturevalue("url" if request.param == "sqlite" else "postgresql_url"))
