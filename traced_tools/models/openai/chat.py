"""OpenAI's chat completions, and every server that speaks them.

Format: https://platform.openai.com/docs/api-reference/chat. The codec decides by what it sees and not by what a server
claims: some give no finish reason, some put usage on a chunk of its own, some send a whole call in one delta.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from itertools import count
from typing import Any, Literal, Unpack

from traced_tools.core.checks import expect
from traced_tools.core.identity_cache import MadeOnce
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
from traced_tools.models.openai.chat_messages import messages_for
from traced_tools.models.openai.chat_wire import (
    Choice,
    Completion,
    CompletionCall,
    CompletionFunction,
    CompletionMessage,
    read_completion,
)
from traced_tools.models.openai.common import (
    CustomInputs,
    address_of,
    custom_arguments,
    headers_of,
    sent_output_schema,
    sent_schema,
)
from traced_tools.models.openai.servers import Server, server_of
from traced_tools.models.wire import MOST_ITEMS, build_chunks, to_sendable_json

_PATH = "/chat/completions"
_NOTHING, _NAMELESS = CompletionMessage(), CompletionFunction()
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
}


class OpenAIChatModel(HttpChatModel):
    """A model behind OpenAI's chat completions, or behind a server that speaks them (vLLM, Ollama, Groq, a gateway).

    DeepSeek, Gemini, Groq, Hugging Face's router, Mistral, OpenRouter, Perplexity and xAI are known by their address:
    each gets its own key and no other's, and is asked in its own way.

    `ChatOptions.output_schema` is held strictly where strict mode says the same. A schema with fields that may be left
    out, or one that strict mode cannot express, is sent as it is, and how well it is kept is up to the server.

    Args:
        model: the model's name, such as `gpt-5-mini`.
        base_url: where the API is; by default `OPENAI_BASE_URL`, else OpenAI.
        api_key: by default the variable of the server there: `OPENAI_API_KEY`, `DEEPSEEK_API_KEY`, `GEMINI_API_KEY`,
            `GROQ_API_KEY`, `HF_TOKEN`, `MISTRAL_API_KEY`, `OPENROUTER_API_KEY`, `PERPLEXITY_API_KEY` or `XAI_API_KEY`;
            these servers need one. Any other server gets `OPENAI_API_KEY`, if there is one.
        provider: who runs the model, for telemetry (`gen_ai.provider.name`); by default told by the address, else
            `openai`. Behind a gateway, the name of a known provider says that it is to be asked in that one's way.
        stream_usage: ask for usage on streams; False for servers that refuse the field.
        strict_tools: have OpenAI hold the model to each tool's input schema. What is optional in it may then be null,
            and a tool whose schema strict mode cannot express raises `ToolDefinitionError` when it is offered.
        inline_definitions: write out what `$ref` leads to in schemas, for servers that do not follow it.
        reasoning_field: send the reasoning of earlier answers back, in this field of each: `reasoning_content` for
            SGLang, llama.cpp and older vLLM, `reasoning` for newer vLLM. By default no server gets reasoning back
            except those that are known to ask for it. DeepSeek and Mistral get it back without the option and refuse
            it.
        **http: how to reach it, as in `HttpOptions`.

    Raises:
        ConfigurationError: for an invalid address, a known server without its key, or an invalid `reasoning_field`.
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
        **http: Unpack[HttpOptions],
    ) -> None:
        check_options(http)
        expect("provider", provider, (str, type(None)), "a str or None")
        expect("stream_usage", stream_usage, bool, "True or False")
        expect("strict_tools", strict_tools, bool, "True or False")
        expect("inline_definitions", inline_definitions, bool, "True or False")
        if reasoning_field not in (None, "reasoning_content", "reasoning"):
            raise ConfigurationError('reasoning_field must be "reasoning_content", "reasoning" or None')
        address = address_of(base_url, _PATH)
        codec = OpenAIChatCodec(
            model,
            server_of(address, provider),
            provider=provider,
            stream_usage=stream_usage,
            strict_tools=strict_tools,
            inline_definitions=inline_definitions,
            reasoning_field=reasoning_field,
        )
        headers = headers_of(api_key, address, provider)
        super().__init__(model, codec, HttpTransport(address, codec.provider, headers, http))


