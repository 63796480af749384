"""OpenAI's chat completions API, and every server compatible with it.

Format: https://platform.openai.com/docs/api-reference/chat. The decoder accepts the variants of compatible servers:
some send no finish reason, some send usage in a separate chunk, some send a whole call in one delta.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from itertools import count
from typing import Any, Literal, Unpack

from traced_tools.core.checks import expect
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.messages import AssistantMessage, ProviderPart, ToolCall
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ConfigurationError, InvalidResponse
from traced_tools.models.base import CUT_OFF_REASONS, ChatChunk, ChatRequest, ChatResponse, ToolCallDelta
from traced_tools.models.encoding import drop_none, merge_extra
from traced_tools.models.folding import ChunkFold
from traced_tools.models.http.framing import Framing, ServerSentEvents
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions, check_options
from traced_tools.models.http.transport import HttpTransport
from traced_tools.models.openai.chat_messages import create_message_encoder
from traced_tools.models.openai.chat_wire import (
    Choice,
    Completion,
    CompletionCall,
    CompletionFunction,
    CompletionMessage,
    read_completion,
)
from traced_tools.models.openai.common import (
    CustomInputConverter,
    auth_headers,
    encode_output_schema,
    encode_tool_schema,
    input_to_arguments,
    resolve_base_url,
)
from traced_tools.models.openai.servers import Server, resolve_server
from traced_tools.models.parsing import MOST_ITEMS, build_chunks, to_sendable_json, unknown_reason

_PATH = "/chat/completions"
_EMPTY_MESSAGE, _EMPTY_FUNCTION = CompletionMessage(), CompletionFunction()
_DONE = "[DONE]"
_FINISH_REASONS = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "model_length": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
    # names of other APIs, which gateways pass on
    "end_turn": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "safety": "content_filter",
    "recitation": "content_filter",
    "refusal": "content_filter",
    "sensitive": "content_filter",
    # no answer: the server failed or gave up
    "error": "error",
    "failed": "error",
    "abort": "error",
    "cancelled": "error",
    "timeout": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
    "malformed_function_call": "error",
    "unexpected_tool_call": "error",
    "function_call_filter": "error",
}


class OpenAIChatModel(HttpChatModel):
    """A model behind OpenAI's chat completions, or behind a compatible server (vLLM, Ollama, Groq, a gateway).

    DeepSeek, Gemini, Groq, Hugging Face's router, Mistral, OpenRouter, Perplexity and xAI are recognized by their
    address. Each gets only its own API key, and requests in the format it expects.

    `ChatOptions.output_schema` is enforced in strict mode if the schema has the same meaning there. A schema with
    optional fields, or one that strict mode can't express, is sent unchanged; the server decides how it enforces that.

    Args:
        model: the model's name, such as `gpt-5-mini`.
        base_url: the address of the API; by default `OPENAI_BASE_URL`, else OpenAI's address.
        api_key: the API key; by default the environment variable of the server: `OPENAI_API_KEY`, `DEEPSEEK_API_KEY`,
            `GEMINI_API_KEY`, `GROQ_API_KEY`, `HF_TOKEN`, `MISTRAL_API_KEY`, `OPENROUTER_API_KEY`, `PERPLEXITY_API_KEY`
            or `XAI_API_KEY`. These servers require a key. Any other server gets `OPENAI_API_KEY`, if it is set.
        provider: the provider's name in telemetry (`gen_ai.provider.name`); by default derived from the address, else
            `openai`. Behind a gateway, the name of a known provider also selects the format of its requests.
        stream_usage: whether to request usage on streams; False for servers that refuse the field.
        strict_tools: whether OpenAI enforces each tool's input schema. Optional properties can then be null. A tool
            whose schema strict mode can't express is sent without it, and the log says so.
        inline_definitions: whether to replace each `$ref` in schemas by what it refers to, for servers that don't
            resolve references.
        reasoning_field: the message field in which to send back the reasoning of earlier answers: `reasoning_content`
            for SGLang, llama.cpp and older vLLM, `reasoning` for newer vLLM. By default, only servers known to require
            reasoning get it back. DeepSeek and Mistral are such servers and don't accept this option.
        context_window: how many tokens a request can have; by default what the package `genai-prices` lists.
        **http: connection options, see `HttpOptions`.

    Raises:
        ConfigurationError: if the address or `reasoning_field` is invalid, or if there is no key for a known server.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str | None = None,
        stream_usage: bool = True,
        strict_tools: bool = False,
        inline_definitions: bool = False,
        reasoning_field: Literal["reasoning_content", "reasoning"] | None = None,
        context_window: int | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        check_options(http)
        expect("provider", provider, (str, type(None)), "a str or None")
        expect("stream_usage", stream_usage, bool, "True or False")
        expect("strict_tools", strict_tools, bool, "True or False")
        expect("inline_definitions", inline_definitions, bool, "True or False")
        if reasoning_field not in (None, "reasoning_content", "reasoning"):
            raise ConfigurationError('reasoning_field must be "reasoning_content", "reasoning" or None')
        address = resolve_base_url(base_url, _PATH)
        codec = OpenAIChatCodec(
            model,
            resolve_server(address, provider),
            provider=provider,
            stream_usage=stream_usage,
            strict_tools=strict_tools,
            inline_definitions=inline_definitions,
            reasoning_field=reasoning_field,
        )
        headers = auth_headers(api_key, address, provider)
        super().__init__(model, codec, HttpTransport(address, codec.provider, headers, http), context_window)


