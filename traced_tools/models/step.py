"""The step that calls a chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from time import perf_counter_ns
from typing import Any, Generic, Protocol, TypeVar

from traced_tools.errors import ModelError
from traced_tools.flow.flow import StreamingStep
from traced_tools.models.base import ChatChunk, ChatModel, ChatRequest, ChatResponse
from traced_tools.models.folding import ChunkFold

C = TypeVar("C")


class ChunkTimer(Protocol):
    """Separates the time of the model from the time of the advisors and the reader that receive its answer.

    Times are `perf_counter_ns()`.
    """

    def streaming(self, now: int) -> None:
        """Called before the first chunk is requested."""

    def chunk(self, now: int) -> None:
        """Called when a chunk has arrived."""

    def delivered(self, arrived: int, reader_since: int) -> None:
        """Called when the next chunk is requested: advisors have had the chunk until `reader_since`, then the reader.

        If an advisor fails, `reader_since` is 0.
        """

    def held_back(self, began: int) -> None:
        """Called if the caller that drives the run step by step has let the call wait since `began`."""


class CallModel(StreamingStep[ChatResponse, C], Generic[C]):
    """Send `request` to `model`. The flow gets the whole answer, streamed or not.

    Args:
        model: the model to call.
        request: the request to send.
        clock: notified of each chunk of a streamed answer.
        deliver: converts a chunk to the consumer's type; returns None to withhold the chunk.
        observe: called with each chunk, in which each piece of a call has its index, id and name; None if there are no
            listeners.

    Attributes:
        has_streamed: whether a part of the answer has been streamed.
    """

    __slots__ = ("_clock", "_deliver", "_fold", "_observe", "has_streamed", "model", "request", "result")

    def __init__(
        self,
        model: ChatModel,
        request: ChatRequest,
        clock: ChunkTimer,
        deliver: Callable[[ChatChunk], C | None],
        observe: Callable[[ChatChunk], None] | None = None,
    ) -> None:
        self.model = model
        self.request = request
        self._clock = clock
        self._deliver = deliver
        self._observe = observe
        self.has_streamed = False

    def run(self) -> ChatResponse:
        """Get the whole answer, blocking."""
        return self.normalize_response(self.model.call(self.request))

    async def arun(self) -> ChatResponse:
        """Get the whole answer on asyncio."""
        return self.normalize_response(await self.model.acall(self.request))

    def stream(self) -> Iterator[C]:
        """Stream the answer, blocking, and yield what `deliver` returns for each chunk."""
        self._fold = ChunkFold(self.model.provider)
        self._clock.streaming(perf_counter_ns())
        chunks = self.model.stream(self.request)
        try:
            for chunk in chunks:
                arrived, reader_since = perf_counter_ns(), 0
                try:
                    visible = self._receive(chunk, arrived)
                    reader_since = perf_counter_ns()
                    if visible is not None:
                        yield visible
                finally:
                    self._clock.delivered(arrived, reader_since)
            self.result = self.normalize_response(self._fold.response())
        except ModelError as error:
            error.streamed = self.has_streamed
            raise
        finally:
            if hasattr(chunks, "close"):
                chunks.close()

    async def astream(self) -> AsyncIterator[C]:
        """Stream the answer on asyncio and yield what `deliver` returns for each chunk."""
        self._fold = ChunkFold(self.model.provider)
        self._clock.streaming(perf_counter_ns())
        chunks = self.model.astream(self.request)
        try:
            async for chunk in chunks:
                arrived, reader_since = perf_counter_ns(), 0
                try:
                    visible = self._receive(chunk, arrived)
                    reader_since = perf_counter_ns()
                    if visible is not None:
                        yield visible
                finally:
                    self._clock.delivered(arrived, reader_since)
            self.result = self.normalize_response(self._fold.response())
        except ModelError as error:
            error.streamed = self.has_streamed
            raise
        finally:
            if hasattr(chunks, "aclose"):
                await chunks.aclose()

    def held_back_since(self, began: int) -> None:
        """Record that the caller that drives the run has let the step wait since `began`, by `perf_counter_ns()`."""
        self._clock.held_back(began)

    def _receive(self, chunk: Any, now: int) -> C | None:
        if not isinstance(chunk, ChatChunk):
            raise TypeError(f"{type(self.model).__name__} must stream ChatChunk objects, not {type(chunk).__name__}")
        self._clock.chunk(now)
        self._fold.add(chunk)
        if not self.has_streamed:
            self.has_streamed = chunk.has_content
        if self._observe is not None:
            self._observe(self._fold.with_call_identity(chunk))
        return self._deliver(chunk)

    def normalize_response(self, response: Any) -> ChatResponse:
        """Return the answer with its provider and an id on each call, and without a call that was cut off.

        Raises:
            TypeError: if the model returned something other than a `ChatResponse`.
            InvalidResponse: if a call has no name.
        """
        if not isinstance(response, ChatResponse):
            name = type(self.model).__name__
            raise TypeError(f"{name} must answer with a ChatResponse, not {type(response).__name__}")
        answer = response.attributed_to(self.model.provider).without_cut_off_call()
        answer.check_call_names(self.model.provider)  # only now: a call that was cut off may have no name
        return answer.with_call_ids()

    def __repr__(self) -> str:
        return f"<CallModel {self.model.model}: {self.request!r}>"
