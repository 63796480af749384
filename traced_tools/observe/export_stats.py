"""Counts of an export pipeline: items that wait, were sent or are lost, and why. The log has each outage once.

An item (a span, a metric point, a log record, an event) enters a queue, is taken from it in a batch, and is then sent
or lost. Metric points have no queue: they are collected when they are sent.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar
from weakref import WeakSet

from opentelemetry.metrics import CallbackOptions, Observation

from traced_tools.core.enums import DROP_REASONS, DropReason
from traced_tools.core.fork import on_fork
from traced_tools.observe import names
from traced_tools.observe.meter import ApiMeter

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class ExporterTotals:
    """What the metrics report of an exporter: the sum over all stats of its name, including those that are gone.

    Args:
        name: the exporter's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._queues: WeakSet[ExportStats] = WeakSet()
        self._begin_at_zero()
        on_fork(self._begin_at_zero)

    def _begin_at_zero(self) -> None:
        self._lock = threading.RLock()
        self.sent = 0
        self.lost: Counter[DropReason] = Counter()

    @property
    def reasons(self) -> list[DropReason]:
        """The reasons for which items can be lost."""
        return [reason for reason in DROP_REASONS if reason != "queue_full" or self.queues]

    @property
    def queues(self) -> list[ExportStats]:
        """The stats that have a queue."""
        with self._lock:
            return [*self._queues]

    def join(self, stats: ExportStats) -> None:
        """Include the queue of other stats."""
        with self._lock:
            self._queues.add(stats)

    def add_sent(self, count: int) -> None:
        """Count items that were sent."""
        with self._lock:
            self.sent += count

    def add_lost(self, count: int, reason: DropReason) -> None:
        """Count items that are lost."""
        with self._lock:
            self.lost[reason] += count


_OF_EVENTS: dict[str, ExporterTotals] = {}


def totals_of_events(name: str) -> ExporterTotals:
    """Return the totals that event exporters of one name share; code sets the names, so there are few."""
    return _OF_EVENTS.setdefault(name, ExporterTotals(name))


