"""Google's Gemini API.

Format: https://ai.google.dev/api/generate-content. A signature is sent back on the part it arrived with
(https://ai.google.dev/gemini-api/docs/thought-signatures), so a signed part is never joined with another part.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Unpack
from urllib.parse import quote

from traced_tools.core.checks import expect
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
    UserMessage,
)
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ConfigurationError, InvalidResponse
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse, is_made_up
from traced_tools.models.codec import SchemaEnforcement
from traced_tools.models.encoding import (
    convert_output_schema,
    convert_tool_schema,
    drop_none,
    encode_image,
    may_send_signed_parts,
    merge_extra,
    parse_arguments,
    signature_fields,
)
from traced_tools.models.folding import ChunkFold
from traced_tools.models.gemini.partial_calls import PartialCall
from traced_tools.models.gemini.wire import (
    Blob,
    Candidate,
    GeminiAnswer,
    GeminiEvent,
    GeminiFunctionCall,
    GeminiUsage,
    Part,
)
from traced_tools.models.http.framing import Framing, ServerSentEvents
from traced_tools.models.http.keys import resolve_key
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions, check_options
from traced_tools.models.http.transport import HttpTransport
from traced_tools.models.parsing import ChunkContent, build_chunks, parse_body, to_json, unknown_reason
from traced_tools.tools.schema.dialects import inline_references, to_object_schema
from traced_tools.tools.schema.references import without_keywords

_PROVIDER = "gcp.gemini"
_DEFAULT_URL = "https://generativelanguage.googleapis.com"
_COLLECTIONS = ("models/", "tunedModels/")
_EMPTY_CANDIDATE = Candidate()
_OLDER_MODELS = re.compile(r"gemini-[12]\b")
"""Matches models that refuse images in a function response and don't require signatures."""
_NO_SIGNATURE = "skip_thought_signature_validator"
"""Replaces the signature of a call that no Gemini model made; without a signature, Gemini 3 refuses the request.

Source: https://ai.google.dev/gemini-api/docs/thought-signatures#faqs.
"""
_FINISH_REASONS = (
    {"STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length"}
    | dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "ESCALATION", "MODEL_ARMOR"),
            *("IMAGE_SAFETY", "IMAGE_RECITATION", "IMAGE_PROHIBITED_CONTENT"),
        ),
        "content_filter",
    )
    | dict.fromkeys(
        (
            *("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
            *("MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE"),
        ),
        "error",
    )
)


