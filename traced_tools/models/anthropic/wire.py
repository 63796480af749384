"""What the Messages API looks like on the wire, as far as we read it; everything else in it is ignored.

An answer is a row of blocks. Streamed, each block begins, grows by deltas and ends; a whole answer holds the same
blocks fully grown. So what a block says is written once: as the chunks of its beginning, its growth and its end.

Formats: https://docs.anthropic.com/en/api/messages and https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, PrivateAttr, Tag

from traced_tools.core.messages import ProviderPart, ReasoningPart, Usage, sum_known
from traced_tools.models.base import ChatChunk, ToolCallDelta
from traced_tools.models.encoding import drop_none
from traced_tools.models.wire import FAIL_FAST, Body, Wire, to_json, to_sendable_json

EMPTY_CHUNK = ChatChunk()
CALL_FIELDS = ("caller", "toolset_name")
"""What else goes back with a call: the code that Claude called it from, and the toolset that the tool belongs to.

Where it comes from: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/programmatic-tool-calling.
"""


class AnthropicBlockDelta(Wire):
    """What a block grows by: pieces of text, each under the name of the field it belongs to."""

    model_config = ConfigDict(extra="allow")

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None


class TextBlock(Wire):
    """Text. What it cites is not read: a stream cites beside the text."""

    text: str | None = None

    def begin(self, index: int) -> ChatChunk:
        """Return the chunk of the block's beginning."""
        return ChatChunk(text=self.text or "")

    def add(self, index: int, delta: AnthropicBlockDelta) -> ChatChunk:
        """Grow by `delta` and return its chunk."""
        return ChatChunk(text=delta.text or "")

    def end(self, index: int) -> ChatChunk:
        """Return the chunk of the block's end."""
        return EMPTY_CHUNK


class ThinkingBlock(Wire):
    """Thoughts, or nothing in their place, and the seal without which they are not taken back."""

    thinking: str | None = None
    signature: str | None = None
    _signature: list[str] = PrivateAttr(default_factory=list)

    def begin(self, index: int) -> ChatChunk:
        """Return the chunk of the block's beginning."""
        return ChatChunk(reasoning=self.thinking or "")

    def add(self, index: int, delta: AnthropicBlockDelta) -> ChatChunk:
        """Grow by `delta` and return its chunk."""
        if delta.signature:
            self._signature.append(delta.signature)
        return ChatChunk(reasoning=delta.thinking or "")

    def end(self, index: int) -> ChatChunk:
        """Return the chunk of the block's end: the seal."""
        signature = "".join([self.signature or "", *self._signature])
        return ChatChunk(parts=(ReasoningPart("", signature=signature or None),))


class ToolUseBlock(Wire):
    """A tool call. Its input is whole from the beginning, or comes in pieces."""

    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None
    _comes_in_pieces: bool = PrivateAttr(default=False)

    def begin(self, index: int) -> ChatChunk:
        """Return the chunk of the block's beginning."""
        return _call(ToolCallDelta(index, self.id, self.name, signature=self._signature()))

    def _signature(self) -> str | None:
        """Return the other fields of the call as JSON text; None for a call by the model itself, the usual case."""
        caller = None if self.caller == {"type": "direct"} else self.caller
        if not caller and not self.toolset_name:
            return None
        return to_sendable_json(drop_none({"caller": caller, "toolset_name": self.toolset_name}))

    def add(self, index: int, delta: AnthropicBlockDelta) -> ChatChunk:
        """Grow by `delta` and return its chunk; the first piece of input is often empty."""
        if not delta.partial_json:
            return EMPTY_CHUNK
        self._comes_in_pieces = True
        return _call(ToolCallDelta(index, arguments=delta.partial_json))

    def end(self, index: int) -> ChatChunk:
        """Return the chunk of the block's end: the input, if it did not come in pieces."""
        return (
            EMPTY_CHUNK if self._comes_in_pieces else _call(ToolCallDelta(index, arguments=to_json(self.input or {})))
        )


