"""An MCP server with 70 tools, over stdio, or with a port as its argument over HTTP."""

from __future__ import annotations

import sys
from itertools import product

from mcp.server.mcpserver import MCPServer

COLOURS = ("amber", "black", "crimson", "green", "indigo", "olive", "white")
THINGS = ("barn", "bench", "bridge", "ceiling", "door", "fence", "ladder", "roof", "shutter", "wall")
server = MCPServer("paint", log_level="CRITICAL")


def add(colour: str, thing: str) -> None:
    def paint(coats: int = 1) -> str:
        return f"{colour} {thing}, {coats} coats"

    server.add_tool(paint, name=f"paint_{thing}_{colour}", description=f"Paint a {thing} {colour}.")


for found in product(COLOURS, THINGS):
    add(*found)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
