"""An event exporter for live subscribers in the same process, such as the clients of a web server."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Self

from traced_tools.core.checks import expect_whole
from traced_tools.core.fork import on_fork
from traced_tools.events.exporter import EventExporter
from traced_tools.observe.typed_events.types import Event


class EventFeed(EventExporter):
    """Delivers events to subscribers in any thread or event loop.

    A slow subscriber delays nothing: it loses its oldest events and can read how many it lost. A subscriber receives
    events from its subscription on. A forked child does not inherit the parent's subscribers.
    """

    name = "feed"
    interval = 0.0

    def __init__(self) -> None:
        self._begin()
        on_fork(self._fork)

    def subscribe(self, *, run_id: str | None = None, capacity: int = 1024) -> Subscription:
        """Return a new subscription. Close it, preferably with a `with` or `async with` block.

        Args:
            run_id: the run whose events the subscriber receives; None for all runs.
            capacity: the maximum number of buffered events.
        """
        expect_whole("capacity", capacity, 1)
        subscription = Subscription(self, run_id, capacity)
        with self._lock:
            if not self._closed:
                self._subscriptions[subscription] = None
                return subscription
        subscription.end()
        return subscription

    def export(self, events: Sequence[Event]) -> None:
        """Deliver events to each subscription."""
        for subscription in self._current():
            subscription.offer(events)

    def close(self) -> None:
        """End all subscriptions. Subscribers still receive the events that are buffered for them."""
        with self._lock:
            self._closed = True
        for subscription in self._current():
            subscription.end()
            self.forget(subscription)

    def forget(self, subscription: Subscription) -> None:
        """Stop delivering events to a subscription."""
        with self._lock:
            self._subscriptions.pop(subscription, None)

    def _current(self) -> list[Subscription]:
        with self._lock:
            return list(self._subscriptions)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._subscriptions: dict[Subscription, None] = {}
        self._closed = False

    def _fork(self) -> None:
        inherited = list(self._subscriptions)
        self._begin()
        for subscription in inherited:
            subscription.leave_to_parent()


class Subscription:
    """A subscriber's iterator, or async iterator, over the events of a feed.

    It waits for the next event. It ends when it is closed, or when the feed is closed and the buffered events have been
    read. Both `with` and `async with` close it.

    Attributes:
        dropped: the number of events that were lost because the subscriber was too slow; the oldest are lost first.
    """

    def __init__(self, feed: EventFeed, run_id: str | None, capacity: int) -> None:
        self.dropped = 0
        self._feed = feed
        self._run_id = run_id
        self._capacity = capacity
        self._waiting: deque[Event] = deque()
        self._tasks: set[asyncio.Future[None]] = set()
        self._changed = threading.Condition()
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting:
                raise StopIteration
            return self._waiting.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            with self._changed:
                if self._waiting:
                    return self._waiting.popleft()
                if self._ended:
                    raise StopAsyncIteration
                woken = asyncio.get_running_loop().create_future()
                self._tasks.add(woken)
            try:
                await woken
            finally:
                self._tasks.discard(woken)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop receiving events, and discard the buffered ones."""
        self._feed.forget(self)
        with self._changed:
            self._waiting.clear()
        self.end()

    def offer(self, events: Iterable[Event]) -> None:
        """Buffer the events that this subscriber wants."""
        own_events = [event for event in events if self._run_id in (None, event.run_id)]
        with self._changed:
            if own_events and not self._ended:
                self._waiting.extend(own_events)
                while len(self._waiting) > self._capacity:
                    self._waiting.popleft()
                    self.dropped += 1
                self._wake()

    def end(self) -> None:
        """Accept no more events; the iterator ends after the buffered ones."""
        with self._changed:
            self._ended = True
            self._wake()

    def leave_to_parent(self) -> None:
        """End in a forked child, where a thread that does not exist may hold the lock."""
        self._changed = threading.Condition()
        self._waiting, self._tasks, self._ended = deque(), set(), True

    def _wake(self) -> None:
        self._changed.notify_all()
        tasks, self._tasks = self._tasks, set()
        for woken in tasks:
            with suppress(RuntimeError):  # its loop is closed
                woken.get_loop().call_soon_threadsafe(_resolve, woken)


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
