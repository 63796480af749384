"""Ollama's native chat API, for models on this machine and in Ollama's cloud.

Format: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-a-chat-completion. A streamed answer is lines of
JSON, each in the format of a whole answer. Calls always arrive whole, but several lines can contain calls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from traced_tools.core.checks import expect
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.messages import (
    AssistantMessage,
    AssistantPart,
    ImagePart,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ConfigurationError, InvalidResponse
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse, is_made_up
from traced_tools.models.codec import SchemaEnforcement
from traced_tools.models.encoding import (
    convert_tool_schema,
    drop_none,
    encode_image,
    may_send_signed_parts,
    merge_extra,
    parse_arguments,
)
from traced_tools.models.http.framing import Framing, JsonLines
from traced_tools.models.http.keys import resolve_key
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions, check_options
from traced_tools.models.http.transport import HttpTransport
from traced_tools.models.ollama.wire import OllamaAnswer, OllamaMessage
from traced_tools.models.parsing import parse_body, to_json, unknown_reason
from traced_tools.tools.schema.dialects import inline_references, to_object_schema

_PROVIDER = "ollama"
_CLOUD_URL = "https://ollama.com"
_DEFAULT_PORT = ":11434"
_HOST = re.compile(r"(\w+://)?(\[[^]]*]|[^][:/\s]*)(:\d+)?(/.*)?")
_CONNECT_HOSTS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""The hosts to connect to if `OLLAMA_HOST` is an address on which a server listens on all interfaces."""
_THINK_SWITCHES: dict[str, Any] = {"true": True, "false": False}
_FINISH_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_call", "load": "stop", "unload": "stop"}


class OllamaChatModel(HttpChatModel):
    """A chat model that Ollama runs.

    `reasoning_effort` is `true`, `false` or a level that the model supports, such as `low`. Set other options with
    `extra`: `ChatOptions(extra={"keep_alive": "1h", "options": {"num_ctx": 32768}})`. Without `num_ctx` the context can
    be small, and Ollama silently drops what doesn't fit.

    Args:
        model: the model's name, such as `qwen3:8b`.
        base_url: the address of the server; by default `OLLAMA_HOST`, else port 11434 of this machine.
        api_key: the API key; by default `OLLAMA_API_KEY`. Required for Ollama's cloud, https://ollama.com.
        context_window: how many tokens a request can have; by default what the package `genai-prices` lists.
        **http: connection options, see `HttpOptions`.

    Raises:
        ConfigurationError: if the address is invalid, or that of the cloud and there is no key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        context_window: int | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        super().__init__(model, OllamaChatCodec(model), connect_ollama(base_url, api_key, http), context_window)


def connect_ollama(base_url: str | None, api_key: str | None, http: HttpOptions) -> HttpTransport:
    """Return the transport to an Ollama server; see `OllamaChatModel` for the arguments."""
    check_options(http)
    expect("base_url", base_url, (str, type(None)), "a str or None")
    # in Ollama's documentation the base address ends with /api, in its variable and its clients it doesn't
    host_url = _resolve_host(os.environ.get("OLLAMA_HOST", "")) if base_url is None else base_url
    address = host_url.rstrip("/").removesuffix("/api")
    key = resolve_key(api_key, "OLLAMA_API_KEY", needed=address.startswith(_CLOUD_URL))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return HttpTransport(address, _PROVIDER, headers, http)


def _resolve_host(host: str) -> str:
    """Return the address to connect to for a value of `OLLAMA_HOST`, which can lack parts or be a listening address.

    Rules: https://github.com/ollama/ollama/blob/main/envconfig/config.go.
    """
    host = host.strip(" \t\r\n\"'")
    if host == "ollama.com":
        return _CLOUD_URL
    if host.count(":") > 1 and "[" not in host and "://" not in host:
        host = f"[{host}]"  # a bare IPv6 address
    match = _HOST.fullmatch(host)
    if match is None:
        return host
    scheme, name, port, path = match.groups("")
    return f"{scheme or 'http://'}{_CONNECT_HOSTS.get(name, name)}{port or ('' if scheme else _DEFAULT_PORT)}{path}"


class OllamaChatCodec:
    """The codec of Ollama's chat API; `model` is the model's name."""

    framing: Framing = JsonLines()
    # a schema makes calls impossible: https://github.com/ollama/ollama/issues/8095
    models_path = "/api/tags"
    enforces_schema: SchemaEnforcement = "without_tools"

    def __init__(self, model: str) -> None:
        self._model = model
        self._tool = IdentityCache(_encode_tool)

    def path(self, *, stream: bool) -> str:
        """Return the path of the endpoint."""
        return "/api/chat"

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body for `request`; raises `ConfigurationError` for an option that Ollama lacks."""
        options = request.options
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [wire_message for message in request.messages for wire_message in _encode_message(message)],
            "stream": stream,
        }
        if tools := self._encode_tools(request):
            body["tools"] = tools
        if settings := _encode_options(options):
            body["options"] = settings
        if options.reasoning_effort is not None:
            body["think"] = _THINK_SWITCHES.get(options.reasoning_effort, options.reasoning_effort)
        if options.output_schema is not None:
            body["format"] = dict(options.output_schema)
        return merge_extra(body, options.extra)

    def _encode_tools(self, request: ChatRequest) -> list[dict[str, Any]]:
        options = request.options
        if not request.tools or options.tool_choice == "none":
            return []
        if options.tool_choice not in (None, "auto"):
            raise ConfigurationError("ollama cannot force a tool call: tool_choice may only be auto or none")
        if options.parallel_tool_calls is False:
            raise ConfigurationError("ollama cannot limit an answer to one call: drop parallel_tool_calls=False")
        return [self._tool(definition) for definition in request.tools]

    def decode(self, body: bytes) -> ChatResponse:
        """Decode the body of an answer that is not streamed; raises `InvalidResponse`."""
        answer = parse_body(OllamaAnswer, body, "the answer", _PROVIDER)
        if not answer.done:
            raise InvalidResponse("the answer is not complete", provider=_PROVIDER)
        message = answer.message_or_empty
        reason = _decode_finish_reason(answer.done_reason, has_calls=bool(message.tool_calls))
        return ChatResponse(
            AssistantMessage(list(_decode_parts(message))),
            usage=answer.token_usage(),
            finish_reason=reason,
            model=answer.model,
            provider_reason=unknown_reason(answer.done_reason, reason),
        )

    def decoder(self) -> OllamaChunkDecoder:
        """Return a decoder for one streamed answer."""
        return OllamaChunkDecoder()


