"""Anthropic's Messages API.

Format: https://docs.anthropic.com/en/api/messages. Thoughts, and records of tools that Anthropic runs, go back as they
came and where they stood: the API refuses a conversation in which they are missing or changed.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count, groupby
from operator import itemgetter
from typing import Any, Unpack

from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.identity_cache import MadeOnce
from traced_tools.core.messages import (
    AssistantMessage,
    AssistantPart,
    ImagePart,
    Message,
    ProviderPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResultPart,
    Usage,
    UserMessage,
)
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ConfigurationError, InvalidResponse
from traced_tools.models.anthropic.schema import closed
from traced_tools.models.anthropic.wire import (
    CALL_FIELDS,
    EMPTY_CHUNK,
    EVENTS,
    AnthropicAnswer,
    AnthropicEvent,
    AnthropicUsage,
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageDelta,
    MessageStart,
    MessageStop,
)
from traced_tools.models.base import CUT_OFF_REASONS, ChatChunk, ChatRequest, ChatResponse
from traced_tools.models.encoding import (
    convert_tool_schema,
    drop_none,
    encode_image,
    may_send_signed_parts,
    merge_extra,
    parse_arguments,
    signature_fields,
)
from traced_tools.models.folding import ChunkFold
from traced_tools.models.http.framing import Framing, ServerSentEvents
from traced_tools.models.http.keys import resolve_key
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions, check_options
from traced_tools.models.http.transport import HttpTransport
from traced_tools.models.wire import MOST_ITEMS, parse_body
from traced_tools.tools.schema.dialects import one_object

_ANTHROPIC = "https://api.anthropic.com"
_PROVIDER = "anthropic"
_VERSION = "2023-06-01"
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",  # a turn with tools of the provider's own grew too long; it goes on where it is sent back
    "refusal": "content_filter",
}
_EVENT = "an event of the stream"
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")


class AnthropicChatModel(HttpChatModel):
    """A Claude model behind Anthropic's Messages API, or behind a gateway that speaks it.

    Args:
        model: the model's name, such as `claude-sonnet-4-5`.
        base_url: where the API is, without `/v1`; by default `ANTHROPIC_BASE_URL`, else Anthropic.
        api_key: by default `ANTHROPIC_API_KEY`; needed for Anthropic itself.
        max_tokens: the most tokens an answer may have where `ChatOptions` do not say; the API asks for a number.
        **http: how to reach it, as in `HttpOptions`. Beta features are switched on by a header (`anthropic-beta`).

    Raises:
        ConfigurationError: for an address that is none, or Anthropic without a key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        max_tokens: int = 8192,
        **http: Unpack[HttpOptions],
    ) -> None:
        check_options(http)
        expect("base_url", base_url, (str, type(None)), "a str or None")
        expect_whole("max_tokens", max_tokens, 1)
        default = os.environ.get("ANTHROPIC_BASE_URL") or _ANTHROPIC
        address = (default if base_url is None else base_url).rstrip("/")
        if address.endswith(("/v1", "/v1/messages")):
            raise ConfigurationError(f"base_url must be the API's base, such as {_ANTHROPIC}: drop /v1")
        key = resolve_key(api_key, "ANTHROPIC_API_KEY", needed=address.startswith(_ANTHROPIC))
        headers = {"anthropic-version": _VERSION, **({"x-api-key": key} if key else {})}
        codec = AnthropicChatCodec(model, max_tokens=max_tokens)
        super().__init__(model, codec, HttpTransport(address, _PROVIDER, headers, http))


