"""The writer while its store fails: waiting callers get an error in time, and late records are written once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.audit.outages import Outage
from tests.audit.trails import KEY, SECRET, awrite, bodies, calls, intent, of_kind, settle, write, write_each_way
from tests.waiting import PATIENCE, in_time, until
from traced_tools.audit.store import _Sqlite
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.verifying.walk import verify
from traced_tools.audit.writing import writer
from traced_tools.audit.writing.queue_entries import QueueEntry, resolve_waiters
from traced_tools.errors import AuditUnavailable
from traced_tools.flow.background import deadline_in

WAYS = ("blocking", "asyncio")
pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.mark.parametrize("fate", ["before", "after"])
def test_a_single_failed_write_is_retried_and_not_logged(
    path: Path, outage: Outage, fate: str, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failures = [fate]
    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent())
    assert [each["kind"] for each in bodies(path)] == ["intent", "checkpoint"]
    assert caplog.messages == []


def test_a_commit_with_unknown_outcome_is_written_exactly_once(path: Path, outage: Outage) -> None:
    with AuditTrail(path, key=KEY) as trail:
        for number in range(40):
            outage.failures = ["before", "after", "after", "before"][number % 4 :]
            trail.submit(intent(f"{number}-a"))
            write(trail, intent(f"{number}-b"))
    assert calls(path) == [f"{number}-{each}" for number in range(40) for each in "ab"]
    assert len({each["chain_id"] for each in bodies(path)}) == 1
    assert verify(path).ok


@pytest.mark.parametrize("way", WAYS)
def test_a_waiting_caller_gets_a_time_out_and_the_record_is_written_later(
    path: Path, short: AuditTrail, outage: Outage, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    settle(short, intent("before"))
    outage.failing = True
    with pytest.raises(AuditUnavailable, match=r"0.2 s \(ConnectionError\)") as caught:
        write_each_way(short, intent("late"), way)
    assert SECRET not in str(caught.value)
    outage.failing = False
    settle(short, intent("after"))
    assert calls(path) == ["before", "late", "after"]
    (gap,) = of_kind(path, "gap")
    late = next(each for each in bodies(path) if each.get("call_id") == "late")
    assert (gap["late"], gap["lost"]) == (1, 0)
    assert gap["since"] == late["time"]
    assert gap["since"] < gap["until"] <= gap["time"]
    assert gap["sequence"] > late["sequence"]
    assert SECRET not in caplog.text


def test_an_outage_is_logged_once_when_it_starts_and_once_when_it_ends(
    short: AuditTrail, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        outage.failing = True
        with pytest.raises(AuditUnavailable):
            write(short, intent())
        outage.failing = False
        assert short.flush(PATIENCE)
    kinds = [text.rpartition(".db ")[2].split(" ")[0:3] for text in caplog.messages]
    assert kinds == [["cannot", "be", "written"], ["is", "written", "again"], ["has", "a", "gap:"]] * 2


def test_a_record_written_within_its_time_out_leaves_no_gap(path: Path, outage: Outage) -> None:
    with AuditTrail(path, key=KEY, timeout=PATIENCE) as trail:
        outage.failures = ["before"] * 5
        write(trail, intent())
    assert of_kind(path, "gap") == []


def test_closing_waits_for_a_store_that_recovers(path: Path, outage: Outage) -> None:
    trail = AuditTrail(path, key=KEY)
    outage.failing = True
    trail.submit(intent())
    assert outage.failed.wait(PATIENCE)
    closing = threading.Thread(target=trail.close, args=(PATIENCE,))
    closing.start()
    outage.failing = False
    closing.join(PATIENCE)
    assert calls(path) == ["call_1"]


def test_a_store_that_hangs_blocks_no_caller_beyond_the_time_out(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(_Sqlite, "append", lambda store, rows: goes_on.wait(PATIENCE))
    trail = AuditTrail(path, key=KEY, timeout=0.1)

    async def both() -> list[Any]:
        return await asyncio.gather(*(awrite(trail, intent()) for _ in range(3)), return_exceptions=True)

    assert [type(each) for each in asyncio.run(both())] == [AuditUnavailable] * 3
    with pytest.raises(AuditUnavailable):
        write(trail, intent())
    assert not trail.flush(0.05)
    assert trail._writer.lag() > 0.2
    in_time(lambda: trail.close(0.1))
    assert "records unwritten" in caplog.text
    goes_on.set()
    assert trail._writer._worker.join(deadline_in(PATIENCE))


def test_a_checkpoint_that_times_out_counts_no_late_intent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, append = threading.Event(), _Sqlite.append

    def slowly(store: Any, rows: Any) -> None:
        assert goes_on.wait(PATIENCE)
        append(store, rows)

    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent("before"))
        monkeypatch.setattr(_Sqlite, "append", slowly)
        with pytest.raises(AuditUnavailable):
            trail.checkpoint(0.05)
        goes_on.set()
    assert of_kind(path, "gap") == []


class IdleClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on only while nothing else is to be done, and then at once to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._select, self._selector.select = self._selector.select, self._pass_time  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now

    def _pass_time(self, timeout: float | None = None) -> Any:
        events = self._select(0 if timeout is not None else None)
        self.now += 0 if events or timeout is None else timeout
        return events


def test_each_caller_on_an_event_loop_waits_for_its_own_time_out(short: AuditTrail, outage: Outage) -> None:
    outage.failing = True
    waited: list[float] = []

    async def one(after: float) -> None:
        await asyncio.sleep(after)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(AuditUnavailable):
            await awrite(short, intent())
        waited.append(loop.time() - began)

    async def all_of() -> None:
        await asyncio.gather(*(one(n / 100) for n in range(20)))

    with asyncio.Runner(loop_factory=IdleClockLoop) as runner:
        runner.run(all_of())
    assert waited == [pytest.approx(0.2)] * 20
    outage.failing = False


def test_the_lag_is_the_age_of_the_oldest_record(path: Path, short: AuditTrail, outage: Outage) -> None:
    assert short._writer.lag() == 0
    outage.failing = True
    with pytest.raises(AuditUnavailable):
        write(short, intent())
    assert 0.15 < short._writer.lag() < PATIENCE
    outage.failing = False
    assert short.flush(PATIENCE)
    assert short._writer.lag() == 0


def test_a_record_that_nobody_waits_for_shares_the_commit_of_the_next_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[int] = []
    append = _Sqlite.append
    monkeypatch.setattr(writer, "_GATHERING", 2 * PATIENCE)
    monkeypatch.setattr(_Sqlite, "append", lambda store, rows: (append(store, rows), commits.append(len(rows))))
    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent("first"))
        for call_id in ("second", "third"):
            trail.submit(intent(call_id))
            until(lambda: not trail._writer._queue)
        write(trail, intent("fourth"))
        assert commits == [1, 3]
        trail.submit(intent("fifth"))
        assert trail.flush()
    assert calls(path) == ["first", "second", "third", "fourth", "fifth"]


def test_a_record_that_nobody_waits_for_needs_no_other_one(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent("first"))
        trail.submit(intent("second"))
        until(lambda: calls(path) == ["first", "second"])


def test_a_mirror_that_fails_does_not_stop_the_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(SECRET)

    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent("before"))
        monkeypatch.setattr(trail._writer, "_on_stored", fail)
        write(trail, intent("first"))
        write(trail, intent("second"))
        monkeypatch.undo()
    assert calls(path) == ["before", "first", "second"]


def test_a_gap_is_recorded_although_reading_the_other_chains_fails(
    path: Path, short: AuditTrail, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: Callable[..., Any] = _Sqlite.heads
    fail = [True]

    def sometimes(store: Any) -> Any:
        if fail.pop():
            fail.append(False)
            raise ConnectionError
        fail.append(False)
        return heads(store)

    settle(short, intent("before"))
    outage.failing = True
    with pytest.raises(AuditUnavailable):
        write(short, intent("late"))
    monkeypatch.setattr(_Sqlite, "heads", sometimes)
    outage.failing = False
    short.close(PATIENCE)
    assert [(gap["late"], gap["lost"]) for gap in of_kind(path, "gap")] == [(1, 0)]


@pytest.mark.parametrize("way", WAYS)
def test_a_caller_that_waits_again_returns_when_the_record_is_written(
    path: Path, short: AuditTrail, outage: Outage, way: str
) -> None:
    settle(short, intent("before"))
    outage.failing = True
    writing = short.write(intent("late"))
    wait = writing.run if way == "blocking" else lambda: asyncio.run(writing.arun())
    for _ in range(2):
        with pytest.raises(AuditUnavailable):
            wait()
    outage.failing = False
    assert short.flush(PATIENCE)
    short._timeout = 10 * PATIENCE
    short._writer.timeout = 10 * PATIENCE  # type: ignore[misc]
    in_time(wait)
    assert calls(path) == ["before", "late"]


@pytest.mark.parametrize("way", WAYS)
def test_a_caller_that_waits_again_after_an_interrupt_is_late_only_after_its_time_out(
    path: Path, short: AuditTrail, outage: Outage, way: str
) -> None:
    settle(short, intent("before"))
    outage.failing = True
    writing = short.write(intent("late"))

    async def leave() -> None:
        waiting = asyncio.create_task(writing.arun())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        with pytest.raises(AuditUnavailable):
            await writing.arun()

    if way == "blocking":
        short._writer.put(writing._entry)  # type: ignore[attr-defined]
        with pytest.raises(AuditUnavailable):
            writing.run()
    else:
        asyncio.run(leave())
    outage.failing = False
    settle(short, intent("after"))
    short.close(PATIENCE)
    assert calls(path) == ["before", "late", "after"]
    assert [(gap["late"], gap["lost"]) for gap in of_kind(path, "gap")] == [(1, 0)]


def test_an_entry_is_resolved_once() -> None:
    """A trail that was closed while its store hung may go on after all."""
    entry = QueueEntry(intent())
    entry.expect()
    resolve_waiters([entry], False)
    resolve_waiters([entry], True)
    assert entry.durable is False
