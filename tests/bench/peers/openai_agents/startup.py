"""Imports what an agent of the OpenAI Agents SDK needs."""

from __future__ import annotations

from importlib.metadata import version

from tests.bench.peers.imports import serve_imports

if __name__ == "__main__":
    serve_imports(version("openai-agents"), "from agents import Agent, Runner, function_tool")
