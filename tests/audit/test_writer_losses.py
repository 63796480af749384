"""What the writer loses, and what it does not: records that do not fit, are refused, or are left at the end."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.audit.outages import Outage, no_thread
from tests.audit.trails import KEY, bodies, calls, intent, of_kind, settle, write
from tests.waiting import PATIENCE, in_time
from traced_tools.audit.store import Row, Store, _Sqlite
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.verifying.walk import verify
from traced_tools.audit.writing import writer
from traced_tools.errors import AuditUnavailable

pytestmark = pytest.mark.usefixtures("short_pauses")


def test_records_beyond_the_queue_are_lost_counted_and_logged(
    path: Path, short: AuditTrail, outage: Outage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING", 10)
    outage.failing = True
    for number in range(10):
        short.submit(intent(f"call_{number}"))
    for number in range(7):
        short.submit(intent(f"lost_{number}"))
    with pytest.raises(AuditUnavailable):
        in_time(lambda: write(short, intent("lost too")))
    outage.failing = False
    assert short.flush(PATIENCE)
    settle(short, intent("after"))
    short.close()
    assert calls(path) == [*(f"call_{number}" for number in range(10)), "after"]
    gaps = of_kind(path, "gap")
    assert sum(gap["lost"] for gap in gaps) == 8
    assert any("8 records lost" in text for text in caplog.messages) or len(gaps) > 1


def test_pending_records_are_limited_by_size_too(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "_MOST_PIECES", 100)
    begun, goes_on, real = threading.Event(), threading.Event(), _Sqlite.append

    def hang(self: Any, rows: Sequence[Row]) -> None:
        begun.set()
        assert goes_on.wait(PATIENCE)
        real(self, rows)

    monkeypatch.setattr(_Sqlite, "append", hang)
    trail = AuditTrail(path, key=KEY)
    trail.submit(intent("first"))
    assert begun.wait(PATIENCE)
    for number in range(30):
        trail.submit(intent(f"big_{number}", arguments='"' + "x" * 40_000 + '"'))  # 9 pieces each
    trail.submit(intent("small"))
    goes_on.set()
    assert trail.flush(PATIENCE)
    for number in range(30):
        write(trail, intent(f"later_{number}", arguments='"' + "x" * 40_000 + '"'))
    trail.close()
    assert calls(path) == ["first", *(f"big_{n}" for n in range(12)), *(f"later_{n}" for n in range(30))]
    assert sum(gap["lost"] for gap in of_kind(path, "gap")) == 19
    assert trail._writer._weight == 0


def test_records_after_the_close_are_logged_although_earlier_losses_were_logged(
    path: Path, short: AuditTrail, outage: Outage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING", 1)
    outage.failing = True
    for number in range(3):
        short.submit(intent(f"call_{number}"))
    outage.failing = False
    short.close()
    for number in range(2):
        short.submit(intent(f"late_{number}"))
    closed = f"the audit trail {path} is closed: new records are lost; record before you close it"
    assert [text for text in caplog.messages if "closed" in text] == [closed]


def test_a_trail_that_could_not_start_its_thread_starts_it_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "_MOST_PIECES", 10)
    trail = AuditTrail(path, key=KEY)
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", no_thread)
        for number in range(20):
            trail.submit(intent(f"lost_{number}", arguments='"' + "x" * 4096 + '"'))
    write(trail, intent("there"))
    trail.close()
    assert calls(path) == ["there"]
    assert sum(gap["lost"] for gap in of_kind(path, "gap")) == 20
    threadless = f"the audit trail {path} cannot start its thread: records are lost until it can"
    assert [text for text in caplog.messages if "thread" in text] == [threadless]


@pytest.mark.parametrize("forever", [1e10, float("inf")])
def test_a_trail_accepts_an_infinite_interval_and_time_out(
    path: Path, monkeypatch: pytest.MonkeyPatch, forever: float
) -> None:
    failed: list[Exception] = []
    monkeypatch.setattr(writer.Writer, "_failed", lambda writer, error: failed.append(error))
    trail = AuditTrail(path, key=KEY, checkpoint_interval=forever)
    for number in range(3):
        write(trail, intent(f"call_{number}"))
    in_time(lambda: trail.close(forever))
    assert failed == []
    assert len(calls(path)) == 3


def test_closing_gives_up_after_its_time_out_and_logs_the_losses(
    path: Path, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    trail = AuditTrail(path, key=KEY, timeout=0.1)
    settle(trail, intent("before"))
    outage.failing = True
    for number in range(5):
        trail.submit(intent(f"call_{number}"))
    assert outage.failed.wait(PATIENCE)
    in_time(lambda: trail.close(0.5))
    assert "closed with 5 records unwritten (ConnectionError)" in caplog.text
    assert calls(path) == ["before"]


def test_losses_are_counted_once_if_the_thread_ends_during_close(
    path: Path, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    trail = AuditTrail(path, key=KEY)
    settle(trail, intent("before"))
    outage.failing = True
    trail.submit(intent("lost"))
    assert outage.failed.wait(PATIENCE)

    class Meanwhile(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            trail._writer._give_up()

    handler = Meanwhile()
    logging.getLogger("traced_tools.audit").addHandler(handler)
    try:
        in_time(lambda: trail.close(0.2))
    finally:
        logging.getLogger("traced_tools.audit").removeHandler(handler)
    assert caplog.text.count("closed with 1 records unwritten") == 1


def test_a_value_that_the_store_refuses_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A value that nobody thought of must not stand in the way of all that comes after."""
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent("odd", agent={"an": "object"}))
        write(trail, intent("after"))
    assert calls(path) == ["odd", "after"]
    assert "agent" not in of_kind(path, "intent")[0] or of_kind(path, "intent")[0]["agent"] is None


