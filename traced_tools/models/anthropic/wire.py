"""The fields of the Messages API that this package reads.

An answer is a list of blocks. In a stream, each block begins, grows by deltas and ends; a whole answer contains the
complete blocks. Both are decoded by the same code: the chunks for the beginning, the deltas and the end of a block.

Formats: https://docs.anthropic.com/en/api/messages and https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, PrivateAttr, Tag

from traced_tools.core.messages import ProviderPart, ReasoningPart, Usage, sum_known
from traced_tools.models.base import PAUSE, ChatChunk, ToolCallDelta
from traced_tools.models.encoding import drop_none
from traced_tools.models.parsing import FAIL_FAST, Body, Wire, to_json, to_sendable_json

EMPTY_CHUNK = ChatChunk()
CONTAINER = "container"
"""The type of an opaque part of this package's own, which holds the id of a container."""
CALL_FIELDS = ("caller", "toolset_name")
"""Further fields of a call to send back: the code that Claude called it from, and the toolset of the tool.

Format: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/programmatic-tool-calling.
"""


class AnthropicBlockDelta(Wire):
    """A delta of a block: pieces of text, each in a field named after the field of the block it extends."""

    model_config = ConfigDict(extra="allow")

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None


class TextBlock(Wire):
    """Text. Citations are not read."""

    text: str | None = None

    def begin(self, index: int) -> ChatChunk:
        """Return the chunk for the beginning of the block."""
        return ChatChunk(text=self.text or "")

    def add(self, index: int, delta: AnthropicBlockDelta) -> ChatChunk:
        """Add `delta` and return its chunk."""
        return ChatChunk(text=delta.text or "")

    def end(self, index: int) -> ChatChunk:
        """Return the chunk for the end of the block."""
        return EMPTY_CHUNK


class ThinkingBlock(Wire):
    """Reasoning, which can be empty, and the signature without which the API refuses it in a later request."""

    thinking: str | None = None
    signature: str | None = None
    _signature: list[str] = PrivateAttr(default_factory=list)

    def begin(self, index: int) -> ChatChunk:
        """Return the chunk for the beginning of the block."""
        return ChatChunk(reasoning=self.thinking or "")

    def add(self, index: int, delta: AnthropicBlockDelta) -> ChatChunk:
        """Add `delta` and return its chunk."""
        if delta.signature:
            self._signature.append(delta.signature)
        return ChatChunk(reasoning=delta.thinking or "")

    def end(self, index: int) -> ChatChunk:
        """Return the chunk for the end of the block, which holds the signature."""
        signature = "".join([self.signature or "", *self._signature])
        return ChatChunk(parts=(ReasoningPart("", signature=signature or None),))


class ToolUseBlock(Wire):
    """A tool call. Its input is complete at the beginning or arrives in deltas."""

    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None
    _has_deltas: bool = PrivateAttr(default=False)

    def begin(self, index: int) -> ChatChunk:
        """Return the chunk for the beginning of the block."""
        return _call_chunk(ToolCallDelta(index, self.id, self.name, signature=self._signature()))

    def _signature(self) -> str | None:
        """Return the other fields of the call as JSON text; None for a call by the model itself, the usual case."""
        caller = None if self.caller == {"type": "direct"} else self.caller
        if not caller and not self.toolset_name:
            return None
        return to_sendable_json(drop_none({"caller": caller, "toolset_name": self.toolset_name}))

    def add(self, index: int, delta: AnthropicBlockDelta) -> ChatChunk:
        """Add `delta` and return its chunk; the first piece of input is often empty."""
        if not delta.partial_json:
            return EMPTY_CHUNK
        self._has_deltas = True
        return _call_chunk(ToolCallDelta(index, arguments=delta.partial_json))

    def end(self, index: int) -> ChatChunk:
        """Return the chunk for the end of the block, which holds the input if it did not arrive in deltas."""
        if self._has_deltas:
            return EMPTY_CHUNK
        return _call_chunk(ToolCallDelta(index, arguments=to_json(self.input or {})))


