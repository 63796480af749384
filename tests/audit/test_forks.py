"""A forked child has a chain, a connection and a thread of its own, and leaves its parent's alone."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.audit.trails import KEY, bodies, calls, intent, write
from tests.waiting import PATIENCE
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.verifying.walk import verify
from traced_tools.audit.writing import forking
from traced_tools.core import fork as _fork

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def in_child(work: Callable[[], None], ends: Callable[[], None] = lambda: None) -> int:
    """Have a forked child do something, and return its process id."""
    process_id = os.fork()
    if process_id:
        return process_id
    status = 1
    try:
        work()
        ends()
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def check_ended(process_id: int) -> None:
    """Wait for a child, and fail unless it ended well."""
    deadline = time.monotonic() + 4 * PATIENCE
    while time.monotonic() < deadline:
        found, status = os.waitpid(process_id, os.WNOHANG)
        if found:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        threading.Event().wait(0.005)
    os.kill(process_id, 9)
    os.waitpid(process_id, 0)
    raise AssertionError("the child does not come back")


def test_parent_and_child_write_chains_of_their_own(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    write(trail, intent("before"))

    def child() -> None:
        for number in range(20):
            write(trail, intent(f"child-{number}"))
        trail.close()

    process_id = in_child(child)
    for number in range(20):
        write(trail, intent(f"parent-{number}"))
    check_ended(process_id)
    write(trail, intent("after"))
    trail.close()
    chains: dict[str, list[str]] = {}
    for record in bodies(path):
        if record["kind"] == "intent":
            chains.setdefault(record["chain_id"], []).append(record["call_id"])
    parents = ["before", *(f"parent-{number}" for number in range(20)), "after"]
    assert sorted(chains.values()) == sorted([parents, [f"child-{number}" for number in range(20)]])
    assert verify(path).ok


def test_a_record_pending_in_the_parent_is_written_once(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    for number in range(500):
        trail.submit(intent(f"call_{number}"))
    process_id = in_child(lambda: write(trail, intent("child")), trail.close)
    trail.close()
    check_ended(process_id)
    assert sorted(calls(path)) == sorted([*(f"call_{number}" for number in range(500)), "child"])


def test_a_child_that_records_nothing_writes_nothing(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    write(trail, intent())
    check_ended(in_child(lambda: None, trail.close))
    check_ended(in_child(forking._in_child))
    write(trail, intent("after"))
    trail.close()
    assert calls(path) == ["call_1", "after"]
    assert len({each["chain_id"] for each in bodies(path)}) == 1


@pytest.mark.slow
def test_a_parent_may_fork_many_times_while_it_writes(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    stop = threading.Event()
    written: list[str] = []

    def keep_writing() -> None:
        while not stop.is_set():
            name = f"parent-{len(written)}"
            write(trail, intent(name))
            written.append(name)

    threads = [threading.Thread(target=keep_writing)]
    threads[0].start()
    try:
        for child in range(10):
            check_ended(in_child(lambda child=child: write(trail, intent(f"child-{child}")), trail.close))  # type: ignore[misc]
    finally:
        stop.set()
        threads[0].join(PATIENCE)
    trail.close()
    assert sorted(calls(path)) == sorted([*written, *(f"child-{child}" for child in range(10))])
    assert verify(path).ok


def test_a_child_keeps_writing_after_its_parent_closes_the_trail(path: Path) -> None:
    """The parent is the last to let go of the store, so it thinks, and clears up after itself."""
    trail = AuditTrail(path, key=KEY)
    write(trail, intent("parent"))
    begun, report_begun = os.pipe()
    closed, report_closed = os.pipe()

    def child() -> None:
        write(trail, intent("child-1"))
        os.write(report_begun, b"x")
        os.read(closed, 1)
        write(trail, intent("child-2"))
        trail.close()

    process_id = in_child(child)
    os.read(begun, 1)
    trail.close()
    os.write(report_closed, b"x")
    check_ended(process_id)
    for descriptor in (begun, report_begun, closed, report_closed):
        os.close(descriptor)
    assert sorted(calls(path)) == ["child-1", "child-2", "parent"]


def record_in_child(path: Path) -> None:
    """Record something, and leave it to whatever ends the process to close the trail."""
    AuditTrail(path, key=KEY).submit(intent("child"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_the_end_of_a_child_of_multiprocessing_closes_open_trails(path: Path, how: str) -> None:
    child = multiprocessing.get_context(how).Process(target=record_in_child, args=(path,))
    child.start()
    child.join(4 * PATIENCE)
    assert child.exitcode == 0
    assert calls(path) == ["child"]
    assert bodies(path)[-1].get("final") is True


def test_a_collected_trail_leaves_no_fork_handler_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "register_at_fork", None)
    before = set(_fork._in_child)
    trail = AuditTrail(path, key=KEY)
    made = _fork._in_child.keys() - before
    assert made
    del trail
    gc.collect()
    assert not made & _fork._in_child.keys()


def test_a_fork_does_not_wait_for_a_store_that_hangs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_PATIENCE", 0.1)
    trail = AuditTrail(path, key=KEY, timeout=PATIENCE)
    write(trail, intent("before"))
    at_work = trail._writer._appender._at_work
    with at_work:
        process_id = in_child(lambda: write(trail, intent("child")), trail.close)
    check_ended(process_id)
    write(trail, intent("after"))
    trail.close()
    assert sorted(calls(path)) == ["after", "before", "child"]