class AnthropicChatCodec:
    """The language of the Messages API; see `AnthropicChatModel` for the arguments."""

    framing: Framing = ServerSentEvents()

    def __init__(self, model: str, *, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._tool = MadeOnce(_tool)

    def path(self, *, stream: bool) -> str:
        """Return where to send a request."""
        return "/v1/messages"

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body that asks `request`; raises `ConfigurationError` for what the API does not have."""
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.options.max_tokens or self._max_tokens,
            "messages": list(_messages(request.messages)),
            **_options(request.options),
            **self._tools(request),
        }
        if system := _system(request.messages):
            body["system"] = system
        if stream:
            body["stream"] = True
        return merge_extra(body, request.options.extra)

    def _tools(self, request: ChatRequest) -> dict[str, Any]:
        if request.tools:
            tools = [self._tool(tool) for tool in request.tools]
            return drop_none({"tools": tools, "tool_choice": _tool_choice(request.options)})
        # a conversation in which tools were called is refused without tools: they stay known, and forbidden
        names = dict.fromkeys(call.name for call in _calls(request.messages))
        known = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        return {"tools": known, "tool_choice": {"type": "none"}} if known else {}

    def decode(self, body: bytes) -> ChatResponse:
        """Return the answer a whole body stands for; raises `InvalidResponse`."""
        answer = parse_body(AnthropicAnswer, body, "the answer", _PROVIDER)
        if answer.content is None:
            raise InvalidResponse("the answer holds no content", provider=_PROVIDER)
        fold = ChunkFold()
        for index, block in enumerate(answer.content):
            fold.add(block.begin(index))
            fold.add(block.end(index))
        usage = answer.usage.to_usage() if answer.usage else None
        reason = _finish_reason(answer.stop_reason)
        fold.add(ChatChunk(usage=usage, finish_reason=reason, id=answer.id, model=answer.model))
        return fold.response()

    def decoder(self) -> AnthropicChunkDecoder:
        """Return a decoder for one streamed answer."""
        return AnthropicChunkDecoder()


class AnthropicChunkDecoder:
    """Decodes one streamed answer.

    It is complete when it says so and every block in it has ended. An answer that is cut off at a limit or by a filter
    is complete in the middle of its last block, too. A message that starts again replaces what came before.
    """

    def __init__(self) -> None:
        self._has_begun = False
        self._start()

    def _start(self) -> None:
        self._open: dict[int, tuple[int, Block]] = {}
        self._places = count()  # a gateway may use an index again
        self._used: dict[str, Any] = {}
        self._last: int | None = None
        self._is_cut_off = self._is_over = False

    @property
    def done(self) -> bool:
        """Whether the message is over, and every block in it but one that was cut off."""
        return self._is_over and all(self._is_cut_off and index == self._last for index in self._open)

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Return the chunk an event's data stands for, none for one that says nothing; raises `InvalidResponse`."""
        kind = EVENTS.get(parse_body(AnthropicEvent, data, _EVENT, _PROVIDER).type)
        if kind is not None and (chunk := self._chunk(parse_body(kind, data, _EVENT, _PROVIDER))) != EMPTY_CHUNK:
            yield chunk

    def _chunk(self, event: AnthropicEvent) -> ChatChunk:
        match event:
            case MessageStart(message=head):
                restarts, self._has_begun = self._has_begun, True
                self._start()
                return ChatChunk(id=head.id, model=head.model, usage=self._usage(head.usage), restarts=restarts)
            case BlockStart(index=index, content_block=block):
                if len(self._open) >= MOST_ITEMS:
                    raise InvalidResponse(f"more than {MOST_ITEMS} blocks are open", provider=_PROVIDER)
                place = next(self._places)
                self._open[index], self._last = (place, block), index
                return block.begin(place)
            case BlockDelta(index=index, delta=delta):
                place, block = self._block(index)
                return block.add(place, delta)
            case BlockStop(index=index):
                place, block = self._block(index)
                del self._open[index]
                return block.end(place)
            case MessageDelta(delta=ending, usage=used):
                reason = _finish_reason(ending.stop_reason)
                self._is_cut_off = reason in CUT_OFF_REASONS
                return ChatChunk(finish_reason=reason, usage=self._usage(used))
            case MessageStop():
                self._is_over = True
        return EMPTY_CHUNK

    def _block(self, index: int) -> tuple[int, Block]:
        if index not in self._open:
            raise InvalidResponse(f"{_EVENT} belongs to no block", provider=_PROVIDER)
        return self._open[index]

    def _usage(self, used: AnthropicUsage | None) -> Usage | None:
        """Take note of counts, which are cumulative, and return what is known by now."""
        self._used |= {} if used is None else used.model_dump(exclude_none=True)
        return AnthropicUsage(**self._used).to_usage() if self._used else None

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self.done:
            raise InvalidResponse("the stream ended before the answer did", provider=_PROVIDER)


def _finish_reason(reason: str | None) -> str | None:
    return _FINISH_REASONS.get(reason, "error") if reason else None


def _options(options: ChatOptions) -> dict[str, Any]:
    if options.seed is not None:
        raise ConfigurationError(f"{_PROVIDER} has no option seed: leave it out")
    output = {"effort": options.reasoning_effort, "format": _format(options.output_schema)}
    fields = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stop_sequences": None if options.stop is None else list(options.stop),
        "output_config": drop_none(output) or None,
    }
    return drop_none(fields)


