"""Runs a tool once, with a time-out.

A blocking function cannot be stopped. When it times out, the run goes on, its thread leaves the pool and ends with the
function, and its late result is dropped and counted. An async function is cancelled and has `GRACE` s to clean up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from functools import partial
from math import inf
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Protocol

from traced_tools.errors import ToolTimeout
from traced_tools.flow.flow import Step
from traced_tools.flow.steps import Call
from traced_tools.flow.workers import (
    cancelled_from_inside,
    finished_future,
    is_in_worker,
    run_async,
    wait_until_done,
    workers,
)

if TYPE_CHECKING:
    from traced_tools.core.tool_context import ToolContext

GRACE = 1.0
"""Seconds a cancelled async tool has to clean up before the run goes on without it."""


class Attemptable(Protocol):
    """A step that runs a function, such as a tool, and can be abandoned."""

    def __await__(self) -> Generator[Any, Any, Any]:
        """Pass the step to the driver."""

    @property
    def is_async(self) -> bool:
        """Whether `arun` runs the tool on the event loop instead of in a thread."""

    def run(self) -> Any:
        """Run the tool, blocking."""

    async def arun(self) -> Any:
        """Run the tool on asyncio."""


class Attempt(Step[Any]):
    """Runs a tool's step for at most `seconds` from when the tool begins.

    Args:
        step: runs the tool.
        context: its `deadline` is set when the tool begins, its `cancelled` when the tool is abandoned.
        seconds: the time-out.
        late: called, in any thread, if the tool finishes after it timed out.

    Raises:
        ToolTimeout: if the tool does not finish in time.
    """

    __slots__ = ("_context", "_ends", "_late", "_seconds", "_step")

    def __init__(self, step: Attemptable, context: ToolContext, seconds: float, late: Callable[[], None]) -> None:
        self._step = step
        self._context = context
        self._seconds = min(seconds, TIMEOUT_MAX)
        self._ends = inf  # until the tool begins
        self._late = late

    def run(self) -> Any:
        """Run the tool, blocking."""
        if self._step.is_async:
            return run_async(self.arun)
        pool = workers()
        future = pool.submit(partial(self._begin, self._step.run), beyond=True)
        try:
            while not future.done() and (seconds := self._seconds_left) > 0:  # a queued tool may not have begun in time
                wait([future], seconds)
        finally:
            given_up = pool.give_up(future)
        return self._result(future, given_up)

    async def arun(self) -> Any:
        """Run the tool on asyncio."""
        if self._step.is_async:
            return await self._begin(partial(self._awaited, self._step.arun))
        pool = workers()
        # a function that is not `async` may return an awaitable, which must run on the caller's loop
        function = self._step.begin if isinstance(self._step, Call) else self._step.run
        future = pool.submit(partial(self._begin, function), beyond=is_in_worker())
        try:
            while not future.done() and (seconds := self._seconds_left) > 0:
                await wait_until_done(future, seconds)
        finally:
            given_up = pool.give_up(future)
        result = self._result(future, given_up)
        return await self._awaited(lambda: result) if hasattr(result, "__await__") else result

    def _begin(self, function: Callable[[], Any]) -> Any:
        self._ends = time.monotonic() + self._seconds
        self._context.deadline = min(self._context.deadline or self._ends, self._ends)
        return function()

    @property
    def _seconds_left(self) -> float:
        return min(self._seconds, self._ends - time.monotonic())

    def _result(self, future: Future[Any], given_up: bool) -> Any:
        if given_up:
            raise self._timed_out(future)
        return future.result()

    async def _awaited(self, begin: Callable[[], Awaitable[Any]]) -> Any:
        task = asyncio.ensure_future(finished_future(begin))
        try:
            await asyncio.wait([task], timeout=self._seconds_left)
        except asyncio.CancelledError:
            await self._cancel(task)
            raise
        except GeneratorExit:  # nothing can be awaited any more
            task.cancel()
            raise
        if task.cancelled():
            raise cancelled_from_inside()
        if task.done():
            return task.result().result()
        await self._cancel(task)
        raise self._timed_out(task)

    async def _cancel(self, task: asyncio.Future[Any]) -> None:
        self._context.cancelled = True
        task.cancel()
        await asyncio.wait([task], timeout=GRACE)

    def _timed_out(self, given_up: Future[Any] | asyncio.Future[Any]) -> ToolTimeout:
        self._context.cancelled = True
        given_up.add_done_callback(self._report_late_end)
        return ToolTimeout(self._seconds)

    def _report_late_end(self, given_up: Future[Any] | asyncio.Future[Any]) -> None:
        if not given_up.cancelled():
            self._late()
