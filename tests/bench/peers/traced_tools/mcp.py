"""Calls over MCP by an `McpToolset`, and calls of tools that `serve` serves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.bench.peers.mcp_calls import Call, Target, serve_calls
from traced_tools import __version__
from traced_tools.mcp import McpToolset


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Call]:
    """Connect a toolset."""
    if isinstance(target, str):
        toolset = McpToolset.http(target, name="bench")
    else:
        toolset = McpToolset.stdio(target.command, *target.args, cwd=".", name="bench")
    async with toolset:
        tools: Any = {tool.definition.name: tool for tool in await toolset.tool_callbacks()}

        async def call(name: str, arguments: dict[str, Any]) -> str:
            text: str = await tools[name].acall(json.dumps(arguments))
            return text

        yield call


if __name__ == "__main__":
    serve_calls(__version__, "serve", connect)
