"""Runs passes of this checkout: `call` with the blocking tool, `acall` with the async one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.bench.peers.worker import Setup, add, async_add, serve
from tests.bench.workload import prompt
from traced_tools import __version__


def blocking(passes: int) -> Callable[[], Any]:
    """Return a function that performs one run."""
    return prompt(passes + 1, None, function=add).call


def on_asyncio(passes: int) -> Callable[[], Any]:
    """Return a coroutine function that performs one run."""
    return prompt(passes + 1, None, function=async_add).acall


if __name__ == "__main__":
    serve(Setup(__version__, {"blocking": blocking, "async": on_asyncio}))
