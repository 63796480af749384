"""What a call of a tool of an MCP server costs over stdio, beside the client of the SDK in the same run.

All cases call the same tool, which returns its argument, of the same server, and take turns in each round; the SDK and
the toolset have a process each. The times are those on the wall, because a call is mostly waiting: for the server, and
between threads.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from tests.bench.report import Row, Section
from traced_tools.mcp import McpToolset

ADDED_TARGET_US = 1000
CALLS_A_ROUND = 20
SERVER = Path(__file__).parents[1] / "mcp/server.py"


def mcp_section(rounds: int, runner: asyncio.Runner) -> Section:
    """Return the times of calls, and what the toolset adds to the SDK's client."""
    sdk, blocking, on_asyncio = runner.run(_times(rounds))
    rows = [
        _timed("the client of the SDK alone, asyncio", sdk),
        _timed("McpToolset, blocking", blocking),
        _timed("McpToolset, asyncio", on_asyncio),
        _added("added by McpToolset, blocking", blocking, sdk),
        _added("added by McpToolset, asyncio", on_asyncio, sdk),
    ]
    return Section("a call of an MCP server over stdio, no SDK of OpenTelemetry, on the wall", rows)


async def _times(rounds: int) -> list[list[float]]:
    """Return the microseconds a call of each round: of the SDK, of a blocking call, and of one on asyncio."""
    program, arguments = sys.executable, {"text": "x"}
    async with (
        Client(StdioServerParameters(command=program, args=[str(SERVER)])) as client,
        McpToolset.stdio(program, str(SERVER), name="bench") as toolset,
    ):
        await client.list_tools()
        (echo,) = [tool for tool in await toolset.tool_callbacks() if tool.definition.name == "echo"]
        tool: Any = echo

        async def blocking() -> object:
            return tool.call('{"text": "x"}')

        cases: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: client.call_tool("echo", arguments),
            blocking,
            lambda: tool.acall('{"text": "x"}'),
        )
        times: list[list[float]] = [[] for _ in cases]
        for turn in range(rounds + 1):
            for place in range(len(cases)):
                index = (turn + place) % len(cases)
                times[index].append(await _microseconds(cases[index]))
        return [each[1:] for each in times]


async def _microseconds(case: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS_A_ROUND):
        await case()
    return (time.perf_counter() - began) / CALLS_A_ROUND * 1_000_000


def _timed(label: str, times: list[float]) -> Row:
    return Row(label, statistics.median(times), "us", best=min(times), digits=0)


def _added(label: str, times: list[float], sdk: list[float]) -> Row:
    added = [own - of_sdk for own, of_sdk in zip(times, sdk, strict=True)]
    return Row(label, statistics.median(added), "us", at_most=ADDED_TARGET_US, digits=0)