class OpenAIChatCodec:
    """The language of chat completions, as `server` speaks it; see `OpenAIChatModel` for the other arguments."""

    framing: Framing = ServerSentEvents()

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
        self._messages = messages_for(server, self.provider, reasoning_field)
        self._stream_usage = stream_usage and server.stream_options
        self._strict_tools = strict_tools
        self._inline_definitions = inline_definitions
        self._tool = MadeOnce(self._made_tool)

    def path(self, *, stream: bool) -> str:
        """Return where to send a request."""
        return _PATH

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body that asks `request`; raises `ConfigurationError` for what the server does not have."""
        body: dict[str, Any] = {"model": self._model, "messages": self._messages.of(request.messages)}
        if request.tools:
            body["tools"] = [self._tool(definition) for definition in request.tools]
        body.update(self._options(request.options, has_tools=bool(request.tools)))
        if stream:
            body["stream"] = True
            if self._stream_usage:
                body["stream_options"] = {"include_usage": True}
        return merge_extra(body, request.options.extra)

    def _options(self, options: ChatOptions, *, has_tools: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "temperature": options.temperature,
            "top_p": options.top_p,
            self._server.max_tokens: options.max_tokens,
            "stop": None if options.stop is None else list(options.stop),
            self._server.seed: options.seed,
        }
        if has_tools:
            fields["tool_choice"] = _tool_choice(options.tool_choice)
            fields["parallel_tool_calls"] = options.parallel_tool_calls
        if options.reasoning_effort is not None:
            fields |= self._server.effort(options.reasoning_effort)
        if options.output_schema is not None:
            fields["response_format"] = self._response_format(options.output_schema)
        return drop_none(fields)

    def _made_tool(self, definition: ToolDefinition) -> dict[str, Any]:
        schema = sent_schema(definition, strict_tools=self._strict_tools, inline_definitions=self._inline_definitions)
        function = {"name": definition.name, "description": definition.description, "parameters": schema}
        return {"type": "function", "function": {**function, "strict": True} if self._strict_tools else function}

    def _response_format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if not self._server.output_schema:
            raise ConfigurationError(f"{self.provider} cannot hold an answer to a schema: drop output_schema")
        described = sent_output_schema(schema, inline_definitions=self._inline_definitions)
        return {"type": "json_schema", "json_schema": described}

    def decode(self, body: bytes) -> ChatResponse:
        """Return the answer a whole body stands for; raises `InvalidResponse`."""
        answer = read_completion(body, "the answer", self.provider)
        if answer.choice is None or not _is_answer(answer.choice.message, answer.choice):
            raise InvalidResponse("the answer holds no message", provider=self.provider)
        reason = _finish_reason(answer.choice.finish_reason)
        return ChatResponse(
            _message(answer.choice.message or _NOTHING, is_cut_off=reason in CUT_OFF_REASONS),
            usage=answer.token_usage(),
            finish_reason=reason,
            id=answer.id,
            model=answer.model,
        )

    def decoder(self) -> OpenAIChunkDecoder:
        """Return a decoder for one streamed answer."""
        return OpenAIChunkDecoder(self.provider)


class OpenAIChunkDecoder:
    """Decodes one streamed answer. It is complete when it says `[DONE]` or has given a finish reason."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._places = count(-1, -1)
        self._details: list[_Detail] = []
        self._inputs = CustomInputs()
        self._last: int | None = None
        self._begun = self._complete = self.done = False

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Return the chunks an event's data stands for; raises `InvalidResponse`."""
        if self.done or not data:
            return ()
        if data.strip() != _DONE:
            return self._chunks(read_completion(data, "a chunk of the stream", self._provider))
        details, calls = self._ended_details(), () if self._complete else tuple(self._ended_inputs(None))
        self._complete = self.done = True
        return (ChatChunk(tool_calls=calls, parts=details),) if details or calls else ()

    def _chunks(self, event: Completion) -> list[ChatChunk]:
        choice = event.choice
        if choice is None:
            return [ChatChunk(usage=event.token_usage(), id=event.id, model=event.model)]
        said_whole = None if self._begun else choice.message  # beside or after deltas, it repeats them
        answer = choice.delta or said_whole or _NOTHING
        self._begun = self._begun or _is_answer(choice.delta or said_whole, choice)
        self._complete = self._complete or bool(choice.finish_reason)
        reason = _finish_reason(choice.finish_reason)
        self._add_details(answer.reasoning_details or ())
        said, calls = answer.said(), tuple([piece for call in answer.calls for piece in self._pieces(call)])
        if reason is not None:
            calls += tuple(self._ended_inputs(reason))
            if self._details:
                said.append(("", "", self._ended_details()))
        return build_chunks(said, calls, event.token_usage(), reason, event.id, event.model)

    def _pieces(self, call: CompletionCall) -> Iterator[ToolCallDelta]:
        """Give a piece of a call. One without index and id is known by its name alone: each name begins another."""
        name = call.name
        begins = call.index is None and not call.id and name
        place = self._last = next(self._places) if begins else call.index
        if self._inputs.ends_before(place, call.id):
            yield ToolCallDelta(place, arguments=self._inputs.end(place))
        signature = call.signature
        if call.custom is not None:
            if self._inputs.has_begun(place) and not call.extra_content:
                signature = None  # it would replace the signature that the call began with
            arguments = self._inputs.piece(place, call.id, call.custom.input or "")
        else:
            arguments = (call.function or _NAMELESS).text
        yield ToolCallDelta(place, call.id, name, arguments, signature)

    def _ended_inputs(self, reason: str | None) -> Iterator[ToolCallDelta]:
        """Give the ends of the custom tools' inputs, but not of one in the middle of which the answer is cut off."""
        for place in self._inputs.open():
            if place != self._last or reason not in CUT_OFF_REASONS:
                yield ToolCallDelta(place, arguments=self._inputs.end(place))

    def _add_details(self, details: Iterable[Mapping[str, Any]]) -> None:
        for detail in details:
            if not self._details or not self._details[-1].goes_on_in(detail):
                if len(self._details) >= MOST_ITEMS:
                    problem = f"the stream has more than {MOST_ITEMS} details of reasoning"
                    raise InvalidResponse(problem, provider=self._provider)
                self._details.append(_Detail())
            self._details[-1].add(detail)

    def _ended_details(self) -> tuple[ProviderPart, ...]:
        ended = tuple([detail.part() for detail in self._details])
        self._details.clear()
        return ended

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self._complete:
            raise InvalidResponse("the stream ended before the answer did", provider=self._provider)
        if not self._begun:
            raise InvalidResponse("the stream holds no answer", provider=self._provider)


