"""OpenAI's Responses API, and every server compatible with it.

Format: https://platform.openai.com/docs/api-reference/responses. The API requires the items of earlier answers to be
sent back with more fields than their text. The further fields of a call, such as its item's id, are stored as JSON text
in its signature. Those of a message are stored in a `ProviderPart` after its text. The id and the encrypted content of
a reasoning item are the id and the signature of its last part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from traced_tools.core.checks import expect
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.messages import AssistantMessage, AssistantPart, ReasoningPart, ToolCall
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ConfigurationError, InvalidResponse
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse, ToolCallDelta
from traced_tools.models.codec import SchemaEnforcement
from traced_tools.models.encoding import drop_none, merge_extra
from traced_tools.models.http.framing import Framing, ServerSentEvents
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions, check_options
from traced_tools.models.http.transport import HttpTransport
from traced_tools.models.openai.common import (
    CustomInputConverter,
    auth_headers,
    encode_output_schema,
    encode_tool_schema,
    resolve_base_url,
)
from traced_tools.models.openai.responses_input import encode_input
from traced_tools.models.openai.responses_wire import (
    EVENTS,
    ArgumentsDelta,
    InputDelta,
    ItemAdded,
    ItemDone,
    ReasoningDelta,
    ResponseEnded,
    ResponseFailed,
    ResponsesAnswer,
    ResponsesCustomCall,
    ResponsesDelta,
    ResponsesEvent,
    ResponsesFunctionCall,
    ResponsesItem,
    ResponsesTextDelta,
)
from traced_tools.models.openai.servers import resolve_server
from traced_tools.models.parsing import parse_body, unknown_reason
from traced_tools.models.refusals import error_in_answer

_PATH = "/responses"
_DONE = "[DONE]"  # not sent by OpenAI in this API, but by compatible servers
_EVENT = "an event of the stream"
_INCOMPLETE = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "content_filter"}


class OpenAIResponsesModel(HttpChatModel):
    """A model behind OpenAI's Responses API, or behind a compatible server (DeepSeek, OpenRouter, vLLM).

    OpenAI stores answers and finds the reasoning behind a call by its id. If it must not store answers, request the
    encrypted reasoning: `ChatOptions(extra={"store": False, "include": ["reasoning.encrypted_content"]})`.

    Args:
        model: the model's name, such as `gpt-5-mini`.
        base_url: the address of the API; by default `OPENAI_BASE_URL`, else OpenAI's address.
        api_key: the API key; by default the environment variable of the server, as for `OpenAIChatModel`:
            `DEEPSEEK_API_KEY`, `OPENROUTER_API_KEY` and so on for servers recognized by their address, else
            `OPENAI_API_KEY`.
        provider: the provider's name in telemetry (`gen_ai.provider.name`); by default derived from the address, else
            `openai`.
        strict_tools: whether OpenAI enforces each tool's input schema. Optional properties can then be null. A tool
            whose schema strict mode can't express is sent without it, and the log says so.
        inline_definitions: whether to replace each `$ref` in schemas by what it refers to, for servers that don't
            resolve references.
        context_window: how many tokens a request can have; by default what the package `genai-prices` lists.
        **http: connection options, see `HttpOptions`.

    Raises:
        ConfigurationError: if the address is invalid, or belongs to a known server for which there is no key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str | None = None,
        strict_tools: bool = False,
        inline_definitions: bool = False,
        context_window: int | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        check_options(http)
        expect("provider", provider, (str, type(None)), "a str or None")
        expect("strict_tools", strict_tools, bool, "True or False")
        expect("inline_definitions", inline_definitions, bool, "True or False")
        address = resolve_base_url(base_url, _PATH)
        provider = provider or resolve_server(address).provider
        codec = OpenAIResponsesCodec(
            model, provider=provider, strict_tools=strict_tools, inline_definitions=inline_definitions
        )
        super().__init__(
            model,
            codec,
            HttpTransport(address, provider, auth_headers(api_key, address, provider), http),
            context_window,
        )


