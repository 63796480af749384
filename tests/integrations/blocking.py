"""Calls of frameworks that use the event loop of the thread and leave it open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def blocking(call: Callable[[], T]) -> T:
    """Call what uses the event loop of the thread, and close the loop."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return call()
    finally:
        asyncio.set_event_loop(None)
        loop.close()
