"""A deterministic chat model that answers from a script."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from traced_tools.core.checks import expect
from traced_tools.core.messages import AssistantMessage, TextPart, ToolCall, Usage
from traced_tools.models.base import ChatChunk, ChatModel, ChatRequest, ChatResponse

Turn = str | ToolCall | Iterable[str | ToolCall] | ChatResponse | BaseException | Callable[[ChatRequest], Any]


class ScriptedChatModel(ChatModel):
    """A chat model that answers each request with the next turn of a script, in all four modes.

    Args:
        turns: the turns: each a text, a `ToolCall`, a list of these, a `ChatResponse`, an exception to raise, or a
            function that takes the request and returns one of them.
        usage: the usage that each turn reports: one for all turns, or one per turn in order; none by default.
        model: the model name in telemetry.

    Attributes:
        requests: the requests that the model received, in order.

    Raises:
        AssertionError: the model received more requests than it has turns.
    """

    provider = "scripted"

    def __init__(
        self, turns: Iterable[Turn], *, usage: Usage | Iterable[Usage] | None = None, model: str = "scripted"
    ) -> None:
        self.model = model
        self.requests: list[ChatRequest] = []
        if isinstance(turns, str) or not isinstance(turns, Iterable):
            raise TypeError("turns must be a list of turns: ScriptedChatModel(['Hello.'])")
        self._turns = list(turns)
        self._usage = usage if isinstance(usage, Usage | None) else list(usage)
        self._lock = threading.Lock()

    def call(self, request: ChatRequest) -> ChatResponse:
        """Return the next turn's answer, or raise its exception."""
        expect("request", request, ChatRequest, "a ChatRequest")
        with self._lock:
            index = len(self.requests)
            self.requests.append(request)
        if index >= len(self._turns):
            raise AssertionError(f"the script has only {len(self._turns)} turns: add a turn for request {index + 1}")
        response = self._response(self._turns[index], request, index)
        return response if response.usage is not None else response.replace(usage=self._get_usage(index))

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Return the next turn's answer, or raise its exception."""
        return self.call(request)

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        """Yield the next turn's answer: its text word by word, then the rest as one chunk."""
        whole = ChatChunk.whole(self.call(request))
        for part in whole.parts:
            if isinstance(part, TextPart):
                yield from (ChatChunk(text=word) for word in _split_words(part.text))
        yield replace(whole, parts=tuple(part for part in whole.parts if not isinstance(part, TextPart)))

    async def astream(self, request: ChatRequest) -> Any:
        """Yield the next turn's answer as `stream` does."""
        for chunk in self.stream(request):
            yield chunk

    def _response(self, turn: Any, request: ChatRequest, index: int) -> ChatResponse:
        if isinstance(turn, BaseException):
            raise turn
        if isinstance(turn, ChatResponse):
            return turn
        if callable(turn):
            return self._response(turn(request), request, index)
        parts_or_texts = list(turn) if isinstance(turn, list | tuple) else [turn]
        for part in parts_or_texts:
            expect("turn", part, (str, ToolCall), "a str, a ToolCall, a list of these, a ChatResponse or an exception")
        parts = [TextPart(part) if isinstance(part, str) else part for part in parts_or_texts]
        calls = 0
        for place, part in enumerate(parts):
            if isinstance(part, ToolCall):
                calls += 1
                parts[place] = part if part.id else part.replace(id=f"call_{index + 1}_{calls}")
        reason = "tool_call" if calls else "stop"
        return ChatResponse(AssistantMessage(parts), finish_reason=reason, id=f"scripted_{index + 1}", model=self.model)

    def _get_usage(self, index: int) -> Usage | None:
        if isinstance(self._usage, list):
            return self._usage[index] if index < len(self._usage) else None
        return self._usage


def _split_words(text: str) -> list[str]:
    """Split a text after each space; the pieces join to the same text."""
    return [word for word in re.split("(?<= )", text) if word]
