"""Serves tools to MCP clients in tests: over HTTP in this process, and over stdio as a program."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestFormParams, ElicitResult

from tests.waiting import PATIENCE, patiently
from traced_tools.audit import AuditReader
from traced_tools.audit.reading.reader import AuditedCall
from traced_tools.mcp import McpApp, McpServer

T = TypeVar("T")
SERVED = str(Path(__file__).parent / "served.py")
in_each_era = pytest.mark.parametrize("era", ["modern", "handshake"])


@contextmanager
def listening(app: Any, listener: socket.socket | None = None) -> Iterator[str]:
    """Serve an ASGI application until the block ends, on a free port by default, and return its URL with `/mcp`."""
    listener = listener or socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=[[listener]])
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
    assert not thread.is_alive()


@contextmanager
def serving_http(tools: object, *, app: Mapping[str, Any] | None = None, **settings: Any) -> Iterator[str]:
    """Serve tools over HTTP, and return the URL."""
    with listening(McpApp(McpServer(tools, **settings), **(app or {}))) as url:
        yield url


def client_of(server: Any, era: str, **options: Any) -> Client:
    """Return a client of the SDK that speaks one era: to a URL, or to the program in `served.py` with an argument."""
    if isinstance(server, str) and not server.startswith("http"):
        server = StdioServerParameters(command=sys.executable, args=[SERVED, server])
    return Client(server, mode="legacy" if era == "handshake" else "auto", **options)


def talk(
    server: Any, era: str, what: Callable[[Client], Awaitable[T]], *, token: str | None = None, **options: Any
) -> T:
    """Do something with a client of the SDK, which may send a token, and return the result."""

    async def talking() -> T:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
            target = server if token is None else streamable_http_client(server, http_client=http)
            async with client_of(target, era, **options) as client:
                return await what(client)

    return asyncio.run(patiently(talking()))


def calling(server: Any, era: str, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    """Call a tool once, and return its result."""
    return talk(server, era, lambda client: client.call_tool(tool, arguments or {}), **options)


class User:
    """The user of a client: answers elicitations, and keeps what was asked.

    Args:
        action: what the user does.
        content: what the user enters.
    """

    def __init__(self, action: Any = "accept", content: Any = None) -> None:
        self.action = action
        self.content = {"approve": True} if content is None and action == "accept" else content
        self.asked: list[ElicitRequestFormParams] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params)
        return ElicitResult(action=self.action, content=self.content)


def text_of(result: Any) -> str:
    """The first text of a result."""
    found: str = result.content[0].text
    return found


def audited(path: Path) -> list[AuditedCall]:
    """The calls of an audit trail, the first one first."""
    return sorted(AuditReader(path).calls(), key=lambda call: call.run_id)


def decision_of(call: AuditedCall) -> str | None:
    """The recorded decision about a call."""
    found: str | None = call.fields("decision").get("decision")
    return found
