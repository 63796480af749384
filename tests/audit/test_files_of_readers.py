"""Reading leaves no file behind, changes no record, and disturbs nobody who writes at the same time."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.audit.commanded import COMMANDS, audit, make_store
from tests.audit.made import Chain, write
from tests.audit.trails import KEY, calls, intent, settle
from traced_tools.audit import AuditReader, verify
from traced_tools.audit.reading.queries import runs_beginning
from traced_tools.audit.reading.read_connection import open_for_reading
from traced_tools.audit.trail import AuditTrail
from traced_tools.errors import AuditError


def closed(path: Path) -> Path:
    """Make a store as a trail leaves it."""
    with AuditTrail(path, key=KEY) as trail:
        settle(trail, intent("before"))
    return path


def files(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.parent.iterdir()}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_that_reads_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    store = make_store(tmp_path, monkeypatch)
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    before = files(store)
    assert audit(*command).exit_code in (0, 1)
    assert files(store) == before


def test_readers_at_the_same_time_leave_no_file_behind(tmp_path: Path) -> None:
    path = closed(tmp_path / "audit.db")
    before = files(path)
    with open_for_reading(path) as one:
        with open_for_reading(path) as other:
            other.difference()
        one.difference()
    assert files(path) == before


def test_a_reader_cannot_change_a_record(tmp_path: Path) -> None:
    with open_for_reading(closed(tmp_path / "audit.db")) as store:
        with pytest.raises(Exception, match="readonly database"):
            store._connection.exec_driver_sql("DELETE FROM audit_records")


@pytest.mark.parametrize("first", ["reader", "writer"])
def test_a_trail_keeps_writing_while_a_store_is_read(tmp_path: Path, first: str) -> None:
    path = closed(tmp_path / "audit.db")
    if first == "reader":
        with open_for_reading(path) as store:
            trail = AuditTrail(path, key=KEY)
            settle(trail, intent("during"))
            assert store.damage() is None
    else:
        trail = AuditTrail(path, key=KEY)
        settle(trail, intent("during"))
        assert verify(path).ok
    settle(trail, intent("after"))
    trail.close()
    assert not [name for name in files(path) if name.endswith(("-wal", "-shm"))]
    assert calls(path) == ["before", "during", "after"]
    assert verify(path).ok


def test_a_trail_that_closes_during_a_read_leaves_its_files_to_the_reader(tmp_path: Path) -> None:
    path = closed(tmp_path / "audit.db")
    with open_for_reading(path):
        with AuditTrail(path, key=KEY) as trail:
            settle(trail, intent("during"))
    assert not [name for name in files(path) if name.endswith(("-wal", "-shm"))]
    assert calls(path) == ["before", "during"]


def test_the_log_file_of_a_killed_process_is_read_and_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    trail = AuditTrail(path, key=KEY)
    settle(trail, intent("before"))
    copies = tmp_path / "killed"
    copies.mkdir()
    for name in ("audit.db", "audit.db-wal"):
        (copies / name).write_bytes((tmp_path / name).read_bytes())
    trail.close()
    before = files(copies / "audit.db")
    assert calls_read(copies / "audit.db") == ["before"]
    after = files(copies / "audit.db")
    assert {name: after[name] for name in before} == before


def calls_read(path: Path) -> list[Any]:
    return [record.fields["call_id"] for record in AuditReader(path).records() if record.kind == "intent"]


def refuse_writing(monkeypatch: pytest.MonkeyPatch, *refused: Path) -> None:
    """Have the process think that it may not write these, whoever runs the tests."""
    access = os.access
    monkeypatch.setattr(
        "traced_tools.audit.store.os.access",
        lambda path, mode: access(path, mode) and not (mode == os.W_OK and Path(path) in refused),
    )


@pytest.mark.parametrize("which", ["folder", "store"])
def test_a_reader_without_write_access_creates_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    path = closed(tmp_path / "audit.db")
    refuse_writing(monkeypatch, path if which == "store" else tmp_path)
    before = files(path)
    with open_for_reading(path) as store:
        assert list(store.rows(runs_beginning("", 10, by_bytes=True)))
        assert files(path) == before
    assert files(path) == before


def test_a_reader_without_write_access_reports_a_concurrent_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = closed(tmp_path / "audit.db")
    refuse_writing(monkeypatch, path)
    with pytest.raises(AuditError, match="was written while"), open_for_reading(path):
        with AuditTrail(path, key=KEY) as trail:
            settle(trail, intent("during"))
    chain = Chain()
    chain.call("search", run_id="r")
    write(tmp_path / "still.db", chain)
    refuse_writing(monkeypatch, tmp_path / "still.db")
    assert verify(tmp_path / "still.db").ok
