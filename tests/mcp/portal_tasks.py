"""The tasks that a test leaves on the portal's loop, which all tests of a process share."""

from __future__ import annotations

import asyncio
from typing import Any

from traced_tools.flow.workers import _portal

_earlier: set[asyncio.Task[Any]] = set()


def remember_tasks() -> None:
    """Have `tasks_left` ignore the tasks that exist now: other tests have left them."""
    _earlier.clear()
    _earlier.update(_tasks())


def tasks_left() -> list[str]:
    """Return the tasks that have begun since `remember_tasks` and have not ended."""
    return [repr(task) for task in _tasks() - _earlier]


def _tasks() -> set[asyncio.Task[Any]]:
    async def look() -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    return asyncio.run_coroutine_threadsafe(look(), _portal._open()).result()
