"""The chat model interface: a `ChatRequest` goes in, a `ChatResponse` or a stream of `ChatChunk`s comes out."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any, Self

from pydantic import Field

from traced_tools.core.conversation import MADE_UP_ID
from traced_tools.core.frozen import frozen
from traced_tools.core.messages import (
    AssistantMessage,
    AssistantPart,
    FinishReason,
    Message,
    ProviderPart,
    TextPart,
    ToolCall,
    Usage,
    Value,
)
from traced_tools.core.options import NO_OPTIONS, ChatOptions
from traced_tools.core.prices import listed_context_window
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import InvalidResponse
from traced_tools.flow.workers import in_thread

CUT_OFF_REASONS = ("length", "content_filter")
"""The finish reasons of an answer that can end in the middle of a part."""

PAUSE = "pause"
"""The finish reason of a turn that the model continues if it is sent what it has written."""


def is_made_up(call_id: str) -> bool:
    """Return whether this package generated `call_id`. Providers without call ids are not sent such an id."""
    return call_id.startswith(MADE_UP_ID)


class CallIdAssigner:
    """Assigns the call ids of one answer: the provider's id, or a generated one if that is missing or repeated."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def assign(self, provider_id: str | None) -> str:
        """Return the id of the next call; `provider_id` is the provider's id, if it sent one."""
        call_id = f"{MADE_UP_ID}{uuid.uuid4().hex}" if not provider_id or provider_id in self._ids else provider_id
        self._ids.add(call_id)
        return call_id


@frozen
class ChatRequest:
    """A request to a model.

    Args:
        messages: the conversation.
        tools: the definitions of the tools that the model may call.
        options: the options, such as the temperature.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    options: ChatOptions = NO_OPTIONS

    def __repr__(self) -> str:
        return f"ChatRequest({len(self.messages)} messages, {len(self.tools)} tools)"


class ChatResponse(Value):
    """A model's answer.

    Args:
        message: the answer's message.
        usage: tokens, if the provider reports them.
        finish_reason: `stop`, `length`, `tool_call` or `content_filter`; `pause` if the model continues when it is sent
            the message; `error` if the provider reports that the answer failed; `other` for an unknown reason; None if
            the provider reports none.
        id: the provider's id of the answer.
        model: the model that answered, which can be a specific version of the requested model.
        provider_reason: the provider's own finish reason, if that is `error` or `other`.
    """

    message: AssistantMessage = Field(repr=False)
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    id: str | None = None
    model: str | None = None
    provider_reason: str | None = None

    def __init__(self, message: AssistantMessage, **data: Any) -> None:
        super().__init__(message=message, **data)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls the model asked for, in order."""
        return self.message.tool_calls

    def continuing(self, begun: Self) -> Self:
        """Return the answer that `begun` starts and this response ends."""
        message, usages = self.message, [response.usage for response in (begun, self) if response.usage is not None]
        parts = (*begun.message.parts, *message.parts)
        whole_message = message.replace(parts=parts, provider=message.provider or begun.message.provider)
        return self.replace(message=whole_message, usage=sum(usages[1:], usages[0]) if usages else None)

    def attributed_to(self, provider: str) -> Self:
        """Return this response with `provider` on its message if a part of the message is signed by a provider.

        A message that already names its provider stays as it is.
        """
        message = self.message
        if message.provider is None:
            for part in message.parts:
                if _is_signed(part):
                    return self.replace(message=message.replace(provider=provider))
        return self

    def without_cut_off_call(self) -> Self:
        """Return this response without a last call that was cut off before its arguments.

        Such a call looks like a call without arguments and would run with default values. A call that was cut off
        inside its arguments stays: its arguments are invalid JSON, so it does not run.
        """
        if self.finish_reason not in CUT_OFF_REASONS:
            return self
        parts = self.message.parts
        # opaque provider parts can follow the calls even if the answer was cut off in the last call
        last = next((part for part in reversed(parts) if not isinstance(part, ProviderPart)), None)
        if not isinstance(last, ToolCall) or last.arguments.strip() not in ("", "{}"):
            return self
        return self.replace(message=self.message.replace(parts=tuple(part for part in parts if part is not last)))

    def check_call_names(self, provider: str) -> None:
        """Raise an `InvalidResponse` that names `provider` if a call has no name."""
        for call in self.message.tool_calls:
            if not call.name:
                raise InvalidResponse("the answer contains a tool call without a name", provider=provider)

    def with_call_ids(self) -> Self:
        """Return this response with a unique id on each call; missing and repeated ids are replaced by generated ones.

        Results are matched to calls by these ids.
        """
        ids = [call.id for call in self.message.tool_calls]
        if all(ids) and len(set(ids)) == len(ids):
            return self
        assigner = CallIdAssigner()
        parts = tuple(
            part.replace(id=assigner.assign(part.id)) if isinstance(part, ToolCall) else part
            for part in self.message.parts
        )
        return self.replace(message=self.message.replace(parts=parts))


def _is_signed(part: AssistantPart) -> bool:
    # by `type`, because `isinstance` takes long for a pydantic object that is of another class
    if part.type == "provider" or (part.type == "reasoning" and part.id is not None):
        return True
    return part.signature is not None


