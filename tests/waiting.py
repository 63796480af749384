"""Ways to wait that end: with a time-out that a test fails of."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from time import sleep
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.001
"""Seconds between two looks. Without a pause, the test takes the processor from what it waits for."""
PATIENCE = 30.0
"""Seconds after which a test that waits has failed. Nothing waits that long, not even on a busy machine."""


async def patiently(awaitable: Awaitable[T]) -> T:
    """Await `awaitable`, or fail with a `TimeoutError`."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


def in_time(function: Callable[[], T]) -> T:
    """Call `function` in a daemon thread and return its result; an `AssertionError` if it does not return in time."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it does not come back"
    if errors:
        raise errors[0]
    return results[0]


def until(condition: Callable[[], bool]) -> None:
    """Return when `condition` holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never holds"
        sleep(PAUSE)


async def turns(number: int = 10) -> None:
    """Let the event loop go round some times."""
    for _ in range(number):
        await asyncio.sleep(0)
