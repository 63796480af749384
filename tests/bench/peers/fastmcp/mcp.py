"""Calls over MCP by FastMCP's client, and calls of tools that FastMCP serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import Client, __version__
from fastmcp.client.transports import StdioTransport

from tests.bench.peers.mcp_calls import Call, Target, serve_calls


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Call]:
    """Connect a client."""
    transport: Any = target if isinstance(target, str) else StdioTransport(target.command, target.args, cwd=".")
    async with Client(transport) as client:

        async def call(name: str, arguments: dict[str, Any]) -> str:
            content: Any = (await client.call_tool(name, arguments)).content
            text: str = content[0].text
            return text

        yield call


if __name__ == "__main__":
    serve_calls(__version__, "fastmcp", connect)
