"""The processor sends pending events in order, retries failed batches and counts lost events."""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.exporting import Exporter, HandClock, accounts, delta, event
from tests.waiting import PATIENCE, in_time
from traced_tools.events import ExportFailed, processor
from traced_tools.events.processor import (
    LONGEST_PAUSE,
    EventProcessor,
    close,
    flush,
)
from traced_tools.flow import background as _background
from traced_tools.flow.background import deadline_in


@pytest.fixture(autouse=True)
def log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "traced_tools")


def test_events_are_sent_in_their_order_in_batches(made: Any) -> None:
    exporter = Exporter(most=3)
    sending = made(exporter)
    events = [event(number) for number in range(10)]
    exporter.hold()
    for each in events:
        sending.submit(each)
    exporter.release()
    assert flush([sending], PATIENCE)
    assert exporter.sent == events
    assert max(map(len, exporter.batches)) == 3
    assert exporter.flushed == 1
    assert accounts(sending) == (10, 0, 0)


def test_a_batch_waits_for_more_until_it_is_full_or_its_time_is_over(made: Any) -> None:
    clock, exporter = HandClock(held=True), Exporter(most=3, interval=2.0)
    sending = made(exporter, clock=clock)
    sending.submit(event(1))
    assert clock.wait_until_asleep() == 2.0
    clock.pass_time(1.5)
    assert clock.wait_until_asleep() == 0.5
    assert exporter.tried == 0
    clock.pass_time(0.5)
    assert exporter.begun.wait(PATIENCE)
    exporter.begun.clear()
    sending.submit(event(2))
    assert clock.wait_until_asleep() == 2.0
    sending.submit(event(3))
    sending.submit(event(4))  # no time passes
    assert exporter.begun.wait(PATIENCE)
    assert flush([sending], PATIENCE)
    assert [len(batch) for batch in exporter.batches] == [1, 3]


def test_an_exporter_without_an_interval_gets_events_immediately(made: Any) -> None:
    clock, exporter = HandClock(held=True), Exporter(interval=0)
    made(exporter, clock=clock).submit(event())
    assert exporter.begun.wait(PATIENCE)
    assert clock.asleep.empty()


@pytest.mark.parametrize("interval", [math.inf, 1e10, 10**400], ids=["endless", "long", "no float"])
def test_an_interval_above_the_longest_wait_of_a_thread_is_capped(made: Any, interval: float) -> None:
    clock, exporter = HandClock(held=True), Exporter(interval=interval)
    sending = made(exporter, clock=clock)
    sending.submit(event())
    assert 100_000 < clock.wait_until_asleep() < threading.TIMEOUT_MAX
    assert flush([sending], PATIENCE)
    assert exporter.sent == [event()]


def test_events_that_arrive_during_an_export_wait_for_the_next_batch(made: Any) -> None:
    clock, exporter = HandClock(held=True), Exporter(interval=2.0, most=2)
    sending = made(exporter, clock=clock)
    exporter.hold()
    sending.submit(event(1))
    sending.submit(event(2))
    assert exporter.begun.wait(PATIENCE)
    sending.submit(event(3))
    while not clock.asleep.empty():
        clock.asleep.get()
    exporter.release()
    assert clock.wait_until_asleep() == 2.0
    assert len(exporter.batches) == 1