def test_a_record_that_the_store_refuses_is_lost_alone_and_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _Sqlite.append

    def picky(self: Any, rows: Sequence[Row]) -> None:
        if any("odd" in str(row[-1]) for row in rows):
            raise OverflowError
        real(self, rows)

    monkeypatch.setattr(_Sqlite, "append", picky)
    with AuditTrail(path, key=KEY, timeout=PATIENCE) as trail:
        write(trail, intent("before"))
        for number in range(20):
            trail.submit(intent(f"odd_{number}" if number in (3, 4, 11) else f"call_{number}"))
        with pytest.raises(AuditUnavailable):
            write(trail, intent("odd"))
        write(trail, intent("after"))
    assert calls(path) == ["before", *(f"call_{n}" for n in range(20) if n not in (3, 4, 11)), "after"]
    assert sum(gap["lost"] for gap in of_kind(path, "gap")) == 4
    assert len({each["chain_id"] for each in bodies(path)}) == 1
    assert verify(path).ok


def test_a_rebuilt_record_is_counted_as_late_once(
    path: Path, short: AuditTrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Store, "writing", lambda self: 1 / 0)
        with pytest.raises(AuditUnavailable):
            write(short, intent("late"))
        real, refusals = _Sqlite.append, [OverflowError]

        def refusing(self: Any, rows: Sequence[Row]) -> None:
            if refusals:
                raise refusals.pop()
            real(self, rows)

        monkeypatch.setattr(_Sqlite, "append", refusing)
    assert short.flush(PATIENCE)
    assert refusals == []
    assert calls(path) == ["late"]
    assert [(gap["late"], gap["lost"]) for gap in of_kind(path, "gap")] == [(1, 0)]


@pytest.mark.parametrize("error", [sqlite3.DatabaseError, sqlite3.OperationalError, ConnectionError])
def test_a_store_that_fails_for_every_record_loses_none(
    path: Path, outage: Outage, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    failures = [error] * 5

    def failing(self: Any, rows: Sequence[Row]) -> None:
        if failures:
            raise failures.pop()
        outage.append(self, rows)

    monkeypatch.setattr(_Sqlite, "append", failing)
    with AuditTrail(path, key=KEY, timeout=PATIENCE) as trail:
        write(trail, intent())
    assert calls(path) == ["call_1"]
    assert of_kind(path, "gap") == []
