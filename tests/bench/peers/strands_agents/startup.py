"""Imports what an agent of strands-agents needs."""

from __future__ import annotations

from importlib.metadata import version

from tests.bench.peers.imports import serve_imports

if __name__ == "__main__":
    serve_imports(version("strands-agents"), "from strands import Agent, tool")
