"""What became of the items of a pipeline: what waits, what was sent, what is lost and why; told once in the log.

An item (a span, a metric point, a log record) is admitted to a queue, taken from it, and then sent or lost. Metric
points have no queue: they are collected when they are sent.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from traced_tools._fork import on_fork
from traced_tools.telemetry import names
from traced_tools.telemetry.words import DROP_REASONS, DropReason

_LOG = logging.getLogger(__name__)


class Ledger:
    """The items of one exporter.

    An outage begins in the log with the first loss, and ends with a batch that is sent whole when nothing has been lost
    since the batch before it. In a forked child nothing waits: its queue begins empty, and the counts go on.

    Args:
        name: the exporter's name, such as `otlp.traces`.
        items: what it sends, in the plural.
        capacity: how many items may wait; None when there is no queue.
    """

    def __init__(self, name: str, items: str, capacity: int | None = None) -> None:
        self.name = name
        self.capacity = capacity
        self._items = items
        self._lost: Counter[DropReason] = Counter()
        self._sent = 0
        self._closed = False
        self._problem: Callable[[], str | None] = lambda: None
        self._begin_empty()
        on_fork(self._begin_empty)

    def _begin_empty(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come here while its thread is in here
        self._waiting = 0
        self._under_way = 0
        self._in_outage = False
        self._lost_since_sent = 0

    @property
    def sent(self) -> int:
        """How many items were sent."""
        return self._sent

    @property
    def waiting(self) -> int:
        """How many items wait to be sent."""
        return self._waiting

    @property
    def lost(self) -> dict[DropReason, int]:
        """How many items are lost, for each reason there can be."""
        return {reason: self._lost[reason] for reason in DROP_REASONS if reason != "queue_full" or self.capacity}

    @property
    def lost_in_all(self) -> int:
        """How many items are lost."""
        return sum(self.lost.values())

    def admit(self) -> bool:
        """Return whether an item may wait to be sent; one that may not is lost."""
        with self._lock:
            if not self._closed and self._waiting < (self.capacity or 0):
                self._waiting += 1
                return True
            why = "telemetry was shut down" if self._closed else "more came than could be sent"
            line = self._lose(1, "shutdown" if self._closed else "queue_full", why)
        _warn(line)
        return False

    def take(self, count: int) -> bool:
        """Note that a batch is about to be sent; False when it is too late and the batch is lost."""
        with self._lock:
            line = None
            if not self._closed:
                self._waiting = max(0, self._waiting - count)
                self._under_way += count
            elif self.capacity is None:  # what waited in a queue was counted when it was closed
                line = self._lose(count, "shutdown", "telemetry was shut down")
            may_send = not self._closed
        _warn(line)
        return may_send

    def settle(self, sent: int, lost: int, why: str) -> None:
        """Note what became of a batch that was taken.

        Args:
            sent: how many items arrived.
            lost: how many did not.
            why: the reason as people read it, for the log.
        """
        with self._lock:
            if self._closed:  # they were counted when it was
                return
            self._under_way -= sent + lost
            self._sent += sent
            line = self._lose(lost, "export_failed", why) if lost else None
            recovered = self._recover() if sent and not lost else None
        _warn(line)
        if recovered:
            _LOG.warning("%s", recovered)  # as loud as the outage was

    def ask(self, problem: Callable[[], str | None]) -> None:
        """Take note of who knows why a batch that is under way has not been sent yet."""
        self._problem = problem

    def close(self) -> None:
        """Count what has not been sent as lost; nothing is sent any more."""
        problem = self._problem()
        why = "time ran out when telemetry was shut down" + (f"; {problem}" if problem else "")
        with self._lock:
            left, self._waiting, self._under_way = self._waiting + self._under_way, 0, 0
            first, self._closed = not self._closed, True
            self._in_outage = self._in_outage and not (first and left)  # the end is told even in an outage
            line = self._lose(left, "shutdown", why) if left else None
        _warn(line)

    def _lose(self, count: int, reason: DropReason, why: str) -> str | None:
        """Count a loss and return what is to be said of it, if anything."""
        self._lost[reason] += count
        self._lost_since_sent += count
        was_in_outage, self._in_outage = self._in_outage, True
        if was_in_outage:
            return None
        items = self._items[:-1] if count == 1 else self._items
        lost = f"{self.name}: {count} {items} lost, {self.lost_in_all} so far: {why}"
        if self._closed:
            return lost
        return f"{lost}; losses are counted in {names.EXPORT_DROPPED.name}, and told here once until it works again"

    def _recover(self) -> str | None:
        recovered = self._in_outage and not self._lost_since_sent
        self._lost_since_sent = 0
        if not recovered:
            return None
        self._in_outage = False
        return f"{self.name}: works again; {self.lost_in_all} {self._items} lost so far"


def observe(ledgers: Sequence[Ledger], meter: Meter) -> None:
    """Make the metrics of exporting, which read the ledgers."""
    items, dropped, queue = names.EXPORT_ITEMS, names.EXPORT_DROPPED, names.EXPORT_QUEUE_SIZE

    def sent(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(each.sent, {names.EXPORTER_NAME: each.name}) for each in ledgers]

    def lost(_: CallbackOptions) -> Iterator[Observation]:
        for each in ledgers:
            for reason, count in each.lost.items():
                yield Observation(count, {names.EXPORTER_NAME: each.name, names.DROP_REASON: reason})

    def waiting(_: CallbackOptions) -> Iterable[Observation]:
        queues = [each for each in ledgers if each.capacity is not None]
        return [Observation(each.waiting, {names.EXPORTER_NAME: each.name}) for each in queues]

    meter.create_observable_counter(items.name, [sent], items.unit, items.brief)
    meter.create_observable_counter(dropped.name, [lost], dropped.unit, dropped.brief)
    meter.create_observable_gauge(queue.name, [waiting], queue.unit, queue.brief)


def _warn(line: str | None) -> None:
    if line is not None:
        _LOG.warning("%s", line)