class GeminiChatModel(HttpChatModel):
    """A Gemini model behind the Gemini API.

    `reasoning_effort` is a thinking level, such as `low`. Set other options with `extra`, which extends objects and
    lists in the request: `ChatOptions(extra={"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}},
    "tools": [{"googleSearch": {}}]})`.

    Args:
        model: the model's name, such as `gemini-3-flash-preview`, or `tunedModels/` and the name of a tuned model.
        base_url: the address of the API, including its version; by default version v1beta at
            `GOOGLE_GEMINI_BASE_URL`, else at Google's address.
        api_key: the API key; by default `GOOGLE_API_KEY`, else `GEMINI_API_KEY`, as in Google's own clients. Required
            for Google's address.
        context_window: how many tokens a request can have; by default what the package `genai-prices` lists.
        **http: connection options, see `HttpOptions`.

    Raises:
        ConfigurationError: if the address is invalid, or Google's own and there is no key.
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
        transport = connect_gemini(base_url, api_key, http)
        expect("model", model, str, "a str")
        super().__init__(model, GeminiChatCodec(model), transport, context_window)


def connect_gemini(base_url: str | None, api_key: str | None, http: HttpOptions) -> HttpTransport:
    """Return the transport to a Gemini server; see `GeminiChatModel` for the arguments."""
    check_options(http)
    expect("base_url", base_url, (str, type(None)), "a str or None")
    # Google's own clients, which define the variable, add the version to it
    host = (os.environ.get("GOOGLE_GEMINI_BASE_URL") or _DEFAULT_URL).rstrip("/")
    address = f"{host}/v1beta" if base_url is None else base_url
    key = resolve_key(api_key, "GOOGLE_API_KEY", "GEMINI_API_KEY", needed=address.startswith(_DEFAULT_URL))
    return HttpTransport(address, _PROVIDER, {"x-goog-api-key": key} if key else {}, http)


def model_path(model: str) -> str:
    """Return the path of a model, which is in the collection `models` unless its name has another one."""
    collection = next(filter(model.startswith, _COLLECTIONS), "")
    return f"/{collection or 'models/'}{quote(model.removeprefix(collection), safe='')}"


class GeminiChatCodec:
    """The codec of the Gemini API; `model` is the model's name."""

    framing: Framing = ServerSentEvents()
    # https://github.com/googleapis/python-genai/issues/867
    models_path = "/models?pageSize=1"
    enforces_schema: SchemaEnforcement = "without_tools"

    def __init__(self, model: str) -> None:
        self._address = model_path(model)
        self._is_older = bool(_OLDER_MODELS.search(model))
        self._tool = IdentityCache(_encode_tool)

    def path(self, *, stream: bool) -> str:
        """Return the path of the endpoint."""
        return f"{self._address}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}"

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body for `request`; raises `ConfigurationError` for an option that Gemini lacks."""
        body: dict[str, Any] = {"contents": _join_turns(self._encode_turns(request.messages))}
        instructions = [message for message in request.messages if isinstance(message, SystemMessage) and message.text]
        if instructions:
            body["systemInstruction"] = {"parts": [{"text": message.text} for message in instructions]}
        if request.tools:
            body["tools"] = [{"functionDeclarations": [self._tool(tool) for tool in request.tools]}]
            body.update(_encode_tool_choice(request.options))
        if settings := _encode_options(request.options):
            body["generationConfig"] = settings
        return merge_extra(body, request.options.extra)

    def _encode_turns(self, messages: Sequence[Message]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield the role and parts of each turn. Consecutive tool messages are one turn."""
        provider_ids = set(_provider_ids(messages))
        conversation = [message for message in messages if not isinstance(message, SystemMessage)]
        for _, group in groupby(conversation, key=type):
            alike = list(group)
            for message in alike:
                if isinstance(message, UserMessage):
                    yield "user", [_encode_user_part(part) for part in message.parts if not _is_empty(part)]
                elif isinstance(message, AssistantMessage):
                    yield "model", self._encode_answer(message)
            results = [result for message in alike if isinstance(message, ToolMessage) for result in message.results]
            yield "user", [self._encode_result(result, result.call_id in provider_ids) for result in results]
            yield "user", list(self._encode_images(results))

    def _encode_answer(self, message: AssistantMessage) -> list[dict[str, Any]]:
        parts = _encode_model_parts(message)
        if not self._is_older:  # the first call of each answer must be signed
            first = next((part for part in parts if "functionCall" in part), {})
            first.setdefault("thoughtSignature", _NO_SIGNATURE)
        return parts

    def _encode_result(self, result: ToolResultPart, has_id: bool) -> dict[str, Any]:
        """Return a result. JSON in it stays text: in an object, Gemini resolves references and rounds large numbers."""
        response = {"error" if result.is_error else "output": result.content}
        function_response: dict[str, Any] = {"name": result.name, "response": response}
        if has_id:
            function_response["id"] = result.call_id
        if result.images and not self._is_older:
            function_response["parts"] = [_encode_image(image) for image in result.images]
        return {"functionResponse": function_response}

    def _encode_images(self, results: Iterable[ToolResultPart]) -> Iterator[dict[str, Any]]:
        """Yield the images of results as user content, for models that refuse images in a result."""
        for result in results:
            if result.images and self._is_older:
                yield {"text": f"Images returned by the tool {result.name}:"}
                yield from map(_encode_image, result.images)

    def decode(self, body: bytes) -> ChatResponse:
        """Decode the body of an answer that is not streamed; raises `InvalidResponse`."""
        events = parse_body(GeminiAnswer, body, "the answer", _PROVIDER).events
        if not any(event.candidate or event.is_refusal for event in events):
            raise InvalidResponse("the answer has no candidate", provider=_PROVIDER)
        decoder, fold = self.decoder(), ChunkFold()
        for event in events:
            for chunk in decoder.decode_event(event):
                fold.add(chunk)
        return fold.response()

    def decoder(self) -> GeminiChunkDecoder:
        """Return a decoder for one streamed answer."""
        return GeminiChunkDecoder()


