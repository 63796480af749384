"""Faults of the embedded store: full, locked, gone, replaced, shared."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.audit.trails import KEY, bodies, calls, intent, of_kind, settle, write
from tests.support import PATIENCE
from traced_tools.audit import store
from traced_tools.audit.records import body_of, hash_of
from traced_tools.audit.store import _Sqlite
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.verifying import verify
from traced_tools.errors import AuditUnavailable

KIB = 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


@pytest.fixture
def quick(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AuditTrail]:
    """A trail that gives up soon; it has written a record."""
    monkeypatch.setattr(store, "_BUSY", 0.05)
    trail = AuditTrail(path, key=KEY, timeout=0.3)
    settle(trail, intent("before"))
    yield trail
    trail.close(PATIENCE)


def settled(trail: AuditTrail) -> None:
    assert trail.flush(2 * PATIENCE)


def test_durable_means_synced(path: Path, quick: AuditTrail) -> None:
    writing = quick._writer._appender._writing
    assert writing is not None
    found = {name: writing._driver.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
    assert found == {"journal_mode": "wal", "synchronous": 2}


def test_an_sqlite_that_takes_few_values_at_once_is_given_few(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store._durably

    def limited(connection: sqlite3.Connection, record: object) -> None:
        real(connection, record)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 100)

    monkeypatch.setattr(store, "_durably", limited)
    with AuditTrail(path, key=KEY) as trail:
        for number in range(50):
            trail.submit(intent(f"call_{number}"))
    assert calls(path) == [f"call_{number}" for number in range(50)]


# Locked.


def test_a_database_that_another_holds_for_a_while_is_waited_for(path: Path, quick: AuditTrail) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.15, other.execute, ["COMMIT"])
        timer.start()
        settle(quick, intent("after"))
        timer.join(PATIENCE)
    assert calls(path) == ["before", "after"]
    assert of_kind(path, "gap") == []


def test_a_database_that_another_holds_for_too_long_is_unavailable(path: Path, quick: AuditTrail) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AuditUnavailable, match="OperationalError"):
            write(quick, intent("late"))
        other.execute("COMMIT")
    settled(quick)
    settle(quick, intent("after"))
    settled(quick)
    assert calls(path) == ["before", "late", "after"]
    assert [(gap["late"], gap["lost"]) for gap in of_kind(path, "gap")] == [(1, 0)]


def test_whoever_reads_holds_nobody_up(path: Path, quick: AuditTrail) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM audit_records").fetchone() == (1,)
        settle(quick, intent("after"))
        assert reader.execute("SELECT count(*) FROM audit_records").fetchone() == (1,)
    assert calls(path) == ["before", "after"]


# Full.


def test_a_database_that_may_not_grow_is_unavailable_until_it_may(path: Path, quick: AuditTrail) -> None:
    writing = quick._writer._appender._writing
    assert writing is not None
    writing._driver.execute("PRAGMA max_page_count=1")
    real, limit = store._durably, ["PRAGMA max_page_count=1"]

    def limited(connection: Any, record: object) -> None:
        real(connection, record)
        connection.execute(limit[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_durably", limited)
        with pytest.raises(AuditUnavailable, match="OperationalError"):
            for number in range(200):
                write(quick, intent(f"call_{number}", tool=f"{number}" * 100))
        limit[0] = "PRAGMA max_page_count=1000000"
        settled(quick)
    assert calls(path) == ["before", *(f"call_{number}" for number in range(len(calls(path)) - 1))]
    assert [gap["late"] for gap in of_kind(path, "gap")] == [1]
    assert verify(path).ok


FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from tests.audit.trails import KEY, intent, write
from traced_tools.audit.trail import AuditTrail
from traced_tools.errors import AuditUnavailable
trail = AuditTrail(sys.argv[1], key=KEY, timeout=0.5)
write(trail, intent("before"))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
durable = 0
try:
    while True:
        write(trail, intent(f"call_{durable}"))
        durable += 1
except AuditUnavailable as error:
    print(durable, error, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert trail.flush(10)
write(trail, intent("after"))
trail.close()
"""