def test_a_hanging_exporter_blocks_nothing_and_events_beyond_its_queue_are_lost(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = Exporter(most=1)
    sending = made(exporter, capacity=4)
    exporter.hold()
    sending.submit(event(0))
    assert exporter.begun.wait(PATIENCE)
    for number in range(1, 10):  # one is under way, four wait
        in_time(lambda number=number: sending.submit(event(number)))  # type: ignore[misc]
    assert accounts(sending) == (0, 5, 4)
    assert sending.stats.lost == {"queue_full": 5, "export_failed": 0, "shutdown": 0}
    exporter.release()
    assert flush([sending], PATIENCE)
    assert [each.sequence for each in exporter.sent] == [0, 1, 2, 3, 4]  # the newest were lost
    assert accounts(sending) == (5, 5, 0)
    assert caplog.messages[0].startswith("mine: lost 1 event (1 in total): more came than could be sent; ")
    assert caplog.messages[1:] == ["mine: export recovered; lost 5 events in total"]


def test_deltas_are_dropped_before_other_events(made: Any) -> None:
    exporter = Exporter(most=1)
    sending = made(exporter, capacity=8)
    exporter.hold()
    sending.submit(event(0))
    assert exporter.begun.wait(PATIENCE)
    for number in range(10):
        sending.submit(delta(number))
    assert accounts(sending) == (0, 4, 6)
    sending.submit(event(1))
    sending.submit(event(2))
    assert accounts(sending) == (0, 4, 8)
    sending.submit(event(3))
    assert accounts(sending) == (0, 5, 8)


def test_a_flush_ends_a_pause_and_says_whether_all_went_well(made: Any) -> None:
    clock, exporter = HandClock(held=True), Exporter("mine", OSError(), OSError(), None)
    sending = made(exporter, clock=clock)
    sending.submit(event())
    clock.wait_until_asleep()
    begun = sending.begin_flush()  # another attempt at once, which fails
    clock.wait_until_asleep()
    assert exporter.tried == 2
    clock.pass_time(LONGEST_PAUSE)
    assert begun(deadline_in(PATIENCE))
    assert exporter.sent == [event()]
    assert flush([sending], PATIENCE)


def test_a_flush_waits_for_all_also_when_one_went_wrong(made: Any) -> None:
    refusing, other = Exporter("refusing", ExportFailed("no", retryable=False)), Exporter("other")
    sending = [made(refusing), made(other)]
    for exporter, each in zip((refusing, other), sending, strict=True):
        exporter.hold()
        each.submit(event())
        assert exporter.begun.wait(PATIENCE)
    found: list[bool] = []
    flushing = threading.Thread(target=lambda: found.append(flush(sending, PATIENCE)))
    flushing.start()
    while not sending[1]._commands:  # it has begun with both
        pass
    refusing.release()
    while not sending[0].stats.lost_in_all:
        pass
    other.release()
    flushing.join(PATIENCE)
    assert found == [False]
    assert other.flushed == 1


def test_a_flush_waits_no_longer_than_its_timeout(made: Any) -> None:
    exporter = Exporter()
    sending = made(exporter)
    exporter.hold()
    sending.submit(event())
    assert not flush([sending], 0.01)
    assert accounts(sending)[1] == 0  # it is not lost
    exporter.release()
    assert flush([sending], PATIENCE)


@pytest.mark.parametrize("timeout", [float("inf"), 10**400, PATIENCE])
def test_a_timeout_may_be_any_number_of_seconds(made: Any, timeout: float) -> None:
    sending = made(Exporter())
    sending.submit(event())
    assert flush([sending], timeout)
    close([sending], timeout)
    assert accounts(sending) == (1, 0, 0)


@pytest.mark.parametrize("timeout", [float("nan"), -1, 0])
def test_a_close_without_time_counts_pending_events_as_lost(made: Any, timeout: float) -> None:
    exporter = Exporter()
    exporter.hold()
    sending = made(exporter)
    sending.submit(event())
    assert exporter.begun.wait(PATIENCE)
    assert not flush([sending], timeout)
    close([sending], timeout)
    assert sending.stats.lost["shutdown"] == 1


def test_an_exporter_may_ask_for_a_flush_or_a_close_itself(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, found = Exporter(), []
    sending = made(exporter)

    def export(events: Any) -> None:
        found.append(flush([sending], PATIENCE))
        close([sending], PATIENCE)

    monkeypatch.setattr(exporter, "export", export)
    sending.submit(event())
    in_time(lambda: sending._worker.join(deadline_in(PATIENCE)))
    assert found == [False]
    assert exporter.closed == 1


def test_an_unreferenced_processor_closes_itself(made: Any) -> None:
    exporter = Exporter()
    sending = made(exporter)
    sending.submit(event())
    processor.close_in_background([sending])
    assert sending._worker.join(deadline_in(PATIENCE))
    assert (exporter.closed, accounts(sending)) == (1, (1, 0, 0))
    assert sending not in _background._open


@contextmanager
def on_signal(act: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_may_submit_and_flush_where_its_thread_does(made: Any) -> None:
    exporter = Exporter()
    sending = made(exporter)
    with on_signal(lambda: sending.submit(event(1))), sending.stats._lock:  # as in the middle of a submit
        signal.raise_signal(signal.SIGUSR1)
    with on_signal(lambda: flush([sending], PATIENCE)):
        signal.raise_signal(signal.SIGUSR1)
    assert exporter.sent == [event(1)]


def test_a_signal_handler_may_close_where_its_thread_submits_or_closes(made: Any) -> None:
    exporter = Exporter()
    sending = made(exporter)
    exporter.hold()
    sending.submit(event(1))
    assert exporter.begun.wait(PATIENCE)
    with on_signal(lambda: close([sending], 0.01)), sending.stats._lock:
        signal.raise_signal(signal.SIGUSR1)
        assert sending.stats.lost["shutdown"] == 1
    close([sending], 0.01)
    assert accounts(sending) == (0, 1, 0)


def test_events_of_many_threads_are_all_exported_in_the_order_of_their_run(made: Any) -> None:
    exporter = Exporter(most=64)
    sending = made(exporter, capacity=100_000)
    together = threading.Barrier(8)

    def submit(run_id: str) -> None:
        together.wait(PATIENCE)
        for number in range(500):
            sending.submit(event(number, run_id))

    threads = [threading.Thread(target=submit, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert flush([sending], PATIENCE * 2)
    assert accounts(sending) == (4000, 0, 0)
    for number in range(8):
        assert [each.sequence for each in exporter.sent if each.run_id == str(number)] == [*range(500)]


STEPS = st.lists(st.sampled_from(["submit", "submit", "delta", "fails", "refuses", "flush"]), max_size=40)


@given(STEPS, st.integers(1, 6), st.integers(1, 4))
def test_each_event_is_sent_lost_or_pending_and_never_counted_twice(steps: list[str], capacity: int, most: int) -> None:
    exporter = Exporter("mine", most=most)
    sending = EventProcessor(exporter, capacity=capacity, clock=HandClock())
    offered = 0
    for step in steps:
        if step in ("submit", "delta"):
            offered += 1
            sending.submit(event(offered) if step == "submit" else delta(offered))
        elif step == "fails":
            exporter.failures.append(OSError())
        elif step == "refuses":
            exporter.failures.append(ExportFailed("no", retryable=False))
        else:
            flush([sending], PATIENCE)
            assert offered == sum(accounts(sending))
    close([sending], PATIENCE)
    sent, lost, waiting = accounts(sending)
    assert (offered, waiting) == (sent + lost, 0)
    assert len(exporter.sent) == sent
    ids = [each.id for each in exporter.sent]
    assert len(set(ids)) == len(ids)
    assert sum(map(len, exporter.given_up)) == lost - sending.stats.lost["queue_full"]


def test_a_flush_during_a_retry_sends_the_events_queued_before_it(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, exporter = HandClock(held=True), Exporter("mine", OSError())
    sent_at_flush: list[Any] = []
    monkeypatch.setattr(exporter, "flush", lambda: sent_at_flush.extend(exporter.sent))
    sending = made(exporter, clock=clock)
    sending.submit(event(1))
    clock.wait_until_asleep()  # before the second attempt
    sending.submit(event(2))
    assert flush([sending], PATIENCE)
    assert sent_at_flush == [event(1), event(2)]
