"""What a trail stands on: whenever the process dies, every tool that started has its intent in the store."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.audit.trails import bodies, of_kind
from traced_tools.audit.verifying.walk import verify

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
KILLS = 300
LONGEST = {"birth": 0.05, "tool": 0.03}
"""Seconds a child lives at most: while it opens the store, and while it runs loops."""


class Killer:
    """Runs a process that forks children and kills them."""

    def __init__(self, store: Path, started: Path) -> None:
        command = [sys.executable, "-m", "tests.audit.crashing", str(store), str(started)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def kill_one(self, name: str, since: str, seconds: float) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{name} {since} {seconds}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "dead\n"

    def close(self) -> None:
        self._process.communicate(timeout=20)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


@pytest.fixture
def killer(store: Path) -> Iterator[Killer]:
    killer = Killer(store, store.with_name("started"))
    yield killer
    killer.close()


def intended(store: Path) -> set[str]:
    """The calls that have an intent on record, as another process sees them right now."""
    if not store.exists():
        return set()
    with closing(sqlite3.connect(store)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'audit_records'").fetchone():
            return set()
        return {row[0] for row in connection.execute("SELECT call_id FROM audit_records WHERE kind = 'intent'")}


@pytest.mark.slow
def test_each_tool_that_started_before_a_kill_has_its_intent(store: Path, killer: Killer) -> None:
    seed = random.randrange(2**32)
    chance, started = random.Random(seed), store.with_name("started")
    for number in range(KILLS):
        since = chance.choice(["birth", "tool", "tool"])
        killer.kill_one(f"{number}", since, chance.uniform(0, LONGEST[since]))
        calls = started.read_text().splitlines() if started.exists() else []
        assert {*calls} <= intended(store), f"kill {number} of seed {seed}"
    check_chains(store, seed)


def check_chains(store: Path, seed: int) -> None:
    """Fail unless all chains verify and the records of each call are plausible."""
    assert bodies(store), f"seed {seed}"
    found = verify(store)
    assert found.ok, f"{found.problem} of seed {seed}"
    finished = {record["call_id"] for record in of_kind(store, "outcome")}
    assert finished < intended(store)  # some died between the two
