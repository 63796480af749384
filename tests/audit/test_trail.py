"""The trail as its users see it: how it waits, how it begins and ends, and what it is given."""

from __future__ import annotations

import asyncio
import gc
import linecache
import os
import stat
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import traced_tools
from tests.audit.trails import KEY, awrite, bodies, calls, intent, of_kind, write, write_each_way
from tests.waiting import PATIENCE, in_time
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.writing.queue_entries import QueueEntry
from traced_tools.errors import AuditError, AuditUnavailable, ConfigurationError
from traced_tools.flow.background import deadline_in

WAYS = ("blocking", "asyncio")


# How it waits.


@pytest.mark.parametrize("way", WAYS)
def test_a_record_is_in_the_store_when_its_caller_returns(path: Path, way: str) -> None:
    with AuditTrail(path, key=KEY) as trail:
        for number in range(5):
            write_each_way(trail, intent(f"call_{number}"), way)
            assert calls(path)[-1] == f"call_{number}"


def test_submitting_keeps_the_order(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        for number in range(3000):
            trail.submit(intent(f"call_{number}"))
        assert trail.flush()
        assert calls(path) == [f"call_{number}" for number in range(3000)]


def test_many_threads_write_one_chain(path: Path) -> None:
    def work(thread: int) -> None:
        for number in range(25):
            write(trail, intent(f"{thread}-{number}"))

    with AuditTrail(path, key=KEY) as trail, ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    found = calls(path)
    assert sorted(found) == sorted(f"{thread}-{number}" for thread in range(16) for number in range(25))
    for thread in range(16):
        assert [each for each in found if each.startswith(f"{thread}-")] == [f"{thread}-{n}" for n in range(25)]


def test_many_event_loops_write_one_chain(path: Path) -> None:
    async def all_of(loop: int) -> None:
        await asyncio.gather(*(awrite(trail, intent(f"{loop}-{number}")) for number in range(50)))

    with AuditTrail(path, key=KEY) as trail, ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda loop: asyncio.run(all_of(loop)), range(6)))
        asyncio.run(all_of(6))
        asyncio.run(all_of(7))
    assert sorted(calls(path)) == sorted(f"{loop}-{number}" for loop in range(8) for number in range(50))


def test_concurrent_writes_share_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def many() -> None:
        await asyncio.gather(*(awrite(trail, intent(f"call_{number}")) for number in range(500)))

    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent("first"))
        commits: list[int] = []
        monkeypatch.setattr(trail._writer, "_on_stored", lambda batch: commits.append(len(batch.rows)))
        asyncio.run(many())
    assert sum(commits) >= 500
    assert len(commits) <= 20


def test_a_record_is_written_although_its_caller_was_cancelled(path: Path) -> None:
    async def leave() -> None:
        waiting = asyncio.create_task(awrite(trail, intent("left")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with AuditTrail(path, key=KEY) as trail:
        asyncio.run(leave())
    assert calls(path) == ["left"]


def test_a_closed_event_loop_does_not_stop_the_writer(path: Path) -> None:
    loop = asyncio.new_event_loop()
    with AuditTrail(path, key=KEY) as trail:
        waiting = trail.write(intent("gone")).arun()
        loop.run_until_complete(first_step(waiting))
        loop.close()
        write(trail, intent("after"))
        waiting.close()
    assert calls(path) == ["gone", "after"]


async def first_step(coroutine: Any) -> None:
    coroutine.send(None)


def test_threads_that_wait_are_woken_together(path: Path) -> None:
    """Each waits for its own record, whatever else is in the batch."""
    with AuditTrail(path, key=KEY) as trail:
        barrier = threading.Barrier(8)

        def work(number: int) -> bool:
            barrier.wait(PATIENCE)
            write(trail, intent(f"call_{number}"))
            return f"call_{number}" in calls(path)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))


# How it begins and ends.


def test_no_file_is_created_before_the_first_record(path: Path) -> None:
    trail = AuditTrail(path)
    trail.checkpoint()
    assert trail.flush()
    trail.close()
    assert list(path.parent.iterdir()) == []


