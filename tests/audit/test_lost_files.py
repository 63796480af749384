"""Files of the embedded store that are gone, replaced, cut or no store at all."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.audit.trails import KEY, bodies, calls, intent, settle, settled, unavailable
from traced_tools.audit.records import body_of, hash_of
from traced_tools.audit.store import _Sqlite
from traced_tools.audit.trail import AuditTrail


def test_a_removed_store_is_created_again_and_gets_all_later_records(
    path: Path, quick: AuditTrail, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("audit.db", "audit.db-wal", "audit.db-shm"):
        (path.parent / name).unlink()
    settle(quick, intent("after"))
    settled(quick)
    assert calls(path) == ["after"]
    assert bodies(path)[0]["abandoned"]["sequence"] == 1
    assert [text for text in caplog.messages if "a new chain begins" in text]


def test_a_store_replaced_by_an_older_copy_gets_a_new_chain(path: Path, quick: AuditTrail) -> None:
    quick.checkpoint()
    with closing(sqlite3.connect(path)) as copied:
        copied.execute("VACUUM INTO ?", (str(path.parent / "copy"),))
    settle(quick, intent("gone"))
    old, gone = stored(path)[-1][0], stored(path)[-1][2]
    for name in ("audit.db-wal", "audit.db-shm"):
        (path.parent / name).unlink()
    (path.parent / "copy").rename(path)
    settle(quick, intent("after"))
    settled(quick)
    assert sorted(calls(path)) == ["after", "before"]
    assert len({each["chain_id"] for each in bodies(path)}) == 2
    check_abandoned(path, old, 3, gone)


def stored(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT chain_id, sequence, hash, body FROM audit_records ORDER BY chain_id, sequence"
        return connection.execute(query).fetchall()


def check_abandoned(path: Path, chain_id: str, sequence: int, digest: str) -> None:
    """Fail unless the only other chain begins with a gap record that has the end of the given chain."""
    begins = [json.loads(body) for chain, number, _, body in stored(path) if chain != chain_id and number == 1]
    (gap,) = begins
    assert gap["kind"] == "gap"
    assert (gap["late"], gap["lost"]) == (0, 0)
    assert gap["since"] == gap["until"] <= gap["time"]
    assert gap["abandoned"] == {"chain_id": chain_id, "sequence": sequence, "hash": digest}


def test_a_chain_with_a_deleted_end_is_abandoned_and_the_next_one_records_its_end(
    path: Path, quick: AuditTrail
) -> None:
    settle(quick, intent("deleted"))
    chain_id, sequence, digest, _ = stored(path)[-1]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DELETE FROM audit_records WHERE sequence > 1")
        other.execute("BEGIN IMMEDIATE")
        quick.submit(intent("after"))
        assert not quick.flush(0.3)  # the connection is made anew
        other.execute("COMMIT")
    settled(quick)
    assert calls(path) == ["before", "after"]
    check_abandoned(path, chain_id, sequence, digest)


def test_a_chain_that_another_writer_continues_is_abandoned_and_the_next_one_records_its_end(
    path: Path, quick: AuditTrail
) -> None:
    chain_id, sequence, digest, body = stored(path)[-1]
    forged = body_of({**json.loads(body), "sequence": sequence + 1, "previous": digest})
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        row = (chain_id, sequence + 1, 1, "intent", hash_of(forged), forged)
        other.execute(
            "INSERT INTO audit_records (chain_id, sequence, time, kind, hash, body) VALUES (?,?,?,?,?,?)", row
        )
    settle(quick, intent("after"))
    assert calls(path) == ["before", "before", "after"]
    check_abandoned(path, chain_id, sequence, digest)


@pytest.mark.slow
def test_the_end_of_an_abandoned_chain_is_recorded_after_any_number_of_failures(
    path: Path, quick: AuditTrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain_id, sequence, digest, _ = stored(path)[-1]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DELETE FROM audit_records")
        other.execute("BEGIN IMMEDIATE")
        quick.submit(intent("after"))
        assert not quick.flush(0.5)
        other.execute("COMMIT")
    real, failures = _Sqlite.append, ["before", "before"]

    def failing(self: Any, rows: Any) -> None:
        if failures:
            failures.pop()
            raise ConnectionError
        real(self, rows)

    monkeypatch.setattr(_Sqlite, "append", failing)
    settled(quick)
    assert calls(path) == ["after"]
    check_abandoned(path, chain_id, sequence, digest)


def test_removing_the_log_file_loses_no_later_record(path: Path, quick: AuditTrail) -> None:
    settle(quick, intent("before too"))
    for name in ("audit.db-wal", "audit.db-shm"):
        (path.parent / name).unlink()
    settle(quick, intent("after"))
    settled(quick)
    assert "after" in calls(path)


def test_a_file_that_is_not_a_database_is_reported_and_not_changed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(b"a diary, and no database at all" * 100)
    trail = AuditTrail(path, key=KEY)
    assert "DatabaseError" in str(unavailable(trail, intent()))
    trail.close(0.1)
    assert path.read_bytes() == b"a diary, and no database at all" * 100


def test_a_missing_folder_is_reported_and_used_once_it_exists(tmp_path: Path) -> None:
    path = tmp_path / "later" / "audit.db"
    trail = AuditTrail(path, key=KEY)
    assert "FileNotFoundError" in str(unavailable(trail, intent()))
    path.parent.mkdir()
    settled(trail)
    trail.close()
    assert calls(path) == ["call_1"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    trail = AuditTrail(tmp_path / "closed" / "audit.db")
    assert "PermissionError" in str(unavailable(trail, intent()))
    trail.close(0.1)


def test_a_file_that_may_only_be_read_is_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that turned read-only."""

    real = _Sqlite._make_tables

    def then_read_only(self: Any) -> None:
        real(self)
        self._driver.execute("PRAGMA query_only=1")

    monkeypatch.setattr(_Sqlite, "_make_tables", then_read_only)
    trail = AuditTrail(path, key=KEY)
    assert "OperationalError" in str(unavailable(trail, intent()))
    monkeypatch.setattr(_Sqlite, "_make_tables", real)
    settled(trail)
    trail.close()
    assert calls(path) == ["call_1"]


def test_the_log_gives_the_cause_if_a_file_is_not_a_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "audit.db"
    store.write_text("this is no database, " * 100)
    with AuditTrail(store, key=KEY) as trail:
        trail.submit(intent())
        assert not trail.flush(0.5)
        trail.close(0.1)
    assert (
        "(DatabaseError: it is no SQLite database, or a damaged one; check the path, or restore a backup)"
        in caplog.text
    )
