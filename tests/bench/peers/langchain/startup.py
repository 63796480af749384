"""Imports what an agent of LangChain needs."""

from __future__ import annotations

from importlib.metadata import version

from tests.bench.peers.imports import serve_imports

if __name__ == "__main__":
    serve_imports(version("langchain"), "from langchain.agents import create_agent; from langchain.tools import tool")
