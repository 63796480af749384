"""Hands events to an exporter: in batches, in a thread of its own, again when it fails, and never to the run's cost.

Who submits an event leaves it in a queue and goes on. The thread sleeps until there is something to do, waits a moment
for more, and exports. What it is asked to do besides comes through a `SimpleQueue`, whose `put` may interrupt itself:
so a signal handler and the garbage collector may come here as anybody else.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from traced_tools.core.fork import on_fork, register_exit_handler
from traced_tools.events.exporter import EventExporter, ExportFailed
from traced_tools.flow.deferred import catch_up, wake_by
from traced_tools.observe.event_types import Delta, Event
from traced_tools.observe.export_stats import Ledger, totals_of_events
from traced_tools.observe.scope import error_type

_LOG = logging.getLogger(__name__)

CAPACITY: Final = 8192
"""Events that may wait for an exporter."""
RETRY_FOR: Final = 60.0
"""Seconds after which a batch is given up that has been failing."""
PATIENCE: Final = 5.0
"""Seconds that a flush, a close and the end of the process wait for exporters, all in all."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
_LAST_WORDS: Final = 0.2
"""The part of the time to close in that is kept for giving up what could not be sent."""
_NEVER: Final = 2**62
_LONGEST_WAIT: Final = 1_000_000.0


class _Order(NamedTuple):
    """Something the thread is asked to do when it has sent what waits; `done` is told whether it went well."""

    closes: bool
    done: SimpleQueue[bool]


class Clock:
    """The time in seconds, and waiting for an order; tests have one of their own."""

    def now(self) -> float:
        """Return the time."""
        return time.monotonic()

    def wait(self, orders: SimpleQueue[_Order | None], timeout: float | None) -> _Order | None:
        """Return the next order; raises `queue.Empty` after `timeout` seconds."""
        return orders.get(timeout=timeout)


