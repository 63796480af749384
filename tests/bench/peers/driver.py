"""Runs the workers of all peers in turns and returns what a workload costs with each.

Each peer has a worker for each mode of the workload, which is a process of the peer's environment: for the loop, one
without telemetry and one with. In each round the peers take their turns in another order, and a worker measures all of
its cases in one turn. The cost of a pass is the slope between runs of different length, so that what a run costs once
does not count. A further worker counts the telemetry of the loop.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple, NoReturn

from tests.bench.peers.environments import ROOT
from tests.bench.peers.peers import Peer
from tests.bench.peers.workloads import LOOP, Workload

PASSED_ON = ("HOME", "LANG", "PATH", "SYSTEMROOT", "TMPDIR")
"""The environment variables that a worker inherits: neither keys nor settings of OpenTelemetry."""

EMITTED = ("spans", "records", "events")

Answer = dict[str, float]
Case = tuple[str, int]
"""A case of a workload and a size."""


class WorkerFailed(Exception):
    """A worker ended before it answered."""


class Cost(NamedTuple):
    """Microseconds a unit of the workload, such as a pass: of the fastest runs, and the median of the rounds."""

    best: float
    median: float


class Costs(NamedTuple):
    """The cost by both clocks."""

    cpu: Cost
    wall: Cost


class Measured(NamedTuple):
    """What was measured of a peer.

    Args:
        version: the peer's version.
        costs: by mode and case, the costs for each step of the workload.
        emitted: spans, metric records and log events of a pass of the loop.
    """

    version: str
    costs: dict[tuple[str, str], list[Costs]]
    emitted: dict[str, float]


class Worker:
    """A worker process.

    Args:
        command: what runs it, without the mode.
        mode: `untraced`, `traced` or `counted`.
        workload: what it measures.
        variables: environment variables that it has beside the inherited ones.
    """

    def __init__(self, command: Sequence[str], mode: str, workload: Workload, variables: Mapping[str, str]) -> None:
        inherited = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed in `close`
        self._process = subprocess.Popen(
            [*command, mode],
            cwd=ROOT,
            env={**inherited, "PYTHONHASHSEED": "0", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._workload = workload
        self.answers: dict[Case, list[Answer]] = {case: [] for case in product(workload.cases, workload.sizes)}
        try:
            self.version: str = self._read()["version"]
        except WorkerFailed:
            self.close()
            raise

    def take_turn(self) -> None:
        """Measure each case once."""
        for (case, size), answers in self.answers.items():
            assert self._process.stdin is not None
            runs = self._workload.runs(size)
            request = {"case": case, "size": size, "runs": runs, "units": runs * size * self._workload.units}
            try:
                print(json.dumps(request), file=self._process.stdin, flush=True)
            except BrokenPipeError:
                self._fail()
            answers.append({name: value / runs for name, value in self._read().items()})

    def close(self) -> None:
        """End the process: it stops its servers and removes its files if the pipe is closed."""
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline() or self._fail()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _fail(self) -> NoReturn:
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        raise WorkerFailed(said[-1] if said else f"its worker ended with exit status {self._process.returncode}")


def measure(workload: Workload, commands: Mapping[Peer, Sequence[str]], rounds: int) -> dict[Peer, Measured | str]:
    """Return what was measured of each peer, or why its workers could not do it.

    Args:
        workload: what is measured.
        commands: what runs a worker of each peer, without the mode.
        rounds: how often each worker measures each case.
    """
    results: dict[Peer, Measured | str] = {}
    workers: dict[Peer, dict[str, Worker]] = {}
    turns = random.Random(0)
    try:
        for peer, command in commands.items():
            workers[peer] = {}
            with _failing(peer, results):
                for mode in workload.modes:
                    workers[peer][mode] = Worker(command, mode, workload, peer.variables)
        for turn in range(rounds):
            running = [peer for peer in workers if peer not in results]
            if not running:
                break
            print(f"{workload.name}: round {turn + 1} of {rounds}", file=sys.stderr)
            for peer in turns.sample(running, len(running)):
                with _failing(peer, results):
                    for worker in workers[peer].values():
                        worker.take_turn()
    finally:
        for worker in [each for pair in workers.values() for each in pair.values()]:
            worker.close()
    for peer, pair in workers.items():
        if peer not in results:
            with _failing(peer, results):
                results[peer] = Measured(
                    pair[workload.modes[-1]].version,
                    {(mode, case): _costs(workload, pair[mode].answers, case) for mode, case in workload.columns},
                    _emitted(commands[peer], peer) if workload is LOOP else {},
                )
    return {peer: results[peer] for peer in commands}


@contextmanager
def _failing(peer: Peer, results: dict[Peer, Measured | str]) -> Iterator[None]:
    try:
        yield
    except WorkerFailed as failed:
        results[peer] = str(failed)


def _emitted(command: Sequence[str], peer: Peer) -> dict[str, float]:
    worker = Worker(command, "counted", LOOP, peer.variables)
    try:
        worker.take_turn()
    finally:
        worker.close()
    _, (shorter, longer) = LOOP.steps
    few, many = (worker.answers["blocking", size][0] for size in (shorter, longer))
    return {name: (many[name] - few[name]) / (longer - shorter) for name in EMITTED}


def _costs(workload: Workload, answers: dict[Case, list[Answer]], case: str) -> list[Costs]:
    def cost(clock: str, step: tuple[int, ...]) -> Cost:
        *shorter, longer = ([answer[clock] for answer in answers[case, size]] for size in step)
        if not shorter:
            return _cost(longer, step[0] * workload.units)
        return slope(shorter[0], longer, (step[1] - step[0]) * workload.units)

    return [Costs(cost("cpu_ns", step), cost("wall_ns", step)) for step in workload.steps]


def _cost(runs: Sequence[float], units: int) -> Cost:
    return Cost(min(runs) / units / 1000, statistics.median(runs) / units / 1000)


def slope(shorter: Sequence[float], longer: Sequence[float], units: int) -> Cost:
    """Return the microseconds a unit, from the nanoseconds of runs in each round.

    The best is the slope between the fastest runs. The smallest of the slopes would be that of the round that disturbed
    the shorter run most.
    """
    slopes = [many - few for few, many in zip(shorter, longer, strict=True)]
    return Cost((min(longer) - min(shorter)) / units / 1000, statistics.median(slopes) / units / 1000)
