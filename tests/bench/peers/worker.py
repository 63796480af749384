"""What a worker of the benchmark does: it runs a workload of one peer and answers what the runs used.

A worker is a process of its own, run by the Python of the peer's environment:

    python -m tests.bench.peers.<peer>.<workload> untraced|traced|counted

It first writes the version of the peer, then an answer to each request. Requests and answers are lines of JSON:

    -> {"case": "async", "size": 50, "runs": 1, "units": 50}
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

QUESTION = "What is 41 + 1?"
ANSWER = "42"
LOOPBACK = "127.0.0.1"
INPUT_TOKENS, OUTPUT_TOKENS = 812, 93
_units = 0
"""How many units of its workload this process has done, such as passes of the loop."""


def count(units: int = 1) -> None:
    """Count units of the workload that were done, so that a run that does less is an error."""
    global _units
    _units += units


def add(a: int, b: int) -> int:
    """Add two numbers."""
    count()
    return a + b


async def async_add(a: int, b: int) -> int:
    """Add two numbers."""
    count()
    return a + b


async_add.__name__ = "add"  # a scripted model calls either tool by this name


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Run:
    """A run whose CPU time is that of another process.

    Args:
        function: performs the run; it may be a coroutine function.
        cpu_ns: returns the nanoseconds of CPU time until now.
    """

    function: Callable[[], Any]
    cpu_ns: Callable[[], int] = time.process_time_ns


Maker = Callable[[int], "Callable[[], Any] | Run"]
"""Takes a size, such as a number of passes, and returns what performs one run."""


@dataclass(frozen=True)
class Setup:
    """A peer as a worker runs it.

    Args:
        version: the peer's version.
        makers: what makes the runs of each case. A run calls `count` for each unit that it does, as `add` does.
        turn_telemetry_on: is called once, after the global OpenTelemetry providers are set.
        turn_telemetry_off: is called once in an untraced worker, which has no providers.
    """

    version: str
    makers: Mapping[str, Maker]
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
    """Measures runs of each case.

    Args:
        setup: the peer.
        telemetry: the SDK that the peer emits with.
        runner: the event loop of all runs on asyncio.
    """

    def __init__(self, setup: Setup, telemetry: Telemetry, runner: asyncio.Runner) -> None:
        self._makers = setup.makers
        self._telemetry = telemetry
        self._runner = runner
        self._run = cache(self._warm_run)

    def measure(self, case: str, size: int, runs: int, units: int) -> dict[str, int]:
        """Return the nanoseconds of CPU time and of wall time that the runs take, and what they emit."""
        run = self._run(case, size, runs)
        self._telemetry.flush()
        gc.collect()
        before, emitted = _units, self._telemetry.counts()
        cpu, wall = self._clock(run, runs)
        if (done := _units - before) != units:
            raise RuntimeError(f"{runs} runs of size {size} did {done} of {units} units")
        counted = {name: count - emitted[name] for name, count in self._telemetry.counts().items()}
        return {"cpu_ns": cpu, "wall_ns": wall, **counted}

    def _warm_run(self, case: str, size: int, runs: int) -> Run:
        gc.enable()
        maker = self._makers[case](size)
        run = maker if isinstance(maker, Run) else Run(maker)
        self._clock(run, runs)
        gc.collect()
        gc.freeze()
        gc.disable()
        return run

    def _clock(self, run: Run, runs: int) -> tuple[int, int]:
        if inspect.iscoroutinefunction(run.function):
            return self._runner.run(_clock_on_asyncio(run, runs))
        wall, cpu = time.perf_counter_ns(), run.cpu_ns()
        for _ in range(runs):
            run.function()
        return run.cpu_ns() - cpu, time.perf_counter_ns() - wall


async def _clock_on_asyncio(run: Run, runs: int) -> tuple[int, int]:
    wall, cpu = time.perf_counter_ns(), run.cpu_ns()
    for _ in range(runs):
        await run.function()
    return run.cpu_ns() - cpu, time.perf_counter_ns() - wall


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
    """Make each attempt to reach another machine an error."""

    def refusing(function: Callable[..., Any], place: int) -> Callable[..., Any]:
        def connect(*arguments: Any, **options: Any) -> Any:
            address = arguments[place]
            if (address[0] if isinstance(address, tuple) else address) != LOOPBACK:
                raise PermissionError("a worker of the benchmark has no network")
            return function(*arguments, **options)

        return connect

    socket.getaddrinfo = refusing(socket.getaddrinfo, 0)
    socket.socket.connect = refusing(socket.socket.connect, 1)  # type: ignore[method-assign]
    socket.socket.connect_ex = refusing(socket.socket.connect_ex, 1)  # type: ignore[method-assign]
