"""What a model is: a request in, an answer out, whole or in chunks."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from pydantic import Field

from traced_tools.core.messages import (
    AssistantMessage,
    AssistantPart,
    FinishReason,
    Message,
    ProviderPart,
    ReasoningPart,
    TextPart,
    ToolCall,
    Usage,
    Value,
)
from traced_tools.core.options import NO_OPTIONS, ChatOptions
from traced_tools.core.quick_init import quick_init
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import InvalidResponse
from traced_tools.flow.workers import in_thread

MADE_UP_ID = "ttcall_"
"""How the id of a call begins whose provider gave none."""


CUT_OFF = ("length", "content_filter")
"""The finish reasons of an answer that may end in the middle of a part."""


def is_made_up(call_id: str) -> bool:
    """Return whether no provider gave this id; it is then not sent to a provider that knows no ids."""
    return call_id.startswith(MADE_UP_ID)


class CallIds:
    """The ids of one answer's calls: the provider's, or made up where it gives none or the same one again."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, given: str | None) -> str:
        """Return the id of the next call."""
        found = f"{MADE_UP_ID}{uuid.uuid4().hex}" if not given or given in self._taken else given
        self._taken.add(found)
        return found


@quick_init
@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a model is asked: the conversation, the tools it may call, the options."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    options: ChatOptions = NO_OPTIONS

    def __repr__(self) -> str:
        return f"ChatRequest({len(self.messages)} messages, {len(self.tools)} tools)"


class ChatResponse(Value):
    """What a model answered.

    Args:
        message: the answer.
        usage: tokens, when the provider says.
        finish_reason: `stop`, `length`, `tool_call`, `content_filter` or `error`; None when the provider gives none.
        id: the provider's id of the answer.
        model: the model that answered, which may be a version of the one that was asked.
    """

    message: AssistantMessage = Field(repr=False)
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    id: str | None = None
    model: str | None = None

    def __init__(self, message: AssistantMessage, **data: Any) -> None:
        super().__init__(message=message, **data)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls the model asked for, in order."""
        return self.message.tool_calls

    def sealed_by(self, provider: str) -> Self:
        """Return this response with `provider` on its message, if it holds what only that provider can read."""
        message = self.message
        if message.provider is not None or not any(map(_is_sealed, message.parts)):
            return self
        return self.replace(message=message.replace(provider=provider))

    def without_cut_call(self) -> Self:
        """Return this response without a last call that was cut off before its arguments.

        It would look like one that has none, and be run with defaults that nobody chose. One cut off later is no JSON.
        """
        if self.finish_reason not in CUT_OFF:
            return self
        parts = self.message.parts
        # what only the provider understands may follow the calls, wherever the model was when it was cut off
        last = next((part for part in reversed(parts) if not isinstance(part, ProviderPart)), None)
        if not isinstance(last, ToolCall) or last.arguments.strip() not in ("", "{}"):
            return self
        return self.replace(message=self.message.replace(parts=tuple(part for part in parts if part is not last)))

    def check_names(self, provider: str) -> None:
        """Raise `InvalidResponse`, with `provider` on it, if a call has no name."""
        if "" in {call.name for call in self.tool_calls}:
            raise InvalidResponse("the answer holds a tool call without a name", provider=provider)

    def with_call_ids(self) -> Self:
        """Return this response with an id of its own for each call, made up where it has none, so that results fit."""
        calls = self.tool_calls
        ids = {call.id for call in calls}
        if len(ids) == len(calls) and all(ids):
            return self
        known = CallIds()
        parts = tuple(
            part.replace(id=known.of(part.id)) if isinstance(part, ToolCall) else part for part in self.message.parts
        )
        return self.replace(message=self.message.replace(parts=parts))


def _is_sealed(part: AssistantPart) -> bool:
    if isinstance(part, ReasoningPart) and part.id is not None:
        return True
    return isinstance(part, ProviderPart) or part.signature is not None


@quick_init
@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call, of which each but `arguments` need be told only once.

    Args:
        index: which of the answer's calls it belongs to; None for the one that came before.
        id: the call's id; another one than the call's so far begins another call.
        name: the tool's name, as the model wrote it.
        arguments: JSON text; the pieces of a call join to its arguments.
        signature: the provider's seal on the call, if it set one.
    """

    index: int | None = None
    id: str | None = None
    name: str | None = field(default=None, repr=False)
    arguments: str = field(default="", repr=False)
    signature: str | None = field(default=None, repr=False)


