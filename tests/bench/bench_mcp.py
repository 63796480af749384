"""What calls over MCP cost: a tool of a server, and a served tool, over stdio and HTTP, beside the SDK in the same run.

All cases of a section call a tool that returns its argument, and take turns in each round. `value` is CPU time, because
a call is mostly waiting: of this process with all of its threads for clients, and of the server's process for servers.
A call by `McpToolset` belongs to a run, as it does in the loop.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Literal

import httpx
from mcp import Client, StdioServerParameters

from tests.bench.report import Row, Section
from tests.bench.timing import Series
from tests.judges.programs import free_port
from tests.waiting import until
from traced_tools.mcp import McpToolset
from traced_tools.observe.run_telemetry import current_telemetry, use_telemetry

CLIENT_TARGET = 1.3
SERVER_TARGET = 1.1
CALLS_A_ROUND = 20
ARGUMENTS = {"text": "x"}
SDK = "the SDK alone, asyncio"

Transport = Literal["stdio", "http"]
TRANSPORTS: tuple[Transport, ...] = ("stdio", "http")
Case = Callable[[], Awaitable[object]]


def mcp_sections(rounds: int, runner: asyncio.Runner) -> Iterator[Section]:
    """Return what calls of clients and of servers cost beside those of the SDK."""
    for transport in TRANSPORTS:
        yield _client_section(transport, runner.run(_client_costs(transport, rounds)))
    for transport in TRANSPORTS:
        yield _server_section(transport, runner.run(_server_costs(transport, rounds)))


def _client_section(transport: Transport, costs: Mapping[str, Series]) -> Section:
    rows = [_cost(label, series) for label, series in costs.items()]
    rows += [
        Row(f"{mode} / the SDK", costs[mode].ratio(costs[SDK]), "x", at_most=target, digits=2)
        for mode, target in (("McpToolset, asyncio", CLIENT_TARGET), ("McpToolset, blocking", None))
    ]
    return Section(f"a call of an MCP server over {transport}, no SDK of OpenTelemetry, the client", rows)


def _server_section(transport: Transport, costs: Mapping[str, Series]) -> Section:
    ratio = costs["serve()"].ratio(costs[SDK])
    rows = [_cost(label, series) for label, series in costs.items()]
    rows.append(Row("serve() / the SDK", ratio, "x", at_most=SERVER_TARGET, digits=2))
    return Section(f"a call of a served tool over {transport}, no SDK of OpenTelemetry, the server", rows)


def _cost(label: str, series: Series) -> Row:
    cpu, wall = statistics.median(series.cpu), statistics.median(series.wall)
    return Row(label, cpu, "us", wall, series.fastest, digits=0)


async def _client_costs(transport: Transport, rounds: int) -> dict[str, Series]:
    use_telemetry(current_telemetry(None))
    with server("sdk", transport) as target:
        async with Client(target) as client, _toolset(target) as toolset:
            (echo,) = [tool for tool in await toolset.tool_callbacks() if tool.definition.name == "echo"]
            tool: Any = echo

            async def blocking() -> object:
                return tool.call('{"text": "x"}')

            cases: dict[str, Case] = {
                SDK: lambda: client.call_tool("echo", ARGUMENTS),
                "McpToolset, asyncio": lambda: tool.acall('{"text": "x"}'),
                "McpToolset, blocking": blocking,
            }
            return await sample(cases, dict.fromkeys(cases, time.process_time), rounds)


async def _server_costs(transport: Transport, rounds: int) -> dict[str, Series]:
    async with AsyncExitStack() as stack:
        cases: dict[str, Case] = {}
        clocks: dict[str, Callable[[], float]] = {}
        for label, by in ((SDK, "sdk"), ("serve()", "serve")):
            client = await stack.enter_async_context(Client(stack.enter_context(server(by, transport))))
            cases[label] = lambda client=client: client.call_tool("echo", ARGUMENTS)  # type: ignore[misc]
            content: Any = (await client.call_tool("process_id", {})).content
            clocks[label] = cpu_clock(int(content[0].text))
        return await sample(cases, clocks, rounds)


def cpu_clock(process_id: int) -> Callable[[], float]:
    """Return a function that reads the seconds of CPU time of another process, or the time where that is impossible."""
    clock = (~process_id << 3) | 2  # as `clock_getcpuclockid` makes it on Linux
    return (lambda: time.clock_gettime(clock)) if sys.platform == "linux" else time.perf_counter


@contextmanager
def server(by: str, transport: Transport) -> Iterator[Any]:
    """Return how to reach a server that runs for the block."""
    command = ["-m", "tests.bench.echo_server", by]
    if transport == "stdio":
        yield StdioServerParameters(command=sys.executable, args=command, cwd=".")
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    with subprocess.Popen(
        [sys.executable, *command, str(port)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        until(lambda: answers(url))
        yield url
        process.terminate()


def answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=1)
    except httpx.TransportError:
        return False
    return True


def _toolset(target: Any) -> McpToolset:
    if isinstance(target, str):
        return McpToolset.http(target, name="bench")
    return McpToolset.stdio(target.command, *target.args, cwd=target.cwd, name="bench")


async def sample(
    cases: Mapping[str, Case], clocks: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, Series]:
    """Return the microseconds a call of each round, which begins with another case each time; the first is dropped."""
    labels = list(cases)
    series = {label: Series([], []) for label in labels}
    for turn in range(rounds + 1):
        start = turn % len(labels)
        for label in labels[start:] + labels[:start]:
            wall, cpu = time.perf_counter(), clocks[label]()
            for _ in range(CALLS_A_ROUND):
                await cases[label]()
            if turn:
                series[label].cpu.append((clocks[label]() - cpu) / CALLS_A_ROUND * 1_000_000)
                series[label].wall.append((time.perf_counter() - wall) / CALLS_A_ROUND * 1_000_000)
    return series
