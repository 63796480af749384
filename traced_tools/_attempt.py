"""One attempt at a tool, within its time-out.

A blocking function cannot be stopped. When its time is over its call is answered, its thread leaves the pool and ends
with it, and its result is dropped and counted. An async function is cancelled, and gets a moment to clean up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from typing import Any, Protocol

from traced_tools._flow import Step
from traced_tools._workers import WorkerPool, run_coroutine, workers
from traced_tools.errors import ToolTimeout

GRACE = 1.0
"""Seconds a cancelled async tool has to clean up before the run goes on without it."""


class Attemptable(Protocol):
    """A step that runs a tool and can be given up."""

    def __await__(self) -> Generator[Any, Any, Any]:
        """Hand the step to the driver."""

    @property
    def is_async(self) -> bool:
        """Whether `arun` waits on the event loop and not for a thread."""

    @property
    def began(self) -> float:
        """When the function was called, on the clock of `time.perf_counter()`."""

    def run(self) -> Any:
        """Run the tool, blocking."""

    async def arun(self) -> Any:
        """Run the tool on asyncio."""


class Attempt(Step[Any]):
    """Perform a tool's step for so many seconds at most, from when the tool begins.

    Args:
        step: what runs the tool.
        seconds: its time-out.
        late: called, in whatever thread, when a tool that was given up ends after all.

    Raises:
        ToolTimeout: when the time is over.
    """

    __slots__ = ("_late", "_seconds", "_step")

    def __init__(self, step: Attemptable, seconds: float, late: Callable[[], None]) -> None:
        self._step = step
        self._seconds = seconds
        self._late = late

    def run(self) -> Any:
        """Run the tool, blocking."""
        if self._step.is_async:
            return run_coroutine(self.arun())
        job = _Job(self._step.run)
        try:
            job.begun.result()
            wait([job.future], self._seconds)
            if job.future.done():
                return job.future.result()
        finally:
            job.leave(self._dropped)
        raise ToolTimeout(self._seconds)

    async def arun(self) -> Any:
        """Run the tool on asyncio."""
        return await (self._cancelled_in_time() if self._step.is_async else self._left_in_time())

    async def _left_in_time(self) -> Any:
        job = _Job(self._step.run)
        result = asyncio.wrap_future(job.future)
        try:
            await asyncio.wrap_future(job.begun)
            await asyncio.wait([result], timeout=self._seconds)
            if result.done():
                return result.result()
        finally:
            job.leave(self._dropped)
            result.cancel()
        raise ToolTimeout(self._seconds)

    async def _cancelled_in_time(self) -> Any:
        task = asyncio.ensure_future(self._step.arun())
        try:
            await asyncio.wait([task], timeout=self._seconds)
        except asyncio.CancelledError:
            await self._cancel(task)
            raise
        if task.done():
            return task.result()
        await self._cancel(task)
        raise ToolTimeout(self._seconds)

    async def _cancel(self, task: asyncio.Future[Any]) -> None:
        task.cancel()
        task.add_done_callback(self._dropped)
        await asyncio.wait([task], timeout=GRACE)

    def _dropped(self, ended: Future[Any] | asyncio.Future[Any]) -> None:
        """Take note of the end of what was given up; asking for its error keeps asyncio from logging its text."""
        if not ended.cancelled():
            ended.exception()
            self._late()


class _Job:
    """A function in a worker thread: `begun` when it has begun, `future` for its result."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._pool: WorkerPool = workers()
        self.begun: Future[None] = Future()
        self.future = self._pool.submit(self._run)

    def _run(self) -> Any:
        if self.begun.set_running_or_notify_cancel():
            self.begun.set_result(None)
        return self._function()

    def leave(self, dropped: Callable[[Future[Any]], None]) -> None:
        """Wait no more; `dropped` is told when a job that was under way ends."""
        if not self.future.done():
            self._pool.give_up(self.future)
            self.future.add_done_callback(dropped)
