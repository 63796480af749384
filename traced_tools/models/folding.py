"""The one place where a streamed answer's chunks become a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from traced_tools.messages import AssistantMessage, ReasoningPart, TextPart, ToolCall, Usage
from traced_tools.models.base import ChatChunk, ChatResponse, ToolCallDelta


@dataclass(slots=True)
class _OpenText:
    text: StringIO = field(default_factory=StringIO)

    def part(self) -> TextPart:
        return TextPart(self.text.getvalue())


@dataclass(slots=True)
class _OpenReasoning:
    text: StringIO = field(default_factory=StringIO)

    def part(self, seal: ReasoningPart | None = None) -> ReasoningPart:
        text = self.text.getvalue()
        return ReasoningPart(text) if seal is None else seal.replace(text=text)


@dataclass(slots=True)
class _OpenCall:
    id: str | None = None
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)

    def add(self, delta: ToolCallDelta) -> None:
        self.id = self.id or delta.id
        self.name = self.name or delta.name or ""
        self.arguments.write(delta.arguments)

    def part(self) -> ToolCall:
        return ToolCall(self.name, self.arguments.getvalue(), self.id)


class ChunkFold:
    """Folds chunks into the response they amount to; holds the message so far and nothing else.

    Parts keep the order in which they began. Pieces of text join the text before them, as pieces of reasoning do; a
    whole `ReasoningPart` without text is the seal that ends the reasoning before it.

    Args:
        provider: who answers.
    """

    def __init__(self, provider: str | None = None) -> None:
        self._provider = provider
        self._parts: list[Any] = []
        self._calls: dict[int | None, _OpenCall] = {}
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._id: str | None = None
        self._model: str | None = None

    def add(self, chunk: ChatChunk) -> None:
        """Take in the next chunk; of usage, ids and reasons the last word counts."""
        if chunk.reasoning:
            self._open(_OpenReasoning).text.write(chunk.reasoning)
        if chunk.text:
            self._open(_OpenText).text.write(chunk.text)
        for delta in chunk.tool_calls:
            self._call_of(delta).add(delta)
        for part in chunk.parts:
            self._add_whole(part)
        self._usage = chunk.usage or self._usage
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self._id = chunk.id or self._id
        self._model = chunk.model or self._model

    def _open(self, kind: type[Any]) -> Any:
        if not self._parts or type(self._parts[-1]) is not kind:
            self._parts.append(kind())
        return self._parts[-1]

    def _call_of(self, delta: ToolCallDelta) -> _OpenCall:
        """Return the call a delta belongs to: that of its index, or the last; another id begins another call."""
        call = self._calls.get(delta.index)
        if call is None or (call.id and delta.id and delta.id != call.id):
            call = self._begin_call(delta.index)
        return call

    def _begin_call(self, index: int | None) -> _OpenCall:
        call = _OpenCall()
        self._parts.append(call)
        self._calls[index] = self._calls[None] = call
        return call

    def _add_whole(self, part: Any) -> None:
        seals = isinstance(part, ReasoningPart) and not part.text
        if seals and self._parts and isinstance(self._parts[-1], _OpenReasoning):
            part = self._parts.pop().part(part)
        self._parts.append(part)

    def response(self) -> ChatResponse:
        """Return what the chunks so far amount to."""
        parts = [part.part() if isinstance(part, _OPEN) else part for part in self._parts]
        return ChatResponse(
            AssistantMessage(parts, provider=self._provider),
            usage=self._usage,
            finish_reason=self._finish_reason,
            id=self._id,
            model=self._model,
        )


_OPEN = (_OpenText, _OpenReasoning, _OpenCall)