@pytest.mark.skipif(os.name != "posix", reason="limits are POSIX's")
def test_a_full_disk_is_unavailable_and_what_waits_follows(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    durable, _, problem = done.stdout.partition(" ")
    assert "could not record" in problem
    assert int(durable) > 10
    assert calls(path) == ["before", *(f"call_{number}" for number in range(int(durable) + 1)), "after"]
    assert [(gap["late"], gap["lost"]) for gap in of_kind(path, "gap")] == [(1, 0)]
    assert verify(path).ok


# Gone or replaced.


def test_a_file_that_is_removed_is_made_anew_and_nothing_goes_to_the_old_one(
    path: Path, quick: AuditTrail, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("audit.db", "audit.db-wal", "audit.db-shm"):
        (path.parent / name).unlink()
    settle(quick, intent("after"))
    settled(quick)
    assert calls(path) == ["after"]
    assert bodies(path)[0]["abandoned"]["sequence"] == 1
    assert [text for text in caplog.messages if "a new chain begins" in text]


def test_a_file_that_is_replaced_by_an_older_one_begins_a_new_chain(path: Path, quick: AuditTrail) -> None:
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
    """Fail unless the one other chain begins with telling where that chain ended."""
    begins = [json.loads(body) for chain, number, _, body in stored(path) if chain != chain_id and number == 1]
    (gap,) = begins
    assert gap["kind"] == "gap"
    assert (gap["late"], gap["lost"]) == (0, 0)
    assert gap["since"] == gap["until"] <= gap["time"]
    assert gap["abandoned"] == {"chain_id": chain_id, "sequence": sequence, "hash": digest}


def test_a_chain_whose_end_is_deleted_is_left_and_the_next_one_tells_its_end(path: Path, quick: AuditTrail) -> None:
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


def test_a_chain_that_somebody_goes_on_with_is_left_and_the_next_one_tells_its_end(
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


def test_the_end_of_a_chain_that_was_left_is_told_however_often_that_fails(
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


def test_a_log_that_is_removed_takes_no_record_with_it(path: Path, quick: AuditTrail) -> None:
    settle(quick, intent("before too"))
    for name in ("audit.db-wal", "audit.db-shm"):
        (path.parent / name).unlink()
    settle(quick, intent("after"))
    settled(quick)
    assert "after" in calls(path)


def test_a_file_that_is_no_database_is_told_and_left_as_it_is(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"a diary, and no database at all" * 100)
    trail = AuditTrail(path, key=KEY, timeout=0.3)
    with pytest.raises(AuditUnavailable, match="DatabaseError"):
        write(trail, intent())
    trail.close(0.1)
    assert path.read_bytes() == b"a diary, and no database at all" * 100


def test_a_folder_that_is_missing_is_told_and_found_when_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "later" / "audit.db"
    trail = AuditTrail(path, key=KEY, timeout=0.3)
    with pytest.raises(AuditUnavailable, match="FileNotFoundError"):
        write(trail, intent())
    path.parent.mkdir()
    settled(trail)
    trail.close()
    assert calls(path) == ["call_1"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    trail = AuditTrail(tmp_path / "closed" / "audit.db", timeout=0.3)
    with pytest.raises(AuditUnavailable, match="PermissionError"):
        write(trail, intent())
    trail.close(0.1)


def test_a_file_that_may_only_be_read_is_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that turned read-only."""

    real = _Sqlite._make_tables

    def then_read_only(self: Any) -> None:
        real(self)
        self._driver.execute("PRAGMA query_only=1")

    monkeypatch.setattr(_Sqlite, "_make_tables", then_read_only)
    trail = AuditTrail(path, key=KEY, timeout=0.3)
    with pytest.raises(AuditUnavailable, match="OperationalError"):
        write(trail, intent())
    monkeypatch.setattr(_Sqlite, "_make_tables", real)
    settled(trail)
    trail.close()
    assert calls(path) == ["call_1"]


# Shared.

WRITER = """
import asyncio, sys
from tests.audit.trails import KEY, awrite, intent
from traced_tools.audit.trail import AuditTrail

async def all_of(trail):
    sys.stdin.readline()
    await asyncio.gather(*(one(trail, loop) for loop in range(8)))

async def one(trail, loop):
    for number in range(40):
        await awrite(trail, intent(f"{sys.argv[2]}-{loop}-{number}"))

with AuditTrail(sys.argv[1], timeout=30) as trail:
    print("ready", flush=True)
    asyncio.run(all_of(trail))
"""


def test_processes_that_start_at_once_share_one_new_store(path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(process)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for process in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in started:
        process.communicate(timeout=60)
        assert process.returncode == 0
    expected = {f"{process}-{loop}-{number}" for process in range(3) for loop in range(8) for number in range(40)}
    found = calls(path)
    assert len(found) == len(expected)
    assert {*found} == expected
    assert len({each["chain_id"] for each in bodies(path)}) == 3
    assert len({each["arguments"]["key_id"] for each in of_kind(path, "intent")}) == 1
    assert of_kind(path, "gap") == []
    assert verify(path).ok


def test_trails_of_one_process_share_a_store(path: Path) -> None:
    trails = [AuditTrail(path, key=KEY) for _ in range(4)]

    def work(n: int, trail: AuditTrail) -> None:
        for i in range(30):
            write(trail, intent(f"{n}-{i}"))

    threads = [threading.Thread(target=work, args=each) for each in enumerate(trails)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * PATIENCE)
    for trail in trails:
        trail.close()
    assert sorted(calls(path)) == sorted(f"{n}-{i}" for n in range(4) for i in range(30))
    assert verify(path).ok


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no timer to interrupt with")
def test_a_signal_handler_may_record(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    handled: list[int] = []

    def handle(number: int, frame: object) -> None:
        trail.submit(intent(f"signal-{len(handled)}"))
        handled.append(number)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for number in range(300):
            write(trail, intent(f"call_{number}"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    trail.close()
    assert handled
    assert len(calls(path)) == 300 + len(handled)


def test_the_log_says_what_is_wrong_with_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "audit.db"
    store.write_text("this is no database, " * 100)
    with AuditTrail(store, key=KEY) as trail:
        trail.submit(intent())
        assert not trail.flush(0.5)
        trail.close(0.1)
    assert "(DatabaseError: it is no SQLite database, or a damaged one)" in caplog.text