class GeminiChunkDecoder:
    """Decodes one streamed answer, which is complete after a finish reason or after the reason of a refusal."""

    def __init__(self) -> None:
        self._has_calls = False
        self._partial: PartialCall | None = None
        self._has_partial_calls = False
        self.done = False
        self._counts: dict[str, int] | None = None

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Decode the data of one event; raises `InvalidResponse`."""
        return self.decode_event(parse_body(GeminiEvent, data, "a chunk of the stream", _PROVIDER)) if data else ()

    def decode_event(self, event: GeminiEvent) -> list[ChatChunk]:
        """Return the chunks of an event: one for each part, which keeps the order of the parts."""
        candidate = event.candidate or _EMPTY_CANDIDATE
        self._has_calls = self._has_calls or any(part.function_call for part in candidate.parts)
        reason = self._decode_finish_reason(candidate.finish_reason, event.is_refusal)
        contents = [self._decode_part(part) for part in candidate.parts]
        if reason is not None and self._partial is not None:
            # no piece follows, so the call is complete unless the answer was cut off
            contents += [("", "", (self._partial.part(),))] if reason == "tool_call" else []
            self._partial = None
        if event.usage_metadata is not None:
            self._count(event.usage_metadata)
        has_usage = self._counts is not None and self.done
        usage = GeminiUsage.model_construct(None, **self._counts or {}).to_usage() if has_usage else None
        native = None if reason is None else unknown_reason(candidate.finish_reason, reason)
        return build_chunks(contents, (), usage, reason, event.response_id, event.model_version, native)

    def _count(self, metadata: GeminiUsage) -> None:
        """Take the counts of an event, which are those of the answer so far."""
        counts = self._counts = self._counts or {}
        for name, count in vars(metadata).items():
            # a server may omit a count at the end, or send zero, that it has sent before
            if count or (count is not None and name not in counts):
                counts[name] = count

    def _decode_part(self, part: Part) -> ChunkContent:
        """Return the content of a part. A call that arrives in pieces is returned when it is complete."""
        call = part.function_call
        if call is None or not (self._partial or call.is_piece or (self._has_partial_calls and call.is_empty)):
            return _decode_part(part)
        if self._partial is None and not call.is_piece:
            return "", "", ()  # an empty call after the last piece of a call
        self._has_partial_calls = True
        self._partial = self._partial or PartialCall()
        _add_piece(self._partial, call, part.thought_signature)
        if call.will_continue:
            return "", "", ()
        ended, self._partial = self._partial.part(), None
        return "", "", (ended,)

    def _decode_finish_reason(self, reason: str | None, is_refusal: bool) -> str | None:
        """Return the finish reason; Gemini also reports `STOP` if it stopped to call tools."""
        self.done = self.done or reason is not None or is_refusal  # a gateway may send an empty reason at the end
        if not reason:
            return "content_filter" if is_refusal else None
        finish_reason = _FINISH_REASONS.get(reason, "other")
        return "tool_call" if self._has_calls and finish_reason == "stop" else finish_reason

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self.done:
            raise InvalidResponse("the stream ended before the answer did", provider=_PROVIDER)


def _decode_part(part: Part) -> ChunkContent:
    """Return the content of a part. Text without a signature is a piece of a text, anything else is a whole part."""
    is_whole = not part.is_text or part.thought_signature
    text, parts = (part.text_beside, (_decode_whole_part(part),)) if is_whole else (part.text or "", ())
    return ("", text, parts) if part.thought else (text, "", parts)


def _decode_whole_part(part: Part) -> AssistantPart:
    """Return the message part for a whole part. Bytes other than an image become an opaque part."""
    signature = part.thought_signature
    if (call := part.function_call) is not None:
        return ToolCall(call.name or "", to_json(call.args or {}), call.id, signature=signature)
    if (image := part.image) is not None:
        return ImagePart(data=_decode_image(image), media_type=image.mime_type or "", signature=signature)
    if not part.is_text:
        return ProviderPart(part.to_json())
    if not part.thought:
        return TextPart(part.text or "", signature=signature)
    if part.text:
        return ReasoningPart(part.text, signature=signature)
    # a ReasoningPart without text would end the reasoning before it and be merged into that
    return ProviderPart(to_json({"text": "", "thought": True, "thoughtSignature": signature}))


def _add_piece(call: PartialCall, piece: GeminiFunctionCall, signature: str | None) -> None:
    try:
        call.add(piece, signature)
    except ValueError as error:
        problem = str(error)
    else:
        return
    raise InvalidResponse(f"the pieces of a call in the answer contradict each other: {problem}", provider=_PROVIDER)


def _decode_image(blob: Blob) -> bytes:
    try:
        return base64.b64decode(blob.data or "", validate=True)
    except ValueError:
        pass
    raise InvalidResponse("an image in the answer cannot be decoded", provider=_PROVIDER)


def _encode_options(options: ChatOptions) -> dict[str, Any]:
    settings = {
        "temperature": options.temperature,
        "topP": options.top_p,
        "maxOutputTokens": options.max_tokens,
        "stopSequences": None if options.stop is None else list(options.stop),
        "seed": options.seed,
        "thinkingConfig": None if options.reasoning_effort is None else {"thinkingLevel": options.reasoning_effort},
        **_encode_output_schema(options.output_schema),
    }
    return drop_none(settings)


def _encode_output_schema(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields that make the answer follow `schema`."""
    if schema is None:
        return {}
    converted = convert_output_schema(schema, _convert_schema)
    return {"responseMimeType": "application/json", "responseJsonSchema": converted}


