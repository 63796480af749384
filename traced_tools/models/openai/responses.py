"""OpenAI's Responses API, and every server that speaks it.

Format: https://platform.openai.com/docs/api-reference/responses. The API wants the items of earlier answers back, with
more than their text: what else a call is, such as its item's id, is its signature, as JSON text; what else a message is
follows its text as a `ProviderPart`; a reasoning item's id and encrypted thoughts are the id and the signature of its
last part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from traced_tools.core.checks import expect
from traced_tools.core.identity_cache import MadeOnce
from traced_tools.core.messages import AssistantMessage, AssistantPart, ReasoningPart, ToolCall
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ConfigurationError, InvalidResponse
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse, ToolCallDelta
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
from traced_tools.models.openai.responses_input import input_items
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
from traced_tools.models.wire import error_code, parse_body

_PATH = "/responses"
_DONE = "[DONE]"  # which OpenAI does not send here, but others do
_EVENT = "an event of the stream"
_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


class OpenAIResponsesModel(HttpChatModel):
    """A model behind OpenAI's Responses API, or behind a server that speaks it (DeepSeek, OpenRouter, vLLM).

    OpenAI keeps answers, and knows the reasoning behind a call by its id. Where it may keep nothing, have it hand its
    reasoning out: `ChatOptions(extra={"store": False, "include": ["reasoning.encrypted_content"]})`.

    Args:
        model: the model's name, such as `gpt-5-mini`.
        base_url: where the API is; by default `OPENAI_BASE_URL`, else OpenAI.
        api_key: by default the variable of the server there, as for `OpenAIChatModel`: `DEEPSEEK_API_KEY`,
            `OPENROUTER_API_KEY` and so on for those that are known by their address, else `OPENAI_API_KEY`.
        provider: who runs the model, for telemetry (`gen_ai.provider.name`); by default told by the address, else
            `openai`.
        strict_tools: have OpenAI hold the model to each tool's input schema. What is optional in it may then be null,
            and a tool whose schema strict mode cannot express raises `ToolDefinitionError` when it is offered.
        inline_definitions: write out what `$ref` leads to in schemas, for servers that do not follow it.
        **http: how to reach it, as in `HttpOptions`.

    Raises:
        ConfigurationError: for an address that is none, or a known server without its key.
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
        super().__init__(model, codec, HttpTransport(address, provider, auth_headers(api_key, address, provider), http))


