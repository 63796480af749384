"""Reads streams with this checkout: `astream`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.bench.peers.streams import MODEL, TEXT, serve_streams
from tests.bench.peers.worker import QUESTION, count
from traced_tools import ChatClient, __version__
from traced_tools.models import OpenAIChatModel


def reader_of(url: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a coroutine function that reads an answer."""
    spec = ChatClient(OpenAIChatModel(MODEL, base_url=url, api_key="none")).prompt(QUESTION)

    async def read() -> None:
        async with spec.astream() as stream:
            async for chunk in stream:
                count(chunk.text == TEXT)

    return read


if __name__ == "__main__":
    serve_streams(__version__, reader_of)