class EventProcessor:
    """The queue of one exporter, and the thread that empties it.

    Args:
        exporter: sends events; it is this processor's alone.
        capacity: how many events may wait. What comes when the queue is full is lost; a delta is so when three quarters
            of it are taken, so that a long answer costs no other event.
        retry_for: seconds after which a batch is given up that has been failing.
        clock: tells the time.

    Attributes:
        ledger: counts what was sent and what is lost.
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
        self._max_batch, self._interval = exporter.max_batch, min(exporter.interval, _LONGEST_WAIT)
        self._retry_for = retry_for
        self._clock = clock or Clock()
        self._for_events = capacity // 4
        self._close_by: float | None = None
        self._problem: str | None = None
        self.ledger = Ledger(exporter.name, "events", capacity, totals_of_events(exporter.name))
        self.ledger.ask(lambda: self._problem)
        self._begin()
        on_fork(self._begin)

    def _begin(self) -> None:
        """Begin with an empty queue: at first, and in a forked child, whose parent sends what waited."""
        self._waiting: deque[Event] = deque()
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._pending: list[_Order] = []
        self._wanted = 1
        self._is_known = False
        _OPEN.discard(self)
        self._thread = threading.Thread(target=self._work, name=f"traced_tools-{self._exporter.name}", daemon=True)
        if self._close_by is None:
            self._thread.start()  # now and not when it is needed: Python 3.12 starts none while the interpreter ends
        else:
            self.ledger.close()

    def submit(self, event: Event) -> None:
        """Queue an event if there is room; never waits and never raises."""
        if not self.ledger.admit(self._for_events if isinstance(event, Delta) else 0):
            return
        self._waiting.append(event)
        if len(self._waiting) >= self._wanted:
            self._wanted = _NEVER
            self._orders.put(None)
        if not self._is_known:
            self._is_known = True
            _OPEN.add(self)
            register_exit_handler(_close_open)

    def wake(self) -> None:
        """Have the thread look for what a finalizer has put off; takes no lock."""
        self._orders.put(None)

    def begin_flush(self) -> Callable[[float], bool]:
        """Have all that waits sent; return what waits for it until a time of `time.monotonic()`, and says whether."""
        order, lost = _Order(False, SimpleQueue()), self.ledger.lost_in_all
        self._orders.put(order)

        def went_well(deadline: float) -> bool:
            return self._is_done(order, deadline) and lost == self.ledger.lost_in_all

        return went_well

    def _is_done(self, order: _Order, deadline: float) -> bool:
        if not self._is_elsewhere():
            return False
        if self._close_by is not None:  # nobody may be there to answer
            self._thread.join(_seconds_until(deadline))
            return not self._thread.is_alive()
        try:
            return order.done.get(timeout=_seconds_until(deadline))
        except Empty:
            return False

    def begin_close(self, timeout: float) -> None:
        """Have all that waits sent, in `timeout` seconds or never, and the exporter closed; waits for nothing."""
        if self._close_by is None:
            self._close_by = self._clock.now() + timeout * (1 - _LAST_WORDS)
            self._orders.put(_Order(True, SimpleQueue()))

    def end_close(self, deadline: float) -> None:
        """Wait for that until a time of `time.monotonic()`; what has not been sent by then is counted as lost."""
        try:
            if self._is_elsewhere() and self._thread.ident is not None:
                self._thread.join(_seconds_until(deadline))
        finally:  # also when an interrupt ends the waiting
            self._end()

    def _end(self) -> None:
        self.ledger.close()
        _OPEN.discard(self)

    def _is_elsewhere(self) -> bool:
        """Whether this is another thread than the exporter's, which cannot wait for itself."""
        return threading.get_ident() != self._thread.ident

    # What the thread does.

    def _work(self) -> None:
        is_open = True
        while is_open:
            self._await(1)
            if self._waiting:
                self._await(self._max_batch, self._clock.now() + self._interval)
            self._send(len(self._waiting))
            is_open = self._obey()
        self._end()

    def _await(self, count: int, deadline: float | None = None) -> None:
        """Sleep until so many events wait, somebody wants something, or it is time."""
        self._note_orders()
        while len(self._waiting) < count and not self._pending:
            self._wanted = count
            left = None if deadline is None else deadline - self._clock.now()
            if len(self._waiting) >= count or (left is not None and left <= 0):
                break
            if not self._sleep(left):
                break
        self._wanted = _NEVER

    def _note_orders(self) -> None:
        while not self._orders.empty():
            self._sleep(0)

    def _sleep(self, seconds: float | None) -> bool:
        """Sleep until something comes, and return whether it did."""
        try:
            order = self._clock.wait(self._orders, seconds)
        except Empty:
            return False
        if order is not None:
            self._pending.append(order)
        self._quietly(catch_up)  # which this thread may have been woken for
        return True

    def _send(self, count: int) -> None:
        """Send so many events; what comes meanwhile waits for others again."""
        for start in range(0, count, self._max_batch):
            batch = [self._waiting.popleft() for _ in range(min(count - start, self._max_batch))]
            if self._time_left() > 0 and self.ledger.take(len(batch)):
                self._send_batch(batch)
            else:  # counted as lost when the ledger is closed
                self._quietly(self._exporter.give_up, batch)

    def _send_batch(self, batch: Sequence[Event]) -> None:
        until, attempts = self._clock.now() + self._retry_for, 0
        while (failure := self._failure_of(batch)) is not None:
            attempts += 1
            left = min(until - self._clock.now(), self._time_left())
            if not _is_worth_another(failure) or left <= 0:
                self._give_up(batch, f"{self._problem}, {attempts} time{'s' if attempts > 1 else ''}")
                return
            self._rest(min(pause_after(failure, attempts), left))
        self.ledger.settle(len(batch), 0, "")

    def _failure_of(self, batch: Sequence[Event]) -> BaseException | None:
        """Try to export, and return what was raised, whatever it is: no exporter ends this thread."""
        try:
            self._exporter.export(batch)
        except BaseException as error:
            self._problem = _told_of(error)
            return error
        self._problem = None
        return None

    def _give_up(self, batch: Sequence[Event], why: str) -> None:
        self._problem = None
        self.ledger.settle(0, len(batch), why)
        self._quietly(self._exporter.give_up, batch)

    def _time_left(self) -> float:
        """Return how many seconds there are until all must be sent."""
        return _LONGEST_WAIT if self._close_by is None else self._close_by - self._clock.now()

    def _rest(self, seconds: float) -> None:
        """Sleep before the next attempt; who wants a flush or a close from now on has it made at once."""
        deadline, known = self._clock.now() + seconds, len(self._pending)
        while len(self._pending) == known and (left := deadline - self._clock.now()) > 0:
            self._sleep(left)

    def _obey(self) -> bool:
        """Do what is asked for, and return whether to go on."""
        pending, self._pending = self._pending, []
        closes = any(order.closes for order in pending)
        went_well = bool(pending) and self._quietly(self._exporter.close if closes else self._exporter.flush)
        for order in pending:
            order.done.put(went_well)
        return not closes

    def _quietly(self, action: Callable[..., object], *arguments: object) -> bool:
        """Call a method of the exporter and return whether it went well; what it raises is logged by its type."""
        try:
            action(*arguments)
        except BaseException as error:
            name = getattr(action, "__name__", "a call")  # which a partial or an object may not have
            _LOG.warning("%s: %s raised %s", self.ledger.name, name, error_type(error))
            return False
        return True

    def __repr__(self) -> str:
        return f"<EventProcessor of {self.ledger.name}: {self.ledger.waiting} waiting, {self.ledger.sent} sent>"


