"""What waits for an exporter is sent in order, again when that fails, and counted when it is lost."""

from __future__ import annotations

import logging
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.exporting import Exporter, HandClock, delta, event
from tests.helpers import MARKER, relaxed
from tests.support import PATIENCE, in_time
from traced_tools.events import ExportFailed, processor
from traced_tools.events.processor import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    RETRY_FOR,
    EventProcessor,
    close,
    flush,
    pause_after,
)

FAILED = "traced_tools.events.exporter.ExportFailed"


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "traced_tools")


@pytest.fixture
def made() -> Iterator[Any]:
    """Makes processors, which are closed at the end."""
    processors = []

    def make(exporter: Exporter, **settings: Any) -> EventProcessor:
        found = EventProcessor(exporter, **{"clock": HandClock(), **settings})
        processors.append((found, exporter))
        return found

    yield make
    for found, exporter in processors:
        exporter.release()
        close([found], PATIENCE)


def accounts(sending: EventProcessor) -> tuple[int, int, int]:
    """How many events were sent, are lost, and wait."""
    return sending.ledger.sent, sending.ledger.lost_in_all, sending.ledger.waiting


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


def test_an_exporter_without_an_interval_is_given_what_is_there(made: Any) -> None:
    clock, exporter = HandClock(held=True), Exporter(interval=0)
    made(exporter, clock=clock).submit(event())
    assert exporter.begun.wait(PATIENCE)
    assert clock.asleep.empty()


def test_what_comes_while_a_batch_is_sent_waits_for_others_again(made: Any) -> None:
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


