"""Serves two tools: by the server of the SDK (`sdk`) or by `serve` (`serve`), over stdio or at a port of this machine.

python -m tests.bench.echo_server (sdk | serve) [port]
"""

from __future__ import annotations

import os
import sys

from mcp.server.mcpserver import MCPServer

from traced_tools.mcp import serve


def echo(text: str) -> str:
    """Return the text."""
    return text


def process_id() -> str:
    """Return the id of this process."""
    return str(os.getpid())


def main(by: str, port: int | None) -> None:
    """Serve the tools until the client or a signal ends it."""
    if by == "serve":
        serve([echo, process_id], transport="stdio" if port is None else "http", port=port or 0)
        return
    server = MCPServer("bench", log_level="CRITICAL")
    for function in (echo, process_id):
        server.add_tool(function, structured_output=False)
    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", port=port)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
