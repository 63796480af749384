"""The scripted models of the scenario, with their latency, and the price table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator

from traced_tools.core.messages import Usage
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse
from traced_tools.models.embedding import EmbeddingModel, EmbeddingResponse
from traced_tools.testing.scripted import ScriptedChatModel, Turn

LARGE, SMALL, LOCAL, REASONING, HTTP = "demo-large", "demo-small", "demo-local", "demo-reasoning", "demo-http"
EMBEDDING = "demo-embedding"
PROVIDERS = {LARGE: "openai", SMALL: "anthropic", LOCAL: "ollama", REASONING: "openai", HTTP: "openai"}
_PRICES = {LARGE: (3.0, 15.0), SMALL: (0.25, 1.25), REASONING: (15.0, 60.0), HTTP: (1.0, 4.0), EMBEDDING: (0.02, 0.0)}
"""Dollars for a million input and output tokens. `LOCAL` has no price."""


class ScenarioPrices:
    """The prices of the scenario's models."""

    def price(self, provider: str, model: str, usage: Usage) -> float | None:
        """Return the cost of a call in US dollars; None for a model without a price."""
        if model not in _PRICES:
            return None
        input_price, output_price = _PRICES[model]
        return (input_price * (usage.input_tokens or 0) + output_price * (usage.output_tokens or 0)) / 1_000_000


class TimedChatModel(ScriptedChatModel):
    """A scripted model that waits before each answer, and in a stream before each further chunk.

    Args:
        turns: the turns of the script.
        usage: the usage of each turn, in order.
        model: the model's name, a key of `PROVIDERS`.
        seconds: the latency of an answer; in a stream, of its first chunk.
    """

    def __init__(self, turns: Iterable[Turn], *, usage: Iterable[Usage], model: str, seconds: float) -> None:
        super().__init__(turns, usage=usage, model=model)
        self.provider = PROVIDERS[model]
        self._seconds = seconds

    def call(self, request: ChatRequest) -> ChatResponse:
        """Return the next turn's answer after the latency."""
        time.sleep(self._seconds)
        return super().call(request)

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Return the next turn's answer after the latency."""
        await asyncio.sleep(self._seconds)
        return super().call(request)

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        """Yield the next turn's answer in chunks."""
        time.sleep(self._seconds)
        for chunk in self._chunks(request):
            yield chunk
            time.sleep(self._seconds / 20)

    async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
        """Yield the next turn's answer in chunks."""
        await asyncio.sleep(self._seconds)
        for chunk in self._chunks(request):
            yield chunk
            await asyncio.sleep(self._seconds / 20)

    def _chunks(self, request: ChatRequest) -> list[ChatChunk]:
        return list(ScriptedChatModel([super().call(request)], model=self.model).stream(request))


class ScenarioEmbedder(EmbeddingModel):
    """An embedding model that returns the same short vector for every text."""

    model, provider = EMBEDDING, "openai"

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Embed one batch of texts."""
        time.sleep(0.005)
        return EmbeddingResponse([(0.6, 0.8) for _ in texts], usage=Usage(input_tokens=6 * len(texts)))
