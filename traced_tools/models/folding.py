"""The one place where a streamed answer's chunks become a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from typing import TypeVar

from traced_tools.core.messages import AssistantMessage, AssistantPart, ReasoningPart, TextPart, ToolCall, Usage
from traced_tools.errors import InvalidResponse
from traced_tools.models.base import CallIds, ChatChunk, ChatResponse, ToolCallDelta
from traced_tools.models.wire import MOST_ITEMS


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
    place: int
    id: str
    given_id: str | None = None
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)
    signature: str | None = None

    def add(self, delta: ToolCallDelta) -> None:
        self.given_id = self.given_id or delta.id
        self.name = self.name or delta.name or ""
        self.arguments.write(delta.arguments)
        self.signature = delta.signature or self.signature

    def told(self, delta: ToolCallDelta) -> ToolCallDelta:
        """Return a piece with what is known of the whole call."""
        return ToolCallDelta(self.place, self.id, self.name, delta.arguments)

    def part(self) -> ToolCall:
        return ToolCall(self.name, self.arguments.getvalue() or "{}", self.id, signature=self.signature)


T = TypeVar("T", _OpenText, _OpenReasoning)


class ChunkFold:
    """Folds chunks into the response they amount to; holds the message so far and nothing else.

    Parts keep the order in which they began. Pieces of text join the text before them, as pieces of reasoning do; a
    whole `ReasoningPart` without text is the seal that ends the reasoning before it. A chunk that restarts the answer
    discards all chunks before it.

    Args:
        provider: for errors.
    """

    def __init__(self, provider: str | None = None) -> None:
        self._provider = provider
        self._restart()

    def _restart(self) -> None:
        self._parts: list[AssistantPart | _OpenText | _OpenReasoning | _OpenCall] = []
        self._calls: dict[int | None, _OpenCall] = {}
        self._begun = 0
        self._touched: list[_OpenCall] = []
        self._added: tuple[AssistantPart, ...] = ()
        self._ids = CallIds()
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._id: str | None = None
        self._model: str | None = None

    def add(self, chunk: ChatChunk) -> None:
        """Take in the next chunk; of usage, ids and reasons the last word counts.

        Raises:
            InvalidResponse: for more than `MOST_ITEMS` parts; pieces that join the text before them are no parts.
        """
        if chunk.restarts:
            self._restart()
        if chunk.reasoning:
            self._open(_OpenReasoning).text.write(chunk.reasoning)
        if chunk.text:
            self._open(_OpenText).text.write(chunk.text)
        self._usage = chunk.usage or self._usage
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self._id = chunk.id or self._id
        self._model = chunk.model or self._model
        if chunk.tool_calls or chunk.parts:
            self._touched = [self._add_piece(delta) for delta in chunk.tool_calls]
            self._added = tuple([self._add_whole(part) for part in chunk.parts])

    def told(self, chunk: ChatChunk) -> ChatChunk:
        """Return the chunk that was added last with the place, id and name of its call on each piece of one."""
        if not chunk.tool_calls and not chunk.parts:
            return chunk
        pieces = [call.told(delta) for call, delta in zip(self._touched, chunk.tool_calls, strict=True)]
        return chunk.with_calls(tuple(pieces), self._added)

    def _open(self, kind: type[T]) -> T:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, kind):
            return last
        opened = kind()
        self._begin(opened)
        return opened

    def _begin(self, part: AssistantPart | _OpenText | _OpenReasoning | _OpenCall) -> None:
        if len(self._parts) >= MOST_ITEMS:
            raise InvalidResponse(f"the answer has more than {MOST_ITEMS} parts", provider=self._provider)
        self._parts.append(part)

    def _add_piece(self, delta: ToolCallDelta) -> _OpenCall:
        """Add to the call of the delta's index, or to the last; another id than that call's begins another call."""
        call = self._calls.get(delta.index)
        if call is None or (delta.id and call.given_id and delta.id != call.given_id):
            call = self._calls[delta.index] = self._calls[None] = _OpenCall(self._begun, self._ids.of(delta.id))
            self._begun += 1
            self._begin(call)
        call.add(delta)
        return call

    def _add_whole(self, part: AssistantPart) -> AssistantPart:
        if isinstance(part, ToolCall):
            call_id = self._ids.of(part.id)
            part = part if call_id == part.id else part.replace(id=call_id)
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _OpenReasoning) and isinstance(part, ReasoningPart) and not part.text:
            self._parts[-1] = last.part(part)
        else:
            self._begin(part)
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


_OPEN = (_OpenText, _OpenReasoning, _OpenCall)
