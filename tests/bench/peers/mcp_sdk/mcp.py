"""Calls over MCP by the client of the SDK, and calls of tools that the SDK serves."""

from __future__ import annotations

from importlib.metadata import version

from tests.bench.peers.mcp_calls import connect_sdk, serve_calls

if __name__ == "__main__":
    serve_calls(version("mcp"), "sdk", connect_sdk)
