"""Models for tests of streams: one that can be observed, and one that waits until it is released."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

from tests.captured import Telemetry
from traced_tools import Advisor, ChatClient, ChatClientRequest, ChatClientResponse
from traced_tools.core.messages import AssistantMessage
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models.base import ChatChunk, ChatModel, ChatRequest, ChatResponse


class StreamedModel(ChatModel):
    """Streams a text word by word; `asked` and `given` count, `closed` is set when a stream of it ends however it ends.

    With `waits_after=n` its streams wait for ever after `n` chunks, on asyncio only; `waiting` is then set.
    """

    model, provider = "streamed", "tests"

    def __init__(self, text: str = "one two three four", waits_after: int | None = None) -> None:
        self.text = text
        self.words = text.replace(" ", " \0").split("\0")
        self.waits_after = waits_after
        self.asked = self.given = self.closed_streams = 0
        self.closed = threading.Event()
        self.waiting = threading.Event()
        self.go_on = asyncio.Event()

    def call(self, request: ChatRequest) -> ChatResponse:
        self.asked += 1
        return ChatResponse(AssistantMessage(self.text), finish_reason="stop")

    async def acall(self, request: ChatRequest) -> ChatResponse:
        if self.waits_after is not None:
            self.waiting.set()
            await self.go_on.wait()
        return self.call(request)

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        self.asked += 1
        try:
            for word in self.words:
                self.given += 1
                yield ChatChunk(text=word)
        finally:
            self._end()

    async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
        self.asked += 1
        try:
            for index, word in enumerate(self.words):
                if index == self.waits_after:
                    self.waiting.set()
                    await self.go_on.wait()
                self.given += 1
                yield ChatChunk(text=word)
        finally:
            self._end()

    def _end(self) -> None:
        self.closed_streams += 1
        self.closed.set()


class Spanning(Advisor):
    """Holds a span of the application's own around the rest of the chain, with the API's own context manager."""

    name, order = "spanning", 400

    def __init__(self, telemetry: Telemetry) -> None:
        self.tracer = telemetry.tracer

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        with self.tracer.start_as_current_span("mine"):
            return await call_next(request)


def client_of(model: StreamedModel, telemetry: Telemetry) -> ChatClient:
    return ChatClient(model, advisors=[Spanning(telemetry)], telemetry=telemetry.options)
