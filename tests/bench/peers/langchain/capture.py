"""Runs passes of LangChain's `create_agent` with content on the spans of OpenLLMetry's instrumentation."""

from __future__ import annotations

import os
from importlib.metadata import version

from tests.bench.peers.langchain.loop import on_asyncio, turn_telemetry_on
from tests.bench.peers.worker import Setup, serve


def turn_content_on() -> None:
    """Emit spans with content, and metrics."""
    os.environ["TRACELOOP_TRACE_CONTENT"] = "true"
    turn_telemetry_on()


if __name__ == "__main__":
    serve(Setup(version("langchain"), {"async": on_asyncio}, turn_content_on))
