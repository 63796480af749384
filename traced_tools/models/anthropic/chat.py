"""Anthropic's Messages API.

Format: https://docs.anthropic.com/en/api/messages. Reasoning, and records of tools that Anthropic ran, are sent back
unchanged and in the same position: the API refuses a conversation in which they are missing or changed.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, groupby
from operator import itemgetter
from typing import Any, Unpack

from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.identity_cache import IdentityCache
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
from traced_tools.models.anthropic.schema import to_structured_output_schema
from traced_tools.models.anthropic.wire import (
    CALL_FIELDS,
    CONTAINER,
    EMPTY_CHUNK,
    EVENTS,
    PROMPT_COUNTS,
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
from traced_tools.models.base import CUT_OFF_REASONS, PAUSE, ChatChunk, ChatRequest, ChatResponse
from traced_tools.models.codec import SchemaEnforcement
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
from traced_tools.models.parsing import MOST_ITEMS, parse_body, unknown_reason
from traced_tools.tools.schema.dialects import to_object_schema
from traced_tools.tools.schema.wire_fields import wire_fields

_DEFAULT_URL = "https://api.anthropic.com"
_PROVIDER = "anthropic"
_VERSION = "2023-06-01"
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": PAUSE,  # a turn with Anthropic's own tools grew too long
    "compaction": PAUSE,  # the conversation was compacted, and the request asked for a pause after that
    "refusal": "content_filter",
}
_EVENT = "an event of the stream"
_INVALID_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")


class AnthropicChatModel(HttpChatModel):
    """A Claude model behind Anthropic's Messages API, or behind a gateway that speaks it.

    Args:
        model: the model's name, such as `claude-sonnet-4-5`.
        base_url: the address of the API, without `/v1`; by default `ANTHROPIC_BASE_URL`, else Anthropic's address.
        api_key: the API key; by default `ANTHROPIC_API_KEY`. Required for Anthropic's address.
        max_tokens: the maximum tokens of an answer if `ChatOptions` don't set it; the API requires a number.
        context_window: how many tokens a request can have; by default what the package `genai-prices` lists.
        **http: connection options, see `HttpOptions`. A header (`anthropic-beta`) enables beta features.

    Raises:
        ConfigurationError: if the address is invalid, or Anthropic's own and there is no key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        max_tokens: int = 8192,
        context_window: int | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        check_options(http)
        expect("base_url", base_url, (str, type(None)), "a str or None")
        expect_whole("max_tokens", max_tokens, 1)
        default = os.environ.get("ANTHROPIC_BASE_URL") or _DEFAULT_URL
        address = (default if base_url is None else base_url).rstrip("/")
        if address.endswith(("/v1", "/v1/messages")):
            raise ConfigurationError(f"base_url must be the API's base, such as {_DEFAULT_URL}: drop /v1")
        key = resolve_key(api_key, "ANTHROPIC_API_KEY", needed=address.startswith(_DEFAULT_URL))
        headers = {"anthropic-version": _VERSION, **({"x-api-key": key} if key else {})}
        codec = AnthropicChatCodec(model, max_tokens=max_tokens)
        super().__init__(model, codec, HttpTransport(address, _PROVIDER, headers, http), context_window)


