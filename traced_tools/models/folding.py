"""The one place where a streamed answer's chunks become a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from traced_tools.messages import AssistantMessage, ReasoningPart, TextPart, ToolCall, Usage
from traced_tools.models.base import CallIds, ChatChunk, ChatResponse, ToolCallDelta


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
    id: str
    given_id: str | None = None
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)
    signature: str | None = None

    def add(self, delta: ToolCallDelta, place: int) -> ToolCallDelta:
        """Take in a piece and return it with what is known of the whole call."""
        self.given_id = self.given_id or delta.id
        self.name = self.name or delta.name or ""
        self.arguments.write(delta.arguments)
        self.signature = self.signature or delta.signature
        return ToolCallDelta(place, self.id, self.name, delta.arguments)

    def part(self) -> ToolCall:
        return ToolCall(self.name, self.arguments.getvalue() or "{}", self.id, signature=self.signature)


class ChunkFold:
    """Folds chunks into the response they amount to; holds the message so far and nothing else.

    Parts keep the order in which they began. Pieces of text join the text before them, as pieces of reasoning do; a
    whole `ReasoningPart` without text is the seal that ends the reasoning before it.
    """

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._calls: list[_OpenCall] = []
        self._places: dict[int | None, int] = {}
        self._ids = CallIds()
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._id: str | None = None
        self._model: str | None = None

    def add(self, chunk: ChatChunk) -> ChatChunk:
        """Take in the next chunk, and return it with the place, id and name of its call on each piece of one.

        Of usage, ids and reasons the last word counts.
        """
        if chunk.reasoning:
            self._open(_OpenReasoning).text.write(chunk.reasoning)
        if chunk.text:
            self._open(_OpenText).text.write(chunk.text)
        self._usage = chunk.usage or self._usage
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self._id = chunk.id or self._id
        self._model = chunk.model or self._model
        if not chunk.tool_calls and not chunk.parts:
            return chunk
        pieces = tuple([self._add_piece(delta) for delta in chunk.tool_calls])
        parts = tuple([self._add_whole(part) for part in chunk.parts])
        return chunk.with_calls(pieces, parts)

    def _open(self, kind: type[Any]) -> Any:
        if not self._parts or type(self._parts[-1]) is not kind:
            self._parts.append(kind())
        return self._parts[-1]

    def _add_piece(self, delta: ToolCallDelta) -> ToolCallDelta:
        """Add to the call of the delta's index, or to the last; another id than that call's begins another call."""
        place = self._places.get(delta.index)
        if place is None or _differ(delta.id, self._calls[place].given_id):
            place = self._places[delta.index] = self._places[None] = len(self._calls)
            self._calls.append(_OpenCall(self._ids.of(delta.id)))
            self._parts.append(self._calls[place])
        return self._calls[place].add(delta, place)

    def _add_whole(self, part: Any) -> Any:
        if isinstance(part, ToolCall):
            call_id = self._ids.of(part.id)
            part = part if call_id == part.id else part.replace(id=call_id)
        is_seal = isinstance(part, ReasoningPart) and not part.text
        if is_seal and self._parts and isinstance(self._parts[-1], _OpenReasoning):
            self._parts.append(self._parts.pop().part(part))
        else:
            self._parts.append(part)
        return part

    def response(self) -> ChatResponse:
        """Return what the chunks so far amount to."""
        parts = [part.part() if isinstance(part, _OPEN) else part for part in self._parts]
        return ChatResponse(
            AssistantMessage(parts),
            usage=self._usage,
            finish_reason=self._finish_reason,
            id=self._id,
            model=self._model,
        )


def _differ(given: str | None, known: str | None) -> bool:
    return bool(given and known) and given != known


_OPEN = (_OpenText, _OpenReasoning, _OpenCall)
