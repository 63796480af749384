"""Runs `traced-tools mcp proxy` for tests, as a client that is written by hand sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE, in_time

SERVER = str(Path(__file__).parent / "proxied_server.py")
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "me"}}


class Proxied:
    """A gateway and the server behind it.

    Args:
        process: the process of the gateway.
        ledger: the file with the lines that the server has got.
    """

    def __init__(self, process: subprocess.Popen[bytes], ledger: Path) -> None:
        self.process = process
        self.ledger = ledger

    def send(self, *lines: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(line + b"\n" for line in lines))
        self.process.stdin.flush()

    def ask(self, number: Any, method: str, **params: Any) -> None:
        """Send a request."""
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())

    def call(self, number: Any, name: str, text: str = "", **params: Any) -> None:
        """Send a call of a tool."""
        self.ask(number, "tools/call", name=name, arguments={"text": text}, **params)

    def line(self) -> bytes:
        """Return the next line for the client."""
        assert self.process.stdout is not None
        return in_time(self.process.stdout.readline)

    def message(self) -> dict[str, Any]:
        """Return the next message for the client."""
        message: dict[str, Any] = json.loads(self.line())
        return message

    def begin(self, **client: Any) -> None:
        """Begin a session."""
        self.ask("begin", "initialize", **{**CLIENT, **client})
        assert self.message()["result"]["serverInfo"]["name"] == "proxied"
        self.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

    def lines(self) -> list[bytes]:
        """Return the lines that the server has got."""
        return self.ledger.read_bytes().splitlines()

    def calls(self) -> list[dict[str, Any]]:
        """Return the parameters of the calls that the server has got."""
        messages = [json.loads(line) for line in self.lines()]
        return [message["params"] for message in messages if message.get("method") == "tools/call"]

    def leave(self) -> int:
        """Close the input of the gateway, and return its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@contextmanager
def proxied(
    folder: Path,
    *options: str,
    server: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    stderr: int | None = None,
) -> Iterator[Proxied]:
    """Run the gateway, with options, before the server with arguments."""
    ledger = folder / "ledger"
    ledger.touch()
    command = [sys.executable, "-m", "traced_tools", "mcp", "proxy", *options, "--", sys.executable, SERVER]
    with subprocess.Popen(
        [*command, str(ledger), *server],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, **(env or {})},
    ) as process:
        try:
            yield Proxied(process, ledger)
        finally:
            process.kill()
            with suppress(OSError):  # what the gateway has not read
                process.stdin.close()  # type: ignore[union-attr]
