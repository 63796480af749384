"""Entries of the writer's queue, and the callers that wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import time_ns
from typing import Any, Literal

from traced_tools.audit.records import Draft

ControlKind = Literal["flush", "checkpoint"]


class QueueEntry:
    """A draft to be stored, or a control entry, which is durable when all entries before it are.

    Attributes:
        draft: what to record; None for a control entry, and once `fields` are made of it.
        control: what a control entry asks for; None for a draft.
        time: when it happened, in nanoseconds of Unix time.
        fields: the record's fields, once they are made of the draft; else None.
        taken: whether a writer has the entry.
        durable: True if it is stored, False if it never will be, None while that is open.
        gave_up: whether the caller stopped waiting before the record was durable.
        weight: how many pieces of text the writer counts for the draft.
        waiter: a locked lock, or an asyncio future; None if no caller waits.
    """

    __slots__ = ("control", "draft", "durable", "fields", "gave_up", "taken", "time", "waiter", "weight")

    def __init__(self, draft: Draft | None, control: ControlKind | None = None) -> None:
        self.draft = draft
        self.control = control
        self.time = time_ns() if draft is None or not _is_time(draft.time) else draft.time
        self.fields: dict[str, Any] | None = None
        self.taken = False
        self.weight = 0
        self.durable: bool | None = None
        self.gave_up = False
        self.waiter: threading.Lock | asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits until the entry is durable."""
        return self.waiter is not None or self.control is not None

    def expect(self) -> None:
        """Prepare for `wait`."""
        self.gave_up = False
        self.waiter = threading.Lock()
        self.waiter.acquire()

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds, blocking, and return whether the record is durable."""
        assert self.waiter is not None and not isinstance(self.waiter, asyncio.Future)
        if self.durable is None:  # else no thread releases the lock any more
            self.waiter.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
        self.gave_up = self.durable is None
        return self.durable is True


def _is_time(time: object) -> bool:
    return isinstance(time, int) and 0 < time < 1 << 63


class LoopWaiters:
    """Waiters on one event loop that share a timeout, and so a single timer.

    Args:
        loop: the running event loop.
        timeout: seconds that each of them waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self.loop = loop
        self._timeout = timeout
        self._line: deque[tuple[float, QueueEntry, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, entry: QueueEntry) -> asyncio.Future[None]:
        """Return a future that is done when the record is durable or lost, or the time is over."""
        future: asyncio.Future[None] = self.loop.create_future()
        entry.gave_up, entry.waiter = False, future
        deadline = self.loop.time() + self._timeout
        self._drop_done()
        self._line.append((deadline, entry, future))
        if self._timer is None:
            self._timer = self.loop.call_at(deadline, self._sweep)
        return future

    def _drop_done(self) -> None:
        while self._line and self._line[0][2].done():
            self._line.popleft()

    def _sweep(self) -> None:
        now = self.loop.time()
        while self._line and self._line[0][0] <= now:
            _, entry, future = self._line.popleft()
            if not future.done():
                entry.gave_up = entry.durable is None
                future.set_result(None)
        self._drop_done()
        self._timer = self.loop.call_at(self._line[0][0], self._sweep) if self._line else None


def resolve_waiters(entries: Iterable[QueueEntry], durable: bool) -> None:
    """Set what became of entries, and wake their waiters; each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for entry in entries:
        if entry.durable is not None:  # a trail that was closed while its store hung comes here twice
            continue
        entry.durable = durable
        waiter = entry.waiter
        if waiter is None:
            continue
        if isinstance(waiter, asyncio.Future):
            by_loop.setdefault(waiter.get_loop(), []).append(waiter)
        else:
            with suppress(RuntimeError):  # the caller of `close` and the thread may release it at the same time
                waiter.release()
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, futures)
        except RuntimeError:  # the loop is closed: no task waits any more
            continue


def _settle(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
