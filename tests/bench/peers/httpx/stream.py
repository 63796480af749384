"""Reads streams with httpx and httpx-sse alone, without a look at the JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

import httpx
from httpx_sse import EventSource

from tests.bench.peers.streams import TEXT, serve_streams
from tests.bench.peers.worker import count


def reader_of(url: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a coroutine function that reads an answer."""
    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=None))

    async def read() -> None:
        async with client.stream("POST", f"{url}/chat/completions") as response:
            async for event in EventSource(response).aiter_sse():
                count(TEXT in event.data)

    return read


if __name__ == "__main__":
    serve_streams(version("httpx"), reader_of)
