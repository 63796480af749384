"""The background thread that writes a trail: it stores all pending entries in one transaction.

A caller that queues an entry never waits here. To learn when the record is durable, it waits for the entry. While the
store fails, the writer keeps the entries in order and retries.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from traced_tools.audit.records import Draft
from traced_tools.audit.store import problem_of
from traced_tools.audit.writing import forking
from traced_tools.audit.writing.appending import AppendBatch, Appender
from traced_tools.audit.writing.chain import record_of
from traced_tools.audit.writing.checkpoints import Checkpoints
from traced_tools.audit.writing.queue_entries import LoopWaiters, QueueEntry, resolve_waiters
from traced_tools.errors import ConfigurationError
from traced_tools.flow.background import BackgroundWorker, deadline_in, seconds_until

MOST_WAITING: Final = 65_536
"""Maximum number of pending records. Further records are lost and counted."""
MOST_CHARACTERS: Final = 256 << 20
"""Approximate maximum of characters in the contents of queued records. Further records are lost and counted."""
_PIECE: Final = 4096
_MOST_PIECES: Final = MOST_CHARACTERS // _PIECE
MOST_AT_ONCE: Final = 1024
"""Maximum number of records in a transaction."""
_GATHERING: Final = 0.02
"""Seconds that records wait for others to share their commit with, while no caller waits for one of them."""
_PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before further attempts; the last value repeats."""
_log = logging.getLogger("traced_tools.audit")


