"""Tools of servers of the Model Context Protocol (MCP), and tools as such a server. Needs the extra `mcp`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.mcp.answering import Sampling as Sampling
    from traced_tools.mcp.serving import McpApp as McpApp
    from traced_tools.mcp.serving import McpServer as McpServer
    from traced_tools.mcp.serving import serve as serve
    from traced_tools.mcp.toolset import McpToolset as McpToolset

_EXPORTS = {
    "McpApp": "traced_tools.mcp.serving",
    "McpServer": "traced_tools.mcp.serving",
    "McpToolset": "traced_tools.mcp.toolset",
    "Sampling": "traced_tools.mcp.answering",
    "serve": "traced_tools.mcp.serving",
}

__all__ = ["McpApp", "McpServer", "McpToolset", "Sampling", "serve"]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
