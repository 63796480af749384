"""Imports what an agent of this checkout needs."""

from __future__ import annotations

from importlib.metadata import version

from tests.bench.peers.imports import serve_imports

if __name__ == "__main__":
    serve_imports(version("traced_tools"), "from traced_tools import ChatClient, tool")