class OpenAIChatCodec:
    """The codec of chat completions in the format of `server`; see `OpenAIChatModel` for the other arguments."""

    framing: Framing = ServerSentEvents()
    models_path = "/models"

    def __init__(
        self,
        model: str,
        server: Server,
        *,
        provider: str | None = None,
        stream_usage: bool = True,
        strict_tools: bool = False,
        inline_definitions: bool = False,
        reasoning_field: str | None = None,
    ) -> None:
        self.provider = provider or server.provider
        self._model = model
        self._server = server
        self.enforces_schema = server.enforces_schema
        self._messages = create_message_encoder(server, self.provider, reasoning_field)
        self._stream_usage = stream_usage and server.stream_options
        self._strict_tools = strict_tools
        self._inline_definitions = inline_definitions
        self._tool = IdentityCache(self._encode_tool)

    def path(self, *, stream: bool) -> str:
        """Return the path of the endpoint."""
        return _PATH

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body for `request`; raises `ConfigurationError` for an option that the server lacks."""
        body: dict[str, Any] = {"model": self._model, "messages": self._messages.encode(request.messages)}
        if request.tools:
            body["tools"] = [self._tool(definition) for definition in request.tools]
        body.update(self._encode_options(request.options, has_tools=bool(request.tools)))
        if stream:
            body["stream"] = True
            if self._stream_usage:
                body["stream_options"] = {"include_usage": True}
        return merge_extra(body, request.options.extra)

    def _encode_options(self, options: ChatOptions, *, has_tools: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "temperature": options.temperature,
            "top_p": options.top_p,
            self._server.max_tokens: options.max_tokens,
            "stop": None if options.stop is None else list(options.stop),
            self._server.seed: options.seed,
        }
        if has_tools:
            fields["tool_choice"] = _encode_tool_choice(options.tool_choice)
            fields["parallel_tool_calls"] = options.parallel_tool_calls
        if options.reasoning_effort is not None:
            fields |= self._server.effort(options.reasoning_effort)
        if options.output_schema is not None:
            fields["response_format"] = self._encode_output_schema(options.output_schema)
        return drop_none(fields)

    def _encode_output_schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if not self._server.output_schema:
            raise ConfigurationError(f"{self.provider} cannot make an answer follow a schema: drop output_schema")
        json_schema = encode_output_schema(schema, inline_definitions=self._inline_definitions)
        return {"type": "json_schema", "json_schema": json_schema}

    def _encode_tool(self, definition: ToolDefinition) -> dict[str, Any]:
        schema, is_strict = encode_tool_schema(
            definition, strict_tools=self._strict_tools, inline_definitions=self._inline_definitions
        )
        function = {"name": definition.name, "description": definition.description, "parameters": schema}
        return {"type": "function", "function": {**function, "strict": True} if is_strict else function}

    def decode(self, body: bytes) -> ChatResponse:
        """Decode the body of an answer that is not streamed; raises `InvalidResponse`."""
        answer = read_completion(body, "the answer", self.provider)
        if answer.choice is None or not _is_answer(answer.choice.message, answer.choice):
            raise InvalidResponse("the answer has no message", provider=self.provider)
        reason = _decode_finish_reason(answer.choice.finish_reason)
        return ChatResponse(
            _decode_message(answer.choice.message or _EMPTY_MESSAGE, is_cut_off=reason in CUT_OFF_REASONS),
            usage=answer.token_usage(),
            finish_reason=reason,
            id=answer.id,
            model=answer.model,
            provider_reason=unknown_reason(answer.choice.finish_reason, reason),
        )

    def decoder(self) -> OpenAIChunkDecoder:
        """Return a decoder for one streamed answer."""
        return OpenAIChunkDecoder(self.provider)


class OpenAIChunkDecoder:
    """Decodes one streamed answer, which is complete after a finish reason or `[DONE]`."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._own_indices = count(-1, -1)
        self._details: list[_ReasoningDetail] = []
        self._inputs = CustomInputConverter()
        self._last: int | None = None
        self._has_content = self._is_complete = self.done = False

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Decode the data of one event; raises `InvalidResponse`."""
        if self.done or not data:
            return ()
        if data.strip() != _DONE:
            return self._decode_event(read_completion(data, "a chunk of the stream", self._provider))
        details, calls = self._close_details(), () if self._is_complete else tuple(self._close_inputs(None))
        self._is_complete = self.done = True
        return (ChatChunk(tool_calls=calls, parts=details),) if details or calls else ()

    def _decode_event(self, event: Completion) -> list[ChatChunk]:
        choice = event.choice
        if choice is None:
            return [ChatChunk(usage=event.token_usage(), id=event.id, model=event.model)]
        whole = None if self._has_content else choice.message  # after deltas, a whole message only repeats them
        answer = choice.delta or whole or _EMPTY_MESSAGE
        self._has_content = self._has_content or _is_answer(choice.delta or whole, choice)
        self._is_complete = self._is_complete or bool(choice.finish_reason)
        reason = _decode_finish_reason(choice.finish_reason)
        self._add_details(answer.reasoning_details or ())
        contents = answer.to_contents()
        calls = tuple([delta for call in answer.calls for delta in self._decode_call(call)])
        native = None
        if reason is not None:
            native = unknown_reason(choice.finish_reason, reason)
            calls += tuple(self._close_inputs(reason))
            if self._details:
                contents.append(("", "", self._close_details()))
        return build_chunks(contents, calls, event.token_usage(), reason, event.id, event.model, native)

    def _decode_call(self, call: CompletionCall) -> Iterator[ToolCallDelta]:
        """Yield the deltas of a call. If a server sends neither index nor id, each name starts another call."""
        name = call.name
        begins = call.index is None and not call.id and name
        index = self._last = next(self._own_indices) if begins else call.index
        if self._inputs.ends_before(index, call.id):
            yield ToolCallDelta(index, arguments=self._inputs.close(index))
        signature = call.signature
        if call.custom is not None:
            if self._inputs.has_begun(index) and not call.extra_content:
                signature = None  # it would replace the signature of the call's first delta
            arguments = self._inputs.convert_piece(index, call.id, call.custom.input or "")
        else:
            arguments = (call.function or _EMPTY_FUNCTION).text
        yield ToolCallDelta(index, call.id, name, arguments, signature)

    def _close_inputs(self, reason: str | None) -> Iterator[ToolCallDelta]:
        """Yield the deltas that end the inputs of custom tools, except of an input that was cut off."""
        for index in self._inputs.open_indices():
            if index != self._last or reason not in CUT_OFF_REASONS:
                yield ToolCallDelta(index, arguments=self._inputs.close(index))

    def _add_details(self, details: Iterable[Mapping[str, Any]]) -> None:
        for detail in details:
            if not self._details or not self._details[-1].continues_with(detail):
                if len(self._details) >= MOST_ITEMS:
                    problem = f"the stream has more than {MOST_ITEMS} details of reasoning"
                    raise InvalidResponse(problem, provider=self._provider)
                self._details.append(_ReasoningDetail())
            self._details[-1].add(detail)

    def _close_details(self) -> tuple[ProviderPart, ...]:
        parts = tuple([detail.part() for detail in self._details])
        self._details.clear()
        return parts

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self._is_complete:
            raise InvalidResponse("the stream ended before the answer did", provider=self._provider)
        if not self._has_content:
            raise InvalidResponse("the stream contains no answer", provider=self._provider)


class _ReasoningDetail:
    """A reasoning detail, which only the provider behind OpenRouter can read; its texts can arrive in pieces.

    Format: https://openrouter.ai/docs/guides/best-practices/reasoning-tokens#reasoning_details-array-structure
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, StringIO] = {}

    def continues_with(self, piece: Mapping[str, Any]) -> bool:
        """Return whether `piece` continues this detail: it is a text whose type, index and id don't differ."""
        is_text = piece.get("type") in ("reasoning.text", "reasoning.summary")
        return is_text and not any(self._differs(name, piece) for name in ("type", "index", "id"))

    def _differs(self, name: str, piece: Mapping[str, Any]) -> bool:
        current, addition = self._fields.get(name), piece.get(name)
        return current is not None and addition is not None and current != addition

    def add(self, piece: Mapping[str, Any]) -> None:
        """Add a piece or the whole detail."""
        for name, value in piece.items():
            if name in ("text", "summary") and isinstance(value, str):
                self._texts.setdefault(name, StringIO()).write(value)
            elif value is not None:
                self._fields[name] = value

    def part(self) -> ProviderPart:
        """Return the whole detail; its fields are sorted, so that streamed and whole answers yield the same part."""
        texts = {name: text.getvalue() for name, text in self._texts.items()}
        return ProviderPart(to_sendable_json(dict(sorted({**self._fields, **texts}.items()))))