class OllamaChunkDecoder:
    """Decodes one streamed answer, which is complete after the line with `done`."""

    def __init__(self) -> None:
        self._has_calls = False
        self.done = False

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Decode one line; raises `InvalidResponse`."""
        line = parse_body(OllamaAnswer, data, "a line of the stream", _PROVIDER)
        message = line.message_or_empty
        self._has_calls = self._has_calls or bool(message.tool_calls)
        self.done = self.done or bool(line.done)
        reason = _decode_finish_reason(line.done_reason, has_calls=self._has_calls)
        yield ChatChunk(
            text=message.content or "",
            reasoning=message.thinking or "",
            parts=tuple(_decode_whole_parts(message)),
            usage=line.token_usage(),
            finish_reason=reason,
            model=line.model,
            provider_reason=None if reason is None else unknown_reason(line.done_reason, reason),
        )

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self.done:
            raise InvalidResponse("the stream ended before the answer did", provider=_PROVIDER)


def _decode_parts(message: OllamaMessage) -> Iterator[AssistantPart]:
    if message.thinking:
        yield ReasoningPart(message.thinking)
    if message.content:
        yield TextPart(message.content)
    yield from _decode_whole_parts(message)


def _decode_whole_parts(message: OllamaMessage) -> Iterator[AssistantPart]:
    for image in message.images or ():
        yield ImagePart(data=image)
    for call in message.tool_calls or ():
        yield ToolCall(call.function.name, to_json(call.function.arguments or {}), call.id)


def _decode_finish_reason(reason: str | None, *, has_calls: bool) -> str | None:
    """Return the finish reason; Ollama also reports `stop` if the model stopped to call tools."""
    if not reason:
        return None
    finish_reason = _FINISH_REASONS.get(reason, "other")
    return "tool_call" if has_calls and finish_reason == "stop" else finish_reason


def _encode_options(options: ChatOptions) -> dict[str, Any]:
    settings = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "num_predict": options.max_tokens,
        "stop": None if options.stop is None else list(options.stop),
        "seed": options.seed,
    }
    return drop_none(settings)


def _encode_tool(definition: ToolDefinition) -> dict[str, Any]:
    """Return a tool whose schema has no references: Ollama drops a reference, which leaves the field without a schema.

    The root of the schema is an object with properties, which most chat templates read without a check.
    """
    parameters = convert_tool_schema(definition, lambda schema: to_object_schema(inline_references(schema)))
    function = {"name": definition.name, "description": definition.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _encode_message(message: Message) -> Iterable[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": message.text}
        case UserMessage():
            yield {"role": "user", "content": message.text, **_encode_images(message.parts)}
        case AssistantMessage():
            yield _encode_assistant(message)
        case ToolMessage():
            yield from map(_encode_result, message.results)


def _encode_assistant(message: AssistantMessage) -> dict[str, Any]:
    wire_message: dict[str, Any] = {"role": "assistant", "content": message.text, **_encode_images(message.parts)}
    if may_send_signed_parts(message, _PROVIDER) and message.reasoning:
        wire_message["thinking"] = message.reasoning
    if message.tool_calls:
        wire_message["tool_calls"] = [_encode_call(call) for call in message.tool_calls]
    return wire_message


def _encode_call(call: ToolCall) -> dict[str, Any]:
    return {**_encode_call_id("id", call.id), "function": {"name": call.name, "arguments": parse_arguments(call)}}


def _encode_result(result: ToolResultPart) -> dict[str, Any]:
    wire_message = {"role": "tool", "content": result.content, "tool_name": result.name}
    return {**wire_message, **_encode_call_id("tool_call_id", result.call_id), **_encode_images(result.images)}


def _encode_call_id(field: str, call_id: str | None) -> dict[str, str]:
    """Return the field for a call's id, none for a generated id: Ollama then matches results by name and order."""
    return {field: call_id} if call_id and not is_made_up(call_id) else {}


def _encode_images(parts: Iterable[object]) -> dict[str, list[str]]:
    images = [part for part in parts if isinstance(part, ImagePart)]
    if any(image.data is None for image in images):
        raise ConfigurationError("ollama accepts no image by url: pass its bytes, ImagePart(data=..., media_type=...)")
    return {"images": [encode_image(image) for image in images]} if images else {}