def _format(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if schema is None else {"type": "json_schema", "schema": closed(schema)}


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    schema = convert_tool_schema(definition, one_object)
    return {"name": definition.name, "description": definition.description, "input_schema": schema}


def _tool_choice(options: ChatOptions) -> dict[str, Any] | None:
    one_at_a_time = {"disable_parallel_tool_use": True} if options.parallel_tool_calls is False else {}
    match options.tool_choice:
        case "none":
            return {"type": "none"}
        case "required":
            return {"type": "any", **one_at_a_time}
        case "auto":
            return {"type": "auto", **one_at_a_time}
        case None:
            return {"type": "auto", **one_at_a_time} if one_at_a_time else None
        case name:
            return {"type": "tool", "name": name, **one_at_a_time}


def _system(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the instructions, which stand beside the conversation wherever they stood in it."""
    return [block for message in messages if isinstance(message, SystemMessage) for block in _text(message.text)]


def _calls(messages: Iterable[Message]) -> Iterable[ToolCall]:
    for message in messages:
        if isinstance(message, AssistantMessage):
            yield from message.tool_calls


def _messages(messages: Iterable[Message]) -> Iterable[dict[str, Any]]:
    """Give a conversation as the API reads it: user and assistant take turns, and results of tools begin a turn."""
    ids = _Ids()
    said = [(_role(message), ids.fitted(block)) for message in messages for block in _blocks(message)]
    for role, turn in groupby(said, key=itemgetter(0)):
        content = [block for _, block in turn]
        yield {"role": role, "content": sorted(content, key=lambda block: block.get("type") != "tool_result")}


def _role(message: Message) -> str:
    return "assistant" if isinstance(message, AssistantMessage) else "user"


def _blocks(message: Message) -> list[dict[str, Any]]:
    match message:
        case SystemMessage():
            return []
        case UserMessage():
            return [block for part in message.parts for block in _part(part)]
        case AssistantMessage():
            taken = [part for part in message.parts if _is_taken(part, message)]
            return [_signed(block, part, message) for part in taken for block in _part(part)]
        case ToolMessage():
            return [block for result in message.results for block in _result(result)]


def _is_taken(part: AssistantPart, message: AssistantMessage) -> bool:
    """Return whether the API takes a part of an answer back: images are the user's, and seals of others are refused."""
    is_sealed = isinstance(part, ReasoningPart | ProviderPart)
    return may_send_signed_parts(message, _PROVIDER) if is_sealed else not isinstance(part, ImagePart)


def _signed(block: dict[str, Any], part: AssistantPart, message: AssistantMessage) -> dict[str, Any]:
    """Return the block of a part; a call of Claude's has the fields of its signature, too."""
    if not isinstance(part, ToolCall) or part.signature is None or not may_send_signed_parts(message, _PROVIDER):
        return block
    signed = signature_fields(part.signature)
    return {**block, **{name: signed[name] for name in CALL_FIELDS if name in signed}}


def _part(part: AssistantPart) -> list[dict[str, Any]]:
    match part:
        case TextPart():
            return _text(part.text)
        case ImagePart():
            return [_image(part)]
        case ReasoningPart():
            thoughts = {"type": "thinking", "thinking": part.text, "signature": part.signature}
            return [thoughts] if part.signature else []
        case ProviderPart():
            return [json.loads(part.data)]
        case ToolCall():
            return [{"type": "tool_use", "id": part.id or "", "name": part.name, "input": parse_arguments(part)}]


def _text(text: str) -> list[dict[str, Any]]:
    """Return the block of a text; blank ones are refused."""
    return [{"type": "text", "text": text}] if text.strip() else []


def _image(image: ImagePart) -> dict[str, Any]:
    if image.url is not None:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    source = {"type": "base64", "media_type": image.media_type, "data": encode_image(image)}
    return {"type": "image", "source": source}


def _result(result: ToolResultPart) -> list[dict[str, Any]]:
    """Return a result. One that is an error has to be a text and nothing else, so its images follow as the user's."""
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.call_id}
    text, images = _text(result.content), [_image(image) for image in result.images]
    if result.is_error:
        error = {**block, "is_error": True, "content": text or _text("the tool failed")}
        return [error, *_text(f"Images returned by the tool {result.name}:"), *images] if images else [error]
    content = [*text, *images]
    return [{**block, "content": content} if content else block]


class _Ids:
    """What calls go by in one request: ids in letters that the API takes, each of one call.

    Other providers begin anew in each answer (`functions.weather:0`), and the API refuses a conversation with that.
    """

    def __init__(self) -> None:
        self._sent: dict[str, str] = {}
        self._taken: set[str] = set()
        self._repeated: Counter[str] = Counter()

    def fitted(self, block: dict[str, Any]) -> dict[str, Any]:
        """Return the next block with an id that the API takes; a result belongs to the last call of its own."""
        match block:
            case {"type": "tool_use", "id": given}:
                self._sent[given] = self._of_call(_NOT_IN_IDS.sub("_", given) or "_")
                return {**block, "id": self._sent[given]}
            case {"type": "tool_result", "tool_use_id": given}:
                return {**block, "tool_use_id": self._sent.get(given, given)}
        return block

    def _of_call(self, plain: str) -> str:
        found = plain
        while found in self._taken:
            self._repeated[plain] += 1
            found = f"{plain}_{self._repeated[plain] + 1}"
        self._taken.add(found)
        return found