def test_an_exporter_that_hangs_keeps_nobody_and_what_has_no_room_is_lost(
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
    assert sending.ledger.lost == {"queue_full": 5, "export_failed": 0, "shutdown": 0}
    exporter.release()
    assert flush([sending], PATIENCE)
    assert [each.sequence for each in exporter.sent] == [0, 1, 2, 3, 4]  # the newest were lost
    assert accounts(sending) == (5, 5, 0)
    assert caplog.messages[0].startswith("mine: 1 event lost, 1 so far: more came than could be sent; ")
    assert caplog.messages[1:] == ["mine: works again; 5 events lost so far"]


def test_pieces_are_lost_before_anything_else_is(made: Any) -> None:
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


def test_a_batch_that_fails_is_tried_again_until_it_is_sent(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock, exporter = HandClock(), Exporter("mine", OSError(MARKER), ExportFailed(MARKER), None)
    sending = made(exporter, clock=clock)
    sending.submit(event())
    assert flush([sending], PATIENCE)
    assert exporter.sent == [event()]
    assert exporter.tried == 3
    assert exporter.given_up == []
    assert len(clock.pauses) == 2
    assert caplog.messages == []


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_pauses_grow_and_have_chance_in_them(chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda least, most: least + chance * (most - least))
    found = [pause_after(OSError(), attempts) for attempts in range(1, 10)]
    full = [FIRST_PAUSE * 2**step for step in range(6)] + [LONGEST_PAUSE] * 3
    assert found == [pause * (0.5 + chance / 2) for pause in full]
    assert pause_after(OSError(), 10**6) <= LONGEST_PAUSE


@pytest.mark.parametrize(
    "asked, expected", [(7.0, 7.0), (120, 120), (0.001, None), (-5.0, None), (float("nan"), None), ("soon", None)]
)
def test_a_receiver_may_ask_for_a_longer_pause(asked: Any, expected: float | None) -> None:
    found = pause_after(ExportFailed("busy", retry_after=asked), 1)
    assert found == expected if expected else FIRST_PAUSE / 2 <= found <= FIRST_PAUSE


def test_a_batch_is_given_up_when_it_has_failed_for_too_long(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock, exporter = HandClock(), Exporter("mine", *[OSError(MARKER)] * 99)
    sending = made(exporter, clock=clock)
    for number in range(3):
        sending.submit(event(number))
    assert not flush([sending], PATIENCE)
    assert sum(clock.pauses) == pytest.approx(RETRY_FOR)
    assert exporter.tried == len(clock.pauses) + 1
    assert [len(batch) for batch in exporter.given_up] == [3] or len(exporter.given_up) > 1
    assert sending.ledger.lost == {"queue_full": 0, "export_failed": 3, "shutdown": 0}
    assert accounts(sending) == (0, 3, 0)
    assert caplog.messages[0].startswith("mine: ")
    assert f"exporting raised OSError, {exporter.tried} times; losses are counted" in caplog.messages[0]
    assert MARKER not in caplog.text


def test_a_receiver_that_asks_for_more_time_than_there_is_is_tried_once_more(made: Any) -> None:
    clock, exporter = HandClock(), Exporter("mine", *[ExportFailed("busy", retry_after=3600)] * 9)
    sending = made(exporter, clock=clock)
    sending.submit(event())
    assert not flush([sending], PATIENCE)
    assert clock.pauses == [RETRY_FOR]
    assert exporter.tried == 2
    assert exporter.given_up == [[event()]]


def test_what_is_not_worth_another_attempt_is_given_up_at_once(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock, exporter = HandClock(), Exporter("mine", ExportFailed(MARKER, retryable=False))
    sending = made(exporter, clock=clock)
    sending.submit(event())
    assert not flush([sending], PATIENCE)
    assert clock.pauses == []
    assert exporter.given_up == [[event()]]
    assert f"exporting raised {FAILED}, 1 time; losses" in caplog.messages[0]
    assert MARKER not in caplog.text


def test_an_outage_is_said_once_and_so_is_its_end(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    refusal = ExportFailed("no", retryable=False)
    exporter = Exporter("mine", refusal, refusal, refusal)
    sending = made(exporter)
    for number in range(5):
        sending.submit(event(number))
        flush([sending], PATIENCE)
    assert len(caplog.messages) == 2
    assert caplog.messages[1] == "mine: works again; 3 events lost so far"
    assert accounts(sending) == (2, 3, 0)


@pytest.mark.parametrize("failure", [SystemExit(), KeyboardInterrupt(), GeneratorExit(), MemoryError()])
def test_nothing_that_an_exporter_raises_ends_its_thread(made: Any, failure: BaseException) -> None:
    exporter = Exporter("mine", failure)
    sending = made(exporter)
    sending.submit(event())
    assert flush([sending], PATIENCE)
    assert exporter.sent == [event()]


@pytest.mark.parametrize("method", ["give_up", "flush", "close"])
def test_what_else_an_exporter_raises_is_logged_by_its_type(
    made: Any, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = Exporter("mine", ExportFailed("no", retryable=False))

    def fail(*_: object) -> None:
        raise ValueError(MARKER)

    fail.__name__ = method
    monkeypatch.setattr(exporter, method, fail)
    sending = made(exporter)
    sending.submit(event())
    assert not flush([sending], PATIENCE)
    close([sending], PATIENCE)
    assert f"mine: {method} raised ValueError" in caplog.messages
    assert MARKER not in caplog.text
    assert accounts(sending) == (0, 1, 0)


def test_a_flush_ends_a_pause_and_says_whether_all_went_well(made: Any) -> None:
    clock, exporter = HandClock(held=True), Exporter("mine", OSError(), OSError(), None)
    sending = made(exporter, clock=clock)
    sending.submit(event())
    clock.wait_until_asleep()
    begun = sending.begin_flush()  # another attempt at once, which fails
    clock.wait_until_asleep()
    assert exporter.tried == 2
    clock.pass_time(LONGEST_PAUSE)
    assert begun(processor.deadline_in(PATIENCE))
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
    while sending[1]._orders.empty():  # it has begun with both
        pass
    refusing.release()
    while not sending[0].ledger.lost_in_all:
        pass
    other.release()
    flushing.join(PATIENCE)
    assert found == [False]
    assert other.flushed == 1


def test_a_flush_waits_no_longer_than_it_is_told(made: Any) -> None:
    exporter = Exporter()
    sending = made(exporter)
    exporter.hold()
    sending.submit(event())
    assert not flush([sending], 0.01)
    assert accounts(sending)[1] == 0  # it is not lost
    exporter.release()
    assert flush([sending], PATIENCE)


@pytest.mark.parametrize("timeout", [float("inf"), 10**400, PATIENCE])
def test_any_number_of_seconds_will_do(made: Any, timeout: float) -> None:
    sending = made(Exporter())
    sending.submit(event())
    assert flush([sending], timeout)
    close([sending], timeout)
    assert accounts(sending) == (1, 0, 0)


@pytest.mark.parametrize("timeout", [float("nan"), -1, 0])
def test_no_time_at_all_is_none_and_what_waits_is_counted(made: Any, timeout: float) -> None:
    exporter = Exporter()
    exporter.hold()
    sending = made(exporter)
    sending.submit(event())
    assert exporter.begun.wait(PATIENCE)
    assert not flush([sending], timeout)
    close([sending], timeout)
    assert sending.ledger.lost["shutdown"] == 1


def test_a_close_sends_what_waits_and_closes_the_exporter_once(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock, exporter = HandClock(held=True), Exporter(interval=60.0)
    sending = made(exporter, clock=clock)
    for number in range(5):
        sending.submit(event(number))
    close([sending], PATIENCE)
    close([sending], PATIENCE)
    assert len(exporter.sent) == 5
    assert (exporter.closed, accounts(sending)) == (1, (5, 0, 0))
    assert not sending._thread.is_alive()
    assert flush([sending], PATIENCE)
    assert caplog.messages == []
    sending.submit(event(6))
    assert sending.ledger.lost == {"queue_full": 0, "export_failed": 0, "shutdown": 1}
    assert caplog.messages == ["mine: 1 event lost, 1 so far: telemetry was shut down"]


def test_a_close_beside_an_exporter_that_hangs_counts_what_it_leaves(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, other = Exporter("hanging", most=2), Exporter("other")
    hanging.hold()
    stuck, fine = made(hanging), made(other)
    for number in range(5):
        stuck.submit(event(number))
        fine.submit(event(number))
    assert hanging.begun.wait(PATIENCE)
    in_time(lambda: close([stuck, fine], 0.05))
    sent, lost, waiting = accounts(stuck)
    assert (sent, lost, waiting) == (0, 5, 0)
    assert stuck.ledger.lost["shutdown"] == 5
    assert len(other.sent) == 5
    assert caplog.messages == ["hanging: 5 events lost, 5 so far: time ran out when telemetry was shut down"]
    hanging.release()
    stuck._thread.join(PATIENCE)
    assert accounts(stuck) == (0, 5, 0)
    assert hanging.closed == 1
    assert [each.sequence for batch in (*hanging.batches, *hanging.given_up) for each in batch] == [*range(5)]


def test_a_close_in_an_outage_gives_up_in_time_and_says_why(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock, exporter = HandClock(), Exporter("mine", *[OSError(MARKER)] * 99, most=2)
    exporter.hold()
    sending = made(exporter, clock=clock)
    for number in range(6):
        sending.submit(event(number))
    assert exporter.begun.wait(PATIENCE)
    began = clock.time
    sending.begin_close(5.0)
    exporter.release()
    sending.end_close(processor.deadline_in(PATIENCE))
    assert clock.time - began == pytest.approx(4.0)  # a fifth is kept for the last words
    assert [each.sequence for batch in exporter.given_up for each in batch] == [*range(6)]
    assert accounts(sending) == (0, 6, 0)
    assert sending.ledger.lost["export_failed"] >= 1
    assert sending.ledger.lost["shutdown"] >= 1
    assert exporter.closed == 1
    assert MARKER not in caplog.text


def test_an_exporter_may_ask_for_a_flush_or_a_close_itself(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, found = Exporter(), []
    sending = made(exporter)

    def export(events: Any) -> None:
        found.append(flush([sending], PATIENCE))
        close([sending], PATIENCE)

    monkeypatch.setattr(exporter, "export", export)
    sending.submit(event())
    in_time(lambda: sending._thread.join(PATIENCE))
    assert found == [False]
    assert exporter.closed == 1


def test_what_is_let_go_of_closes_by_itself(made: Any) -> None:
    exporter = Exporter()
    sending = made(exporter)
    sending.submit(event())
    processor.let_go([sending])
    sending._thread.join(PATIENCE)
    assert (exporter.closed, accounts(sending)) == (1, (1, 0, 0))
    assert sending not in processor._OPEN


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
    with on_signal(lambda: sending.submit(event(1))), sending.ledger._lock:  # as in the middle of a submit
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
    with on_signal(lambda: close([sending], 0.01)), sending.ledger._lock:
        signal.raise_signal(signal.SIGUSR1)
        assert sending.ledger.lost["shutdown"] == 1
    close([sending], 0.01)
    assert accounts(sending) == (0, 1, 0)


def test_many_threads_lose_nothing_and_each_run_keeps_its_order(made: Any) -> None:
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


@relaxed
@given(STEPS, st.integers(1, 6), st.integers(1, 4))
def test_whatever_happens_each_event_is_sent_lost_or_waits_and_none_twice(
    steps: list[str], capacity: int, most: int
) -> None:
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
    assert sum(map(len, exporter.given_up)) == lost - sending.ledger.lost["queue_full"]
