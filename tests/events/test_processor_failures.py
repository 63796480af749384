"""Failed batches are retried or undeliverable, and events left at the end are counted and logged."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest

from tests.events.exporting import Exporter, HandClock, accounts, event
from tests.markers import MARKER
from tests.waiting import PATIENCE, in_time
from traced_tools.events import ExportFailed
from traced_tools.events.processor import FIRST_PAUSE, LONGEST_PAUSE, RETRY_FOR, close, flush, pause_after
from traced_tools.flow.background import deadline_in


@pytest.fixture(autouse=True)
def log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "traced_tools")


def test_a_failed_batch_is_retried_until_it_is_sent(made: Any, caplog: pytest.LogCaptureFixture) -> None:
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
def test_pauses_between_attempts_grow_and_are_jittered(chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.core.jitter._RANDOM.uniform", lambda least, most: least + chance * (most - least))
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


def test_a_batch_that_fails_for_too_long_is_undeliverable(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock, exporter = HandClock(), Exporter("mine", *[OSError(MARKER)] * 99)
    sending = made(exporter, clock=clock)
    sending.submit(event())
    assert not flush([sending], PATIENCE)
    assert sum(clock.pauses) == pytest.approx(RETRY_FOR)
    assert exporter.tried == len(clock.pauses) + 1
    assert exporter.given_up == [[event()]]
    assert sending.stats.lost == {"queue_full": 0, "export_failed": 1, "shutdown": 0}
    assert accounts(sending) == (0, 1, 0)
    assert caplog.messages[0].startswith("mine: ")
    assert f"exporting raised OSError, {exporter.tried} times; further losses are only counted" in caplog.messages[0]
    assert MARKER not in caplog.text


def test_a_retry_after_beyond_the_retry_time_leads_to_one_last_attempt(made: Any) -> None:
    clock, exporter = HandClock(), Exporter("mine", *[ExportFailed("busy", retry_after=3600)] * 9)
    sending = made(exporter, clock=clock)
    sending.submit(event())
    assert not flush([sending], PATIENCE)
    assert clock.pauses == [RETRY_FOR]
    assert exporter.tried == 2
    assert exporter.given_up == [[event()]]


def test_a_failure_that_is_not_retryable_is_final(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock, exporter = HandClock(), Exporter("mine", ExportFailed("the host answered HTTP 410", retryable=False))
    sending = made(exporter, clock=clock)
    sending.submit(event())
    assert not flush([sending], PATIENCE)
    assert clock.pauses == []
    assert exporter.given_up == [[event()]]
    assert "the host answered HTTP 410, 1 time; further losses" in caplog.messages[0]


def test_an_outage_and_its_end_are_logged_once(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    refusal = ExportFailed("no", retryable=False)
    exporter = Exporter("mine", refusal, refusal, refusal)
    sending = made(exporter)
    for number in range(5):
        sending.submit(event(number))
        flush([sending], PATIENCE)
    assert len(caplog.messages) == 2
    assert caplog.messages[1] == "mine: export recovered; lost 3 events in total"
    assert accounts(sending) == (2, 3, 0)


@pytest.mark.parametrize("failure", [SystemExit(), KeyboardInterrupt(), GeneratorExit(), MemoryError()])
def test_no_exception_of_an_exporter_ends_its_thread(made: Any, failure: BaseException) -> None:
    exporter = Exporter("mine", failure)
    sending = made(exporter)
    sending.submit(event())
    assert flush([sending], PATIENCE)
    assert exporter.sent == [event()]


@pytest.mark.parametrize("method", ["on_undeliverable", "flush", "close"])
def test_an_unexpected_exception_of_an_exporter_is_logged_by_its_type(
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


@pytest.mark.parametrize("method", ["on_undeliverable", "flush", "close"])
def test_a_callable_without_a_name_may_raise(
    made: Any, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = Exporter("mine", ExportFailed("no", retryable=False))
    monkeypatch.setattr(exporter, method, partial(int, MARKER))
    sending = made(exporter)
    sending.submit(event())
    assert not flush([sending], PATIENCE)
    sending.submit(event(2))
    close([sending], PATIENCE)
    assert exporter.sent == [event(2)]
    assert "mine: a call raised" in caplog.text
    assert MARKER not in caplog.text


def test_a_close_sends_what_waits_and_closes_the_exporter_once(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock, exporter = HandClock(held=True), Exporter(interval=60.0)
    sending = made(exporter, clock=clock)
    for number in range(5):
        sending.submit(event(number))
    close([sending], PATIENCE)
    close([sending], PATIENCE)
    assert len(exporter.sent) == 5
    assert (exporter.closed, accounts(sending)) == (1, (5, 0, 0))
    assert sending._worker.join(deadline_in(0))
    assert flush([sending], PATIENCE)
    assert caplog.messages == []
    sending.submit(event(6))
    assert sending.stats.lost == {"queue_full": 0, "export_failed": 0, "shutdown": 1}
    assert caplog.messages == ["mine: lost 1 event (1 in total): it was closed"]


def test_a_close_with_a_hanging_exporter_counts_the_events_it_loses(
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
    assert stuck.stats.lost["shutdown"] == 5
    assert len(other.sent) == 5
    assert caplog.messages == ["hanging: lost 5 events (5 in total): time ran out when it was closed"]
    hanging.release()
    assert stuck._worker.join(deadline_in(PATIENCE))
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
    sending.end_close(deadline_in(PATIENCE))
    assert clock.time - began == pytest.approx(4.0)  # a fifth is kept for the last words
    assert [each.sequence for batch in exporter.given_up for each in batch] == [*range(6)]
    assert accounts(sending) == (0, 6, 0)
    assert sending.stats.lost["export_failed"] >= 1
    assert sending.stats.lost["shutdown"] >= 1
    assert exporter.closed == 1
    assert MARKER not in caplog.text
