"""Reads streams with Pydantic AI: `run_stream`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, __version__
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.bench.peers.streams import MODEL, TEXT, serve_streams
from tests.bench.peers.worker import QUESTION, count


def reader_of(url: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a coroutine function that reads an answer."""
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=url, api_key="none"))
    agent = Agent(OpenAIChatModel(MODEL, provider=provider))

    async def read() -> None:
        async with agent.run_stream(QUESTION) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                count(text == TEXT)

    return read


if __name__ == "__main__":
    serve_streams(__version__, reader_of)