def _decode_message(answer: CompletionMessage, *, is_cut_off: bool) -> AssistantMessage:
    fold = ChunkFold()
    for chunk in build_chunks(answer.to_contents()):
        fold.add(chunk)
    return AssistantMessage([*fold.response().message.parts, *_decode_whole_parts(answer, is_cut_off)])


def _decode_whole_parts(answer: CompletionMessage, is_cut_off: bool) -> Iterator[ToolCall | ProviderPart]:
    calls = answer.calls
    for number, call in enumerate(calls, start=1):
        if call.custom is not None:
            arguments = input_to_arguments(call.custom.input or "", is_cut_off=is_cut_off and number == len(calls))
        else:
            arguments = (call.function or _EMPTY_FUNCTION).text or "{}"
        yield ToolCall(call.name or "", arguments, call.id, signature=call.signature)
    for detail in answer.reasoning_details or ():
        whole = _ReasoningDetail()
        whole.add(detail)
        yield whole.part()


def _is_answer(message: CompletionMessage | None, choice: Choice) -> bool:
    """Return whether a choice is an answer: it has a message, or only a finish reason because it was cut off."""
    return message is not None or _decode_finish_reason(choice.finish_reason) in CUT_OFF_REASONS


def _decode_finish_reason(reason: str | None) -> str | None:
    """Return the finish reason. Google's API adds details: `function_call_filter: MALFORMED_FUNCTION_CALL`."""
    if not reason:
        return None
    return _FINISH_REASONS.get(reason) or _FINISH_REASONS.get(reason.partition(":")[0].lower(), "other")


def _encode_tool_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}