class AnthropicChatCodec:
    """The codec of the Messages API; see `AnthropicChatModel` for the arguments."""

    framing: Framing = ServerSentEvents()
    models_path = "/v1/models?limit=1"
    enforces_schema: SchemaEnforcement = "always"

    def __init__(self, model: str, *, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._tool = IdentityCache(_encode_tool)

    def path(self, *, stream: bool) -> str:
        """Return the path of the endpoint."""
        return "/v1/messages"

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body for `request`; raises `ConfigurationError` for an option that the API lacks."""
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.options.max_tokens or self._max_tokens,
            "messages": list(_encode_messages(request.messages)),
            **_encode_options(request.options),
            **self._encode_tools(request),
        }
        if system := _encode_system(request.messages):
            body["system"] = system
        if container := _container_of_turn(request.messages):
            is_object = isinstance(request.options.extra.get("container"), Mapping)
            body["container"] = {"id": container} if is_object else container
        if stream:
            body["stream"] = True
        return merge_extra(body, request.options.extra)

    def _encode_tools(self, request: ChatRequest) -> dict[str, Any]:
        if request.tools:
            tools = [self._tool(tool) for tool in request.tools]
            return drop_none({"tools": tools, "tool_choice": _encode_tool_choice(request.options)})
        # the API refuses a conversation with calls if no tools are declared: declare the called tools and forbid them
        names = dict.fromkeys(call.name for call in _earlier_calls(request.messages))
        called = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        return {"tools": called, "tool_choice": {"type": "none"}} if called else {}

    def decode(self, body: bytes) -> ChatResponse:
        """Decode the body of an answer that is not streamed; raises `InvalidResponse`."""
        answer = parse_body(AnthropicAnswer, body, "the answer", _PROVIDER)
        if answer.content is None:
            raise InvalidResponse("the answer has no content", provider=_PROVIDER)
        fold = ChunkFold()
        for index, block in enumerate(answer.content):
            fold.add(block.begin(index))
            fold.add(block.end(index))
        usage = answer.usage.to_usage() if answer.usage else None
        reason = _decode_finish_reason(answer.stop_reason)
        native = unknown_reason(answer.stop_reason, reason)
        last = ChatChunk(
            parts=answer.container_parts(reason),
            usage=usage,
            finish_reason=reason,
            id=answer.id,
            model=answer.model,
            provider_reason=native,
        )
        fold.add(last)
        return fold.response()

    def decoder(self) -> AnthropicChunkDecoder:
        """Return a decoder for one streamed answer."""
        return AnthropicChunkDecoder()


class AnthropicChunkDecoder:
    """Decodes one streamed answer.

    The answer is complete after `message_stop` if every block has ended. If it is cut off by a token limit or a content
    filter, its last block need not end. A second `message_start` replaces everything before it.
    """

    def __init__(self) -> None:
        self._has_begun = False
        self._reset()

    def _reset(self) -> None:
        self._open_blocks: dict[int, tuple[int, Block]] = {}
        self._indices = count()  # not the provider's: some gateways use an index twice
        self._counts: dict[str, Any] = {}
        self._last: int | None = None
        self._is_cut_off = self._has_stopped = False

    @property
    def done(self) -> bool:
        """Whether the message has stopped and every block has ended, except a last one that was cut off."""
        return self._has_stopped and all(self._is_cut_off and index == self._last for index in self._open_blocks)

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Decode the data of one event; raises `InvalidResponse`."""
        kind = EVENTS.get(parse_body(AnthropicEvent, data, _EVENT, _PROVIDER).type)
        if kind is not None and (chunk := self._decode_event(parse_body(kind, data, _EVENT, _PROVIDER))) != EMPTY_CHUNK:
            yield chunk

    def _decode_event(self, event: AnthropicEvent) -> ChatChunk:
        match event:
            case MessageStart(message=head):
                restarts, self._has_begun = self._has_begun, True
                self._reset()
                return ChatChunk(id=head.id, model=head.model, usage=self._merge_usage(head.usage), restarts=restarts)
            case BlockStart(index=index, content_block=block):
                if len(self._open_blocks) >= MOST_ITEMS:
                    raise InvalidResponse(f"more than {MOST_ITEMS} blocks are open", provider=_PROVIDER)
                place = next(self._indices)
                self._open_blocks[index], self._last = (place, block), index
                return block.begin(place)
            case BlockDelta(index=index, delta=delta):
                place, block = self._find_block(index)
                return block.add(place, delta)
            case BlockStop(index=index):
                place, block = self._find_block(index)
                del self._open_blocks[index]
                return block.end(place)
            case MessageDelta(delta=stop, usage=event_usage):
                reason = _decode_finish_reason(stop.stop_reason)
                self._is_cut_off = reason in CUT_OFF_REASONS
                native = unknown_reason(stop.stop_reason, reason)
                parts = stop.container_parts(reason)
                usage = self._merge_usage(event_usage)
                return ChatChunk(parts=parts, finish_reason=reason, usage=usage, provider_reason=native)
            case MessageStop():
                self._has_stopped = True
        return EMPTY_CHUNK

    def _find_block(self, index: int) -> tuple[int, Block]:
        if index not in self._open_blocks:
            raise InvalidResponse(f"{_EVENT} refers to a block that is not open", provider=_PROVIDER)
        return self._open_blocks[index]

    def _merge_usage(self, event_usage: AnthropicUsage | None) -> Usage | None:
        """Merge `event_usage` into the counts so far and return all; later counts replace earlier ones.

        The counts of the prompt are parts of one number. If all of them are zero, as some servers send at the end, the
        earlier ones stay.
        """
        later: dict[str, Any] = {} if event_usage is None else event_usage.model_dump(exclude_none=True)
        if not any(map(later.get, PROMPT_COUNTS)):
            later = {name: count for name, count in later.items() if name not in PROMPT_COUNTS or not self._counts}
        self._counts |= later
        return AnthropicUsage(**self._counts).to_usage() if self._counts else None

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self.done:
            raise InvalidResponse("the stream ended before the answer did", provider=_PROVIDER)


def _decode_finish_reason(reason: str | None) -> str | None:
    return _FINISH_REASONS.get(reason, "other") if reason else None


def _encode_options(options: ChatOptions) -> dict[str, Any]:
    if options.seed is not None:
        raise ConfigurationError(f"{_PROVIDER} has no option seed: omit it")
    output = {"effort": options.reasoning_effort, "format": _encode_output_schema(options.output_schema)}
    fields = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stop_sequences": None if options.stop is None else list(options.stop),
        "output_config": drop_none(output) or None,
    }
    return drop_none(fields)


