"""What a worker of the benchmark does: it runs passes of one peer and answers what they used.

A worker is a process of its own, run by the Python of the peer's environment:

    python -m tests.bench.peers.<peer>.worker untraced|traced|counted

It first writes the version of the peer, then an answer to each request. Requests and answers are lines of JSON:

    -> {"tool": "async", "passes": 50, "runs": 1}
    <- {"cpu_ns": 17250000, "wall_ns": 17300000}

A `counted` worker adds the `spans`, metric `records` and log `events` that the runs emitted. This module imports the
standard library alone, because every environment imports it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

QUESTION = "What is 41 + 1?"
ANSWER = "42"
INPUT_TOKENS, OUTPUT_TOKENS = 812, 93
WARM_UP_PASSES = 50

tool_calls = 0
"""How often the tools of this process were called."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    global tool_calls
    tool_calls += 1
    return a + b


async def async_add(a: int, b: int) -> int:
    """Add two numbers."""
    global tool_calls
    tool_calls += 1
    return a + b


async_add.__name__ = "add"  # a scripted model calls either tool by this name


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Setup:
    """A peer as a worker runs it.

    Args:
        version: the peer's version.
        blocking: takes a number of passes and returns a function that performs one run with the blocking tool `add`.
            The function may be a coroutine function.
        on_asyncio: the same with `async_add`; it returns a coroutine function.
        turn_telemetry_on: is called once, after the global OpenTelemetry providers are set.
        turn_telemetry_off: is called once in an untraced worker, which has no providers.
    """

    version: str
    blocking: Callable[[int], Callable[[], Any]]
    on_asyncio: Callable[[int], Callable[[], Any]]
    turn_telemetry_on: Callable[[], None] = _nothing
    turn_telemetry_off: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Telemetry:
    """The SDK that a worker has set up; by default none.

    Args:
        flush: empties its queues.
        counts: returns the numbers of spans, metric records and log events so far, if they are counted.
    """

    flush: Callable[[], object] = _nothing
    counts: Callable[[], dict[str, int]] = dict


class Bench:
    """Measures runs with either tool.

    Args:
        setup: the peer.
        telemetry: the SDK that the peer emits with.
        runner: the event loop of all runs on asyncio.
    """

    def __init__(self, setup: Setup, telemetry: Telemetry, runner: asyncio.Runner) -> None:
        self._makers = {"blocking": setup.blocking, "async": setup.on_asyncio}
        self._telemetry = telemetry
        self._runner = runner
        self._run = cache(self._warm_run)

    def measure(self, tool: str, passes: int, runs: int) -> dict[str, int]:
        """Return the nanoseconds of the process's CPU time and of wall time that the runs take, and what they emit."""
        run = self._run(tool, passes)
        self._telemetry.flush()
        gc.collect()
        called, emitted = tool_calls, self._telemetry.counts()
        cpu, wall = self._clock(run, runs)
        if (calls := tool_calls - called) != passes * runs:
            raise RuntimeError(f"{runs} runs of {passes} passes called the tool {calls} times")
        counted = {name: count - emitted[name] for name, count in self._telemetry.counts().items()}
        return {"cpu_ns": cpu, "wall_ns": wall, **counted}

    def _warm_run(self, tool: str, passes: int) -> Callable[[], Any]:
        gc.enable()
        run = self._makers[tool](passes)
        self._clock(run, -(-WARM_UP_PASSES // passes))
        gc.collect()
        gc.freeze()
        gc.disable()
        return run

    def _clock(self, run: Callable[[], Any], runs: int) -> tuple[int, int]:
        if inspect.iscoroutinefunction(run):
            return self._runner.run(_clock_on_asyncio(run, runs))
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        for _ in range(runs):
            run()
        return time.process_time_ns() - cpu, time.perf_counter_ns() - wall


async def _clock_on_asyncio(run: Callable[[], Any], runs: int) -> tuple[int, int]:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(runs):
        await run()
    return time.process_time_ns() - cpu, time.perf_counter_ns() - wall


def serve(setup: Setup) -> None:
    """Answer the driver's requests until it closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the peer prints is not an answer
    _refuse_connections()
    telemetry = _turn_telemetry(setup, sys.argv[1])
    with asyncio.Runner() as runner:
        bench = Bench(setup, telemetry, runner)
        print(json.dumps({"version": setup.version}), file=answers)
        for line in sys.stdin:
            print(json.dumps(bench.measure(**json.loads(line))), file=answers)


def _turn_telemetry(setup: Setup, mode: str) -> Telemetry:
    if mode == "untraced":
        setup.turn_telemetry_off()
        return Telemetry()
    from tests.bench.peers import providers

    telemetry = providers.count() if mode == "counted" else providers.drop()
    setup.turn_telemetry_on()
    return telemetry


def _refuse_connections() -> None:
    """Make each attempt to use the network an error."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError("a worker of the benchmark has no network")

    socket.getaddrinfo = refuse
    socket.socket.connect = socket.socket.connect_ex = refuse  # type: ignore[method-assign]