def test_the_files_are_for_their_owner_alone(path: Path) -> None:
    mask = os.umask(0)
    try:
        trail = AuditTrail(path)
        write(trail, intent())
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
        trail.close()
    finally:
        os.umask(mask)
    assert {*modes} >= {"audit.db", "audit.db-wal", "audit.db.key"}
    assert {*modes.values()} == {0o600}
    assert stat.S_IMODE(Path(f"{path}.checkpoints").stat().st_mode) == 0o600


def test_a_trail_keeps_its_store_after_a_change_of_the_current_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    trail = AuditTrail("audit.db", key=KEY)
    monkeypatch.chdir("/")
    with trail:
        write(trail, intent())
    assert calls(path) == ["call_1"]


def test_closing_writes_all_pending_records(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    for number in range(2000):
        trail.submit(intent(f"call_{number}"))
    trail.close()
    assert len(calls(path)) == 2000
    assert bodies(path)[-1]["kind"] == "checkpoint"


def test_closing_twice_has_no_further_effect(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    write(trail, intent())
    trail.close()
    trail.close()
    assert len(of_kind(path, "checkpoint")) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_closed_trail_accepts_no_records(path: Path, way: str, caplog: pytest.LogCaptureFixture) -> None:
    trail = AuditTrail(path, key=KEY)
    trail.close()
    trail.submit(intent())
    with pytest.raises(AuditUnavailable, match="closed"):
        write_each_way(trail, intent(), way)
    assert not trail._writer.started
    assert [each.getMessage() for each in caplog.records if "lost" in each.getMessage()] != []
    assert not path.exists()


def test_a_collected_trail_writes_its_pending_records_and_ends(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    trail.submit(intent())
    worker, gone = trail._writer._worker, weakref.ref(trail)
    del trail
    gc.collect()
    assert gone() is None
    assert worker.join(deadline_in(PATIENCE))
    assert [each["kind"] for each in bodies(path)] == ["intent", "checkpoint"]


def test_the_end_of_the_process_closes_open_trails(path: Path) -> None:
    code = """
import sys
from tests.audit.trails import KEY, intent
from traced_tools.audit.trail import AuditTrail
trail = AuditTrail(sys.argv[1], key=KEY)
for number in range(500):
    trail.submit(intent(f"call_{number}"))
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(path)], check=True, timeout=60)
    assert len(calls(path)) == 500
    assert bodies(path)[-1]["kind"] == "checkpoint"


def test_a_record_made_by_the_garbage_collector_is_written(path: Path) -> None:
    class Loop:
        def __init__(self, trail: AuditTrail, name: str) -> None:
            self.trail, self.name, self.me = trail, name, self

        def __del__(self) -> None:
            self.trail.submit(intent(self.name))

    with AuditTrail(path, key=KEY) as trail:
        for number in range(200):
            Loop(trail, f"call_{number}")
            write(trail, intent("by hand"))
        in_time(gc.collect)
    found = calls(path)
    assert len(found) == 400
    assert {f"call_{number}" for number in range(200)} <= {*found}


@pytest.mark.parametrize("runs", [True, False])
def test_an_interrupt_while_the_thread_starts_leaves_a_trail_that_works(
    path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    real, interrupts = threading.Thread.start, [True]

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != "traced_tools-audit" or not interrupts:
            return real(thread)
        interrupts.pop()
        if runs:
            real(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    trail = AuditTrail(path, key=KEY)
    with pytest.raises(KeyboardInterrupt):
        trail.submit(intent("first"))
    for number in range(200):
        trail.submit(intent(f"call_{number}"))
    assert trail.flush(PATIENCE)
    assert len(calls(path)) == 201
    trail.submit(intent("last"))
    trail.close()
    assert calls(path)[-1] == "last"
    assert bodies(path)[-1].get("final") is True
    assert trail._writer._worker.join(deadline_in(0))


PACKAGE = str(Path(traced_tools.__file__).parent)


def interrupt_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that raises `KeyboardInterrupt` before the line of that number, from 0, is run.

    Only lines of the package count, and none of its constructors, whose objects are not in use yet.
    Python looks for signals after calls. So none comes between an assignment and the line after it, or at the end of a
    `with` block, which is traced as its first line.
    """
    left = [line]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "__init__" or not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and text != "self._queue.append(entry)" and not text.startswith("with "):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.parametrize("then", ["another record", "a flush", "closing"])
def test_an_interrupt_at_any_line_of_the_first_record_leaves_a_trail_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, then: str
) -> None:
    before, was_interrupted = sys.gettrace(), True
    line = 0
    while was_interrupted:
        path, entry = tmp_path / f"{line}.db", QueueEntry(intent("first"))
        trail = AuditTrail(path, key=KEY, timeout=PATIENCE)
        gc.disable()  # Python ignores what its callbacks raise
        sys.settrace(interrupt_at(line))
        try:
            trail._writer.put(entry)
            was_interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
            gc.enable()
        if then == "another record":
            in_time(lambda trail=trail: write(trail, intent("second")))  # type: ignore[misc]
        elif then == "a flush":
            assert trail.flush(PATIENCE)
        expected = ["first"] * entry.taken + ["second"] * (then == "another record")
        if then != "closing":
            assert (calls(path) if expected else []) == expected, line
        trail.close(PATIENCE)
        assert (calls(path) if expected else []) == expected, line
        assert trail._writer._worker.join(deadline_in(0)), line
        assert not expected or bodies(path)[-1].get("final") is True
        line += 1
    assert line > 20
    assert caplog.records == []


# Settings.


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"content": "all"}, "content must be"),
        ({"content": "redacted"}, "redactor= is required"),
        ({"content": "full", "redactor": print}, "redactor= is required"),
        ({"signing_key": b"short"}, "Ed25519"),
        ({"signing_key": "missing.pem"}, "FileNotFoundError"),
        ({"signing_key": 5}, "bytes or a path"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        AuditTrail(path, key=KEY, **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"checkpoint_every": 0}, ValueError),
        ({"checkpoint_interval": 0}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"timeout": "5"}, TypeError),
        ({"service": 5}, TypeError),
        ({"tags": {"a": 1}}, TypeError),
        ({"tags": {1: "a"}}, TypeError),
        ({"tags": "a"}, TypeError),
        ({"redactor": "a", "content": "redacted"}, TypeError),
    ],
)
def test_a_setting_of_another_type_is_refused(path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        AuditTrail(path, key=KEY, **options)


@pytest.mark.parametrize("store", ["sqlite://", "sqlite:///:memory:", ":memory:", "mysql://me:pAsS@host/db", "://", ""])
def test_a_store_that_cannot_be_used_is_refused(store: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AuditTrail(store, key=KEY)
    assert "pAsS" not in str(caught.value)


@pytest.mark.parametrize(
    "query", ["password=pAsS", "sslmode=disable&sslpassword=pAsS", "options=-c%20pAsS", "host=127.0.0.1&password=pAsS"]
)
def test_a_password_in_the_query_of_a_url_is_shown_nowhere(query: str, caplog: pytest.LogCaptureFixture) -> None:
    trail = AuditTrail(f"postgresql://me@127.0.0.1:1/audit?{query}", key=KEY, timeout=0.1)
    with pytest.raises(AuditUnavailable) as unavailable:
        write(trail, intent())
    with pytest.raises(AuditError) as unreadable:
        trail.query()
    trail.close(0.1)
    for text in (repr(trail), repr(trail.store), str(unavailable.value), str(unreadable.value), caplog.text):
        assert "pAsS" not in text
        assert "me@127.0.0.1:1/audit" in text


def test_a_url_may_name_the_file(path: Path) -> None:
    with AuditTrail(f"sqlite:///{path}", key=KEY) as trail:
        write(trail, intent())
    assert calls(path) == ["call_1"]
    assert repr(trail) == f"AuditTrail('{path}')"


# Reading through the trail.


def test_a_submitted_record_can_be_read_at_once(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent())
        assert [call.run_id for call in trail.query(tool="get_weather")] == ["run-1"]
        assert len(trail.run("run-1").calls) == 1
        assert trail.verify().ok
        assert trail.match("call_1", '{ "city": "Oslo" }')
        assert not trail.match("call_1", '{"city": "Bergen"}')
