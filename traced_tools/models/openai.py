"""OpenAI's chat completions, and every server that speaks them.

Format: https://platform.openai.com/docs/api-reference/chat. The codec decides by what it sees and not by what a server
claims: some give no finish reason, some put usage on a chunk of its own, some send a whole call in one delta.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Unpack

from traced_tools._checks import expect
from traced_tools._made_once import MadeOnce
from traced_tools.errors import ConfigurationError, InvalidResponse, ToolDefinitionError
from traced_tools.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse, ToolCallDelta
from traced_tools.models.http.framing import Framing, ServerSentEvents
from traced_tools.models.http.keys import key_of, needed_key
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions
from traced_tools.models.http.transport import HttpTransport
from traced_tools.models.openai_wire import Answer, Completion, CompletionChunk
from traced_tools.models.wire import read
from traced_tools.options import ChatOptions
from traced_tools.tools.definition import ToolDefinition
from traced_tools.tools.dialects import inlined, strict

_OPENAI = "https://api.openai.com/v1"
_DONE = "[DONE]"
_FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
}


class OpenAIChatModel(HttpChatModel):
    """A model behind OpenAI's chat completions, or behind a server that speaks them (vLLM, Ollama, Groq, a gateway).

    Args:
        model: the model's name, such as `gpt-5-mini`.
        base_url: where the API is; by default `OPENAI_BASE_URL`, else OpenAI.
        api_key: by default `OPENAI_API_KEY`; needed for OpenAI itself.
        provider: who runs the model, for telemetry (`gen_ai.provider.name`).
        stream_usage: ask for usage on streams; False for servers that refuse the field.
        strict_tools: have OpenAI hold the model to each tool's input schema. What is optional in it may then be null,
            and a tool whose schema strict mode cannot express raises `ToolDefinitionError` when it is offered.
        inline_definitions: write out what `$ref` leads to in input schemas, for servers that do not follow it.
        **http: how to reach it, as in `HttpOptions`.

    Raises:
        ConfigurationError: for an address that is none, or OpenAI without a key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "openai",
        stream_usage: bool = True,
        strict_tools: bool = False,
        inline_definitions: bool = False,
        **http: Unpack[HttpOptions],
    ) -> None:
        expect("model", model, str, "a str")
        expect("base_url", base_url, (str, type(None)), "a str or None")
        expect("provider", provider, str, "a str")
        expect("stream_usage", stream_usage, bool, "True or False")
        expect("strict_tools", strict_tools, bool, "True or False")
        expect("inline_definitions", inline_definitions, bool, "True or False")
        address = (base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI).rstrip("/")
        if address.endswith("/chat/completions"):
            raise ConfigurationError(f"base_url must be the API's base, such as {_OPENAI}: drop /chat/completions")
        is_openai = address.startswith(_OPENAI)
        key = needed_key(api_key, "OPENAI_API_KEY") if is_openai else key_of(api_key, "OPENAI_API_KEY")
        codec = OpenAIChatCodec(
            model,
            provider=provider,
            is_openai=is_openai,
            stream_usage=stream_usage,
            strict_tools=strict_tools,
            inline_definitions=inline_definitions,
        )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(model, codec, HttpTransport(address, provider, headers, http))


