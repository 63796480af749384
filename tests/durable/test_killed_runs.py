"""Wherever the process of a run is killed, other processes finish the run, and nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.audit.postgresql import OWNER, Server, serving
from tests.durable.killing import OVERTAKEN
from tests.durable.scenarios import MEMORIES, SCENARIOS, UNKNOWN

pytestmark = pytest.mark.slow
STEPS = 75
"""More steps than a run of the scenario `plain` has; one that ends before its step is not killed."""
STRIDE = 6
"""Each case has every sixth step of its run or fewer, and other ones than the same case on the other database."""
SEED = 36
WAITING = ("searching", "held", "asking", "waiting agents")
"""Scenarios whose runs pause, each with another reason to."""


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL for all tests of this module."""
    with serving() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return "sqlite"
    server: Server = request.getfixturevalue("postgresql")
    name = f"runs_{tmp_path.name}".replace("-", "_")[:60]
    with server.connect(OWNER) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return server.url(name)


def check_killed(folder: Path, url: str, name: str, memory: str, runs: list[str], mode: str = "drive") -> int:
    """Kill the lives of runs, one after the other, and check each run; return how many lives were killed."""
    command = [sys.executable, "-m", "tests.durable.killing", str(folder), url, name, memory, mode, "0", *runs]
    killing = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert killing.returncode == 0, killing.stderr
    uncut, *outcomes = map(json.loads, killing.stdout.splitlines())
    assert len(outcomes) == len(runs)
    for cuts, outcome in zip(runs, outcomes, strict=True):
        try:
            check(outcome, uncut, name)
        except AssertionError as problem:
            pytest.fail(f"killed at {cuts}: {problem}\n{outcome}", pytrace=False)
    return sum(outcome["deaths"] for outcome in outcomes)


def check(outcome: dict[str, Any], uncut: dict[str, Any], name: str) -> None:
    scenario, ledger = SCENARIOS[name], outcome["ledger"]
    began = Counter(line.removeprefix("began ") for line in ledger if line.startswith("began "))
    assert {call for call, times in began.items() if times > 1} <= scenario.repeatable, "a call begins twice"
    assert len(outcome["ends"]) == len(set(outcome["ends"])), "a call ends twice"
    recorded = 0
    for line in ledger:
        if line.startswith("ended with "):  # a life that was stopped may ask once more, before its next record
            break
        if line.startswith("recorded "):
            recorded = int(line.removeprefix("recorded "))
        if line.startswith("asked desk "):
            assert int(line.split()[2]) >= recorded, "a recorded answer is asked for again"
    again = {entry.split()[0] for entry, times in outcome["audited"].items() if times > 1}
    assert again <= scenario.repeatable | scenario.rounds, "an outcome is on record twice"
    assert set(outcome["continued"]) <= {0, OVERTAKEN}  # 0 before a life has begun, and after its end
    unknown = {call_id: text for call_id, text in outcome["read"].items() if text.startswith(UNKNOWN)}
    assert unknown.keys() <= set(outcome["starts"]), "an outcome is unknown, and its tool has not begun"
    assert outcome["read"] == {**uncut["read"], **unknown}
    assert ending(outcome) == ending(uncut)
    if not unknown:
        assert outcome["later"] == uncut["later"]


def ending(outcome: dict[str, Any]) -> str:
    return next(line for line in outcome["ledger"] if line.startswith("ended with "))


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_run_that_is_killed_ends_and_does_nothing_twice(tmp_path: Path, url: str, memory: str) -> None:
    random = Random(f"{SEED}{memory}")
    again = [",".join(str(random.randrange(1, 40)) for _ in range(3)) for _ in range(4)]
    at_times = [",".join(f"{random.uniform(1, 60):.3f}ms" for _ in range(3)) for _ in range(4)]
    runs = [*steps(url, STEPS, stride=2), *again, *at_times]
    assert check_killed(tmp_path, url, "plain", memory, runs, mode="both") >= 30


@pytest.mark.parametrize(("name", "memory"), [*zip(WAITING, [*MEMORIES, "inside"], strict=True)])
def test_what_a_run_waits_for_survives_a_kill_at_a_step(tmp_path: Path, url: str, name: str, memory: str) -> None:
    assert check_killed(tmp_path, url, name, memory, steps(url, 60, 2 * STRIDE)) >= 3


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_process_that_is_stopped_and_overtaken_does_nothing_twice(tmp_path: Path, url: str, memory: str) -> None:
    runs = [f"{step}stop" for step in steps(url, 60, 2 * STRIDE)]
    assert check_killed(tmp_path, url, "one by one", memory, runs) >= 2


def steps(url: str, most: int, stride: int) -> list[str]:
    """Return the numbers of the steps at which runs are killed."""
    return [str(step) for step in range(1 if url == "sqlite" else 1 + stride // 2, most, stride)]