class OtherBlock(Wire):
    """A block that only its provider understands: redacted thoughts, the record of a tool the provider ran."""

    model_config = ConfigDict(extra="allow")

    type: str
    _input: list[str] = PrivateAttr(default_factory=list)
    _texts: dict[str, list[str]] = PrivateAttr(default_factory=dict)

    def begin(self, index: int) -> ChatChunk:
        """Return the chunk of the block's beginning."""
        return EMPTY_CHUNK

    def add(self, index: int, delta: AnthropicBlockDelta) -> ChatChunk:
        """Grow by `delta`: input is JSON in pieces, any other piece of text belongs to the field of its name."""
        fields = self.model_extra or {}
        for name, piece in delta.model_dump(exclude={"type", "partial_json"}, exclude_none=True).items():
            if isinstance(piece, str) and isinstance(text := fields.get(name), str | None):
                self._texts.setdefault(name, [text or ""]).append(piece)
        if delta.partial_json:
            self._input.append(delta.partial_json)
        return EMPTY_CHUNK

    def end(self, index: int) -> ChatChunk:
        """Return the chunk of the block's end: all of it."""
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        return ChatChunk(parts=(ProviderPart(to_sendable_json({**self.model_dump(), **texts, **self._whole_input()})),))

    def _whole_input(self) -> dict[str, Any]:
        try:
            return {"input": json.loads("".join(self._input))}
        except (ValueError, RecursionError):
            return {}


def _call(delta: ToolCallDelta) -> ChatChunk:
    return ChatChunk(tool_calls=(delta,))


def _kind(block: object) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if kind in ("text", "thinking", "tool_use") else "other"


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[OtherBlock, Tag("other")],
    Discriminator(_kind),
]


class OutputDetails(Wire):
    """Of which: spent on thinking."""

    thinking_tokens: int | None = None


class AnthropicUsage(Wire):
    """Usage. Here `input_tokens` are those that no cache was read or written for."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None

    def to_usage(self) -> Usage:
        """Return this usage in our terms."""
        details = self.output_tokens_details
        prompt = (self.input_tokens, self.cache_read_input_tokens, self.cache_creation_input_tokens)
        return Usage(
            input_tokens=sum_known(*prompt),
            output_tokens=self.output_tokens,
            cache_read_tokens=self.cache_read_input_tokens,
            cache_write_tokens=self.cache_creation_input_tokens,
            reasoning_tokens=None if details is None else details.thinking_tokens,
        )


class StopInfo(Wire):
    """Why the model stopped."""

    stop_reason: str | None = None


class AnthropicAnswer(Body, StopInfo):
    """A whole answer."""

    id: str | None = None
    model: str | None = None
    content: Annotated[tuple[Block, ...], FAIL_FAST] | None = None
    usage: AnthropicUsage | None = None


class AnthropicEvent(Body):
    """An event of a stream, as far as it says what it is."""

    type: str | None = None


class MessageHead(Wire):
    """What is known of an answer when it begins."""

    id: str | None = None
    model: str | None = None
    usage: AnthropicUsage | None = None


class MessageStart(AnthropicEvent):
    """The answer begins."""

    message: MessageHead


class BlockStart(AnthropicEvent):
    """A block begins."""

    index: int
    content_block: Block


class BlockDelta(AnthropicEvent):
    """A block grows."""

    index: int
    delta: AnthropicBlockDelta


class BlockStop(AnthropicEvent):
    """A block ends."""

    index: int


class MessageDelta(AnthropicEvent):
    """The answer has ended for a reason; what it took is known."""

    delta: StopInfo
    usage: AnthropicUsage | None = None


class MessageStop(AnthropicEvent):
    """Nothing follows."""


EVENTS: dict[str | None, type[AnthropicEvent]] = {
    "message_start": MessageStart,
    "content_block_start": BlockStart,
    "content_block_delta": BlockDelta,
    "content_block_stop": BlockStop,
    "message_delta": MessageDelta,
    "message_stop": MessageStop,
}
"""The events that say something, by their type. In the others (`ping`, and those to come) there is nothing to read."""
