"""The one place where a streamed answer's chunks become a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from traced_tools.messages import AssistantMessage, ReasoningPart, TextPart, ToolCall, Usage
from traced_tools.models.base import ChatChunk, ChatResponse, ToolCallDelta


@dataclass(slots=True)
class _PartialCall:
    id: str | None = None
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)

    def add(self, delta: ToolCallDelta) -> None:
        self.id = self.id or delta.id
        self.name = self.name or delta.name or ""
        self.arguments.write(delta.arguments)


class ChunkFold:
    """Folds chunks into the response they amount to; holds the message so far and nothing else."""

    def __init__(self) -> None:
        self._text = StringIO()
        self._reasoning = StringIO()
        self._parts: list[Any] = []
        self._calls: list[_PartialCall] = []
        self._places: dict[int, int] = {}
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._id: str | None = None
        self._model: str | None = None

    def add(self, chunk: ChatChunk) -> None:
        """Take in the next chunk; of usage, ids and reasons the last word counts."""
        self._text.write(chunk.text)
        self._reasoning.write(chunk.reasoning)
        self._parts.extend(chunk.parts)
        for delta in chunk.tool_calls:
            self._call_of(delta).add(delta)
        self._usage = chunk.usage or self._usage
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self._id = chunk.id or self._id
        self._model = chunk.model or self._model

    def _call_of(self, delta: ToolCallDelta) -> _PartialCall:
        """Return the call a delta belongs to: that of its index, or the last; another id begins another call."""
        last = len(self._calls) - 1
        place = last if delta.index is None else self._places.get(delta.index, -1)
        if place < 0 or (delta.id and delta.id != self._calls[place].id):
            place = last + 1
            self._calls.append(_PartialCall())
        if delta.index is not None:
            self._places[delta.index] = place
        return self._calls[place]

    def response(self) -> ChatResponse:
        """Return what the chunks so far amount to."""
        return ChatResponse(
            AssistantMessage([*self._message_parts()]),
            usage=self._usage,
            finish_reason=self._finish_reason,
            id=self._id,
            model=self._model,
        )

    def _message_parts(self) -> list[Any]:
        parts: list[Any] = []
        if reasoning := self._reasoning.getvalue():
            parts.append(ReasoningPart(reasoning))
        if text := self._text.getvalue():
            parts.append(TextPart(text))
        parts.extend(self._parts)
        parts.extend(ToolCall(call.name, call.arguments.getvalue(), call.id) for call in self._calls)
        return parts
