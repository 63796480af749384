"""Wherever the process of a run is killed, other processes finish the run, and nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytestmark = pytest.mark.slow
CALLS = ("look-1", "post-1", "pay-1", "post-2", "post-3")
POINTS = (
    *(f"{when}-store-{number}" for number in range(1, 21) for when in ("before", "after")),
    *(f"in-{call}" for call in CALLS),
    *(f"in-model-{answers}" for answers in range(4)),
)
"""Where a process is killed: around each write to the log, in each tool, and in each call of the model."""
MEMORIES = ("none", "inside", "outside")


def outcomes(folder: Path, memory: str, *runs: str) -> list[dict[str, Any]]:
    """Kill the lives of runs at some points, one after the other, and return what ledgers say of the runs."""
    command = [sys.executable, "-m", "tests.durable.killing", str(folder), memory, *runs]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert killed.returncode == 0, killed.stderr
    return [json.loads(line) for line in killed.stdout.splitlines()]


def check(outcome: dict[str, Any]) -> None:
    began = Counter(line.removeprefix("began ") for line in outcome["ledger"] if line.startswith("began "))
    asked = [line for line in outcome["ledger"] if line.startswith("asked ")]
    assert outcome["ledger"][-1] == "finished done"
    assert {call for call, times in began.items() if times > 1} <= {"look-1"}  # the idempotent one
    assert len(asked) <= 4 + outcome["deaths"]  # what a death cut is asked again, and nothing that is recorded
    for call in CALLS:
        has_ended = f"ended {call}" in outcome["ledger"]
        assert outcome["read"][call] == f"{call} worked" or "it may have run" in outcome["read"][call]
        assert has_ended or "it may have run" in outcome["read"][call]


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_run_that_is_killed_once_ends_and_does_nothing_twice(tmp_path: Path, memory: str) -> None:
    for outcome in outcomes(tmp_path, memory, *POINTS):
        check(outcome)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_run_that_is_killed_again_and_again_ends_and_does_nothing_twice(tmp_path: Path, memory: str) -> None:
    runs = [",".join(Random(seed).choices(POINTS, k=4)) for seed in range(30)]
    for outcome in outcomes(tmp_path, memory, *runs):
        check(outcome)