@frozen
class ToolCallDelta:
    """A piece of a streamed tool call. Every field except `arguments` needs to be set on one piece of a call only.

    Args:
        index: the position of the call this piece belongs to; None for the call of the piece before.
        id: the call's id; an id that differs from the id of the call at `index` starts a new call.
        name: the tool's name, as the model wrote it.
        arguments: JSON text; concatenating the pieces of a call yields its arguments.
        signature: the provider's signature of the call, if it set one.
    """

    index: int | None = None
    id: str | None = None
    name: str | None = field(default=None, repr=False)
    arguments: str = field(default="", repr=False)
    signature: str | None = field(default=None, repr=False)


@frozen
class ChatChunk:
    """A piece of a streamed answer. Within a chunk, reasoning comes first, then text, calls and whole parts.

    Of `finish_reason`, `id`, `model` and `provider_reason`, the last value in a stream counts. Of `usage`, the last
    value of each count does, except zero: some servers repeat the usage with zeros.

    Args:
        text: appended to the text before it.
        reasoning: appended to the reasoning before it.
        tool_calls: pieces of calls.
        parts: parts that arrived whole. A `ReasoningPart` without text ends the reasoning before it and holds its
            signature and id.
        usage: tokens so far, if the provider reports them.
        finish_reason: why the model stopped.
        id: the provider's id of the answer.
        model: the model that answers.
        restarts: whether the answer starts again with this chunk, because the provider starts it again or an advisor
            asked again. The response then contains nothing of the chunks before it; a consumer that has displayed them
            clears them.
        provider_reason: the provider's own finish reason, if that is `error` or `other`.
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
    provider_reason: str | None = None

    @classmethod
    def whole(cls, response: ChatResponse) -> Self:
        """Return one chunk that holds all of `response`."""
        return cls(
            parts=response.message.parts,
            usage=response.usage,
            finish_reason=response.finish_reason,
            id=response.id,
            model=response.model,
            provider_reason=response.provider_reason,
        )

    @property
    def visible_text(self) -> str:
        """The text in this chunk: its piece of text and its whole text parts."""
        if not self.parts:
            return self.text
        return self.text + "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def has_content(self) -> bool:
        """Whether this chunk is a piece of an answer: it has text, reasoning, calls or whole parts."""
        return bool(self.text or self.reasoning or self.tool_calls or self.parts)

    @property
    def has_calls(self) -> bool:
        """Whether this chunk holds a tool call or a piece of one."""
        return bool(self.tool_calls) or any(isinstance(part, ToolCall) for part in self.parts)

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls in this chunk; the arguments of a streamed call are only the piece in this chunk."""
        pieces = tuple(ToolCall(delta.name or "", delta.arguments, delta.id) for delta in self.tool_calls)
        return pieces + tuple(part for part in self.parts if isinstance(part, ToolCall))

    def with_calls(self, tool_calls: tuple[ToolCallDelta, ...], parts: tuple[AssistantPart, ...]) -> ChatChunk:
        """Return this chunk with other `tool_calls` and `parts`; `dataclasses.replace` takes twice as long."""
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
            self.provider_reason,
        )

    def without_calls(self) -> Self:
        """Return this chunk without tool calls and without a finish reason."""
        parts = tuple(part for part in self.parts if not isinstance(part, ToolCall))
        return replace(self, tool_calls=(), parts=parts, finish_reason=None)

    def __repr__(self) -> str:
        return f"ChatChunk({len(self.text)} characters, {len(self.tool_calls)} tool call deltas)"


AskModel = Callable[["ChatModel"], Awaitable[ChatResponse]]
"""Sends the current request to a model and returns the answer."""


class ChatModel(ABC):
    """A chat model. Subclasses set `model` and `provider` and implement `call`; the other methods have defaults.

    `call` must be safe to run in several threads at once. A model behind HTTP also sets `server_address` and
    `server_port`, which makes its spans CLIENT spans.

    Attributes:
        context_window: how many tokens a request can have; None for what the package `genai-prices` lists.
    """

    model: str
    provider: str
    context_window: int | None = None
    server_address: str | None = None
    server_port: int | None = None

    def enforces_schema(self, schema: Mapping[str, Any], *, with_tools: bool) -> bool:
        """Return whether the model's answers follow `schema` in `ChatOptions.output_schema`; False by default.

        Args:
            schema: the JSON Schema of an object.
            with_tools: whether the request also offers tools, which not every model supports beside a schema.
        """
        return False

    def known_context_window(self) -> int | None:
        """Return `context_window` or what the package `genai-prices` lists; None if neither is known."""
        return self.context_window or listed_context_window(self.provider, self.model)

    async def route(self, ask: AskModel) -> ChatResponse:
        """Return the answer of the model that answers: by default, of this model; see `RoutingModel`."""
        return await ask(self)

    @abstractmethod
    def call(self, request: ChatRequest) -> ChatResponse:
        """Answer `request`, blocking; raises `ModelError` if there is no answer."""

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Answer `request` on asyncio; by default, run `call` in a worker thread."""
        return await in_thread(partial(self.call, request))

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        """Answer `request` in chunks; by default, yield the whole answer as one chunk."""
        yield ChatChunk.whole(self.call(request))

    async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
        """Answer `request` in chunks on asyncio; by default, yield the whole answer as one chunk."""
        yield ChatChunk.whole(await self.acall(request))
