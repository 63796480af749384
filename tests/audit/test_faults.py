"""Faults of the embedded store: locked, full, shared."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.audit.trails import KEY, bodies, calls, intent, of_kind, settle, settled, write
from tests.waiting import PATIENCE
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.verifying.walk import verify
from traced_tools.errors import AuditUnavailable
from traced_tools.stores import engine

KIB = 1024


def test_a_commit_is_synced_to_disk(path: Path, quick: AuditTrail) -> None:
    writing = quick._writer._appender._writing
    assert writing is not None
    found = {name: writing._driver.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
    assert found == {"journal_mode": "wal", "synchronous": 2}


def test_inserts_stay_below_the_variable_limit_of_sqlite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine.sync_sqlite

    def limited(connection: sqlite3.Connection, record: object) -> None:
        real(connection, record)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 100)

    monkeypatch.setattr(engine, "sync_sqlite", limited)
    with AuditTrail(path, key=KEY) as trail:
        for number in range(50):
            trail.submit(intent(f"call_{number}"))
    assert calls(path) == [f"call_{number}" for number in range(50)]


# Locked.


def test_the_writer_waits_for_a_database_that_is_locked_for_a_moment(path: Path, quick: AuditTrail) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.15, other.execute, ["COMMIT"])
        timer.start()
        settle(quick, intent("after"))
        timer.join(PATIENCE)
    assert calls(path) == ["before", "after"]
    assert of_kind(path, "gap") == []


def test_a_database_that_stays_locked_is_unavailable(path: Path, quick: AuditTrail) -> None:
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


def test_a_caller_with_no_time_out_fails_at_once_in_an_outage_and_counts_as_late(path: Path, quick: AuditTrail) -> None:
    assert quick.problem is None
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AuditUnavailable):
            write(quick, intent("first"))
        assert quick.problem == "OperationalError: another process has locked the store; end its transaction"
        with pytest.raises(AuditUnavailable, match=r"within 0 s \(OperationalError"):
            quick.write(intent("blocking"), timeout=0).run()
        with pytest.raises(AuditUnavailable, match=r"within 0 s \(OperationalError"):
            asyncio.run(quick.write(intent("asyncio"), timeout=0).arun())
        other.execute("COMMIT")
    settled(quick)
    settled(quick)  # the gap record follows the batch that it is about
    assert quick.problem is None
    assert calls(path) == ["before", "first", "blocking", "asyncio"]
    assert sum(gap["late"] for gap in of_kind(path, "gap")) == 3


def test_an_open_read_transaction_does_not_block_the_writer(path: Path, quick: AuditTrail) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM audit_records").fetchone() == (1,)
        settle(quick, intent("after"))
        assert reader.execute("SELECT count(*) FROM audit_records").fetchone() == (1,)
    assert calls(path) == ["before", "after"]


# Full.


def test_a_database_that_reached_its_page_limit_is_unavailable_until_it_is_raised(
    path: Path, quick: AuditTrail
) -> None:
    writing = quick._writer._appender._writing
    assert writing is not None
    writing._driver.execute("PRAGMA max_page_count=1")
    real, limit = engine.sync_sqlite, ["PRAGMA max_page_count=1"]

    def limited(connection: Any, record: object) -> None:
        real(connection, record)
        connection.execute(limit[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "sync_sqlite", limited)
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
from traced_tools.stores import engine
trail = AuditTrail(sys.argv[1], key=KEY, timeout=5)  # for which the caller waits once the disk is full
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
assert trail.flush(60)
write(trail, intent("after"))
trail.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="limits are POSIX's")
def test_a_full_disk_is_unavailable_and_pending_records_are_written_once_there_is_room(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    durable, _, problem = done.stdout.partition(" ")
    assert "could not record" in problem
    assert int(durable) > 10
    assert calls(path) == ["before", *(f"call_{number}" for number in range(int(durable) + 1)), "after"]
    assert [(gap["late"], gap["lost"]) for gap in of_kind(path, "gap")] == [(1, 0)]
    assert verify(path).ok


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


@pytest.mark.slow
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