class Writer:
    """Writes a chain of records in a background thread, which starts with the first record.

    Args:
        name: the store's name, for the log.
        appender: appends batches to the chain.
        checkpoints: keeps durable checkpoints outside the store as well.
        on_stored: called with each durable batch; must not raise.
        started: called with `lag` when the thread starts; must not raise.
        flush_mirror: called at the end of a close with the remaining seconds; waits for the work that `on_stored`
            queued.

    Attributes:
        problem: why the last write to the store failed; None if it succeeded.
        closed: whether the writer refuses new records.
    """

    def __init__(
        self,
        name: str,
        appender: Appender,
        checkpoints: Checkpoints,
        on_stored: Callable[[AppendBatch], None],
        started: Callable[[Callable[[], float]], None],
        flush_mirror: Callable[[float], object],
    ) -> None:
        self.problem: str | None = None
        self.closed = False
        self._name = name
        self._appender = appender
        self._checkpoints = checkpoints
        self._on_stored = on_stored
        self._on_started = started
        self._flush_mirror = flush_mirror
        self._worker: BackgroundWorker[QueueEntry] = BackgroundWorker("traced_tools-audit", self._run, closing=self)
        self._queue = self._worker.items
        self._losses: deque[int] = deque()  # times of lost records, which the thread counts in a gap record
        self._weight = 0
        self._weight_lock = threading.RLock()  # reentrant, for a signal handler that interrupts its owner
        self._pending: list[QueueEntry] = []
        self._due = math.inf  # when the pending entries are written
        self._failures = 0
        self._retry_at = 0.0
        self._deadline: float | None = None
        self._ended = False
        self._logged_closed = self._logged_threadless = False
        self._lines = threading.local()  # a thread runs at most one event loop at a time

    @property
    def started(self) -> bool:
        """Whether the writer has received a record."""
        return self._worker.started

    @property
    def outage(self) -> str | None:
        """The problem after two consecutive failures, because one may come from a connection that idled too long."""
        return self.problem if self._failures > 1 else None

    # In any thread.

    def put(self, entry: QueueEntry) -> None:
        """Queue an entry, once; never waits and never raises."""
        if entry.taken:  # a caller that repeats a step after a time-out waits for the same record
            return
        if self.closed or (entry.control is None and self._is_full()):
            entry.taken = True
            self._refuse([entry])
            return
        self._weigh(entry)
        entry.taken = True  # no signal handler runs between this line and the next
        self._queue.append(entry)
        self._notify()
        if self._ended:  # the thread ended after `closed` was read above, and takes no more entries
            self._refuse(self._drain_queue())

    def _is_full(self) -> bool:
        return len(self._queue) + len(self._pending) >= MOST_WAITING or self._weight >= _MOST_PIECES

    def _weigh(self, entry: QueueEntry) -> None:
        entry.weight = _weight(entry.draft)
        if entry.weight:
            with self._weight_lock:
                self._weight += entry.weight

    def _notify(self) -> None:
        if self._worker.notify():
            return
        if not self._logged_threadless:
            _log.error("the audit trail %s cannot start its thread: records are lost until it can", self._name)
        self._logged_threadless = True
        self._refuse(self._drain_queue())

    def line(self, timeout: float) -> LoopWaiters:
        """Return the waiters with this timeout on the running event loop."""
        loop = asyncio.get_running_loop()
        if getattr(self._lines, "loop", None) is not loop:
            self._lines.loop, self._lines.by_timeout = loop, {}
        lines: dict[float, LoopWaiters] = self._lines.by_timeout
        return lines.get(timeout) or lines.setdefault(timeout, LoopWaiters(loop, timeout))

    def lag(self) -> float:
        """Return the age in seconds of the oldest pending record; 0 if no record is pending."""
        oldest = next(iter(self._pending), None)
        return 0.0 if oldest is None else max(0.0, (time.time_ns() - oldest.time) / 1e9)

    def begin_close(self, timeout: float) -> None:
        """Request that pending records are written within `timeout` seconds, then the thread ends; never waits."""
        # In this order, because the thread that sees `closed` stops retrying at the deadline.
        self._deadline = deadline_in(timeout)
        self.closed = True
        if self.started:
            self._worker.wake()
            self._notify()

    def end_close(self, deadline: float) -> None:
        """Wait for the close until a time of `time.monotonic()`; records that are not written by then are lost."""
        if not self.started or self._worker.is_current:  # a thread that closes its own trail cannot wait for itself
            return
        if not self._worker.join(deadline):
            self._give_up()
            self._checkpoints.close(0)
        self._flush_mirror(seconds_until(deadline))

    def _refuse(self, entries: Sequence[QueueEntry]) -> None:
        """Count records that are not written, and wake their waiters."""
        records = [entry for entry in entries if entry.control is None]
        for entry in records:
            entry.draft = None
            self._losses.append(entry.time)
        self._release_weight(records)
        if records and self.closed and not self._logged_closed:
            _log.error("the audit trail %s is closed: new records are lost; record before you close it", self._name)
            self._logged_closed = True
        resolve_waiters(entries, False)

    def _drain_queue(self) -> list[QueueEntry]:
        """Remove all entries from the queue and return them."""
        entries: list[QueueEntry] = []
        with suppress(IndexError):
            while True:
                entries.append(self._queue.popleft())
        return entries

    # In the thread.

    def _run(self) -> None:
        forking.add(self._appender)
        self._on_started(self.lag)
        try:
            while not self._ended:
                try:
                    self._take()
                    self._write()
                except Exception as error:  # any error, because without the thread all records would be lost
                    self._failed(error)
        finally:
            self._appender.close()
            self._give_up()  # before the copies, whose delivery may take until the deadline
            self._checkpoints.close(0.0 if self._deadline is None else seconds_until(self._deadline))
            forking.discard(self._appender)

    def _take(self) -> None:
        """Wait for an entry or until the writer has other work, then move queued entries to the pending entries."""
        while (seconds := self._idle()) is None or seconds > 0:
            if self._worker.wait(1, seconds) and self._queue:
                self._accept(self._queue.popleft())
        while self._queue and len(self._pending) < MOST_AT_ONCE:
            self._accept(self._queue.popleft())

    def _accept(self, entry: QueueEntry) -> None:
        self._pending.append(entry)
        self._due = min(self._due, time.monotonic() + (0.0 if entry.is_awaited else _GATHERING))
        self._appender.prepare(entry)
        if entry.weight:
            self._release_weight([entry])

    def _release_weight(self, entries: Sequence[QueueEntry]) -> None:
        """Subtract the weight of entries whose drafts are dropped."""
        for entry in entries:
            if entry.weight and entry.draft is None:
                with self._weight_lock:
                    self._weight -= entry.weight
                entry.weight = 0

    def _idle(self) -> float | None:
        """Return the seconds until the writer has work without a new entry; None for never."""
        now = time.monotonic()
        if self._failures:  # the deadline of a close ends the pause
            until = self._retry_at if self._deadline is None else min(self._retry_at, self._deadline)
            return until - now
        if self.closed or self._losses or len(self._pending) >= MOST_AT_ONCE:
            return 0.0
        return self._due - now if self._pending else self._appender.due()

    def _write(self) -> None:
        while self._losses:
            self._appender.add_missed(self._losses.popleft(), lost=1)
        final = self.closed and not self._pending
        self._finish_batch(self._appender.append(self._pending[:MOST_AT_ONCE], final=final))

    def _finish_batch(self, batch: AppendBatch) -> None:
        # First, because the rows are durable: an error below must not have them written again.
        del self._pending[: len(batch.entries)]
        self._due = self._due if self._pending else math.inf
        self._release_weight(batch.entries)
        self._record_recovery(batch)
        if batch.checkpoint is not None:  # before waiters wake, because checkpoint() waits for the line as well
            self._checkpoints.publish(record_of(batch.checkpoint))
        resolve_waiters(batch.entries if not batch.refused else _without(batch.entries, batch.refused), True)
        if batch.refused:
            self._refuse(batch.refused)
        late = [entry.time for entry in batch.entries if entry.gave_up and entry.control is None]
        if len(late) > batch.late:  # their callers stopped waiting during the transaction
            self._appender.add_missed(min(late), late=len(late) - batch.late)
        self._on_stored(batch)
        self._ended = self._ended or batch.final

    def _failed(self, error: Exception) -> None:
        self.problem = str(error) if isinstance(error, ConfigurationError) else problem_of(error)
        self._failures += 1
        self._retry_at = time.monotonic() + _PAUSES[min(self._failures, len(_PAUSES)) - 1]
        if self._failures == 2:
            _log.error("the audit trail %s cannot be written (%s); the write is retried", self._name, self.problem)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._ended = True

    def _record_recovery(self, batch: AppendBatch) -> None:
        if self._failures > 1:
            _log.warning("the audit trail %s is written again", self._name)
        if batch.shortfall:
            late, lost = batch.shortfall.late, batch.shortfall.lost
            _log.error("the audit trail %s has a gap: %d intents late, %d records lost", self._name, late, lost)
        self._failures, self.problem = 0, None

    def _give_up(self) -> None:
        """Wake all waiters, and log how many records are lost."""
        self._ended = self.closed = True
        pending, self._pending = self._pending, []  # the caller of a close and the thread may run this together
        unwritten = [entry for entry in (*pending, *self._drain_queue()) if entry.durable is None]
        records = sum(entry.control is None for entry in unwritten)
        if records:
            _log.error("the audit trail %s closed with %d records unwritten (%s)", self._name, records, self.problem)
        resolve_waiters(unwritten, False)


def _weight(draft: Draft | None) -> int:
    """Return how many pieces of 4,096 characters a draft's contents fill: 0 for most, which then take no lock."""
    if draft is None or not draft.contents:
        return 0
    return sum(len(content.text) for content in draft.contents.values()) // _PIECE


def _without(entries: Sequence[QueueEntry], refused: Sequence[QueueEntry]) -> list[QueueEntry]:
    refused_ids = {id(entry) for entry in refused}
    return [entry for entry in entries if id(entry) not in refused_ids]
