"""Google's Gemini models, behind the Gemini API.

Format: https://ai.google.dev/api/generate-content. What Gemini has signed goes back in the very part that it came in
(https://ai.google.dev/gemini-api/docs/thought-signatures): such a part is never joined with another.
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
    UserMessage,
)
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ConfigurationError, InvalidResponse
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse, is_made_up
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
from traced_tools.models.wire import ChunkContent, build_chunks, parse_body, to_json
from traced_tools.tools.schema.dialects import inlined, one_object
from traced_tools.tools.schema.references import without

_PROVIDER = "gcp.gemini"
_GOOGLE = "https://generativelanguage.googleapis.com"
_COLLECTIONS = ("models/", "tunedModels/")
_SILENT = Candidate()
_OLDER = re.compile(r"gemini-[12]\b")
"""Models that refuse a function response with images in it, and need no signatures."""
_NOT_SIGNED = "skip_thought_signature_validator"
"""What stands for the signature of a call that no Gemini model made; without one, Gemini 3 refuses the request.

Where it comes from: https://ai.google.dev/gemini-api/docs/thought-signatures#faqs.
"""
_FINISH_REASONS = {"STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length"} | dict.fromkeys(
    (
        *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "ESCALATION", "MODEL_ARMOR"),
        *("IMAGE_SAFETY", "IMAGE_RECITATION", "IMAGE_PROHIBITED_CONTENT"),
    ),
    "content_filter",
)


class GeminiChatModel(HttpChatModel):
    """A Gemini model behind the Gemini API.

    `reasoning_effort` is a thinking level, such as `low`. What else Gemini can be told goes through `extra`, which adds
    to the objects and lists that are there: `ChatOptions(extra={"generationConfig": {"thinkingConfig":
    {"thinkingBudget": 0}}, "tools": [{"googleSearch": {}}]})`.

    Args:
        model: the model's name, such as `gemini-3-flash-preview`, or `tunedModels/` and the name of a tuned one.
        base_url: where the API is, with its version; by default v1beta of `GOOGLE_GEMINI_BASE_URL`, else of Google.
        api_key: by default `GOOGLE_API_KEY`, else `GEMINI_API_KEY`, the order of Google's own clients; needed for
            Google itself.
        **http: how to reach it, as in `HttpOptions`.

    Raises:
        ConfigurationError: for an address that is none, or Google without a key.
    """

    def __init__(
        self, model: str, *, base_url: str | None = None, api_key: str | None = None, **http: Unpack[HttpOptions]
    ) -> None:
        check_options(http)
        expect("model", model, str, "a str")
        expect("base_url", base_url, (str, type(None)), "a str or None")
        # the variable is that of Google's clients, which add the version themselves
        host = (os.environ.get("GOOGLE_GEMINI_BASE_URL") or _GOOGLE).rstrip("/")
        address = f"{host}/v1beta" if base_url is None else base_url
        key = resolve_key(api_key, "GOOGLE_API_KEY", "GEMINI_API_KEY", needed=address.startswith(_GOOGLE))
        headers = {"x-goog-api-key": key} if key else {}
        super().__init__(model, GeminiChatCodec(model), HttpTransport(address, _PROVIDER, headers, http))


class GeminiChatCodec:
    """The language of the Gemini API; `model` is the name of the model to ask."""

    framing: Framing = ServerSentEvents()

    def __init__(self, model: str) -> None:
        collection = next(filter(model.startswith, _COLLECTIONS), "")
        name = quote(model.removeprefix(collection), safe="")
        self._address = f"/{collection or 'models/'}{name}"
        self._is_older = bool(_OLDER.search(model))
        self._declaration = MadeOnce(_declaration)

    def path(self, *, stream: bool) -> str:
        """Return where to send a request."""
        return f"{self._address}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}"

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body that asks `request`; raises `ConfigurationError` for what Gemini does not have."""
        body: dict[str, Any] = {"contents": _contents(self._turns(request.messages))}
        instructions = [each for each in request.messages if isinstance(each, SystemMessage) and each.text]
        if instructions:
            body["systemInstruction"] = {"parts": [{"text": each.text} for each in instructions]}
        if request.tools:
            body["tools"] = [{"functionDeclarations": [self._declaration(tool) for tool in request.tools]}]
            body.update(_tool_config(request.options))
        if settings := _generation_config(request.options):
            body["generationConfig"] = settings
        return merge_extra(body, request.options.extra)

    def _turns(self, messages: Sequence[Message]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Give the role and the parts of each turn: the results of a batch are one, in how many messages they are."""
        given = set(_given_ids(messages))
        said = [message for message in messages if not isinstance(message, SystemMessage)]
        for _, group in groupby(said, key=type):
            alike = list(group)
            for message in alike:
                if isinstance(message, UserMessage):
                    yield "user", [_user_part(part) for part in message.parts if not _is_empty(part)]
                elif isinstance(message, AssistantMessage):
                    yield "model", self._answer(message)
            results = [result for message in alike if isinstance(message, ToolMessage) for result in message.results]
            yield "user", [self._result(result, result.call_id in given) for result in results]
            yield "user", list(self._images_after(results))

    def _answer(self, message: AssistantMessage) -> list[dict[str, Any]]:
        parts = _model_parts(message)
        if not self._is_older:  # of the calls of one answer, the first is signed
            first = next((part for part in parts if "functionCall" in part), {})
            first.setdefault("thoughtSignature", _NOT_SIGNED)
        return parts

    def _result(self, result: ToolResultPart, has_id: bool) -> dict[str, Any]:
        """Return a result. Its text stays text: in an object, Gemini looks for references, and rounds large numbers."""
        response = {"error" if result.is_error else "output": result.content}
        said: dict[str, Any] = {"name": result.name, "response": response}
        if has_id:
            said["id"] = result.call_id
        if result.images and not self._is_older:
            said["parts"] = [_image(image) for image in result.images]
        return {"functionResponse": said}

    def _images_after(self, results: Iterable[ToolResultPart]) -> Iterator[dict[str, Any]]:
        """Give the images of a batch as the user's, for models that refuse any in a result."""
        for result in results:
            if result.images and self._is_older:
                yield {"text": f"Images returned by the tool {result.name}:"}
                yield from map(_image, result.images)

    def decode(self, body: bytes) -> ChatResponse:
        """Return the answer a whole body stands for; raises `InvalidResponse`."""
        events = parse_body(GeminiAnswer, body, "the answer", _PROVIDER).events
        if not any(event.candidate or event.is_refusal for event in events):
            raise InvalidResponse("the answer holds no candidate", provider=_PROVIDER)
        decoder, fold = self.decoder(), ChunkFold()
        for event in events:
            for chunk in decoder.chunks_of(event):
                fold.add(chunk)
        return fold.response()

    def decoder(self) -> GeminiChunkDecoder:
        """Return a decoder for one streamed answer."""
        return GeminiChunkDecoder()


class GeminiChunkDecoder:
    """Decodes one streamed answer, which is complete when it gives a finish reason, or why there is no answer."""

    def __init__(self) -> None:
        self._called = False
        self._partial: PartialCall | None = None
        self._calls_in_pieces = False
        self.done = False
        self._used: GeminiUsage | None = None

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Return the chunks an event's data stands for; raises `InvalidResponse`."""
        return self.chunks_of(parse_body(GeminiEvent, data, "a chunk of the stream", _PROVIDER)) if data else ()

    def chunks_of(self, event: GeminiEvent) -> list[ChatChunk]:
        """Return the chunks an event stands for: one for each part, for their order is theirs."""
        candidate = event.candidate or _SILENT
        self._called = self._called or any(part.function_call for part in candidate.parts)
        reason = self._finish_reason(candidate.finish_reason, event.is_refusal)
        said = [self._said(part) for part in candidate.parts]
        if reason is not None and self._partial is not None:
            # nothing follows: the call is complete unless the answer was cut off
            said += [("", "", (self._partial.part(),))] if reason == "tool_call" else []
            self._partial = None
        self._used = event.usage_metadata or self._used
        # it counts from the beginning in each event, so that of the last is enough
        usage = self._used.to_usage() if self._used and self.done else None
        return build_chunks(said, (), usage, reason, event.response_id, event.model_version)

    def _said(self, part: Part) -> ChunkContent:
        """Return the content of a part; a streamed call is returned when it is complete."""
        call = part.function_call
        if call is None or not (self._partial or call.is_piece or (self._calls_in_pieces and call.is_empty)):
            return _said(part)
        if self._partial is None and not call.is_piece:
            return "", "", ()  # the end of a call that has ended
        self._calls_in_pieces = True
        self._partial = self._partial or PartialCall()
        _add(self._partial, call, part.thought_signature)
        if call.will_continue:
            return "", "", ()
        ended, self._partial = self._partial.part(), None
        return "", "", (ended,)

    def _finish_reason(self, said: str | None, is_refusal: bool) -> str | None:
        """Return the reason in our terms; Gemini says `STOP` where it stopped to have its calls run."""
        self.done = self.done or bool(said) or is_refusal
        if not said:
            return "content_filter" if is_refusal else None
        found = _FINISH_REASONS.get(said, "error")
        return "tool_call" if self._called and found == "stop" else found

    def end(self) -> None:
        """Raise `InvalidResponse` if the stream ended before the answer did."""
        if not self.done:
            raise InvalidResponse("the stream ended before the answer did", provider=_PROVIDER)


def _said(part: Part) -> ChunkContent:
    """Return what a part says. Text without a signature is a piece of one, all else is whole."""
    is_whole = not part.is_text or part.thought_signature
    text, parts = (part.words, (_whole(part),)) if is_whole else (part.text or "", ())
    return ("", text, parts) if part.thought else (text, "", parts)


def _whole(part: Part) -> AssistantPart:
    """Return a part as one of ours; an image that is no thought is one, other bytes go back as they came."""
    signature = part.thought_signature
    if (call := part.function_call) is not None:
        return ToolCall(call.name or "", to_json(call.args or {}), call.id, signature=signature)
    if (image := part.image) is not None:
        return ImagePart(data=_bytes(image), media_type=image.mime_type or "", signature=signature)
    if not part.is_text:
        return ProviderPart(part.as_it_came())
    if not part.thought:
        return TextPart(part.text or "", signature=signature)
    if part.text:
        return ReasoningPart(part.text, signature=signature)
    # a ReasoningPart without text would seal the thought before it, and be joined with that
    return ProviderPart(to_json({"text": "", "thought": True, "thoughtSignature": signature}))


def _add(known: PartialCall, piece: GeminiFunctionCall, signature: str | None) -> None:
    try:
        known.add(piece, signature)
    except ValueError as error:
        problem = str(error)
    else:
        return
    raise InvalidResponse(f"the pieces of a call in the answer do not fit together: {problem}", provider=_PROVIDER)


def _bytes(blob: Blob) -> bytes:
    try:
        return base64.b64decode(blob.data or "", validate=True)
    except ValueError:
        pass
    raise InvalidResponse("an image in the answer cannot be decoded", provider=_PROVIDER)


# What is sent.


def _contents(turns: Iterable[tuple[str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Return the turns in which something is said; calls are refused in a turn that follows another of the model's."""
    contents: list[dict[str, Any]] = []
    for role, parts in turns:
        if role == "model" and contents and contents[-1]["role"] == "model":
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    return contents


def _given_ids(messages: Iterable[Message]) -> Iterator[str]:
    """Give the ids of calls that Gemini made, as far as is known; of others it is not told."""
    for message in messages:
        if isinstance(message, AssistantMessage) and may_send_signed_parts(message, _PROVIDER):
            yield from [call.id for call in message.tool_calls if call.id and not is_made_up(call.id)]


def _is_empty(part: TextPart | ImagePart) -> bool:
    """Return whether a part says nothing, for which Gemini refuses the request."""
    return isinstance(part, TextPart) and not part.text


def _user_part(part: TextPart | ImagePart) -> dict[str, Any]:
    return _image(part) if isinstance(part, ImagePart) else {"text": part.text}


def _model_parts(message: AssistantMessage) -> list[dict[str, Any]]:
    """Return the parts of an answer as they came."""
    parts = message.parts if may_send_signed_parts(message, _PROVIDER) else _without_seals(message)
    sent = [_sent(part) for part in parts]
    return [part for part in sent if part.get("text") != "" or "thoughtSignature" in part]


def _without_seals(message: AssistantMessage) -> Iterator[TextPart | ToolCall | ImagePart]:
    """Give what another provider's answer says to everybody."""
    for part in message.parts:
        if isinstance(part, TextPart):
            yield TextPart(part.text)
        elif isinstance(part, ToolCall):
            yield ToolCall(part.name, part.arguments)
        elif isinstance(part, ImagePart):
            yield part.replace(signature=None)


def _sent(part: AssistantPart) -> dict[str, Any]:
    sent: dict[str, Any]
    match part:
        case ProviderPart():
            return dict(json.loads(part.data))
        case ToolCall():
            sent = {"functionCall": _call(part)}
        case ImagePart():
            sent = _image(part)
        case ReasoningPart():
            sent = {"text": part.text, "thought": True}
        case TextPart():
            sent = {"text": part.text}
    # a JSON object is a signature of Gemini's OpenAI-compatible API, which has another field for it
    if part.signature and not signature_fields(part.signature):
        sent["thoughtSignature"] = part.signature
    return sent


def _call(call: ToolCall) -> dict[str, Any]:
    said = {"name": call.name, "args": parse_arguments(call)}
    return {**said, "id": call.id} if call.id and not is_made_up(call.id) else said


def _image(part: ImagePart) -> dict[str, Any]:
    if part.url is None:
        return {"inlineData": {"mimeType": part.media_type, "data": encode_image(part)}}
    kind = {"mimeType": part.media_type} if "media_type" in part.model_fields_set else {}
    return {"fileData": {"fileUri": part.url, **kind}}


def _declaration(definition: ToolDefinition) -> dict[str, Any]:
    """Return a tool without references in its schema: Gemini takes some of them, and refuses others.

    The root is an object with fields, as for the other providers.
    """
    schema = convert_tool_schema(definition, lambda given: one_object(_schema(given)))
    return {"name": definition.name, "description": definition.description, "parametersJsonSchema": schema}


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return without(inlined(schema), ("$schema",))


def _tool_config(options: ChatOptions) -> dict[str, Any]:
    if options.parallel_tool_calls is False:
        raise ConfigurationError("gcp.gemini cannot keep a model to one call an answer: drop parallel_tool_calls=False")
    if options.tool_choice is None:
        return {}
    mode = {"auto": "AUTO", "none": "NONE", "required": "ANY"}.get(options.tool_choice)
    chosen = {"mode": mode} if mode else {"mode": "ANY", "allowedFunctionNames": [options.tool_choice]}
    return {"toolConfig": {"functionCallingConfig": chosen}}


def _generation_config(options: ChatOptions) -> dict[str, Any]:
    settings = {
        "temperature": options.temperature,
        "topP": options.top_p,
        "maxOutputTokens": options.max_tokens,
        "stopSequences": None if options.stop is None else list(options.stop),
        "seed": options.seed,
        "thinkingConfig": None if options.reasoning_effort is None else {"thinkingLevel": options.reasoning_effort},
        **_held_to(options.output_schema),
    }
    return drop_none(settings)


def _held_to(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings that make an answer fit `schema`."""
    if schema is None:
        return {}
    return {"responseMimeType": "application/json", "responseJsonSchema": convert_output_schema(schema, _schema)}
