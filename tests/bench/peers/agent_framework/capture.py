"""Runs passes of Microsoft's agent-framework with content on spans."""

from __future__ import annotations

from functools import partial

from agent_framework import __version__
from agent_framework.observability import enable_instrumentation

from tests.bench.peers.agent_framework.loop import run_with
from tests.bench.peers.worker import Setup, async_add, serve

if __name__ == "__main__":
    turn_on = partial(enable_instrumentation, enable_sensitive_data=True)
    serve(Setup(__version__, {"async": partial(run_with, async_add)}, turn_on))