def _encode_tool(definition: ToolDefinition) -> dict[str, Any]:
    """Return a tool whose schema has no references: Gemini accepts only some of them.

    The root of the schema is an object with properties, as for the other providers.
    """
    schema = convert_tool_schema(definition, lambda own_schema: to_object_schema(_convert_schema(own_schema)))
    return {"name": definition.name, "description": definition.description, "parametersJsonSchema": schema}


def _convert_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return without_keywords(inline_references(schema), ("$schema",))


def _encode_tool_choice(options: ChatOptions) -> dict[str, Any]:
    if options.parallel_tool_calls is False:
        raise ConfigurationError("gcp.gemini cannot limit an answer to one call: drop parallel_tool_calls=False")
    if options.tool_choice is None:
        return {}
    mode = {"auto": "AUTO", "none": "NONE", "required": "ANY"}.get(options.tool_choice)
    config = {"mode": mode} if mode else {"mode": "ANY", "allowedFunctionNames": [options.tool_choice]}
    return {"toolConfig": {"functionCallingConfig": config}}


def _join_turns(turns: Iterable[tuple[str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Return the turns that have parts. Adjacent model turns are joined, since Gemini refuses calls in the second."""
    contents: list[dict[str, Any]] = []
    for role, parts in turns:
        if role == "model" and contents and contents[-1]["role"] == "model":
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    return contents


def _provider_ids(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the call ids that Gemini assigned, as far as is known. Other ids aren't sent to it."""
    for message in messages:
        if isinstance(message, AssistantMessage) and may_send_signed_parts(message, _PROVIDER):
            yield from [call.id for call in message.tool_calls if call.id and not is_made_up(call.id)]


def _is_empty(part: TextPart | ImagePart) -> bool:
    """Return whether a part is an empty text, for which Gemini refuses the request."""
    return isinstance(part, TextPart) and not part.text


def _encode_user_part(part: TextPart | ImagePart) -> dict[str, Any]:
    return _encode_image(part) if isinstance(part, ImagePart) else {"text": part.text}


def _encode_model_parts(message: AssistantMessage) -> list[dict[str, Any]]:
    """Return the parts of an answer in their order, without empty texts that have no signature."""
    parts = message.parts if may_send_signed_parts(message, _PROVIDER) else _unsigned_parts(message)
    wire_parts = [_encode_part(part) for part in parts]
    return [part for part in wire_parts if part.get("text") != "" or "thoughtSignature" in part]


def _unsigned_parts(message: AssistantMessage) -> Iterator[TextPart | ToolCall | ImagePart]:
    """Yield the parts of another provider's answer that any provider can read, without signatures and call ids."""
    for part in message.parts:
        if isinstance(part, TextPart):
            yield TextPart(part.text)
        elif isinstance(part, ToolCall):
            yield ToolCall(part.name, part.arguments)
        elif isinstance(part, ImagePart):
            yield part.replace(signature=None)


def _encode_part(part: AssistantPart) -> dict[str, Any]:
    wire_part: dict[str, Any]
    match part:
        case ProviderPart():
            return dict(json.loads(part.data))
        case ToolCall():
            wire_part = {"functionCall": _encode_call(part)}
        case ImagePart():
            wire_part = _encode_image(part)
        case ReasoningPart():
            wire_part = {"text": part.text, "thought": True}
        case TextPart():
            wire_part = {"text": part.text}
    # a JSON object is a signature of Gemini's OpenAI-compatible API, which has another field for it
    if part.signature and not signature_fields(part.signature):
        wire_part["thoughtSignature"] = part.signature
    return wire_part


def _encode_call(call: ToolCall) -> dict[str, Any]:
    wire_call = {"name": call.name, "args": parse_arguments(call)}
    return {**wire_call, "id": call.id} if call.id and not is_made_up(call.id) else wire_call


def _encode_image(part: ImagePart) -> dict[str, Any]:
    if part.url is None:
        return {"inlineData": {"mimeType": part.media_type, "data": encode_image(part)}}
    kind = {"mimeType": part.media_type} if "media_type" in part.model_fields_set else {}
    return {"fileData": {"fileUri": part.url, **kind}}