class OpenAIResponsesCodec:
    """The codec of the Responses API; see `OpenAIResponsesModel` for the arguments."""

    framing: Framing = ServerSentEvents()
    models_path = "/models"
    enforces_schema: SchemaEnforcement = "always"

    def __init__(
        self, model: str, *, provider: str, strict_tools: bool = False, inline_definitions: bool = False
    ) -> None:
        self._model = model
        self._provider = provider
        self._strict_tools = strict_tools
        self._inline_definitions = inline_definitions
        self._tool = IdentityCache(self._encode_tool)

    def path(self, *, stream: bool) -> str:
        """Return the path of the endpoint."""
        return _PATH

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body for `request`; raises `ConfigurationError` for an option that the API lacks."""
        is_stored = request.options.extra.get("store") is not False
        body: dict[str, Any] = {
            "model": self._model,
            "input": encode_input(request.messages, self._provider, is_stored=is_stored),
            **self._encode_options(request.options, has_tools=bool(request.tools)),
        }
        if request.tools:
            body["tools"] = [self._tool(definition) for definition in request.tools]
        if stream:
            body["stream"] = True
        return merge_extra(body, request.options.extra)

    def _encode_options(self, options: ChatOptions, *, has_tools: bool) -> dict[str, Any]:
        for name in ("stop", "seed"):
            if getattr(options, name) is not None:
                raise ConfigurationError(f"{self._provider} has no option {name} in the Responses API: omit it")
        schema = options.output_schema
        fields: dict[str, Any] = {
            "temperature": options.temperature,
            "top_p": options.top_p,
            "max_output_tokens": options.max_tokens,
            "reasoning": None if options.reasoning_effort is None else {"effort": options.reasoning_effort},
            "text": None if schema is None else {"format": self._encode_output_schema(schema)},
        }
        if has_tools:
            fields["tool_choice"] = _encode_tool_choice(options.tool_choice)
            fields["parallel_tool_calls"] = options.parallel_tool_calls
        return drop_none(fields)

    def _encode_output_schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "json_schema", **encode_output_schema(schema, inline_definitions=self._inline_definitions)}

    def _encode_tool(self, definition: ToolDefinition) -> dict[str, Any]:
        schema, is_strict = encode_tool_schema(
            definition, strict_tools=self._strict_tools, inline_definitions=self._inline_definitions
        )
        return {
            "type": "function",
            "name": definition.name,
            "description": definition.description,
            "parameters": schema,
            "strict": is_strict,  # always sent: without it, OpenAI changes the schema to a strict one
        }

    def decode(self, body: bytes) -> ChatResponse:
        """Decode the body of an answer that is not streamed; raises `InvalidResponse`."""
        answer = parse_body(ResponsesAnswer, body, "the answer", self._provider)
        if answer.output is None:
            raise InvalidResponse("the answer has no output", provider=self._provider)
        message = AssistantMessage(answer.parts())
        reason = _decode_finish_reason(answer, self._provider, has_calls=bool(message.tool_calls))
        return ChatResponse(
            message,
            usage=answer.token_usage(),
            finish_reason=reason,
            id=answer.id,
            model=answer.model,
            provider_reason=unknown_reason(answer.end_reason, reason),
        )

    def decoder(self) -> OpenAIResponsesChunkDecoder:
        """Return a decoder for one streamed answer."""
        return OpenAIResponsesChunkDecoder(self._provider)


class OpenAIResponsesChunkDecoder:
    """Decodes one streamed answer, which is complete after the event that contains the whole answer.

    The whole item at the end of a streamed item yields only the parts that weren't streamed.
    """

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._streamed: set[int | None] = set()
        self._inputs = CustomInputConverter()
        self._last_reasoning: tuple[int | None, int | None] | None = None
        self._has_content = False
        self._call_ids: set[str | None] = set()
        self._without_arguments: dict[int | None, ResponsesFunctionCall] = {}
        self.done = False

    def chunks(self, data: str) -> Iterator[ChatChunk]:
        """Decode the data of one event; raises `InvalidResponse`."""
        if not data or data.strip() == _DONE:
            return
        kind = EVENTS.get(parse_body(ResponsesEvent, data, _EVENT, self._provider).type)
        if kind is not None:
            yield from self._decode_event(parse_body(kind, data, _EVENT, self._provider))

    def _decode_event(self, event: ResponsesEvent) -> Iterator[ChatChunk]:
        match event:
            case ItemAdded(item=ResponsesFunctionCall() as call, output_index=index):
                self._without_arguments[index] = call
                yield self._call_chunk(call.delta(index))
            case ResponsesDelta(delta=piece) if piece:
                yield from self._decode_delta(event)
            case ItemDone(item=item, output_index=index):
                yield from self._decode_item(item, index)
            case ResponseEnded(response=answer):
                yield from self._decode_last_event(answer)
            case ResponseFailed():
                raise error_in_answer(f"{_EVENT} is an error object", self._provider, {**dict(event), "type": None})

    def _decode_delta(self, event: ResponsesDelta) -> Iterator[ChatChunk]:
        self._has_content = True
        self._streamed.add(event.output_index)
        match event:
            case ResponsesTextDelta():
                yield ChatChunk(text=event.delta)
            case ReasoningDelta():
                yield from self._decode_reasoning(event)
            case ArgumentsDelta():
                yield self._call_chunk(ToolCallDelta(event.output_index, arguments=event.delta))
            case InputDelta(output_index=index):
                arguments = self._inputs.convert_piece(index, None, event.delta)
                yield self._call_chunk(ToolCallDelta(index, arguments=arguments))

    def _decode_reasoning(self, event: ReasoningDelta) -> Iterator[ChatChunk]:
        """Yield a piece of reasoning. If it starts another summary or text, first yield the end of the one before."""
        current = event.summary_index, event.content_index
        if self._last_reasoning not in (None, current):
            item_id = event.item_id if event.content_index is None else None
            yield ChatChunk(parts=(ReasoningPart("", id=item_id),))
        self._last_reasoning = current
        yield ChatChunk(reasoning=event.delta)

    def _decode_item(self, item: ResponsesItem, index: int | None) -> Iterator[ChatChunk]:
        is_streamed = index in self._streamed
        self._streamed.discard(index)
        self._has_content, self._last_reasoning = True, None
        if isinstance(item, ResponsesFunctionCall) and not is_streamed:
            yield self._call_chunk(item.delta(index, item.text))
        elif isinstance(item, ResponsesCustomCall):
            if not item.is_cut_off:
                yield self._call_chunk(ToolCallDelta(index, arguments=self._inputs.close(index)))
        elif parts := tuple(item.remaining_parts() if is_streamed else item.parts()):
            yield ChatChunk(parts=parts)

    def _call_chunk(self, delta: ToolCallDelta) -> ChatChunk:
        self._has_content = True
        if delta.arguments and self._without_arguments:
            call_index = next(reversed(self._without_arguments)) if delta.index is None else delta.index
            self._without_arguments.pop(call_index, None)
        if delta.name is not None:
            self._call_ids.add(delta.id)
        return ChatChunk(tool_calls=(delta,))

    def _decode_last_event(self, answer: ResponsesAnswer) -> Iterator[ChatChunk]:
        parts = tuple(self._missed_calls(answer)) if self._has_content else answer.parts()
        yield from self._missed_arguments(answer)
        for index in self._inputs.open_indices() if answer.status != "incomplete" else ():
            yield self._call_chunk(ToolCallDelta(index, arguments=self._inputs.close(index)))
        has_calls = bool(self._call_ids) or any(isinstance(part, ToolCall) for part in parts)
        reason = _decode_finish_reason(answer, self._provider, has_calls=has_calls)
        self.done = True
        yield ChatChunk(
            parts=parts,
            usage=answer.token_usage(),
            finish_reason=reason,
            id=answer.id,
            model=answer.model,
            provider_reason=unknown_reason(answer.end_reason, reason),
        )

    def _missed_arguments(self, answer: ResponsesAnswer) -> Iterator[ChatChunk]:
        """Yield arguments that no event before contained; without them, a call would run without arguments."""
        whole = {call.call_id: call for call in answer.calls()}
        for index, call_start in list(self._without_arguments.items()):
            call = whole.get(call_start.call_id, call_start)
            if call is not call_start or answer.status != "incomplete":  # otherwise it was cut off before its arguments
                yield self._call_chunk(ToolCallDelta(index, arguments=call.text))

    def _missed_calls(self, answer: ResponsesAnswer) -> Iterator[AssistantPart]:
        """Yield calls that appear only in the last event, none if its ids differ from the ids in the stream."""
        calls = answer.calls()
        if self._call_ids <= {call.call_id for call in calls}:
            yield from [part for call in calls if call.call_id not in self._call_ids for part in call.parts()]

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self.done:
            raise InvalidResponse("the stream ended before the answer did", provider=self._provider)


def _decode_finish_reason(answer: ResponsesAnswer, provider: str, *, has_calls: bool) -> str:
    """Return the finish reason; raises a `ModelError` if the answer failed or is still in progress."""
    if answer.error:
        raise error_in_answer("the answer was not completed", provider, answer.error)
    if answer.status not in (None, "completed", "incomplete"):
        raise InvalidResponse("the answer was not completed", provider=provider, code=answer.status)
    if answer.status == "incomplete":
        return _INCOMPLETE.get(answer.end_reason or "", "error")
    return "tool_call" if has_calls else "stop"


def _encode_tool_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "name": choice}
