"""Tools of servers of the Model Context Protocol (MCP). Needs the extra `mcp`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.mcp.answering import Sampling as Sampling
    from traced_tools.mcp.toolset import McpToolset as McpToolset

_EXPORTS = {"McpToolset": "traced_tools.mcp.toolset", "Sampling": "traced_tools.mcp.answering"}

__all__ = ["McpToolset", "Sampling"]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
