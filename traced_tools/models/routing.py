"""The base class of models that let other models answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any, Self

from traced_tools.core.checks import expect_each
from traced_tools.core.part_check import Checkable, PartCheck
from traced_tools.flow.flow import acall, call
from traced_tools.flow.streams import AsyncStream, Stream
from traced_tools.models.base import AskModel, ChatChunk, ChatModel, ChatRequest, ChatResponse
from traced_tools.models.step import CallModel
from traced_tools.observe.off import OFF


class RoutingModel(ChatModel):
    """A chat model that lets other models answer. Subclasses implement `route`, once for all four modes.

    In a run, each call of a model has its own span, with the name of the model that is called. Close the models that it
    contains, because this model keeps no connections. `copy.deepcopy` returns the model itself.

    Args:
        models: the models that can answer. The first one names this model in the telemetry of runs. A schema is
            enforced if all models enforce it, and the context window is the smallest known one.

    Attributes:
        models: the models that can answer.

    Raises:
        TypeError: if `models` is not a sequence of `ChatModel`s.
        ValueError: if `models` is empty.
    """

    def __init__(self, models: Sequence[ChatModel]) -> None:
        expect_each("models", models, ChatModel, "a ChatModel")
        self.models = tuple(models)
        if not self.models:
            raise ValueError("models must have at least one ChatModel, such as OpenAIChatModel('...')")
        self.model = self.models[0].model
        self.provider = self.models[0].provider

    @abstractmethod
    async def route(self, ask: AskModel) -> ChatResponse:
        """Return the answer of one of the models, as a flow; each `await model.route(ask)` calls a model."""

    def checks(self) -> Iterable[PartCheck]:
        """Return the checks of the models."""
        return [check for model in self.models if isinstance(model, Checkable) for check in model.checks()]

    def enforces_schema(self, schema: Mapping[str, Any], *, with_tools: bool) -> bool:
        """Return whether the answers of all models follow `schema`."""
        return all(model.enforces_schema(schema, with_tools=with_tools) for model in self.models)

    def known_context_window(self) -> int | None:
        """Return the smallest known context window of the models; None if none is known."""
        return min(filter(None, (model.known_context_window() for model in self.models)), default=None)

    def call(self, request: ChatRequest) -> ChatResponse:
        """Answer `request`, blocking; raises `ModelError`."""
        return call(self._answer(request))

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Answer `request` on asyncio; raises `ModelError`."""
        return await acall(self._answer(request))

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        """Answer `request` in chunks, blocking; raises `ModelError`."""
        with closing(Stream[ChatChunk](self._answer(request))) as chunks:
            yield from chunks

    async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
        """Answer `request` in chunks on asyncio; raises `ModelError`."""
        async with aclosing(AsyncStream[ChatChunk](self._answer(request))) as chunks:
            async for chunk in chunks:
                yield chunk

    def _answer(self, request: ChatRequest) -> Coroutine[Any, Any, ChatResponse]:
        return self.route(lambda model: CallModel(model, request, OFF, _deliver))

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(model.model for model in self.models)}>"


def _deliver(chunk: ChatChunk) -> ChatChunk:
    return chunk
