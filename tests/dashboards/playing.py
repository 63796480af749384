"""Processes that play the scenario, for the time of some tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any

from tests.judges.programs import ROOT, environment

_SECONDS_TO_PLAY = 120


class Player:
    """A process that plays the scenario.

    Attributes:
        address: where its metrics are served.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address: str = self._read()["address"]

    def begin(self) -> None:
        """Have the process play."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def traces(self) -> set[str]:
        """Wait until the process has played, and return the ids of the traces that ended."""
        return set(self._read()["traces"])

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended early"
        return json.loads(line)


@contextmanager
def playing(
    setup: str,
    variables: Mapping[str, str],
    *,
    python: Sequence[str] = (sys.executable, "-W", "error"),
    otlp: str | None = None,
    rounds: int = 4,
    rate: float = 30,
) -> Iterator[Player]:
    """Start a process that plays rounds of the scenario; it serves until the block ends.

    Args:
        setup: who sets OpenTelemetry up.
        variables: for its environment.
        python: the command that runs Python.
        otlp: the URL of a collector.
        rounds: how often each outcome occurs, at least.
        rate: runs per second.
    """
    command = [*python, "-m", "tests.dashboards.player", f"--setup={setup}", f"--rounds={rounds}", f"--rate={rate}"]
    if otlp is not None:
        command.append(f"--otlp={otlp}")
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment({"PYTHONPATH": str(ROOT), **variables}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        given_up = Timer(_SECONDS_TO_PLAY, process.kill)
        given_up.start()
        try:
            yield Player(process)
        finally:
            given_up.cancel()
    assert process.returncode == 0
