"""Programs of others, run for the time of some tests, and the agent they judge."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

import httpx
import pytest

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
_PAUSE = 0.05
_GIVEN_TO_NOBODY = range(20_000, 32_768)
"""Ports below those that systems choose from: a server that starts late, or again, still finds its own free."""
_SECONDS_TO_RUN = 120


def missing(reason: str) -> None:
    """Skip what asks, for a judge that is not here; in CI that is a failure."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def program(name: str, to_have_it: str) -> str:
    """Return the path of a program."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not here: {to_have_it}")
    return str(found)


def free_port() -> int:
    """Return a port of this machine's that nobody uses now, and that is given to nobody who asks for any."""
    for port in random.sample(_GIVEN_TO_NOBODY, 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("100 ports are taken")


def until(look: Callable[[], T | None], seconds: float, what: str, server: subprocess.Popen[bytes]) -> T:
    """Look again and again until something is there, and return it; not for longer than `server` runs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if found := look():
                return found
        except httpx.TransportError:
            pass  # nobody listens yet
        time.sleep(_PAUSE)
    ended = "" if server.poll() is None else f"; the server ended with {server.returncode}"
    raise AssertionError(f"in {seconds:g} seconds there was no {what}{ended}")


@contextmanager
def running(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in `folder` until the block ends; if that fails, show the end of what it logged."""
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(variables), stdin=subprocess.PIPE, stdout=output, stderr=output
        )
    with process:
        try:
            yield process
        except BaseException:
            print(log.read_text(errors="replace")[-4000:])
            raise
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment without what it says about telemetry, and with `variables`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PHOENIX_"))}
    return {**own, **(variables or {})}


class Agent:
    """A process that has run all agents and has sent what it had to send.

    Attributes:
        address: where its metrics are served, if they are.
        spans: what the SDK saw end.
    """

    def __init__(self, lines: Iterator[Mapping[str, Any]]) -> None:
        served, ran = next(lines, None), next(lines, None)
        assert served is not None
        assert ran is not None, "the agents' process has ended early"
        self.address: str = served["address"]
        self.spans: list[dict[str, Any]] = ran["spans"]

    @property
    def traces(self) -> set[str]:
        """The ids of all traces."""
        return {span["trace_id"] for span in self.spans}

    def of(self, operation: str) -> list[dict[str, Any]]:
        """Return the spans of one operation of the GenAI conventions."""
        return [span for span in self.spans if span["attributes"].get("gen_ai.operation.name") == operation]


@contextmanager
def agent(*arguments: str, **variables: str) -> Iterator[Agent]:
    """Have all agents run, in a process that stays until the block ends."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "error", "-m", "tests.judges.agent", *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=environment(variables), stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        given_up = Timer(_SECONDS_TO_RUN, process.kill)
        given_up.start()
        try:
            ran = Agent(map(json.loads, process.stdout))
        finally:
            given_up.cancel()
        yield ran
    assert process.returncode == 0
