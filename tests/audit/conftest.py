from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.audit.outages import Outage
from tests.audit.postgresql import Database, Server, serving
from tests.audit.postgresql_trails import KEY as SERVER_KEY
from tests.audit.postgresql_trails import LONG
from tests.audit.trails import KEY, intent, settle
from tests.waiting import PATIENCE
from traced_tools.audit import store
from traced_tools.audit.store import _Sqlite
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.writing import writer


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL for all tests. Who stops it starts it again."""
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def database(server: Server, request: pytest.FixtureRequest) -> Database:
    """A database of the module's own."""
    return Database(server, request.module.__name__.rpartition(".")[2])


@pytest.fixture
def emptied(database: Database) -> None:
    """Has the module's database begin without records."""
    with closing(database.connect()) as owner:
        owner.execute("TRUNCATE audit_records")


@pytest.fixture
def opened(database: Database, tmp_path: Path) -> Iterator[Callable[..., AuditTrail]]:
    """Opens trails on the database, and closes them."""
    trails: list[AuditTrail] = []

    def open_trail(url: str = "", **options: Any) -> AuditTrail:
        options = {"key": SERVER_KEY, "checkpoints": tmp_path / "checkpoints", "timeout": LONG, **options}
        trails.append(AuditTrail(url or database.url(), **options))
        return trails[-1]

    yield open_trail
    for trail in trails:
        trail.close(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where an embedded store may be."""
    return tmp_path / "audit.db"


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    """Embedded stores fail as it says."""
    outage = Outage()
    monkeypatch.setattr(_Sqlite, "append", lambda store, rows: outage(store, rows))
    return outage


@pytest.fixture
def short(path: Path) -> Iterator[AuditTrail]:
    """A trail whose callers lose patience soon."""
    trail = AuditTrail(path, key=KEY, timeout=0.2)
    yield trail
    trail.close(PATIENCE)


@pytest.fixture
def quick(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AuditTrail]:
    """A trail that gives up soon; it has written a record."""
    monkeypatch.setattr(store, "_BUSY", 0.05)
    trail = AuditTrail(path, key=KEY, timeout=0.3)
    settle(trail, intent("before"))
    yield trail
    trail.close(PATIENCE)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a writer whose store fails try again soon."""
    monkeypatch.setattr(writer, "_PAUSES", (0.0, 0.01, 0.02))
