"""Runs passes of this checkout with content on spans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.bench.peers.worker import Setup, async_add, serve
from tests.bench.workload import prompt
from traced_tools import ContentCapture, TelemetryOptions, __version__


def on_asyncio(passes: int) -> Callable[[], Any]:
    """Return a coroutine function that performs one run."""
    options = TelemetryOptions(capture=ContentCapture("SPAN_ONLY"))
    return prompt(passes + 1, options, function=async_add).acall


if __name__ == "__main__":
    serve(Setup(__version__, {"async": on_asyncio}))
