"""Reads streams with the openai SDK."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from openai import AsyncOpenAI, __version__

from tests.bench.peers.streams import MODEL, TEXT, serve_streams
from tests.bench.peers.worker import QUESTION, count


def reader_of(url: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a coroutine function that reads an answer."""
    client = AsyncOpenAI(base_url=url, api_key="none")

    async def read() -> None:
        messages: Any = [{"role": "user", "content": QUESTION}]
        async for chunk in await client.chat.completions.create(model=MODEL, messages=messages, stream=True):
            count(chunk.choices[0].delta.content == TEXT)

    return read


if __name__ == "__main__":
    serve_streams(__version__, reader_of)
