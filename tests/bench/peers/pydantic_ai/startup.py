"""Imports what an agent of Pydantic AI needs."""

from __future__ import annotations

from importlib.metadata import version

from tests.bench.peers.imports import serve_imports

if __name__ == "__main__":
    serve_imports(version("pydantic-ai-slim"), "from pydantic_ai import Agent")