@quick_init
@dataclass(frozen=True, slots=True)
class ChatChunk:
    """A piece of a streamed answer. Of what it holds, the reasoning comes first and the whole parts last.

    Args:
        text: goes on with the text before it.
        reasoning: goes on with the reasoning before it.
        tool_calls: pieces of calls.
        parts: parts that came in one piece. A `ReasoningPart` without text is the end of the reasoning before it, with
            its signature and id.
        usage: tokens so far, when the provider says; the last word counts, as it does of what follows.
        finish_reason: why the model stopped.
        id: the provider's id of the answer.
        model: the model that answers.
        restarts: whether the provider starts its answer again with this chunk. The response then holds nothing of the
            chunks before it; a consumer that has shown them clears them.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    parts: tuple[AssistantPart, ...] = ()
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    id: str | None = None
    model: str | None = None
    restarts: bool = False

    @classmethod
    def whole(cls, response: ChatResponse) -> Self:
        """Return a chunk that holds a complete answer."""
        return cls(
            parts=response.message.parts,
            usage=response.usage,
            finish_reason=response.finish_reason,
            id=response.id,
            model=response.model,
        )

    @property
    def visible_text(self) -> str:
        """The text that arrived, in a piece or as a part."""
        if not self.parts:
            return self.text
        return self.text + "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def has_calls(self) -> bool:
        """Whether it holds a piece of a tool call."""
        return bool(self.tool_calls) or any(isinstance(part, ToolCall) for part in self.parts)

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls this chunk holds a piece of; arguments are the piece that arrived."""
        begun = tuple(ToolCall(delta.name or "", delta.arguments, delta.id) for delta in self.tool_calls)
        return begun + tuple(part for part in self.parts if isinstance(part, ToolCall))

    def with_calls(self, tool_calls: tuple[ToolCallDelta, ...], parts: tuple[AssistantPart, ...]) -> ChatChunk:
        """Return this chunk with these pieces of calls and these parts; `replace` would take twice the time."""
        return ChatChunk(
            self.text,
            self.reasoning,
            tool_calls,
            parts,
            self.usage,
            self.finish_reason,
            self.id,
            self.model,
            self.restarts,
        )

    def without_calls(self) -> Self:
        """Return this chunk without any piece of a tool call."""
        parts = tuple(part for part in self.parts if not isinstance(part, ToolCall))
        return replace(self, tool_calls=(), parts=parts, finish_reason=None)

    def __repr__(self) -> str:
        return f"ChatChunk({len(self.text)} characters, {len(self.tool_calls)} tool call deltas)"


class ChatModel(ABC):
    """A chat model. Subclasses set `model` and `provider` and implement `call`; the rest has defaults.

    `call` must be safe to run in several threads at once. A model that speaks HTTP also sets `server_address` and
    `server_port`, which makes its spans CLIENT spans.
    """

    model: str
    provider: str
    server_address: str | None = None
    server_port: int | None = None

    @abstractmethod
    def call(self, request: ChatRequest) -> ChatResponse:
        """Answer `request`, blocking; raises `ModelError` when there is no answer."""

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Answer `request` on asyncio; by default `call` in a worker thread."""
        return await in_thread(partial(self.call, request))

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        """Answer `request` in chunks; by default the whole answer as one."""
        yield ChatChunk.whole(self.call(request))

    async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
        """Answer `request` in chunks on asyncio; by default the whole answer as one."""
        yield ChatChunk.whole(await self.acall(request))
