"""Hands events to an exporter: in batches, in a background thread, with retries, and without delaying the run.

A caller queues an event and goes on. The thread waits for an event, waits up to `interval` for more, and exports them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from traced_tools.core.fork import on_fork
from traced_tools.core.jitter import jittered
from traced_tools.events.exporter import EventExporter, ExportFailed
from traced_tools.flow.background import (
    EXIT_TIMEOUT,
    LONGEST_WAIT,
    BackgroundWorker,
    Clock,
    close_all,
    deadline_in,
    seconds_until,
)
from traced_tools.flow.deferred import add_waker, remove_waker, run_deferred
from traced_tools.observe.export_stats import ExportStats, totals_of_events
from traced_tools.observe.failures import error_type
from traced_tools.observe.typed_events.types import Delta, Event

_LOG = logging.getLogger(__name__)

CAPACITY: Final = 8192
"""Default of the events that may wait for an exporter."""
RETRY_FOR: Final = 60.0
"""Seconds for which a failing batch is retried."""
PATIENCE: Final = EXIT_TIMEOUT
"""Default of the seconds that a flush and a close wait, for all exporters together."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
_LAST_WORDS: Final = 0.2
"""The part of the time to close in that is reserved for giving up what could not be sent."""
_NO_COUNT: Final = float("inf")


class _Command(NamedTuple):
    """A flush or a close, for the thread to do after it has sent the events queued before; `reply` gets the success."""

    closes: bool
    reply: SimpleQueue[bool]


class EventProcessor:
    """The queue of one exporter, and the thread that empties it.

    Args:
        exporter: sends events; belongs to this processor alone.
        capacity: how many events may wait. An event that finds the queue full is lost; a delta is lost when the queue
            is three quarters full, so that a long answer costs no other event.
        retry_for: seconds for which a failing batch is retried.
        clock: the time.

    Attributes:
        stats: counts the events that were sent and those that are lost.
    """

    def __init__(
        self,
        exporter: EventExporter,
        *,
        capacity: int = CAPACITY,
        retry_for: float = RETRY_FOR,
        clock: Clock | None = None,
    ) -> None:
        self._exporter = exporter
        self._max_batch, self._interval = exporter.max_batch, min(exporter.interval, LONGEST_WAIT)
        self._retry_for = retry_for
        self._worker: BackgroundWorker[Event] = BackgroundWorker(
            f"traced_tools-{exporter.name}", self._run, closing=self, clock=clock
        )
        self._clock, self._events = self._worker.clock, self._worker.items
        self._commands: deque[_Command] = deque()
        self._for_events = capacity // 4
        self._close_by: float | None = None
        self._problem: str | None = None
        self.stats = ExportStats(exporter.name, "events", capacity, totals_of_events(exporter.name))
        self.stats.set_problem_source(lambda: self._problem)
        on_fork(self._reset)

    def _reset(self) -> None:
        """Drop the commands in a forked child, whose parent sends what waited."""
        self._commands.clear()
        if self._close_by is not None:
            self.stats.close()

    def submit(self, event: Event) -> None:
        """Queue an event if there is room; never waits and never raises."""
        if self.stats.try_enqueue(self._for_events if isinstance(event, Delta) else 0):
            self._events.append(event)
            self._worker.notify()

    def begin_flush(self) -> Callable[[float], bool]:
        """Request that all queued events are sent.

        Returns a function that waits for it until a time of `time.monotonic()`, and returns whether all was sent.
        """
        if not self._worker.started:
            return lambda deadline: True
        lost, command = self.stats.lost_in_all, self._request(closes=False)

        def succeeded(deadline: float) -> bool:
            return self._is_done(command, deadline) and lost == self.stats.lost_in_all

        return succeeded

    def _request(self, *, closes: bool) -> _Command:
        command = _Command(closes, SimpleQueue())
        self._commands.append(command)
        self._worker.wake()
        return command

    def _is_done(self, command: _Command, deadline: float) -> bool:
        if self._worker.is_current:
            return False
        if self._close_by is not None:  # the thread may have ended before it saw the command
            return self._worker.join(deadline)
        try:
            return command.reply.get(timeout=seconds_until(deadline))
        except Empty:
            return False

    def begin_close(self, timeout: float) -> None:
        """Request that queued events are sent within `timeout` seconds and the exporter is closed; never waits."""
        if self._close_by is None:
            self._close_by = self._clock.now() + timeout * (1 - _LAST_WORDS)
            self._request(closes=True)

    def end_close(self, deadline: float) -> None:
        """Wait for the close until a time of `time.monotonic()`; events that are not sent by then count as lost."""
        try:
            self._worker.join(deadline)
        finally:  # also when an interrupt ends the waiting
            self.stats.close()

    # In the thread.

    def _run(self) -> None:
        add_waker(self._worker.wake)
        is_open = True
        while is_open:
            self._await(1)
            if self._events:
                self._await(self._max_batch, self._clock.now() + self._interval)
            commands = len(self._commands)  # before the events are counted, because a command is about those before it
            self._send(len(self._events))
            is_open = self._obey([self._commands.popleft() for _ in range(commands)])
        remove_waker(self._worker.wake)
        self.stats.close()

    def _await(self, count: int, deadline: float | None = None) -> None:
        """Sleep until `count` events wait, there is a command, or the deadline is over."""
        while len(self._events) < count and not self._commands:
            remaining = None if deadline is None else deadline - self._clock.now()
            if (remaining is not None and remaining <= 0) or not self._sleep(count, remaining):
                return

    def _sleep(self, count: float, seconds: float | None) -> bool:
        """Sleep until `count` events wait or the thread is woken; return False if the time is over."""
        was_woken = self._worker.wait(count, seconds)
        if was_woken:
            self._quietly(run_deferred)  # a finalizer may have woken this thread for its deferred work
        return was_woken

    def _send(self, count: int) -> None:
        """Send the first `count` events; later ones wait for their interval."""
        for start in range(0, count, self._max_batch):
            batch = [self._events.popleft() for _ in range(min(count - start, self._max_batch))]
            if self._time_left() > 0 and self.stats.begin_batch(len(batch)):
                self._send_batch(batch)
            else:  # counted as lost when the stats are closed
                self._quietly(self._exporter.on_undeliverable, batch)

    def _send_batch(self, batch: Sequence[Event]) -> None:
        until, attempts = self._clock.now() + self._retry_for, 0
        while (failure := self._try_export(batch)) is not None:
            attempts += 1
            remaining = min(until - self._clock.now(), self._time_left())
            if not _is_worth_another(failure) or remaining <= 0:
                self._give_up(batch, f"{self._problem}, {attempts} time{'s' if attempts > 1 else ''}")
                return
            self._rest(min(pause_after(failure, attempts), remaining))
        self.stats.record_batch(len(batch), 0, "")

    def _try_export(self, batch: Sequence[Event]) -> BaseException | None:
        """Try to export, and return what was raised, whatever it is, because no exporter must end this thread."""
        try:
            self._exporter.export(batch)
        except BaseException as error:
            self._problem = _loggable(error)
            return error
        self._problem = None
        return None

    def _give_up(self, batch: Sequence[Event], cause: str) -> None:
        self._problem = None
        self.stats.record_batch(0, len(batch), cause)
        self._quietly(self._exporter.on_undeliverable, batch)

    def _time_left(self) -> float:
        """Return how many seconds there are until all must be sent."""
        return LONGEST_WAIT if self._close_by is None else self._close_by - self._clock.now()

    def _rest(self, seconds: float) -> None:
        """Sleep before the next attempt; a flush or a close that comes meanwhile has it made at once."""
        deadline, command_count = self._clock.now() + seconds, len(self._commands)
        while len(self._commands) == command_count and (remaining := deadline - self._clock.now()) > 0:
            self._sleep(_NO_COUNT, remaining)

    def _obey(self, commands: Sequence[_Command]) -> bool:
        """Flush or close the exporter if a command says so, and return whether to go on."""
        closes = any(command.closes for command in commands)
        succeeded = bool(commands) and self._quietly(self._exporter.close if closes else self._exporter.flush)
        for command in commands:
            command.reply.put(succeeded)
        return not closes

    def _quietly(self, action: Callable[..., object], *arguments: object) -> bool:
        """Call a method of the exporter and return whether it succeeded; log the type of what it raises."""
        try:
            action(*arguments)
        except BaseException as error:
            name = getattr(action, "__name__", "a call")  # which a partial or an object may not have
            _LOG.warning("%s: %s raised %s", self.stats.name, name, error_type(error))
            return False
        return True

    def __repr__(self) -> str:
        return f"<EventProcessor of {self.stats.name}: {self.stats.waiting} waiting, {self.stats.sent} sent>"