class OtherBlock(Wire):
    """A block that only the provider can read, such as redacted reasoning or the record of a tool that it ran."""

    model_config = ConfigDict(extra="allow")

    type: str
    _input: list[str] = PrivateAttr(default_factory=list)
    _texts: dict[str, list[str]] = PrivateAttr(default_factory=dict)

    def begin(self, index: int) -> ChatChunk:
        """Return the chunk for the beginning of the block."""
        return EMPTY_CHUNK

    def add(self, index: int, delta: AnthropicBlockDelta) -> ChatChunk:
        """Add `delta`: `partial_json` extends the input, any other text extends the field of the same name."""
        fields = self.model_extra or {}
        for name, piece in delta.model_dump(exclude={"type", "partial_json"}, exclude_none=True).items():
            if isinstance(piece, str) and isinstance(text := fields.get(name), str | None):
                self._texts.setdefault(name, [text or ""]).append(piece)
        if delta.partial_json:
            self._input.append(delta.partial_json)
        return EMPTY_CHUNK

    def end(self, index: int) -> ChatChunk:
        """Return the chunk for the end of the block, which holds the whole block."""
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        block = {**self.model_dump(), **texts, **self._joined_input()}
        return ChatChunk(parts=(ProviderPart(to_sendable_json(block)),))

    def _joined_input(self) -> dict[str, Any]:
        try:
            return {"input": json.loads("".join(self._input))}
        except (ValueError, RecursionError):
            return {}


def _call_chunk(delta: ToolCallDelta) -> ChatChunk:
    return ChatChunk(tool_calls=(delta,))


def _block_kind(block: object) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if kind in ("text", "thinking", "tool_use") else "other"


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[OtherBlock, Tag("other")],
    Discriminator(_block_kind),
]


class OutputDetails(Wire):
    """The part of the output tokens spent on reasoning."""

    thinking_tokens: int | None = None


PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""The counts that add up to the tokens of the prompt."""


class AnthropicUsage(Wire):
    """Token counts. Here `input_tokens` excludes tokens read from or written to a cache."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None

    def to_usage(self) -> Usage:
        """Convert to `Usage`."""
        details = self.output_tokens_details
        return Usage(
            input_tokens=sum_known(*[getattr(self, name) for name in PROMPT_COUNTS]),
            output_tokens=self.output_tokens,
            cache_read_tokens=self.cache_read_input_tokens,
            cache_write_tokens=self.cache_creation_input_tokens,
            reasoning_tokens=None if details is None else details.thinking_tokens,
        )


class Container(Wire):
    """The container in which Anthropic ran code. A turn that is not over continues in the same one."""

    id: str


class StopInfo(Wire):
    """The reason why the model stopped, and the container that the rest of the turn needs."""

    stop_reason: str | None = None
    container: Container | None = None

    def container_parts(self, finish_reason: str | None) -> tuple[ProviderPart, ...]:
        """Return an opaque part with the container if the turn goes on, else nothing."""
        if self.container is None or finish_reason not in (PAUSE, "tool_call"):
            return ()
        return (ProviderPart(to_json({"type": CONTAINER, "id": self.container.id})),)


class AnthropicAnswer(Body, StopInfo):
    """An answer that is not streamed."""

    id: str | None = None
    model: str | None = None
    content: Annotated[tuple[Block, ...], FAIL_FAST] | None = None
    usage: AnthropicUsage | None = None


class AnthropicEvent(Body):
    """An event of a stream, of which only the type is read."""

    type: str | None = None


class MessageHead(Wire):
    """The message in the first event of a stream."""

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
    """The stop reason and the final token counts."""

    delta: StopInfo
    usage: AnthropicUsage | None = None


class MessageStop(AnthropicEvent):
    """The stream ends."""


EVENTS: dict[str | None, type[AnthropicEvent]] = {
    "message_start": MessageStart,
    "content_block_start": BlockStart,
    "content_block_delta": BlockDelta,
    "content_block_stop": BlockStop,
    "message_delta": MessageDelta,
    "message_stop": MessageStop,
}
"""The classes of the events that are read, by type. All other types, such as `ping`, are ignored."""