def _encode_output_schema(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    if wire_fields(schema) is not None:
        raise ConfigurationError("anthropic: output_schema has fields whose names the API refuses: rename them")
    return {"type": "json_schema", "schema": to_structured_output_schema(schema)}


def _encode_tool(definition: ToolDefinition) -> dict[str, Any]:
    schema = convert_tool_schema(definition, to_object_schema)
    return {"name": definition.name, "description": definition.description, "input_schema": schema}


def _encode_tool_choice(options: ChatOptions) -> dict[str, Any] | None:
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


def _encode_system(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the system messages as blocks; the API takes them in a separate field, whatever their position was."""
    return [block for message in messages if isinstance(message, SystemMessage) for block in _encode_text(message.text)]


def _earlier_calls(messages: Iterable[Message]) -> Iterable[ToolCall]:
    for message in messages:
        if isinstance(message, AssistantMessage):
            yield from message.tool_calls


def _container_of_turn(messages: Sequence[Message]) -> str | None:
    """Return the id of the container in which the model's current turn runs code; None if there is none."""
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return None
        if isinstance(message, AssistantMessage) and may_send_signed_parts(message, _PROVIDER):
            for part in reversed(message.parts):
                if isinstance(part, ProviderPart) and (block := json.loads(part.data)).get("type") == CONTAINER:
                    return str(block["id"])
    return None


def _encode_messages(messages: Iterable[Message]) -> Iterable[dict[str, Any]]:
    """Yield the conversation's turns: user and assistant alternate, and tool results come first in a turn."""
    ids = _CallIdMap()
    blocks = [(_role(message), ids.map_ids(block)) for message in messages for block in _encode_message(message)]
    if blocks and blocks[-1][0] == "assistant" and (text := blocks[-1][1].get("text")):
        blocks[-1] = ("assistant", {**blocks[-1][1], "text": text.rstrip()})  # the API refuses blanks at the end
    for role, turn in groupby(_without_last_thinking(blocks), key=itemgetter(0)):
        content = [block for _, block in turn]
        yield {"role": role, "content": sorted(content, key=lambda block: block.get("type") != "tool_result")}


def _without_last_thinking(blocks: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the blocks without thinking at the end of a turn, as in an answer that was cut off: the API refuses it."""
    accepted: list[tuple[str, dict[str, Any]]] = []
    for role, block in reversed(blocks):
        ends_turn = not accepted or accepted[-1][0] != role
        if not ends_turn or block.get("type") not in ("thinking", "redacted_thinking"):
            accepted.append((role, block))
    return accepted[::-1]


def _role(message: Message) -> str:
    return "assistant" if isinstance(message, AssistantMessage) else "user"


def _encode_message(message: Message) -> list[dict[str, Any]]:
    match message:
        case SystemMessage():
            return []
        case UserMessage():
            return [block for part in message.parts for block in _encode_part(part)]
        case AssistantMessage():
            accepted = [part for part in message.parts if _is_accepted(part, message)]
            return [_add_signature(block, part, message) for part in accepted for block in _encode_part(part)]
        case ToolMessage():
            return [block for result in message.results for block in _encode_result(result)]


def _is_accepted(part: AssistantPart, message: AssistantMessage) -> bool:
    """Return whether the API accepts a part of an answer: no images, and no signed parts of other providers."""
    is_signed = isinstance(part, ReasoningPart | ProviderPart)
    return may_send_signed_parts(message, _PROVIDER) if is_signed else not isinstance(part, ImagePart)


def _add_signature(block: dict[str, Any], part: AssistantPart, message: AssistantMessage) -> dict[str, Any]:
    """Return `block`, with the fields in the signature if it is a call that Claude made."""
    if not isinstance(part, ToolCall) or part.signature is None or not may_send_signed_parts(message, _PROVIDER):
        return block
    signed = signature_fields(part.signature)
    return {**block, **{name: signed[name] for name in CALL_FIELDS if name in signed}}


def _encode_part(part: AssistantPart) -> list[dict[str, Any]]:
    match part:
        case TextPart():
            return _encode_text(part.text)
        case ImagePart():
            return [_encode_image(part)]
        case ReasoningPart():
            thinking = {"type": "thinking", "thinking": part.text, "signature": part.signature}
            return [thinking] if part.signature else []
        case ProviderPart():
            block = json.loads(part.data)
            return [] if block.get("type") == CONTAINER else [block]
        case ToolCall():
            return [{"type": "tool_use", "id": part.id or "", "name": part.name, "input": parse_arguments(part)}]


def _encode_text(text: str) -> list[dict[str, Any]]:
    """Return the block of a text, none for a blank text, which the API refuses."""
    return [{"type": "text", "text": text}] if text.strip() else []


def _encode_image(image: ImagePart) -> dict[str, Any]:
    if image.url is not None:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    source = {"type": "base64", "media_type": image.media_type, "data": encode_image(image)}
    return {"type": "image", "source": source}


def _encode_result(result: ToolResultPart) -> list[dict[str, Any]]:
    """Return the blocks of a result. An error may contain only text, so its images follow as user content."""
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.call_id}
    text, images = _encode_text(result.content), [_encode_image(image) for image in result.images]
    if result.is_error:
        error = {**block, "is_error": True, "content": text or _encode_text("the tool failed")}
        return [error, *_encode_text(f"Images returned by the tool {result.name}:"), *images] if images else [error]
    content = [*text, *images]
    return [{**block, "content": content} if content else block]


class _CallIdMap:
    """Maps the call ids of one request to unique ids in the characters that the API accepts.

    Some providers repeat their ids in each answer (`functions.weather:0`); the API refuses repeated ids.
    """

    def __init__(self) -> None:
        self._sent_ids: dict[str, str] = {}
        self._used_ids: set[str] = set()
        self._repeated: Counter[str] = Counter()

    def map_ids(self, block: dict[str, Any]) -> dict[str, Any]:
        """Return the next block with a mapped call id; a result gets the id of the last call that had the same id."""
        match block:
            case {"type": "tool_use", "id": call_id}:
                self._sent_ids[call_id] = self._unique_id(_INVALID_IN_IDS.sub("_", call_id) or "_")
                return {**block, "id": self._sent_ids[call_id]}
            case {"type": "tool_result", "tool_use_id": call_id}:
                return {**block, "tool_use_id": self._sent_ids.get(call_id, call_id)}
        return block

    def _unique_id(self, plain: str) -> str:
        unique = plain
        while unique in self._used_ids:
            self._repeated[plain] += 1
            unique = f"{plain}_{self._repeated[plain] + 1}"
        self._used_ids.add(unique)
        return unique