class OpenAIChatCodec:
    """The language of chat completions; see `OpenAIChatModel` for the arguments."""

    framing: Framing = ServerSentEvents()

    def __init__(
        self,
        model: str,
        *,
        provider: str,
        is_openai: bool,
        stream_usage: bool,
        strict_tools: bool = False,
        inline_definitions: bool = False,
    ) -> None:
        self._provider = provider
        self._model = model
        # OpenAI's newer models refuse `max_tokens`, other servers know nothing else
        self._max_tokens = "max_completion_tokens" if is_openai else "max_tokens"
        self._stream_usage = stream_usage
        self._strict_tools = strict_tools
        self._inline_definitions = inline_definitions
        self._tool = MadeOnce(self._made_tool)

    def path(self, *, stream: bool) -> str:
        """Return where to send a request."""
        return "/chat/completions"

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body that asks `request`."""
        body: dict[str, Any] = {"model": self._model, "messages": list(_messages(request.messages))}
        if request.tools:
            body["tools"] = [self._tool(definition) for definition in request.tools]
        body.update(self._options(request.options, has_tools=bool(request.tools)))
        if stream:
            body["stream"] = True
            if self._stream_usage:
                body["stream_options"] = {"include_usage": True}
        return {**body, **request.options.extra}

    def _options(self, options: ChatOptions, *, has_tools: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "temperature": options.temperature,
            "top_p": options.top_p,
            self._max_tokens: options.max_tokens,
            "stop": None if options.stop is None else list(options.stop),
            "seed": options.seed,
            "reasoning_effort": options.reasoning_effort,
        }
        if has_tools:
            fields["tool_choice"] = _tool_choice(options.tool_choice)
            fields["parallel_tool_calls"] = options.parallel_tool_calls
        return {name: value for name, value in fields.items() if value is not None}

    def _made_tool(self, definition: ToolDefinition) -> dict[str, Any]:
        parameters = definition.input_schema
        try:
            if self._inline_definitions:
                parameters = inlined(parameters)
            if self._strict_tools:
                parameters = strict(parameters)
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"the tool {definition.name} cannot be sent: {error}") from None
        function = {"name": definition.name, "description": definition.description, "parameters": parameters}
        return {"type": "function", "function": {**function, "strict": True} if self._strict_tools else function}

    def decode(self, body: bytes) -> ChatResponse:
        """Return the answer a whole body stands for; raises `InvalidResponse`."""
        answer = read(Completion, body, "the answer", self._provider)
        if not answer.choices:
            raise InvalidResponse("the answer holds no choice", provider=self._provider)
        choice = answer.choices[0]
        return ChatResponse(
            AssistantMessage(list(_parts(choice.message)), provider=self._provider),
            usage=answer.used(),
            finish_reason=_finish_reason(choice.finish_reason),
            id=answer.id,
            model=answer.model,
        )

    def decoder(self) -> OpenAIChunkDecoder:
        """Return a decoder for one streamed answer."""
        return OpenAIChunkDecoder(self._provider)


class OpenAIChunkDecoder:
    """Decodes one streamed answer. It is complete when it says `[DONE]` or has given a finish reason."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._complete = False

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Return the chunk an event's data stands for; raises `InvalidResponse`."""
        if data.strip() == _DONE:
            self._complete = True
        elif data:
            yield self._chunk(data)

    def _chunk(self, data: str) -> ChatChunk:
        event = read(CompletionChunk, data, "a chunk of the stream", self._provider)
        choice = event.choices[0] if event.choices else None
        if choice is None:
            return ChatChunk(usage=event.used(), id=event.id, model=event.model)
        self._complete = self._complete or bool(choice.finish_reason)
        delta = choice.delta
        return ChatChunk(
            text=delta.text,
            reasoning=delta.thoughts,
            tool_calls=tuple(
                ToolCallDelta(call.index, call.id, call.function.name, call.function.text)
                for call in delta.tool_calls or ()
            ),
            usage=event.used(),
            finish_reason=_finish_reason(choice.finish_reason),
            id=event.id,
            model=event.model,
        )

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self._complete:
            raise InvalidResponse("the stream ended before the answer did", provider=self._provider)


def _parts(message: Answer) -> Iterable[Any]:
    if message.thoughts:
        yield ReasoningPart(message.thoughts)
    if message.text:
        yield TextPart(message.text)
    for call in message.tool_calls or ():
        yield ToolCall(call.function.name or "", call.function.text, call.id)


def _finish_reason(reason: str | None) -> str | None:
    return _FINISH_REASONS.get(reason, "error") if reason else None


def _messages(messages: Iterable[Message]) -> Iterable[dict[str, Any]]:
    """Give a conversation as the API reads it: a result is text only, so a batch's images follow as the user's."""
    for _, group in groupby(messages, key=type):
        alike = list(group)
        for message in alike:
            yield from _message(message)
        if images := [part for message in alike if isinstance(message, ToolMessage) for part in _images(message)]:
            yield {"role": "user", "content": images}


def _message(message: Message) -> Iterable[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": message.text}
        case UserMessage():
            yield {"role": "user", "content": _user_content(message)}
        case AssistantMessage():
            yield _assistant(message)
        case ToolMessage():
            for result in message.results:
                yield {"role": "tool", "tool_call_id": result.call_id, "content": result.content}


def _images(message: ToolMessage) -> Iterable[dict[str, Any]]:
    for result in message.results:
        if result.images:
            yield {"type": "text", "text": f"Images returned by the tool call {result.call_id}:"}
            yield from map(_image, result.images)


def _user_content(message: UserMessage) -> str | list[dict[str, Any]]:
    if all(isinstance(part, TextPart) for part in message.parts):
        return message.text
    return [
        _image(part) if isinstance(part, ImagePart) else {"type": "text", "text": part.text} for part in message.parts
    ]


def _image(part: ImagePart) -> dict[str, Any]:
    url = part.url
    if url is None:
        url = f"data:{part.media_type};base64,{base64.b64encode(part.data or b'').decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    nothing = None if message.tool_calls else ""
    said: dict[str, Any] = {"role": "assistant", "content": message.text or nothing}
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return said


def _tool_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}
