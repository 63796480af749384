"""Ollama's own API: models on this machine, and in its cloud.

Format: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-a-chat-completion. A streamed answer is lines of
JSON, and a line looks like a whole answer. Calls are whole wherever they are, and several lines may hold some.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from traced_tools.core.checks import expect
from traced_tools.core.identity_cache import MadeOnce
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
from traced_tools.models.wire import parse_body, to_json
from traced_tools.tools.schema.dialects import inlined, one_object

_PROVIDER = "ollama"
_CLOUD = "https://ollama.com"
_PORT = ":11434"
_HOST = re.compile(r"(\w+://)?(\[[^]]*]|[^][:/\s]*)(:\d+)?(/.*)?")
_REACHED = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Where a server is reached whose address says that it listens everywhere."""
_THINK: dict[str, Any] = {"true": True, "false": False}
_FINISH_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_call", "load": "stop", "unload": "stop"}


class OllamaChatModel(HttpChatModel):
    """A model that Ollama runs.

    `reasoning_effort` is `true`, `false` or a level of the model's, such as `low`. What else Ollama can be told goes
    through `extra`: `ChatOptions(extra={"keep_alive": "1h", "options": {"num_ctx": 32768}})`. Without `num_ctx` the
    context may be small, and Ollama leaves out without a word what does not fit into it.

    Args:
        model: the model's name, such as `qwen3:8b`.
        base_url: where the server is; by default `OLLAMA_HOST`, else port 11434 of this machine.
        api_key: by default `OLLAMA_API_KEY`; needed for Ollama's cloud, https://ollama.com.
        **http: how to reach it, as in `HttpOptions`.

    Raises:
        ConfigurationError: for an address that is none, or the cloud without a key.
    """

    def __init__(
        self, model: str, *, base_url: str | None = None, api_key: str | None = None, **http: Unpack[HttpOptions]
    ) -> None:
        super().__init__(model, OllamaChatCodec(model), ollama_transport(base_url, api_key, http))


def ollama_transport(base_url: str | None, api_key: str | None, http: HttpOptions) -> HttpTransport:
    """Return the way to a server of Ollama's; see `OllamaChatModel` for the arguments."""
    check_options(http)
    expect("base_url", base_url, (str, type(None)), "a str or None")
    # Ollama's documentation counts /api to the base, its variable and its clients do not
    given = _address(os.environ.get("OLLAMA_HOST", "")) if base_url is None else base_url
    address = given.rstrip("/").removesuffix("/api")
    key = resolve_key(api_key, "OLLAMA_API_KEY", needed=address.startswith(_CLOUD))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return HttpTransport(address, _PROVIDER, headers, http)


def _address(host: str) -> str:
    """Return the address that `OLLAMA_HOST` names: parts of it may be missing, and it may be where a server listens.

    Rules: https://github.com/ollama/ollama/blob/main/envconfig/config.go.
    """
    host = host.strip(" \t\r\n\"'")
    if host == "ollama.com":
        return _CLOUD
    if host.count(":") > 1 and "[" not in host and "://" not in host:
        host = f"[{host}]"  # a bare IPv6 address
    found = _HOST.fullmatch(host)
    if found is None:
        return host
    scheme, name, port, path = found.groups("")
    return f"{scheme or 'http://'}{_REACHED.get(name, name)}{port or ('' if scheme else _PORT)}{path}"


