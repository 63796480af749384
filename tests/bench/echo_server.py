"""Serves two tools: by the SDK (`sdk`), FastMCP (`fastmcp`) or `serve` (`serve`), over stdio or at a port.

    python -m tests.bench.echo_server (sdk | fastmcp | serve) [port]

A server at a port ends when its standard input does.
"""

from __future__ import annotations

import os
import sys

from tests.bench.peers.servers import end_with_parent


def echo(text: str) -> str:
    """Return the text."""
    return text


def process_id() -> str:
    """Return the id of this process."""
    return str(os.getpid())


TOOLS = (echo, process_id)


def serve_by_sdk(port: int | None) -> None:
    """Serve the tools by the server of the SDK."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("bench", log_level="CRITICAL")
    for function in TOOLS:
        server.add_tool(function, structured_output=False)
    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", port=port)


def serve_by_fastmcp(port: int | None) -> None:
    """Serve the tools by FastMCP."""
    from fastmcp import FastMCP

    server = FastMCP("bench")
    for function in TOOLS:
        server.tool(function, output_schema=None)
    if port is None:
        server.run("stdio", show_banner=False)
    else:
        server.run("http", show_banner=False, port=port, log_level="CRITICAL")


def serve_by_traced_tools(port: int | None) -> None:
    """Serve the tools by `serve`."""
    from traced_tools.mcp import serve

    serve([*TOOLS], transport="stdio" if port is None else "http", port=port or 0)


SERVERS = {"sdk": serve_by_sdk, "fastmcp": serve_by_fastmcp, "serve": serve_by_traced_tools}

if __name__ == "__main__":
    by, *ports = sys.argv[1:]
    if ports:
        end_with_parent()
    SERVERS[by](int(ports[0]) if ports else None)
