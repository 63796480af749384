"""Starts MCP servers for tests, and sees what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.judges.programs import free_port
from tests.waiting import until
from traced_tools.mcp import McpToolset, session
from traced_tools.mcp.connection import Connection
from traced_tools.tools import tool_callbacks
from traced_tools.tools.callback import FunctionToolCallback

in_each_mode_and_era = pytest.mark.parametrize(
    ("mode", "era"), [("call", "modern"), ("astream", "handshake")], indirect=["era"]
)
"""Runs a test in two modes, each with another era. `tests/mcp/test_runs.py` has all modes in both eras."""
HERE = Path(__file__).parent
SERVER, RAW, ASKING, FASTMCP = (
    str(HERE / f"{name}.py") for name in ("server", "raw_server", "asking_server", "fastmcp_server")
)


def sdk_server(**options: Any) -> McpToolset:
    """Return the tools of the server on the SDK, over stdio."""
    return McpToolset.stdio(sys.executable, SERVER, **{"name": "tests", "timeout": 30, **options})


def raw_server(*args: str, **options: Any) -> McpToolset:
    """Return the tools of the server that is written by hand."""
    return McpToolset.stdio(sys.executable, RAW, *args, **{"name": "raw", "timeout": 30, **options})


class HttpServer:
    """A server as a process at a port of this machine; by default the one on the SDK."""

    def __init__(self, program: str = SERVER) -> None:
        self._program = program
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, self._program, str(self.port)], stderr=subprocess.DEVNULL)
        until(self._answers)

    def _answers(self) -> bool:
        try:
            httpx.get(self.url, timeout=1)
        except httpx.TransportError:
            return False
        return True

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def tools(self, **options: Any) -> McpToolset:
        """Return the tools of the server."""
        return McpToolset.http(self.url, **{"name": "tests", "timeout": 30, **options})


@contextmanager
def serving(program: str = SERVER) -> Iterator[HttpServer]:
    """Run a server over HTTP for a block."""
    server = HttpServer(program)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Handshakes(dict[tuple[str, ...], Any]):
    """What a process remembers that has met only servers of the older era."""

    def pop(self, key: tuple[str, ...], default: Any = None) -> Any:
        return "handshake"


def speak(era: str, patch: pytest.MonkeyPatch) -> None:
    """Have clients speak with the server on the SDK in one of its two eras."""
    patch.setattr(session, "_eras", Handshakes() if era == "handshake" else {})


def tools_of(toolset: McpToolset) -> dict[str, FunctionToolCallback]:
    """Return the tools of an open toolset by name."""
    found: dict[str, Any] = {tool.definition.name: tool for tool in tool_callbacks(toolset)}
    return found


def connection_of(toolset: McpToolset) -> Connection:
    """Return the background connection of an open toolset to its only server."""
    (server,) = toolset._servers
    return toolset._offers._background.connection(server)


def is_alive(process_id: int) -> bool:
    """Return whether a process exists, and has not ended."""
    try:
        os.kill(process_id, 0)
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