class _Detail:
    """A detail of reasoning, which only the provider behind OpenRouter understands; streamed, its texts are in pieces.

    Format: https://openrouter.ai/docs/guides/best-practices/reasoning-tokens#reasoning_details-array-structure
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, StringIO] = {}

    def goes_on_in(self, piece: Mapping[str, Any]) -> bool:
        """Return whether `piece` belongs to this detail: both are of one kind of text, and nothing tells them apart."""
        is_text = piece.get("type") in ("reasoning.text", "reasoning.summary")
        return is_text and not any(self._differs(name, piece) for name in ("type", "index", "id"))

    def _differs(self, name: str, piece: Mapping[str, Any]) -> bool:
        known, given = self._fields.get(name), piece.get(name)
        return known is not None and given is not None and known != given

    def add(self, piece: Mapping[str, Any]) -> None:
        """Take in a piece, or the whole."""
        for name, value in piece.items():
            if name in ("text", "summary") and isinstance(value, str):
                self._texts.setdefault(name, StringIO()).write(value)
            elif value is not None:
                self._fields[name] = value

    def part(self) -> ProviderPart:
        """Return the whole; its fields are sorted, so that it is the same whichever way it came."""
        texts = {name: text.getvalue() for name, text in self._texts.items()}
        return ProviderPart(to_sendable_json(dict(sorted({**self._fields, **texts}.items()))))


def _message(answer: CompletionMessage, *, is_cut_off: bool) -> AssistantMessage:
    fold = ChunkFold()
    for chunk in build_chunks(answer.said()):
        fold.add(chunk)
    return AssistantMessage([*fold.response().message.parts, *_whole_parts(answer, is_cut_off)])


def _whole_parts(answer: CompletionMessage, is_cut_off: bool) -> Iterator[ToolCall | ProviderPart]:
    calls = answer.calls
    for number, call in enumerate(calls, start=1):
        if call.custom is not None:
            arguments = custom_arguments(call.custom.input or "", is_cut_off=is_cut_off and number == len(calls))
        else:
            arguments = (call.function or _NAMELESS).text or "{}"
        yield ToolCall(call.name or "", arguments, call.id, signature=call.signature)
    for detail in answer.reasoning_details or ():
        whole = _Detail()
        whole.add(detail)
        yield whole.part()


def _is_answer(said: CompletionMessage | None, choice: Choice) -> bool:
    """Return whether a choice is an answer: one that was cut off may be a finish reason and nothing else."""
    return said is not None or _finish_reason(choice.finish_reason) in CUT_OFF_REASONS


def _finish_reason(reason: str | None) -> str | None:
    return _FINISH_REASONS.get(reason, "error") if reason else None


def _tool_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}
