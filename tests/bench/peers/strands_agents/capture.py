"""Runs passes of strands-agents with content on spans."""

from __future__ import annotations

import os
from functools import partial
from importlib.metadata import version

from tests.bench.peers.strands_agents.loop import on_asyncio
from tests.bench.peers.worker import Setup, serve

if __name__ == "__main__":
    turn_on = partial(os.environ.pop, "OTEL_SEMCONV_STABILITY_OPT_IN")  # it is read when the first agent is made
    serve(Setup(version("strands-agents"), {"async": on_asyncio}, turn_on))