def flush(processors: Iterable[EventProcessor], timeout: float) -> bool:
    """Have several send what waits, side by side, and return whether nothing was lost over it."""
    deadline = deadline_in(timeout)
    catch_up()
    begun = [each.begin_flush() for each in processors]
    outcomes = [went_well(deadline) for went_well in begun]  # waits for each, also when one went wrong
    return all(outcomes)


def close(processors: Iterable[EventProcessor], timeout: float) -> None:
    """Have several send what waits, side by side, and close their exporters; what takes longer is lost and counted."""
    deadline = deadline_in(timeout)
    catch_up()
    chosen = [*processors]
    for each in chosen:
        each.begin_close(_seconds_until(deadline))
    for each in chosen:
        each.end_close(deadline)


def let_go(processors: Iterable[EventProcessor]) -> None:
    """Have several close by themselves, since their owner is gone; the garbage collector may ask for it."""
    for each in processors:
        each.begin_close(PATIENCE)


def pause_after(failure: BaseException, attempts: int) -> float:
    """Return how many seconds to rest after an attempt, the longer the more there were, and not the same for all."""
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempts - 1, 10)) * random.uniform(0.5, 1)
    asked = failure.retry_after if isinstance(failure, ExportFailed) else None
    return asked if isinstance(asked, int | float) and asked > pause else pause


def deadline_in(timeout: float) -> float:
    """Return a time of `time.monotonic()`; no number is no time at all, and more than days is days."""
    return time.monotonic() + (min(max(timeout, 0.0), _LONGEST_WAIT) if timeout == timeout else 0.0)


def _seconds_until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _is_worth_another(failure: BaseException) -> bool:
    return not isinstance(failure, ExportFailed) or failure.retryable


_OPEN: set[EventProcessor] = set()


def _wake_open() -> None:
    for each in [*_OPEN]:
        each.wake()


wake_by(_wake_open)


def _close_open() -> None:
    close([*_OPEN], PATIENCE)


register_exit_handler(_close_open)


def _told_of(error: BaseException) -> str:
    """Return what the log may say of a failure; an error that is not made for it may quote the events, or a server."""
    return str(error) if isinstance(error, ExportFailed) else f"exporting raised {error_type(error)}"