class ExportStats:
    """The counts of one exporter.

    The log has the first loss of an outage, and its end: a batch that is sent whole when nothing was lost since the
    batch before it. If the stats are closed during an outage, the log has the sum. In a forked child the queue is
    empty, and the counts are zero.

    Args:
        name: the exporter's name, such as `otlp.traces`.
        items: what it sends, in the plural, for the log.
        capacity: how many items may wait; None if there is no queue.
        totals: what the metrics report; None for totals of these stats alone.
    """

    def __init__(
        self, name: str, items: str, capacity: int | None = None, totals: ExporterTotals | None = None
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.totals = totals or ExporterTotals(name)
        self._items = items
        self._closed = False
        self._problem: Callable[[], str | None] = lambda: None
        self._begin_at_zero()
        on_fork(self._begin_at_zero)
        if capacity is not None:
            self.totals.join(self)

    def _begin_at_zero(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come here while its thread is in here
        self._lost: Counter[DropReason] = Counter()
        self._sent = 0
        self._waiting = 0
        self._under_way = 0
        self._in_outage = False
        self._lost_since_sent = 0
        self._has_unlogged = False

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
        """How many items are lost, by reason."""
        return {reason: self._lost[reason] for reason in DROP_REASONS if reason != "queue_full" or self.capacity}

    @property
    def lost_in_all(self) -> int:
        """How many items are lost for any reason."""
        return sum(self.lost.values())

    def try_enqueue(self, leaving: int = 0) -> bool:
        """Count an item that enters the queue; return False if there is no room, and count the item as lost.

        Args:
            leaving: how many places are reserved for more important items.
        """
        with self._lock:
            if not self._closed and self._waiting < (self.capacity or 0) - leaving:
                self._waiting += 1
                return True
            cause = "it was closed" if self._closed else "more came than could be sent"
            line = self._lose(1, "shutdown" if self._closed else "queue_full", cause)
        _warn(line)
        return False

    def begin_batch(self, count: int) -> bool:
        """Take a batch from the queue; return False if the stats are closed, so that the batch is lost."""
        with self._lock:
            line = None
            if not self._closed:
                self._waiting = max(0, self._waiting - count)
                self._under_way += count
            elif self.capacity is None:  # what waited in a queue was counted when it was closed
                line = self._lose(count, "shutdown", "it was closed")
            may_send = not self._closed
        _warn(line)
        return may_send

    def record_batch(self, delivered: int, lost: int, why: str) -> None:
        """Record the result of a batch.

        Args:
            delivered: how many items arrived.
            lost: how many items did not arrive.
            why: why they did not, for the log.
        """
        with self._lock:
            if self._closed:  # they were counted when it was
                return
            self._under_way -= delivered + lost
            self._sent += delivered
            self.totals.add_sent(delivered)
            line = self._lose(lost, "export_failed", why) if lost else None
            recovered = self._recover() if delivered and not lost else None
        _warn(line)
        if recovered:
            _LOG.warning("%s", recovered)  # as loud as the outage was

    def set_problem_source(self, problem: Callable[[], str | None]) -> None:
        """Set the function that returns why the batch under way has not been sent yet, or None."""
        self._problem = problem

    def close(self) -> None:
        """Count all items that are not sent as lost, now and from now on."""
        problem = self._problem()
        cause = "time ran out when it was closed" + (f"; {problem}" if problem else "")
        with self._lock:
            if self._closed:
                return
            self._closed, self._in_outage = True, False  # so that the log has this loss even in an outage
            remainder, self._waiting, self._under_way = self._waiting + self._under_way, 0, 0
            line = self._lose(remainder, "shutdown", cause) if remainder else self._sum_up()
        _warn(line)

    def _lose(self, count: int, reason: DropReason, cause: str) -> str | None:
        """Count a loss and return the line to log, if any."""
        self._lost[reason] += count
        self.totals.add_lost(count, reason)
        self._lost_since_sent += count
        self._has_unlogged, self._in_outage = self._in_outage, True
        if self._has_unlogged:
            return None
        items = self._items[:-1] if count == 1 else self._items
        lost = f"{self.name}: lost {count} {items} ({self.lost_in_all} in total): {cause}"
        if self._closed:
            return lost
        return f"{lost}; further losses are only counted in {names.EXPORT_DROPPED.name} until export recovers"

    def _recover(self) -> str | None:
        recovered = self._in_outage and not self._lost_since_sent
        self._lost_since_sent = 0
        if not recovered:
            return None
        self._in_outage = self._has_unlogged = False
        return f"{self.name}: export recovered; lost {self.lost_in_all} {self._items} in total"

    def _sum_up(self) -> str | None:
        return f"{self.name}: closed; lost {self.lost_in_all} {self._items} in total" if self._has_unlogged else None


class ExportMetrics:
    """The export metrics of a meter provider, which read the totals; exporters of one name share a series."""

    def __init__(self, meter: ApiMeter) -> None:
        self._totals: list[ExporterTotals] = []
        items, dropped, queue = names.EXPORT_ITEMS, names.EXPORT_DROPPED, names.EXPORT_QUEUE_SIZE
        meter.observe_counter(items, self._observe_sent)
        meter.observe_counter(dropped, self._observe_lost)
        meter.observe_gauge(queue, self._observe_waiting)

    def show(self, export_stats: Iterable[ExportStats]) -> None:
        """Include the totals of these stats from now on."""
        for stats in export_stats:
            if stats.totals not in self._totals:
                self._totals.append(stats.totals)

    def _observe_sent(self, _: CallbackOptions) -> Iterator[Observation]:
        for name, count in _sum_by_key((totals.name, totals.sent) for totals in [*self._totals]):
            yield Observation(count, {names.EXPORTER_NAME: name})

    def _observe_lost(self, _: CallbackOptions) -> Iterator[Observation]:
        lost = (((totals.name, why), totals.lost[why]) for totals in [*self._totals] for why in totals.reasons)
        for (name, reason), count in _sum_by_key(lost):
            yield Observation(count, {names.EXPORTER_NAME: name, names.DROP_REASON: reason})

    def _observe_waiting(self, _: CallbackOptions) -> Iterator[Observation]:
        waiting = ((totals.name, queue.waiting) for totals in [*self._totals] for queue in totals.queues)
        for name, count in _sum_by_key(waiting):
            yield Observation(count, {names.EXPORTER_NAME: name})


def _sum_by_key(counts: Iterable[tuple[T, int]]) -> Iterable[tuple[T, int]]:
    sums: dict[T, int] = {}
    for key, count in counts:
        sums[key] = sums.get(key, 0) + count
    return sums.items()


def _warn(line: str | None) -> None:
    if line is not None:
        _LOG.warning("%s", line)