def flush(processors: Iterable[EventProcessor], timeout: float) -> bool:
    """Send what waits, in all processors side by side, and return whether nothing was lost."""
    deadline = deadline_in(timeout)
    run_deferred()
    flushes = [processor.begin_flush() for processor in processors]
    outcomes = [succeeded(deadline) for succeeded in flushes]  # waits for each, also when one failed
    return all(outcomes)


def close(processors: Iterable[EventProcessor], timeout: float) -> None:
    """Send the queued events of all processors in parallel and close their exporters; unsent events are then lost."""
    run_deferred()
    close_all(processors, timeout)


def close_in_background(processors: Iterable[EventProcessor]) -> None:
    """Close processors without waiting, because their owner is gone; the garbage collector may call this."""
    for processor in processors:
        processor.begin_close(PATIENCE)


def pause_after(failure: BaseException, attempts: int) -> float:
    """Return how many seconds to rest after the failure of attempt number `attempts`: exponential, with jitter."""
    pause = jittered(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempts - 1, 10)), 0.5)
    requested_pause = failure.retry_after if isinstance(failure, ExportFailed) else None
    return requested_pause if isinstance(requested_pause, int | float) and requested_pause > pause else pause


def _is_worth_another(failure: BaseException) -> bool:
    return not isinstance(failure, ExportFailed) or failure.retryable


def _loggable(error: BaseException) -> str:
    """Return what the log may say of a failure; the text of an error other than `ExportFailed` may quote events."""
    return str(error) if isinstance(error, ExportFailed) else f"exporting raised {error_type(error)}"
