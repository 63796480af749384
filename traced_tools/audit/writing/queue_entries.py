"""Drafts on their way into the store, and those who wait for one of them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import time_ns
from typing import Any, Literal

from traced_tools.audit.records import Draft

ControlKind = Literal["flush", "checkpoint", "end"]


class QueueEntry:
    """A draft that is on its way, or a mark that is reached when all before it is stored.

    Attributes:
        time: when it happened, in nanoseconds of Unix time.
        fields: what the record says, once it is made of the draft; else None.
        taken: whether a writer has it.
        durable: True when it is stored, False when it never will be, None as long as nobody knows.
        gave_up: whether the one who waited for it went on without.
        weight: what the writer counts it as, while it has the draft.
        waiter: a locked lock, or an asyncio future; None when nobody waits.
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

    def expect(self) -> None:
        """Prepare for `wait`."""
        self.gave_up = False
        self.waiter = threading.Lock()
        self.waiter.acquire()

    def wait(self, timeout: float) -> bool:
        """Wait so many seconds at most, blocking, and return whether the record is durable."""
        assert self.waiter is not None and not isinstance(self.waiter, asyncio.Future)
        if self.durable is None:  # else nobody will wake who waits from now on
            self.waiter.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
        self.gave_up = self.durable is None
        return self.durable is True


def _is_time(time: object) -> bool:
    return isinstance(time, int) and 0 < time < 1 << 63


class LoopWaiters:
    """Those on one event loop who wait, each equally long: one timer serves them all.

    Args:
        loop: the event loop that runs.
        timeout: seconds each of them waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self.loop = loop
        self._timeout = timeout
        self._line: deque[tuple[float, QueueEntry, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, entry: QueueEntry) -> asyncio.Future[None]:
        """Return what is done when the record is durable, lost or too late."""
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
    """Tell those who wait what became of their records; each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for entry in entries:
        if entry.durable is not None:  # a trail that was closed while it hung tells them twice
            continue
        entry.durable = durable
        waiter = entry.waiter
        if waiter is None:
            continue
        if isinstance(waiter, asyncio.Future):
            by_loop.setdefault(waiter.get_loop(), []).append(waiter)
        else:
            with suppress(RuntimeError):  # who gives up and the thread may do so at once
                waiter.release()
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, futures)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _settle(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
