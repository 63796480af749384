"""What a call costs that passes through the gateway, beside the same call without it, in the same run.

All cases of a section call a tool that returns its argument, and take turns in each round. `value` is the median time
of a call on the wall in milliseconds, and what the gateway adds to it is the median of the rounds' differences, because
a client waits for both processes. The CPU time of the gateway's process is a row of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp import Client, StdioServerParameters

from tests.bench.bench_mcp import ARGUMENTS, TRANSPORTS, Case, Transport, answers, cpu_clock, sample, server
from tests.bench.report import Row, Section
from tests.bench.timing import Series
from tests.judges.programs import free_port
from tests.waiting import until

DIRECT, PLAIN, AUDITED = "without the gateway", "through the gateway", "through the gateway, with an audit trail"
ADDED = {PLAIN: 2.0, AUDITED: 5.0}
"""The milliseconds that the gateway may add."""
PROXY = ("-m", "traced_tools", "mcp", "proxy")


def gateway_sections(rounds: int, runner: asyncio.Runner) -> Iterator[Section]:
    """Return what calls through the gateway cost beside calls without it."""
    for transport in TRANSPORTS:
        costs = runner.run(_costs(transport, rounds))
        rows = [_row(label, series.wall) for label, series in costs.items()]
        for label, target in ADDED.items():
            added = [own - direct for own, direct in zip(costs[label].wall, costs[DIRECT].wall, strict=True)]
            rows.append(_row(f"added {label}", added, target))
            rows.append(_row(f"CPU time of the process, {label}", costs[label].cpu))
        yield Section(f"a call through the gateway over {transport}, no SDK of OpenTelemetry", rows)


def _row(label: str, microseconds: list[float], at_most: float | None = None) -> Row:
    median, best = statistics.median(microseconds) / 1000, min(microseconds) / 1000
    return Row(label, median, "ms", best=best, at_most=at_most, digits=2)


async def _costs(transport: Transport, rounds: int) -> dict[str, Series]:
    cases: dict[str, Case] = {}
    clocks: dict[str, Callable[[], float]] = {}
    async with AsyncExitStack() as stack:
        store = Path(stack.enter_context(TemporaryDirectory())) / "audit.db"
        target = stack.enter_context(server("sdk", transport))
        for label, options in ((DIRECT, None), (PLAIN, ()), (AUDITED, ("--audit", str(store)))):
            place, process_id = (target, None) if options is None else stack.enter_context(_gateway(target, options))
            client = await stack.enter_async_context(Client(place, mode="legacy"))
            cases[label] = lambda client=client: client.call_tool("echo", ARGUMENTS)  # type: ignore[misc]
            content: Any = (await client.call_tool("process_id", {})).content
            own = int(content[0].text)
            clocks[label] = cpu_clock(process_id or (own if options is None else _parent(own)))
        return await sample(cases, clocks, rounds)


@contextmanager
def _gateway(target: Any, options: tuple[str, ...]) -> Iterator[tuple[Any, int | None]]:
    """Return how to reach a gateway before a server, and the id of its process if that is known, for the block."""
    if not isinstance(target, str):
        args = [*PROXY, *options, "--", target.command, *target.args]
        yield StdioServerParameters(command=sys.executable, args=args, cwd="."), None
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    words = [sys.executable, *PROXY, *options, "--url", target, "--transport", "http", "--port", str(port)]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(words, stderr=subprocess.DEVNULL))
        stack.callback(process.terminate)
        until(lambda: answers(url))
        yield url, process.pid


def _parent(process_id: int) -> int:
    """Return the id of the process that has started a process."""
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])
