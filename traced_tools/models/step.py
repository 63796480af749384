"""The step that asks a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from traced_tools.flow.flow import StreamingStep
from traced_tools.models.base import ChatChunk, ChatModel, ChatRequest, ChatResponse
from traced_tools.models.folding import ChunkFold

C = TypeVar("C")


class ChunkClock(Protocol):
    """Told of each chunk when it arrives."""

    def streaming(self) -> None:
        """Take note that chunks are asked for."""

    def chunk(self) -> None:
        """Take note of a chunk."""


class CallModel(StreamingStep[ChatResponse, C], Generic[C]):
    """Ask `model` the `request`; the flow gets the whole answer however it is performed.

    Args:
        model: the model to ask.
        request: what to ask.
        clock: told of each chunk of a streamed answer.
        deliver: turns a chunk into what the consumer sees, None to keep it from them.
        observe: told of each chunk, with the call on each piece of one; None when nobody watches.
    """

    __slots__ = ("_clock", "_deliver", "_fold", "_observe", "model", "request", "result")

    def __init__(
        self,
        model: ChatModel,
        request: ChatRequest,
        clock: ChunkClock,
        deliver: Callable[[ChatChunk], C | None],
        observe: Callable[[ChatChunk], None] | None = None,
    ) -> None:
        self.model = model
        self.request = request
        self._clock = clock
        self._deliver = deliver
        self._observe = observe

    def run(self) -> ChatResponse:
        """Ask, blocking, for the whole answer."""
        return self.accepted(self.model.call(self.request))

    async def arun(self) -> ChatResponse:
        """Ask on asyncio for the whole answer."""
        return self.accepted(await self.model.acall(self.request))

    def stream(self) -> Iterator[C]:
        """Ask, blocking, and give what the consumer sees of each chunk."""
        self._fold = ChunkFold(self.model.provider)
        self._clock.streaming()
        chunks = self.model.stream(self.request)
        try:
            for chunk in chunks:
                if (visible := self._received(chunk)) is not None:
                    yield visible
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        self.result = self.accepted(self._fold.response())

    async def astream(self) -> AsyncIterator[C]:
        """Ask on asyncio and give what the consumer sees of each chunk."""
        self._fold = ChunkFold(self.model.provider)
        self._clock.streaming()
        chunks = self.model.astream(self.request)
        try:
            async for chunk in chunks:
                if (visible := self._received(chunk)) is not None:
                    yield visible
        finally:
            if hasattr(chunks, "aclose"):
                await chunks.aclose()
        self.result = self.accepted(self._fold.response())

    def _received(self, chunk: Any) -> C | None:
        if not isinstance(chunk, ChatChunk):
            raise TypeError(f"{type(self.model).__name__} must stream ChatChunk objects, not {type(chunk).__name__}")
        self._clock.chunk()
        self._fold.add(chunk)
        if self._observe is not None:
            self._observe(self._fold.told(chunk))
        return self._deliver(chunk)

    def accepted(self, response: Any) -> ChatResponse:
        """Return the answer with who sealed it, and whole calls with ids; raises `TypeError` or `InvalidResponse`."""
        if not isinstance(response, ChatResponse):
            name = type(self.model).__name__
            raise TypeError(f"{name} must answer with a ChatResponse, not {type(response).__name__}")
        answer = response.sealed_by(self.model.provider).without_cut_call()  # a call that was cut off may have no name
        answer.check_names(self.model.provider)
        return answer.with_call_ids()

    def __repr__(self) -> str:
        return f"<CallModel {self.model.model}: {self.request!r}>"
