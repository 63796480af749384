"""The one place where the chunks of a streamed answer become a message.

All pieces of text, of reasoning and of a call's arguments are joined here. Provider decoders only yield the pieces. The
exception is Gemini's `partial_calls`: its pieces are values at JSON paths, so they become JSON text only when the call
is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from typing import TypeVar

from traced_tools.core.messages import AssistantMessage, AssistantPart, ReasoningPart, TextPart, ToolCall, Usage
from traced_tools.errors import InvalidResponse
from traced_tools.models.base import CallIdAssigner, ChatChunk, ChatResponse, ToolCallDelta
from traced_tools.models.parsing import MOST_ITEMS


@dataclass(slots=True)
class _OpenText:
    text: StringIO = field(default_factory=StringIO)

    def part(self) -> TextPart:
        return TextPart(self.text.getvalue())


@dataclass(slots=True)
class _OpenReasoning:
    text: StringIO = field(default_factory=StringIO)

    def part(self, end: ReasoningPart | None = None) -> ReasoningPart:
        """Return the joined text with the signature and id of `end`, the part without text that ended it."""
        text = self.text.getvalue()
        return ReasoningPart(text) if end is None else end.replace(text=text)


@dataclass(slots=True)
class _OpenCall:
    index: int
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

    def with_identity(self, delta: ToolCallDelta) -> ToolCallDelta:
        """Return `delta` with the call's index, id and name."""
        return ToolCallDelta(self.index, self.id, self.name, delta.arguments)

    def part(self) -> ToolCall:
        return ToolCall(self.name, self.arguments.getvalue() or "{}", self.id, signature=self.signature)


T = TypeVar("T", _OpenText, _OpenReasoning)


class ChunkFold:
    """Folds chunks into a response. It stores the message so far, not the chunks.

    Parts keep the order in which they began. Pieces of text are appended to the text before them, and pieces of
    reasoning to the reasoning before them. A whole `ReasoningPart` without text ends the reasoning before it and adds
    its signature and id. A chunk that restarts the answer discards all chunks before it.

    Args:
        provider: the provider's name, for error messages.
    """

    def __init__(self, provider: str | None = None) -> None:
        self._provider = provider
        self._restart()

    def _restart(self) -> None:
        self._parts: list[AssistantPart | _OpenText | _OpenReasoning | _OpenCall] = []
        self._calls: dict[int | None, _OpenCall] = {}
        self._call_count = 0
        self._last_calls: list[_OpenCall] = []
        self._last_parts: tuple[AssistantPart, ...] = ()
        self._ids = CallIdAssigner()
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._id: str | None = None
        self._model: str | None = None
        self._provider_reason: str | None = None

    def add(self, chunk: ChatChunk) -> None:
        """Add the next chunk. Of finish reason, id and model, the last value counts, of usage the last of each count.

        Raises:
            InvalidResponse: if the answer has more than `MOST_ITEMS` parts. Joined pieces count as one part.
        """
        if chunk.restarts:
            self._restart()
        if chunk.reasoning:
            self._open_part(_OpenReasoning).text.write(chunk.reasoning)
        if chunk.text:
            self._open_part(_OpenText).text.write(chunk.text)
        if chunk.usage is not None:
            self._usage = chunk.usage if self._usage is None else _merge_usage(self._usage, chunk.usage)
        if chunk.finish_reason:
            self._finish_reason = chunk.finish_reason
        if chunk.id:
            self._id = chunk.id
        if chunk.model:
            self._model = chunk.model
        if chunk.provider_reason:
            self._provider_reason = chunk.provider_reason
        if chunk.tool_calls or chunk.parts:
            self._last_calls = [self._add_delta(delta) for delta in chunk.tool_calls]
            self._last_parts = tuple([self._add_part(part) for part in chunk.parts])

    def with_call_identity(self, chunk: ChatChunk) -> ChatChunk:
        """Return `chunk`, which must be the last added one, with index, id and name on each piece of a call."""
        if not chunk.tool_calls and not chunk.parts:
            return chunk
        pieces = [call.with_identity(delta) for call, delta in zip(self._last_calls, chunk.tool_calls, strict=True)]
        return chunk.with_calls(tuple(pieces), self._last_parts)

    def _open_part(self, kind: type[T]) -> T:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, kind):
            return last
        opened = kind()
        self._append_part(opened)
        return opened

    def _append_part(self, part: AssistantPart | _OpenText | _OpenReasoning | _OpenCall) -> None:
        if len(self._parts) >= MOST_ITEMS:
            raise InvalidResponse(f"the answer has more than {MOST_ITEMS} parts", provider=self._provider)
        self._parts.append(part)

    def _add_delta(self, delta: ToolCallDelta) -> _OpenCall:
        """Add `delta` to the call at its index, or to the last call. If the id differs, start a new call instead."""
        call = self._calls.get(delta.index)
        if call is None or (delta.id and call.given_id and delta.id != call.given_id):
            call = _OpenCall(self._call_count, self._ids.assign(delta.id))
            self._calls[delta.index] = self._calls[None] = call
            self._call_count += 1
            self._append_part(call)
        call.add(delta)
        return call

    def _add_part(self, part: AssistantPart) -> AssistantPart:
        if isinstance(part, ToolCall):
            call_id = self._ids.assign(part.id)
            part = part if call_id == part.id else part.replace(id=call_id)
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _OpenReasoning) and isinstance(part, ReasoningPart) and not part.text:
            self._parts[-1] = last.part(part)
        else:
            self._append_part(part)
        return part

    def response(self) -> ChatResponse:
        """Return the response that the chunks so far add up to."""
        parts = [part.part() if isinstance(part, _OPEN) else part for part in self._parts]
        return ChatResponse(
            AssistantMessage(parts),
            usage=self._usage,
            finish_reason=self._finish_reason,
            id=self._id,
            model=self._model,
            provider_reason=self._provider_reason,
        )


_OPEN = (_OpenText, _OpenReasoning, _OpenCall)


def _merge_usage(earlier: Usage, later: Usage) -> Usage:
    """Return the later counts, except where they are zero or missing: some servers repeat the usage without them."""
    if later == earlier:
        return earlier
    counts = {name: (getattr(earlier, name), getattr(later, name)) for name in Usage.model_fields}
    return Usage(**{name: new or (new if old is None else old) for name, (old, new) in counts.items()})
