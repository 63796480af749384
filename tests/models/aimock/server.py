"""aimock, a server of someone else's that speaks the wire formats of many providers and fails on command.

`tests/npm` pins it, and `make test` installs it there when npm is at hand. Its APIs and how to set its
answers: https://aimock.copilotkit.dev/docs. Its journal holds each request as chat completions, whoever's it was.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import httpx

KEY = "the-key-aimock-asks-for"
_PROGRAM = Path(__file__).parents[2] / "npm/node_modules/@copilotkit/aimock/dist/cli.js"
_ENDS_WITH_ITS_INPUT = 'data:text/javascript,process.stdin.on("end",()=>process.exit()).resume()'
"""Ends Node when we do, however that comes about, and whatever launcher stands between."""

_SECONDS_TO_START = 60


class NotHere(Exception):
    """There is no Node, or no aimock; the text says what to do."""


class Aimock:
    """A running server.

    Args:
        control: leads to the server and holds the key.
    """

    def __init__(self, control: httpx.Client) -> None:
        self._control = control
        self.address = str(control.base_url).rstrip("/")

    def serve(self, *fixtures: Mapping[str, Any]) -> None:
        """Answer each request as the first fixture that matches it says, and forget all that was before."""
        self._ask("POST", "reset")
        self._ask("POST", "fixtures", {"fixtures": fixtures})

    def fail_next(self, status: int) -> None:
        """Refuse the next request."""
        self._ask("POST", "error", {"status": status})

    def fail(self, **chaos: float) -> None:
        """Do to all requests what `chaos` says, until other fixtures are served."""
        self._ask("POST", "chaos", chaos)

    @property
    def journal(self) -> list[dict[str, Any]]:
        """What has been asked, and how it was answered."""
        found: list[dict[str, Any]] = self._ask("GET", "journal")
        return found

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The body of each request, as chat completions."""
        return [entry["body"] for entry in self.journal]

    @property
    def statuses(self) -> list[int]:
        """The status of each answer; 0 where the connection was closed without one."""
        return [entry["response"]["status"] for entry in self.journal]

    def _ask(self, method: str, what: str, body: Any = None) -> Any:
        answer = self._control.request(method, f"/__aimock/{what}", json=body)
        assert answer.is_success, answer.text
        return answer.json()


def calls_in(request: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return name and arguments of each call in the conversation that a request holds."""
    calls = [call["function"] for message in request["messages"] for call in message.get("tool_calls") or ()]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


def said_in(request: Mapping[str, Any], role: str) -> list[Any]:
    """Return what `role` says in the conversation that a request holds."""
    return [message["content"] for message in request["messages"] if message["role"] == role]


@contextmanager
def running(folder: Path) -> Iterator[Aimock]:
    """Run aimock on a free port of this machine; `folder` is an empty one. Raises `NotHere`."""
    node = shutil.which("node")
    if node is None or not _PROGRAM.is_file():
        raise NotHere("aimock is not here: it takes Node 20.15 or newer, and npm ci --prefix tests/npm")
    command = [node, "--import", _ENDS_WITH_ITS_INPUT, str(_PROGRAM), "--port", "0", "--fixtures", str(folder)]
    environment = {**os.environ, "AIMOCK_API_KEYS": KEY}
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=nowhere, text=True) as process:
        with httpx.Client(base_url=_address(process), headers={"Authorization": f"Bearer {KEY}"}) as control:
            yield Aimock(control)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    given_up = Timer(_SECONDS_TO_START, process.stdin.close)
    given_up.start()
    try:
        for line in process.stdout:
            if found := re.search(r"listening on (http://\S+)", line):
                return found[1]
    finally:
        given_up.cancel()
    raise NotHere("aimock does not start: is this Node 20.15 or newer?")
