"""Answers of Gemini: parts and their signatures, finish reasons, usage, and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import modes
from tests.models import recorded
from traced_tools import AuthenticationError, ChatClient, ImagePart, ModelError, RateLimited, TextPart, ToolCall, Usage
from traced_tools.core import ProviderPart, ReasoningPart
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.models import ChatRequest, ChatResponse, GeminiChatModel
from traced_tools.models.folding import ChunkFold
from traced_tools.models.gemini import partial_calls
from traced_tools.models.gemini.chat import GeminiChatCodec
from traced_tools.testing import ReplayServer, Reply

SECRET = "the-secret-in-the-body"
CODEC = GeminiChatCodec("m")
CALL = {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": "sealed"}
IMAGE = {"inlineData": {"mimeType": "image/webp", "data": "AQ=="}}
CODE = {"executableCode": {"language": "PYTHON", "code": "print(1)"}, "thoughtSignature": "s"}
OUTCOME = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}
SOUND = {"inlineData": {"mimeType": "audio/wav", "data": "AQ==", "displayName": "bell"}}
SKETCH = {**IMAGE, "thought": True, "thoughtSignature": "s"}
COUNTS = {
    "promptTokenCount": 10,
    "toolUsePromptTokenCount": 3,
    "cachedContentTokenCount": 4,
    "candidatesTokenCount": 5,
    "thoughtsTokenCount": 2,
    "totalTokenCount": 20,
}
END = {"finishReason": "STOP"}


def event(*parts: Any, **candidate: Any) -> dict[str, Any]:
    said = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **candidate}
    return {"candidates": [said], "modelVersion": "m-1", "responseId": "r1"}


def text(said: str, signature: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"text": said, **fields} if signature is None else {"text": said, "thoughtSignature": signature, **fields}


def decoded(*events: Any) -> ChatResponse:
    """Decode a whole answer: one event, or the list of them that a stream is without `alt=sse`."""
    body = events[0] if len(events) == 1 else list(events)
    return recorded.without_made_up_ids(CODEC.decode(json.dumps(body).encode()))


def folded(*events: Any) -> ChatResponse:
    decoder, fold = CODEC.decoder(), ChunkFold()
    for each in events:
        for chunk in decoder.chunks(each if isinstance(each, str) else json.dumps(each)):
            fold.add(chunk)
    decoder.end()
    return recorded.without_made_up_ids(fold.response())


def parts_of(*events: Any) -> tuple[Any, ...]:
    """Return the parts an answer amounts to, which are the same however it arrives."""
    whole, streamed = decoded(*events), folded(*events)
    assert whole == streamed
    return whole.message.parts


# Parts and their seals.


def test_an_answer_is_the_same_whole_and_streamed() -> None:
    response = decoded(event(text("It is "), text("42.")), {**event(text(""), **END), "usageMetadata": COUNTS})
    assert response == folded(event(text("It is ")), event(text("42.")), {**event(**END), "usageMetadata": COUNTS})
    assert response.message.parts == (TextPart("It is 42."),)
    assert (response.finish_reason, response.id, response.model) == ("stop", "r1", "m-1")


def test_parts_keep_the_order_of_one_event() -> None:
    assert parts_of(event(text("a"), CALL, text("b"), text("hm", thought=True), text("c"), **END)) == (
        TextPart("a"),
        ToolCall("weather", {"city": "Oslo"}, signature="sealed"),
        TextPart("b"),
        ReasoningPart("hm"),
        TextPart("c"),
    )


def test_a_signed_part_is_not_joined_with_another() -> None:
    pieces = (text("a"), text("b", "s1"), text("c"), text("d"), text("", "s2"))
    expected = (TextPart("a"), TextPart("b", signature="s1"), TextPart("cd"), TextPart("", signature="s2"))
    assert parts_of(*map(event, pieces), event(**END)) == expected


def test_signed_reasoning_is_not_joined_with_other_reasoning() -> None:
    sealed = text("", "s2", thought=True)
    events = (
        event(text("a", thought=True)),
        event(text("b", "s1", thought=True)),
        event(text("c", thought=True)),
        event(text("d", thought=True)),
        event(sealed, text("so."), **END),
    )
    expected = (ReasoningPart("a"), ReasoningPart("b", signature="s1"), ReasoningPart("cd"))
    *thoughts, seal, said = parts_of(*events)
    assert (tuple(thoughts), said) == (expected, TextPart("so."))
    assert json.loads(seal.data) == sealed


def test_a_part_that_has_only_a_signature_keeps_it() -> None:
    assert parts_of(event(text("a"), {"thoughtSignature": "s"}, {}, **END)) == (
        TextPart("a"),
        TextPart("", signature="s"),
    )


def test_a_call_without_arguments_and_one_with_null_have_none() -> None:
    calls = ({"functionCall": {"name": "now"}}, {"functionCall": {"name": "now", "args": None, "id": "c2"}})
    assert parts_of(event(*calls, **END)) == (ToolCall("now"), ToolCall("now", id="c2"))


def test_an_image_keeps_its_signature() -> None:
    signed = {**IMAGE, "thoughtSignature": "s"}
    assert parts_of(event(IMAGE, signed, **END)) == (
        ImagePart(data=b"\x01", media_type="image/webp"),
        ImagePart(data=b"\x01", media_type="image/webp", signature="s"),
    )


@pytest.mark.parametrize("part", [CODE, OUTCOME, SOUND, SKETCH, {"toolCall": {"id": "t"}, "anything": [None, 1.5]}])
def test_an_opaque_part_is_kept_unchanged(part: dict[str, Any]) -> None:
    (kept,) = parts_of(event(part, **END))
    assert isinstance(kept, ProviderPart)
    assert json.loads(kept.data) == part


def test_only_the_candidate_with_index_0_is_read() -> None:
    second = {"content": {"parts": [text("no")]}, "index": 1, **END}
    events = [{"candidates": [second]}, {"candidates": [second, event(text("yes"), **END)["candidates"][0]]}]
    assert parts_of(*events) == (TextPart("yes"),)


# Reasons and usage.


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("UNEXPECTED_TOOL_CALL", "error"),
        ("OTHER", "other"),
        ("A_REASON_OF_TOMORROW", "other"),
    ],
)
def test_finish_reasons_are_mapped(reason: str, expected: str) -> None:
    for answer in (event(text("x"), finishReason=reason), {"candidates": [{"finishReason": reason}]}):
        assert decoded(answer).finish_reason == folded(answer).finish_reason == expected


@pytest.mark.parametrize(
    ("reason", "expected"), [("STOP", "tool_call"), ("MAX_TOKENS", "length"), ("MALFORMED_FUNCTION_CALL", "error")]
)
def test_stopping_with_calls_is_the_finish_reason_tool_call(reason: str, expected: str) -> None:
    answer = (event(CALL), event(text(""), finishReason=reason))
    assert decoded(*answer).finish_reason == folded(*answer).finish_reason == expected


def test_a_prompt_that_is_blocked_is_an_answer_without_parts() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}
    for response in (decoded(blocked), folded(blocked)):
        assert (response.message.parts, response.finish_reason) == ((), "content_filter")
        assert response.usage == Usage(input_tokens=4)


def test_later_counts_of_zero_or_none_replace_no_count() -> None:
    first = {**event(text("x")), "usageMetadata": {"promptTokenCount": 8, "cachedContentTokenCount": 4}}
    last = {**event(text("y"), **END), "usageMetadata": {"promptTokenCount": 0, "candidatesTokenCount": 2}}
    expected = Usage(input_tokens=8, output_tokens=2, cache_read_tokens=4)
    assert folded(first, last).usage == decoded(first, last).usage == expected


def test_usage_includes_reasoning_tokens_and_tokens_read_by_googles_tools() -> None:
    response = decoded({**event(text("x"), **END), "usageMetadata": COUNTS})
    assert response.usage == Usage(input_tokens=13, output_tokens=7, cache_read_tokens=4, reasoning_tokens=2)
    assert response.usage.total_tokens == COUNTS["totalTokenCount"]


def test_missing_usage_is_none() -> None:
    assert decoded(event(text("x"), **END)).usage is None
    assert decoded({**event(text("x"), **END), "usageMetadata": {}}).usage == Usage()


def test_the_last_usage_of_a_stream_counts() -> None:
    events = [{**event(text("x")), "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": n}} for n in (1, 2)]
    assert folded(*events, event(**END)).usage == Usage(input_tokens=4, output_tokens=2)


# What is refused.


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"{SECRET} is no JSON", "cannot be understood"),
        (json.dumps([SECRET]), "events.0"),
        (json.dumps(SECRET), "events.0"),
        ("{}", "no candidate"),
        ("[]", "no candidate"),
        (json.dumps({"candidates": SECRET}), "candidates"),
        (json.dumps(event({"text": 1, "secret": SECRET})), "candidates.0.content.parts.0.text"),
        (json.dumps(event({"functionCall": SECRET})), "parts.0.functionCall"),
        (json.dumps(event({"functionCall": {"args": SECRET}})), "functionCall.args"),
        (json.dumps(event({"inlineData": {"mimeType": "image/png", "data": SECRET}})), "image in the answer"),
        (json.dumps({"error": {"message": SECRET, "status": "INTERNAL"}}), "error object .*INTERNAL"),
        (json.dumps([event(text("x")), {"error": {"message": SECRET, "code": 503}}]), "error object .*503"),
    ],
)
def test_an_invalid_body_raises_an_error_that_quotes_nothing(body: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        CODEC.decode(body.encode())
    assert SECRET not in str(caught.value) + repr(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([f"{SECRET} is no JSON"], "a chunk of the stream cannot be understood"),
        ([{"candidates": [SECRET]}], "candidates.0"),
        ([event(text("x")), {"error": {"message": SECRET, "status": "UNAVAILABLE"}}], "error object .*UNAVAILABLE"),
        ([event(text(SECRET))], "ended before the answer did"),
        ([event(CALL)], "ended before the answer did"),
        ([], "ended before the answer did"),
    ],
)
def test_an_invalid_stream_raises_an_error_that_quotes_nothing(events: list[Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        folded(*events)
    assert SECRET not in str(caught.value) + repr(caught.value)


def refusal(code: int, status: str, *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": SECRET, "status": status, "details": list(details)}}


INVALID_KEY = refusal(400, "INVALID_ARGUMENT", {"@type": "google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"})
EXHAUSTED = refusal(429, "RESOURCE_EXHAUSTED", {"@type": "google.rpc.RetryInfo", "retryDelay": "7.5s"})


@pytest.mark.parametrize(
    ("body", "status", "kind", "code", "wait"),
    [
        (INVALID_KEY, 400, InvalidRequest, "INVALID_ARGUMENT", None),
        (refusal(403, "PERMISSION_DENIED"), 403, AuthenticationError, "PERMISSION_DENIED", None),
        (EXHAUSTED, 429, RateLimited, "RESOURCE_EXHAUSTED", 7.5),
        ([EXHAUSTED], 429, RateLimited, "RESOURCE_EXHAUSTED", 7.5),
        (refusal(503, "UNAVAILABLE"), 503, ModelError, "UNAVAILABLE", None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_answer_has_googles_code_but_not_its_message(
    body: Any, status: int, kind: type[ModelError], code: str, wait: float | None, streamed: bool
) -> None:
    with pytest.raises(kind) as caught:
        recorded.ask(model_at, Reply.json(body, status), streamed=streamed)
    error = caught.value
    assert (error.provider, error.status_code, error.code, error.retry_after) == ("gcp.gemini", status, code, wait)
    assert SECRET not in str(error) + repr(error)


# Calls whose arguments are streamed.


def call(*pieces: Any, more: bool = True, **fields: Any) -> dict[str, Any]:
    said = {"partialArgs": [{"jsonPath": path, **value} for path, value in pieces]} if pieces else {}
    return {"functionCall": {**fields, **said, **({"willContinue": True} if more else {})}}


LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab'\"\\.[]$🌧", max_size=6)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.text("a.'\"\\[", max_size=3), inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = {bool: "boolValue", int: "numberValue", type(None): "nullValue"}


def pieces_of(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    match value:
        case dict():
            for name, inner in value.items():
                escaped = name.replace("\\", "\\\\").replace("'", "\\'")
                yield from pieces_of(inner, f"{path}['{escaped}']")
        case list():
            for index, inner in enumerate(value):
                yield from pieces_of(inner, f"{path}[{index}]")
        case str():
            yield path, {"stringValue": value[:2], "willContinue": True}
            yield path, {"stringValue": value[2:]}
        case _:
            yield path, {FIELDS[type(value)]: value}


@given(st.dictionaries(st.text("a.'\"\\[", max_size=3), VALUES, max_size=3))
def test_arguments_that_arrive_in_pieces_are_assembled(arguments: dict[str, Any]) -> None:
    pieces = [call(piece) for piece in pieces_of(arguments, "$")]
    (found,) = parts_of(*map(event, [call(name="f", id="c1"), *pieces, call(more=False)]), event(**END))
    assert (found.name, found.id, json.loads(found.arguments)) == ("f", "c1", arguments)


def test_two_calls_in_pieces_stay_separate_and_text_between_them_is_kept() -> None:
    first = [call(("$.a.b[0]", {"numberValue": 1}), name="f"), call(('$.a["b"][1]', {"boolValue": True}), more=False)]
    second = [call(name="g"), call(("$.c", {"nullValue": None})), call(more=False)]
    parts = parts_of(event(text("hm"), *first), *map(event, second), event(call(more=False)), event(**END))
    assert parts == (TextPart("hm"), ToolCall("f", {"a": {"b": [1, True]}}), ToolCall("g", {"c": None}))


def test_pieces_of_a_text_without_will_continue_are_joined() -> None:
    pieces = [call(("$.a", {"stringValue": piece}), name="f") for piece in ("b", "c")]
    assert parts_of(*map(event, pieces), event(**END)) == (ToolCall("f", {"a": "bc"}),)


@pytest.mark.parametrize("last", [[], [call(more=False)]], ids=["with the answer", "before the answer"])
def test_a_call_that_ends_inside_a_text_has_arguments_that_are_not_json(last: list[Any]) -> None:
    pieces = call(("$.a", {"stringValue": "9", "willContinue": True}), ("$.b", {"numberValue": 1}), name="f")
    (found,) = parts_of(*map(event, [pieces, *last]), event(**END))
    assert found.arguments == '{"a": "9", "b": 1'


def test_the_containers_of_a_call_in_pieces_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_calls, "MOST_ITEMS", 4)
    pieces = [call(("$.a.b[0]", {"numberValue": 1})), call(("$.a.b[1]", {"numberValue": 2}))]
    more = [call(("$.c.d.e", {"numberValue": 3})), call(more=False)]
    (found,) = parts_of(*map(event, [call(name="f"), *pieces, *more]), event(**END))
    assert json.loads(found.arguments) == {"a": {"b": [1, 2]}, "c": {"d": {"e": 3}}}
    for attempt in (decoded, folded):
        with pytest.raises(InvalidResponse, match="more than 4 objects and arrays"):
            attempt(*map(event, [*pieces, call(("$.c.d.e.f", {"numberValue": 3}))]), event(**END))


def test_a_call_that_comes_in_pieces_ends_with_the_answer_at_the_latest() -> None:
    begun = event(call(("$.a", {"stringValue": "b"}), name="f"))
    assert parts_of(begun, event(**END)) == (ToolCall("f", {"a": "b"}),)


@pytest.mark.parametrize("reason", ["MAX_TOKENS", "SAFETY"])
def test_a_call_in_pieces_that_is_cut_off_is_dropped(reason: str) -> None:
    begun = event(text("hm"), call(("$.a", {"stringValue": "b"}), name="f"))
    assert parts_of(begun, event(finishReason=reason)) == (TextPart("hm"),)


@pytest.mark.parametrize(
    "pieces",
    [
        [call(name="f"), call(name="g")],
        [call(name="f", id="1"), call(id="2")],
        *([call((path, {"stringValue": "x"}), name="f")] for path in ("", "$", "a", "$.a..b", "$[0]", "$.a[1]", "$.*")),
        [call(("$" + ".a" * 101, {"stringValue": "x"}), name="f")],
        [call(("$.a[99999999999]", {"stringValue": "x"}), name="f")],
        [call(("$.a", {"stringValue": "x"}), ("$.a.b", {"stringValue": "y"}), name="f")],
        [call(("$.a", {"stringValue": "x", "willContinue": False}), ("$.a", {"stringValue": "y"}), name="f")],
        [call(*(("$.a", {"stringValue": "x", "willContinue": more}) for more in (True, None, True)), name="f")],
    ],
)
def test_contradictory_pieces_raise_invalid_response(pieces: list[Any]) -> None:
    for attempt in (decoded, folded):
        with pytest.raises(InvalidResponse, match="pieces of a call in the answer contradict each other") as caught:
            attempt(*map(event, pieces), event(**END))
        assert caught.value.__context__ is None


KEYS = (
    *("candidates", "content", "parts", "text", "thought", "thoughtSignature", "functionCall", "args", "inlineData"),
    *("partialArgs", "jsonPath", "stringValue", "willContinue", "name"),
    *("mimeType", "data", "finishReason", "index", "usageMetadata", "promptFeedback", "blockReason", "error"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("image/png"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
PARTS = st.lists(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), max_size=3)


@given(JSON | PARTS.map(lambda parts: event(*parts, **END)))
def test_any_server_answer_raises_a_model_error_or_can_be_sent_back(body: Any) -> None:
    for attempt in (lambda: decoded(body), lambda: folded(body)):
        try:
            message = attempt().message
        except ModelError as error:
            assert error.provider == "gcp.gemini"
        else:
            assert json.dumps(CODEC.encode(ChatRequest((message,)), stream=False), allow_nan=False)


# Over a connection.


def model_at(url: str, **http: Any) -> GeminiChatModel:
    return GeminiChatModel("m", base_url=url, retries=0, **http)


def test_a_loop_returns_results_by_name_and_order_and_each_signature(mode: str) -> None:
    """Two calls of one name and without ids, the first one signed; the answer that follows is signed at its end."""

    def weather(city: str) -> str:
        """Look it up."""
        return f"rain in {city}"

    other = {"functionCall": {"name": "weather", "args": {"city": "Rome"}}}
    asked, closing = event(CALL, other, **END), event(text("Rain"), text("", "s2"), **END)
    bodies = [asked, closing]
    with ReplayServer([Reply.sse([each]) if "stream" in mode else Reply.json(each) for each in bodies]) as server:
        model = model_at(server.url)
        response = modes.run(mode, ChatClient(model, tools=[weather]).prompt("And?"), model)
        _, second = (request.json() for request in server.requests)
    assert second["contents"][1] == {"role": "model", "parts": [CALL, other]}
    results = [part["functionResponse"] for part in second["contents"][2]["parts"]]
    assert results == [{"name": "weather", "response": {"output": f"rain in {city}"}} for city in ("Oslo", "Rome")]
    assert (response.content, response.stop_reason, response.finish_reason) == ("Rain", "answered", "stop")
    assert response.chat_response is not None
    last = response.chat_response.message
    assert (last.parts[-1], last.provider) == (TextPart("", signature="s2"), "gcp.gemini")
