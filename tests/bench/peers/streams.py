"""Reads so many streams over HTTP at once, each of an answer of OpenAI's API in 200 chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.bench.peers import servers
from tests.bench.peers.worker import Setup, serve
from tests.bench.peers.workloads import CHUNKS

TEXT = "tokens "
"""The text of a chunk."""
MODEL = "m-1"


def serve_streams(
    version: str, reader_of: Callable[[str], Callable[[], Coroutine[Any, Any, None]]], **options: Callable[[], None]
) -> None:
    """Answer the driver's requests.

    Args:
        version: the peer's version.
        reader_of: takes the base URL of the API and returns a coroutine function that reads an answer. It calls `count`
            for each piece of text that is `TEXT`.
        options: other arguments of `Setup`.
    """

    def on_asyncio(streams: int) -> Callable[[], Any]:
        read = reader_of(url)

        async def run() -> None:
            await asyncio.gather(*(read() for _ in range(streams)))

        return run

    url = servers.url(servers.start("tests.bench.peers.stream_server", str(CHUNKS)), "/v1")
    serve(Setup(version, {"async": on_asyncio}, **options))
