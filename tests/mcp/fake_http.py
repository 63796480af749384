"""An MCP server over HTTP, in this process, whose replies a test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from traced_tools.mcp import McpToolset
from traced_tools.testing import Received, ReplayServer, Reply

ECHO: dict[str, Any] = {"name": "echo", "description": "Echoes.", "inputSchema": {"type": "object", "properties": {}}}


class FakeHttp:
    """A server with one session, `s-1`, in the handshake era.

    Args:
        list_changed: whether it says that it reports changes of its tools.
        modern: whether it speaks the newer era instead.

    Attributes:
        listed: the result of `tools/list`, or a function that returns it for a cursor.
        replies: functions that reply to a method of the protocol, or to `DELETE`, instead of the usual reply.
    """

    def __init__(self, *, list_changed: bool = False, modern: bool = False) -> None:
        self._capabilities = {"tools": {"listChanged": list_changed}}
        self._modern = modern
        self.listed: Any = {"tools": [ECHO]}
        self.replies: dict[str, Callable[[Received], Reply]] = {}
        self.server = ReplayServer(self._reply)

    @property
    def url(self) -> str:
        return f"{self.server.url}/mcp"

    def tools(self, **options: Any) -> McpToolset:
        """Return the tools of the server."""
        return McpToolset.http(self.url, **{"name": "fake", "timeout": 30, **options})

    def sent(self, method: str) -> list[Received]:
        """Return the requests of a method of the protocol."""
        return [each for each in self.server.requests if each.body and each.json()["method"] == method]

    def _reply(self, request: Received) -> Reply:
        message = request.json() if request.body else {"method": request.method}
        if message["method"] in self.replies:
            return self.replies[message["method"]](request)
        if "id" not in message:
            return Reply(b"", 405 if request.method == "GET" else 202)
        answer = {"jsonrpc": "2.0", "id": message["id"], **self._answer(message)}
        return Reply.json(answer, headers={"Mcp-Session-Id": "s-1"} if message["method"] == "initialize" else {})

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        match message["method"]:
            case "initialize" if not self._modern:
                information = {"name": "fake", "version": "1"}
                found = {"protocolVersion": "2025-06-18", "capabilities": self._capabilities, "serverInfo": information}
            case "server/discover" if self._modern:
                found = {"supportedVersions": ["2026-07-28"], "capabilities": self._capabilities}
                found |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            case "tools/list":
                cursor = message.get("params", {}).get("cursor")
                found = self.listed(cursor) if callable(self.listed) else self.listed
            case "tools/call":
                found = {"content": [{"type": "text", "text": "fine"}]}
            case _:
                return {"error": {"code": -32601, "message": "no"}}
        return {"result": found}


@contextmanager
def faking(**options: Any) -> Iterator[FakeHttp]:
    """Run a server for a block."""
    fake = FakeHttp(**options)
    with fake.server:
        yield fake
