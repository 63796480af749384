"""Imports what an agent of Microsoft's agent-framework needs."""

from __future__ import annotations

from importlib.metadata import version

from tests.bench.peers.imports import serve_imports

if __name__ == "__main__":
    serve_imports(version("agent-framework-core"), "from agent_framework import Agent, tool")
