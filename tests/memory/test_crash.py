"""Whenever a process is killed, the log has whole appends, and all of those that have returned."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from tests.memory.crashing import ENTRIES
from tests.memory.made import said, texts
from traced_tools.memory import SqlChatMemoryRepository

KILLS = 20
LONGEST = 0.002
"""Seconds after an append has returned until its process is killed; the next append takes about as long."""


@pytest.mark.slow
def test_a_killed_process_leaves_whole_appends_and_all_that_returned(url: str) -> None:
    chance = random.Random(7)
    for _ in range(KILLS):
        command = [sys.executable, "-m", "tests.memory.crashing", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            returned = [int(process.stdout.readline())]
            deadline = time.monotonic() + chance.random() * 0.02
            while time.monotonic() < deadline:
                returned.append(int(process.stdout.readline()))
            moment = time.perf_counter() + chance.random() * LONGEST
            while time.perf_counter() < moment:  # otherwise, each process would die at the beginning of an append
                pass
            process.kill()
            returned += [int(line) for line in process.stdout if line.endswith("\n")]
        with SqlChatMemoryRepository(url) as repository:
            log = repository.read("c")
            assert log.version % ENTRIES == 0
            assert log.version // ENTRIES > returned[-1]
            expected = [f"{place // ENTRIES}.{place % ENTRIES}" * 100 for place in range(log.version)]
            assert texts(log) == expected
    with SqlChatMemoryRepository(url) as repository:
        assert repository.append("c", [said("after")], log.version) == log.version + 1