class OpenAIResponsesCodec:
    """The language of the Responses API; see `OpenAIResponsesModel` for the arguments."""

    framing: Framing = ServerSentEvents()

    def __init__(
        self, model: str, *, provider: str, strict_tools: bool = False, inline_definitions: bool = False
    ) -> None:
        self._model = model
        self._provider = provider
        self._strict_tools = strict_tools
        self._inline_definitions = inline_definitions
        self._tool = MadeOnce(self._made_tool)

    def path(self, *, stream: bool) -> str:
        """Return where to send a request."""
        return _PATH

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body that asks `request`; raises `ConfigurationError` for what the API does not have."""
        is_stored = request.options.extra.get("store") is not False
        body: dict[str, Any] = {
            "model": self._model,
            "input": input_items(request.messages, self._provider, is_stored=is_stored),
            **self._options(request.options, has_tools=bool(request.tools)),
        }
        if request.tools:
            body["tools"] = [self._tool(definition) for definition in request.tools]
        if stream:
            body["stream"] = True
        return merge_extra(body, request.options.extra)

    def _options(self, options: ChatOptions, *, has_tools: bool) -> dict[str, Any]:
        for name in ("stop", "seed"):
            if getattr(options, name) is not None:
                raise ConfigurationError(f"{self._provider} has no option {name} in the Responses API: leave it out")
        fields: dict[str, Any] = {
            "temperature": options.temperature,
            "top_p": options.top_p,
            "max_output_tokens": options.max_tokens,
            "reasoning": None if options.reasoning_effort is None else {"effort": options.reasoning_effort},
            "text": None if options.output_schema is None else {"format": self._format(options.output_schema)},
        }
        if has_tools:
            fields["tool_choice"] = _tool_choice(options.tool_choice)
            fields["parallel_tool_calls"] = options.parallel_tool_calls
        return drop_none(fields)

    def _format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "json_schema", **encode_output_schema(schema, inline_definitions=self._inline_definitions)}

    def _made_tool(self, definition: ToolDefinition) -> dict[str, Any]:
        return {
            "type": "function",
            "name": definition.name,
            "description": definition.description,
            "parameters": encode_tool_schema(
                definition, strict_tools=self._strict_tools, inline_definitions=self._inline_definitions
            ),
            "strict": self._strict_tools,  # said in any case: where it is not, OpenAI makes the schema a strict one
        }

    def decode(self, body: bytes) -> ChatResponse:
        """Return the answer a whole body stands for; raises `InvalidResponse`."""
        answer = parse_body(ResponsesAnswer, body, "the answer", self._provider)
        if answer.output is None:
            raise InvalidResponse("the answer holds no output", provider=self._provider)
        message = AssistantMessage(answer.parts())
        reason = _finish_reason(answer, self._provider, has_calls=bool(message.tool_calls))
        return ChatResponse(message, usage=answer.token_usage(), finish_reason=reason, id=answer.id, model=answer.model)

    def decoder(self) -> OpenAIResponsesChunkDecoder:
        """Return a decoder for one streamed answer."""
        return OpenAIResponsesChunkDecoder(self._provider)


class OpenAIResponsesChunkDecoder:
    """Decodes one streamed answer. An item that came in pieces is not said again when it comes as a whole."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._streamed: set[int | None] = set()
        self._inputs = CustomInputConverter()
        self._thought: tuple[int | None, int | None] | None = None
        self._has_begun = False
        self._call_ids: set[str | None] = set()
        self._without_arguments: dict[int | None, ResponsesFunctionCall] = {}
        self.done = False

    def chunks(self, data: str) -> Iterator[ChatChunk]:
        """Return the chunks an event's data stands for, none for one that says nothing; raises `InvalidResponse`."""
        if not data or data.strip() == _DONE:
            return
        kind = EVENTS.get(parse_body(ResponsesEvent, data, _EVENT, self._provider).type)
        if kind is not None:
            yield from self._read(parse_body(kind, data, _EVENT, self._provider))

    def _read(self, event: ResponsesEvent) -> Iterator[ChatChunk]:
        match event:
            case ItemAdded(item=ResponsesFunctionCall() as call, output_index=index):
                self._without_arguments[index] = call
                yield self._call(call.delta(index))
            case ResponsesDelta(delta=piece) if piece:
                yield from self._piece(event)
            case ItemDone(item=item, output_index=index):
                yield from self._whole(item, index)
            case ResponseEnded(response=answer):
                yield from self._end(answer)
            case ResponseFailed(code=code):
                raise InvalidResponse(f"{_EVENT} is an error object", provider=self._provider, code=code)

    def _piece(self, event: ResponsesDelta) -> Iterator[ChatChunk]:
        self._has_begun = True
        self._streamed.add(event.output_index)
        match event:
            case ResponsesTextDelta():
                yield ChatChunk(text=event.delta)
            case ReasoningDelta():
                yield from self._thoughts(event)
            case ArgumentsDelta():
                yield self._call(ToolCallDelta(event.output_index, arguments=event.delta))
            case InputDelta(output_index=index):
                yield self._call(ToolCallDelta(index, arguments=self._inputs.convert_piece(index, None, event.delta)))

    def _thoughts(self, event: ReasoningDelta) -> Iterator[ChatChunk]:
        """Give a piece of reasoning, and before it the end of another summary or text of the same item."""
        thought = event.summary_index, event.content_index
        if self._thought not in (None, thought):
            item_id = event.item_id if event.content_index is None else None
            yield ChatChunk(parts=(ReasoningPart("", id=item_id),))
        self._thought = thought
        yield ChatChunk(reasoning=event.delta)

    def _whole(self, item: ResponsesItem, index: int | None) -> Iterator[ChatChunk]:
        is_streamed = index in self._streamed
        self._streamed.discard(index)
        self._has_begun, self._thought = True, None
        if isinstance(item, ResponsesFunctionCall) and not is_streamed:
            yield self._call(item.delta(index, item.text))
        elif isinstance(item, ResponsesCustomCall):
            if not item.is_cut_off:
                yield self._call(ToolCallDelta(index, arguments=self._inputs.close(index)))
        elif parts := tuple(item.rest() if is_streamed else item.parts()):
            yield ChatChunk(parts=parts)

    def _call(self, delta: ToolCallDelta) -> ChatChunk:
        self._has_begun = True
        if delta.arguments and self._without_arguments:
            begun = next(reversed(self._without_arguments)) if delta.index is None else delta.index
            self._without_arguments.pop(begun, None)
        if delta.name is not None:
            self._call_ids.add(delta.id)
        return ChatChunk(tool_calls=(delta,))

    def _end(self, answer: ResponsesAnswer) -> Iterator[ChatChunk]:
        parts = tuple(self._missed_calls(answer)) if self._has_begun else answer.parts()
        yield from self._missed_arguments(answer)
        for place in self._inputs.open_indices() if answer.status != "incomplete" else ():
            yield self._call(ToolCallDelta(place, arguments=self._inputs.close(place)))
        has_calls = bool(self._call_ids) or any(isinstance(part, ToolCall) for part in parts)
        reason = _finish_reason(answer, self._provider, has_calls=has_calls)
        self.done = True
        yield ChatChunk(parts=parts, usage=answer.token_usage(), finish_reason=reason, id=answer.id, model=answer.model)

    def _missed_arguments(self, answer: ResponsesAnswer) -> Iterator[ChatChunk]:
        """Give the arguments that no event has held: without them, a call would be run with none."""
        whole = {call.call_id: call for call in answer.calls()}
        for index, begun in list(self._without_arguments.items()):
            found = whole.get(begun.call_id, begun)
            if found is not begun or answer.status != "incomplete":  # else it was cut off before its arguments
                yield self._call(ToolCallDelta(index, arguments=found.text))

    def _missed_calls(self, answer: ResponsesAnswer) -> Iterator[AssistantPart]:
        """Yield calls that appear only in the last event. If that event has other ids than the stream, yield none."""
        calls = answer.calls()
        if self._call_ids <= {call.call_id for call in calls}:
            yield from [part for call in calls if call.call_id not in self._call_ids for part in call.parts()]

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self.done:
            raise InvalidResponse("the stream ended before the answer did", provider=self._provider)


def _finish_reason(answer: ResponsesAnswer, provider: str, *, has_calls: bool) -> str:
    """Return why an answer ended; raises `InvalidResponse` for one that failed, or that is still being made."""
    if answer.error or answer.status not in (None, "completed", "incomplete"):
        code = error_code(answer.error) or answer.status
        raise InvalidResponse("the answer was not completed", provider=provider, code=code)
    if answer.status == "incomplete":
        details = answer.incomplete_details
        return _INCOMPLETE.get((details and details.reason) or "", "error")
    return "tool_call" if has_calls else "stop"


def _tool_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "name": choice}
