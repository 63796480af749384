"""The feed: subscribers in any thread or event loop, however slow they are."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.events.made import batch
from tests.waiting import PATIENCE, patiently, until
from traced_tools.events import EventFeed, Subscription
from traced_tools.observe import Event

ROOT = Path(__file__).parents[2]


def sequences(events: list[Event]) -> list[int]:
    return [event.sequence for event in events]


def waits(subscription: Subscription) -> Callable[[], bool]:
    """Whether a thread or task waits for the next event."""
    return lambda: bool(subscription._tasks or subscription._changed._waiters)  # type: ignore[attr-defined]


def test_a_subscriber_gets_later_events_in_order() -> None:
    feed = EventFeed()
    feed.export(batch(2))
    with feed.subscribe() as subscription:
        feed.export(batch(2, 3))
        feed.export(batch(1, 5))
        feed.close()
        assert sequences(list(subscription)) == [3, 4, 5]
    assert subscription.dropped == 0


def test_a_feed_delivers_events_without_waiting_for_a_batch() -> None:
    assert EventFeed().interval == 0


def test_a_subscriber_of_one_run_gets_only_its_events() -> None:
    feed = EventFeed()
    with feed.subscribe(run_id="a") as subscription:
        feed.export([*batch(1, 1, run_id="a"), *batch(1, 2, run_id="b"), *batch(1, 3, run_id="a")])
        feed.close()
        assert sequences(list(subscription)) == [1, 3]


def test_a_slow_subscriber_loses_its_oldest_events_and_can_see_how_many() -> None:
    feed = EventFeed()
    with feed.subscribe(capacity=3) as slow, feed.subscribe() as fast:
        feed.export(batch(2))
        feed.export(batch(8, 3))
        feed.close()
        assert sequences(list(slow)) == [8, 9, 10]
        assert sequences(list(fast)) == [*range(1, 11)]
    assert (slow.dropped, fast.dropped) == (7, 0)


def test_a_thread_that_waits_is_woken_by_an_event_and_by_the_end() -> None:
    feed = EventFeed()
    subscription = feed.subscribe()
    got: list[Event] = []
    thread = threading.Thread(target=lambda: got.extend(subscription), daemon=True)
    thread.start()
    for number in (1, 2):
        until(waits(subscription))
        feed.export(batch(1, number))
        until(lambda number=number: len(got) == number)  # type: ignore[misc]
    until(waits(subscription))
    feed.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert sequences(got) == [1, 2]


def test_a_task_that_waits_is_woken_from_another_thread_by_an_event_and_by_the_end() -> None:
    feed = EventFeed()
    subscription = feed.subscribe()

    async def collect() -> list[Event]:
        async with subscription:
            return [event async for event in subscription]

    async def main() -> list[Event]:
        task = asyncio.create_task(collect())
        await asyncio.to_thread(until, waits(subscription))
        await asyncio.to_thread(feed.export, batch(1))
        await asyncio.to_thread(until, waits(subscription))
        await asyncio.to_thread(feed.close)
        return await patiently(task)

    assert sequences(asyncio.run(main())) == [1]


def test_a_cancelled_wait_loses_no_event_and_leaves_no_waiter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = EventFeed()

    async def main() -> None:
        async with feed.subscribe() as subscription:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(subscription), 0.001)
                assert not waits(subscription)()
            task = asyncio.create_task(anext(subscription))  # type: ignore[arg-type]
            await asyncio.to_thread(until, waits(subscription))
            feed.export(batch(1))  # it is woken, and cancelled before it takes the event
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await patiently(anext(subscription))).sequence == 1

    asyncio.run(main())
    assert caplog.messages == []  # asyncio logs errors of the callbacks that wake a waiter


def test_many_subscribers_in_many_threads_and_loops_get_all() -> None:
    feed, count = EventFeed(), 2000
    subscriptions = [feed.subscribe(capacity=count) for _ in range(8)]
    got: dict[int, list[Event]] = {}

    async def collect(subscription: Subscription) -> list[Event]:
        return [event async for event in subscription]

    def work(index: int) -> None:
        subscription = subscriptions[index]
        got[index] = asyncio.run(collect(subscription)) if index % 2 else list(subscription)

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(8)]
    for thread in threads:
        thread.start()
    for first in range(1, count, 10):
        feed.export(batch(10, first))
    feed.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert {index: sequences(events) for index, events in got.items()} == {
        index: [*range(1, count + 1)] for index in range(8)
    }


async def leave_async(subscription: Subscription) -> None:
    async with subscription:
        pass


def leave(subscription: Subscription) -> None:
    with subscription:
        pass


@pytest.mark.parametrize(
    "close", [Subscription.close, leave, lambda each: asyncio.run(leave_async(each))], ids=["close", "with", "async"]
)
def test_a_closed_subscription_ends_immediately_and_buffers_nothing(
    close: Callable[[Subscription], object],
) -> None:
    feed = EventFeed()
    subscription = feed.subscribe(capacity=1)
    feed.export(batch(1))
    close(subscription)
    feed.export(batch(5))
    assert list(subscription) == []
    assert subscription.dropped == 0
    assert feed._current() == []


def test_closing_a_subscription_ends_its_waiting_reader() -> None:
    feed = EventFeed()
    subscription = feed.subscribe()
    thread = threading.Thread(target=list, args=(subscription,), daemon=True)
    thread.start()
    until(waits(subscription))
    subscription.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_subscription_to_a_closed_feed_is_empty() -> None:
    feed = EventFeed()
    feed.close()
    feed.close()
    with feed.subscribe() as subscription:
        feed.export(batch(1))
        assert list(subscription) == []


def test_a_subscriber_with_a_closed_event_loop_does_not_affect_others() -> None:
    feed = EventFeed()
    gone, here = feed.subscribe(), feed.subscribe()
    loop = asyncio.new_event_loop()

    def step(awaitable: Awaitable[Event]) -> None:
        task = loop.create_task(awaitable)  # type: ignore[arg-type]
        while not waits(gone)():
            loop.run_until_complete(asyncio.sleep(0))
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    step(anext(gone))
    loop.close()
    feed.export(batch(1))
    feed.close()
    assert sequences(list(here)) == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_none_of_its_parents_subscribers_and_can_subscribe_anew() -> None:
    code = """
import os
from tests.events.made import batch
from traced_tools.events import EventFeed
feed = EventFeed()
subscription = feed.subscribe()
feed.export(batch(1))
with feed._lock, subscription._changed:  # as a thread may hold them when another one forks
    child = os.fork()
if child == 0:
    with feed.subscribe() as own:
        feed.export(batch(2, 2))
        feed.close()
        print(len(list(subscription)), len(list(own)), flush=True)
    os._exit(0)
os.waitpid(child, 0)
feed.export(batch(1, 2))
feed.close()
print(len(list(subscription)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=10 * PATIENCE)
    assert done.stdout == "0 2\n2\n", done.stderr


@pytest.mark.parametrize(("capacity", "error"), [(0, ValueError), (True, TypeError), ("1", TypeError)])
def test_a_capacity_must_be_a_positive_int(capacity: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="capacity"):
        EventFeed().subscribe(capacity=capacity)  # type: ignore[arg-type]
