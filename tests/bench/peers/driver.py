"""Runs the workers of all peers in turns and returns what a pass costs with each.

Each peer has two workers, which are processes of the peer's environment: one without telemetry and one with. In each
round the peers take their turns in another order, and a worker measures all of its cases in one turn. The cost of a
pass is the slope between runs of different length, so that what a run costs once does not count. A third worker counts
the telemetry.
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
from itertools import pairwise, product
from typing import Any, NamedTuple, NoReturn

from tests.bench.peers.environments import ROOT
from tests.bench.peers.peers import Peer

MODES = ("untraced", "traced")
TOOLS = ("blocking", "async")
LENGTHS = (1, 10, 50)
"""Passes of a run."""
PASSES = 20
"""How many passes a measurement has at least: shorter runs are repeated."""
PASSED_ON = ("HOME", "LANG", "PATH", "SYSTEMROOT", "TMPDIR")
"""The environment variables that a worker inherits: neither keys nor settings of OpenTelemetry."""

EMITTED = ("spans", "records", "events")

Answer = dict[str, float]
Case = tuple[str, int]
"""A tool and a length."""


class WorkerFailed(Exception):
    """A worker ended before it answered."""


class Cost(NamedTuple):
    """Microseconds a pass: the slope between the fastest runs, and the median of the rounds' slopes."""

    best: float
    median: float


class Costs(NamedTuple):
    """The cost of a pass by both clocks."""

    cpu: Cost
    wall: Cost


class Measured(NamedTuple):
    """What was measured of a peer.

    Args:
        version: the peer's version.
        costs: by mode and tool, the costs of a pass between each length of a run and the next longer one.
        emitted: spans, metric records and log events of a pass.
    """

    version: str
    costs: dict[tuple[str, str], list[Costs]]
    emitted: dict[str, float]


class Worker:
    """A worker process.

    Args:
        command: what runs it, without the mode.
        mode: `untraced`, `traced` or `counted`.
        variables: environment variables that it has beside the inherited ones.
    """

    def __init__(self, command: Sequence[str], mode: str, variables: Mapping[str, str]) -> None:
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
        self.answers: dict[Case, list[Answer]] = {case: [] for case in product(TOOLS, LENGTHS)}
        try:
            self.version: str = self._read()["version"]
        except WorkerFailed:
            self.close()
            raise

    def take_turn(self) -> None:
        """Measure each case once."""
        for (tool, passes), answers in self.answers.items():
            assert self._process.stdin is not None
            runs = max(1, PASSES // passes)
            try:
                print(json.dumps({"tool": tool, "passes": passes, "runs": runs}), file=self._process.stdin, flush=True)
            except BrokenPipeError:
                self._fail()
            answers.append({name: value / runs for name, value in self._read().items()})

    def close(self) -> None:
        """End the process."""
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


def measure(commands: Mapping[Peer, Sequence[str]], rounds: int) -> dict[Peer, Measured | str]:
    """Return what was measured of each peer, or why its workers could not do it.

    Args:
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
                for mode in MODES:
                    workers[peer][mode] = Worker(command, mode, peer.variables)
        for turn in range(rounds):
            running = [peer for peer in workers if peer not in results]
            if not running:
                break
            print(f"round {turn + 1} of {rounds}", file=sys.stderr)
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
                    pair["traced"].version,
                    {(mode, tool): _costs(pair[mode].answers, tool) for mode in MODES for tool in TOOLS},
                    _emitted(commands[peer], peer),
                )
    return {peer: results[peer] for peer in commands}


@contextmanager
def _failing(peer: Peer, results: dict[Peer, Measured | str]) -> Iterator[None]:
    try:
        yield
    except WorkerFailed as failed:
        results[peer] = str(failed)


def _emitted(command: Sequence[str], peer: Peer) -> dict[str, float]:
    worker = Worker(command, "counted", peer.variables)
    try:
        worker.take_turn()
    finally:
        worker.close()
    _, shorter, longer = (worker.answers["blocking", length][0] for length in LENGTHS)
    return {name: (longer[name] - shorter[name]) / (LENGTHS[2] - LENGTHS[1]) for name in EMITTED}


def _costs(answers: dict[Case, list[Answer]], tool: str) -> list[Costs]:
    return [
        Costs(
            *(
                slope(
                    [answer[clock] for answer in answers[tool, shorter]],
                    [answer[clock] for answer in answers[tool, longer]],
                    longer - shorter,
                )
                for clock in ("cpu_ns", "wall_ns")
            )
        )
        for shorter, longer in pairwise(LENGTHS)
    ]


def slope(shorter: Sequence[float], longer: Sequence[float], passes: int) -> Cost:
    """Return the microseconds a pass, from the nanoseconds of runs in each round.

    The best is the slope between the fastest runs. The smallest of the slopes would be that of the round that disturbed
    the shorter run most.
    """
    slopes = [many - few for few, many in zip(shorter, longer, strict=True)]
    return Cost((min(longer) - min(shorter)) / passes / 1000, statistics.median(slopes) / passes / 1000)
