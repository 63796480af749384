"""An MCP server on the SDK, which speaks both eras: over stdio, or with a port as its argument over HTTP."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TTL = int(os.environ.get("TTL_MS", "0"))
server = MCPServer("tests", log_level="CRITICAL", cache_hints={"tools/list": CacheHint(ttl_ms=TTL)} if TTL else None)


def touch(path: str) -> None:
    Path(path).touch()


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(structured_output=False)
def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool()
def fail(text: str) -> str:
    """Fail with the text."""
    raise ToolError(text)


@server.tool(structured_output=False)
def refuse(text: str) -> str:
    """Refuse the request with the text."""
    raise MCPError(-32050, text, data={"quoted": text})


@server.tool(structured_output=False)
def parts() -> Any:
    """Return content of each kind."""
    image = base64.b64encode(PIXEL).decode()
    return CallToolResult(
        content=[
            TextContent(text="a text"),
            ImageContent(data=image, mime_type="image/png"),
            AudioContent(data=base64.b64encode(b"sound").decode(), mime_type="audio/wav"),
            ResourceLink(name="notes", uri="file:///notes.txt", mime_type="text/plain"),
            EmbeddedResource(resource=TextResourceContents(uri="file:///a.txt", text="inside", mime_type="text/plain")),
        ],
    )


@server.tool(structured_output=False)
def large(megabytes: int) -> str:
    """Return a large text."""
    return "x" * (megabytes * 1024 * 1024)


@server.tool(structured_output=False)
async def meta(ctx: Context) -> str:
    """Return the keys and values of `_meta` that are not the protocol's own."""
    found = dict(ctx.request_context.meta or {})
    return repr({key: value for key, value in sorted(found.items()) if "/" not in key})


@server.tool(structured_output=False)
async def hang(path: str) -> str:
    """Write the file when the call is cancelled."""
    try:
        touch(f"{path}.began")
        await asyncio.sleep(600)
    except BaseException:
        touch(path)
        raise
    return "done"


@server.tool(structured_output=False)
async def count(to: int, ctx: Context) -> str:
    """Count, and report each number."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"counted {number}")
    return "counted"


@server.tool(structured_output=False)
async def tick(ctx: Context) -> str:
    """Report that the call goes on, for ever."""
    for number in range(10_000):
        await ctx.report_progress(number)
        await asyncio.sleep(0.05)
    return "done"


@server.tool(structured_output=False)
async def grow(ctx: Context) -> str:
    """Add the tool `grown`, and report it."""
    server.add_tool(echo, name="grown")
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.tool(structured_output=False)
def process_id() -> str:
    """Return the id of this process."""
    return str(os.getpid())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