class OllamaChatCodec:
    """The language of Ollama's own API; `model` is the name of the model to ask."""

    framing: Framing = JsonLines()

    def __init__(self, model: str) -> None:
        self._model = model
        self._tool = MadeOnce(_tool)

    def path(self, *, stream: bool) -> str:
        """Return where to send a request."""
        return "/api/chat"

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body that asks `request`; raises `ConfigurationError` for what Ollama does not have."""
        options = request.options
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [each for message in request.messages for each in _messages(message)],
            "stream": stream,
        }
        if tools := self._tools(request):
            body["tools"] = tools
        if settings := _settings(options):
            body["options"] = settings
        if options.reasoning_effort is not None:
            body["think"] = _THINK.get(options.reasoning_effort, options.reasoning_effort)
        if options.output_schema is not None:
            body["format"] = dict(options.output_schema)
        return merge_extra(body, options.extra)

    def _tools(self, request: ChatRequest) -> list[dict[str, Any]]:
        options = request.options
        if not request.tools or options.tool_choice == "none":
            return []
        if options.tool_choice not in (None, "auto"):
            raise ConfigurationError("ollama cannot make a model call tools: tool_choice may only be auto or none")
        if options.parallel_tool_calls is False:
            raise ConfigurationError("ollama cannot keep a model to one call an answer: drop parallel_tool_calls=False")
        return [self._tool(definition) for definition in request.tools]

    def decode(self, body: bytes) -> ChatResponse:
        """Return the answer a whole body stands for; raises `InvalidResponse`."""
        answer = parse_body(OllamaAnswer, body, "the answer", _PROVIDER)
        if not answer.done:
            raise InvalidResponse("the answer is not complete", provider=_PROVIDER)
        return ChatResponse(
            AssistantMessage(list(_parts(answer.said))),
            usage=answer.token_usage(),
            finish_reason=_finish_reason(answer.done_reason, called=bool(answer.said.tool_calls)),
            model=answer.model,
        )

    def decoder(self) -> OllamaChunkDecoder:
        """Return a decoder for one streamed answer."""
        return OllamaChunkDecoder()


class OllamaChunkDecoder:
    """Decodes one streamed answer, which is complete when it says that it is done."""

    def __init__(self) -> None:
        self._called = False
        self.done = False

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Return the chunk a line stands for; raises `InvalidResponse`."""
        line = parse_body(OllamaAnswer, data, "a line of the stream", _PROVIDER)
        self._called = self._called or bool(line.said.tool_calls)
        self.done = self.done or bool(line.done)
        yield ChatChunk(
            text=line.said.content or "",
            reasoning=line.said.thinking or "",
            parts=tuple(_whole_parts(line.said)),
            usage=line.token_usage(),
            finish_reason=_finish_reason(line.done_reason, called=self._called),
            model=line.model,
        )

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self.done:
            raise InvalidResponse("the stream ended before the answer did", provider=_PROVIDER)


def _parts(said: OllamaMessage) -> Iterator[AssistantPart]:
    if said.thinking:
        yield ReasoningPart(said.thinking)
    if said.content:
        yield TextPart(said.content)
    yield from _whole_parts(said)


def _whole_parts(said: OllamaMessage) -> Iterator[AssistantPart]:
    for image in said.images or ():
        yield ImagePart(data=image)
    for call in said.tool_calls or ():
        yield ToolCall(call.function.name, to_json(call.function.arguments or {}), call.id)


def _finish_reason(reason: str | None, *, called: bool) -> str | None:
    """Return the reason in our terms; Ollama says `stop` where a model stopped to have its calls run."""
    if not reason:
        return None
    found = _FINISH_REASONS.get(reason, "error")
    return "tool_call" if called and found == "stop" else found


def _settings(options: ChatOptions) -> dict[str, Any]:
    settings = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "num_predict": options.max_tokens,
        "stop": None if options.stop is None else list(options.stop),
        "seed": options.seed,
    }
    return drop_none(settings)


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    """Return a tool without references in its schema: Ollama takes a field's out and puts nothing in its place.

    Its root is an object with fields, which most chat templates read without a check.
    """
    parameters = convert_tool_schema(definition, lambda schema: one_object(inlined(schema)))
    function = {"name": definition.name, "description": definition.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _messages(message: Message) -> Iterable[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": message.text}
        case UserMessage():
            yield {"role": "user", "content": message.text, **_images(message.parts)}
        case AssistantMessage():
            yield _assistant(message)
        case ToolMessage():
            yield from map(_result, message.results)


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": message.text, **_images(message.parts)}
    if may_send_signed_parts(message, _PROVIDER) and message.reasoning:
        said["thinking"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [_call(call) for call in message.tool_calls]
    return said


def _call(call: ToolCall) -> dict[str, Any]:
    return {**_id("id", call.id), "function": {"name": call.name, "arguments": parse_arguments(call)}}


def _result(result: ToolResultPart) -> dict[str, Any]:
    said = {"role": "tool", "content": result.content, "tool_name": result.name}
    return {**said, **_id("tool_call_id", result.call_id), **_images(result.images)}


def _id(field: str, call_id: str | None) -> dict[str, str]:
    """Return the field for a call's id, none for one that Ollama did not give: it then goes by name and order."""
    return {field: call_id} if call_id and not is_made_up(call_id) else {}


def _images(parts: Iterable[object]) -> dict[str, list[str]]:
    images = [part for part in parts if isinstance(part, ImagePart)]
    if any(image.data is None for image in images):
        raise ConfigurationError("ollama takes no image by url: pass its bytes, ImagePart(data=..., media_type=...)")
    return {"images": [encode_image(image) for image in images]} if images else {}
