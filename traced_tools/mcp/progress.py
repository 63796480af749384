"""Sends the progress of a call to the MCP client that asked for it."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

from mcp.server.session import ServerSession

from traced_tools.core.tool_result import ToolResult
from traced_tools.flow.workers import finished_future
from traced_tools.tools.advice import ToolAdvice
from traced_tools.tools.invocation import CallNext, ToolInvocation

_MOST_WAITING = 100
"""How many reports may wait for a slow client. Further ones are dropped."""
_Report = tuple[float, float | None, str | None]


class ProgressSender(ToolAdvice):
    """Sends what the tool of a call reports of its progress, in order and before the result.

    A report that is not above the one before is dropped, because the protocol demands that progress grows.

    Args:
        session: the session of the request.
    """

    name = "mcp_progress"
    order = sys.maxsize

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[_Report | None] = asyncio.Queue()

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Listen to what the tool reports."""
        others = call.context.on_progress

        def report(progress: float, total: float | None, message: str | None) -> None:
            if others is not None:
                others(progress, total, message)
            with suppress(RuntimeError):  # the loop is closed, and a tool in a thread goes on
                self._loop.call_soon_threadsafe(self._enqueue, (progress, total, message))

        call.context.on_progress = report
        return await call_next(call)

    def _enqueue(self, report: _Report) -> None:
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put_nowait(report)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[Self]:
        """Send reports while an `async with` block runs, and at its end those that wait."""
        task = asyncio.create_task(finished_future(self._send))
        try:
            yield self
            self._waiting.put_nowait(None)
            await asyncio.wait([task])
        finally:
            task.cancel()

    async def _send(self) -> None:
        last = float("-inf")
        while (report := await self._waiting.get()) is not None:
            progress, total, message = report
            if math.isfinite(progress) and progress > last and (total is None or math.isfinite(total)):
                last = progress
                await self._session.report_progress(progress, total, message)
