"""No log has what a store holds: neither values that a statement sends nor rows that it returns."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.approvals.made import kept, paused
from tests.audit.trails import KEY, intent, write
from tests.memory.made import said
from traced_tools.approvals.pending_store import PendingStore
from traced_tools.audit import AuditReader, AuditTrail, read_verified
from traced_tools.core.approval import Approve
from traced_tools.memory import SqlChatMemoryRepository
from traced_tools.stores import engine

SECRET = "pear-4711"


@pytest.fixture(autouse=True, params=["a level", "echo"])
def everything_is_logged(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    """Log everything there is, as an application does that looks for an error."""
    caplog.set_level(logging.DEBUG)
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith(("sqlalchemy", "psycopg", "redis", "sqlite")):
            caplog.set_level(logging.DEBUG, name)
    if request.param == "echo":
        create, patch = engine.create_engine, request.getfixturevalue("monkeypatch")
        patch.setattr(engine, "create_engine", lambda *args, **options: create(*args, echo="debug", **options))


def check(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    assert "SELECT" in caplog.text  # statements are logged as before
    assert SECRET not in caplog.text
    assert SECRET not in "".join(capsys.readouterr())


def database(request: pytest.FixtureRequest, kind: str, path: Path) -> str:
    return str(request.getfixturevalue("postgresql_url")) if kind == "postgresql" else f"sqlite:///{path}"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_no_log_has_a_conversation(
    request: pytest.FixtureRequest,
    kind: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with SqlChatMemoryRepository(database(request, kind, tmp_path / "memory.db")) as repository:
        entries = [said(SECRET)]
        repository.append(SECRET, entries, 0, principal=SECRET, attributes={"name": SECRET})
        assert repository.read(SECRET, principal=SECRET).entries
        assert repository.search(SECRET, ["pear"], principal=SECRET)
        assert repository.conversations(principal=SECRET, attributes={"name": SECRET})
        assert repository.delete(SECRET, principal=SECRET)
    check(caplog, capsys)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_no_log_has_a_run_that_waits(
    request: pytest.FixtureRequest,
    kind: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PendingStore(database(request, kind, tmp_path / "pending.db")) as store:
        kept(store, paused("a", reason=SECRET, principal=SECRET))
        assert [each.reason for each in store.pending(principal=SECRET)] == [SECRET]
        store.decide("a", Approve(by=SECRET))
        assert SECRET in store.ready()[0]
    check(caplog, capsys)


def test_no_log_has_a_record_of_the_audit_trail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.db"
    with AuditTrail(path, key=KEY, content="full") as trail:
        write(trail, intent(agent=SECRET, arguments=SECRET))
        assert trail.query(agent=SECRET)
        trail.erase(trail.query()[0].run_id, requested_by=SECRET, reason=SECRET)
    assert AuditReader(path).calls(agent=SECRET)
    with read_verified(path) as reader:
        assert reader.calls(agent=SECRET)
    check(caplog, capsys)


def test_engines_of_the_application_log_as_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from sqlalchemy import create_engine

    with create_engine(f"sqlite:///{tmp_path / 'own.db'}").connect() as connection:
        assert connection.exec_driver_sql(f"SELECT '{SECRET}'").all()
    assert f"Row ('{SECRET}',)" in caplog.text
