"""The codec of the Responses API: bodies, streams, and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import modes
from tests.models import recorded
from traced_tools import ChatClient, ImagePart, ModelError, TextPart, ToolCall, Usage
from traced_tools.core import ProviderPart, ReasoningPart
from traced_tools.errors import InvalidRequest
from traced_tools.models import ChatChunk, ChatResponse, OpenAIResponsesModel
from traced_tools.models.folding import ChunkFold
from traced_tools.models.openai.responses import OpenAIResponsesCodec
from traced_tools.testing import ReplayServer, Reply

SECRET = "the-secret-in-the-body"
CODEC = OpenAIResponsesCodec("m", provider="openai")
TEXT = {"type": "output_text", "text": "It is sunny.", "annotations": [], "logprobs": []}
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [TEXT]}
FINAL = {**MESSAGE, "phase": "final_answer"}
REFUSAL = {**MESSAGE, "content": [{"type": "refusal", "refusal": "I may not."}]}
PLAIN = {"type": "message", "content": [TEXT]}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'}
CLOCK = {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "clock", "arguments": ""}
NAMESPACED = {**CALL, "namespace": "maps"}
STORED = {"type": "reasoning", "id": "rs_1", "summary": []}
SEALED = {**STORED, "encrypted_content": "xyz"}
SUMMARIES = [{"type": "summary_text", "text": text} for text in ("First.", "Then.", "So.")]
SUMMARIZED = {**SEALED, "summary": SUMMARIES}
OPEN = {**STORED, "content": [{"type": "reasoning_text", "text": "hm, yes"}], "status": "completed", "format": None}
SEARCH = {"type": "web_search_call", "id": "ws_1", "action": {"query": "Oslo"}, "content": 1, "arguments": {}}
PICTURE = {"type": "image_generation_call", "id": "ig_1", "result": "AQID", "output_format": "webp"}
USAGE = {"input_tokens": 9, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}, "total_tokens": 14}


def answer(*items: Any, **fields: Any) -> dict[str, Any]:
    known = {"id": "resp_1", "object": "response", "model": "m-1", "status": "completed", "error": None}
    return {**known, "output": list(items), **fields}


def decoded(*items: Any, **fields: Any) -> ChatResponse:
    return CODEC.decode(json.dumps(answer(*items, **fields)).encode())


def folded(*events: Any) -> ChatResponse:
    decoder, fold = CODEC.decoder(), ChunkFold()
    for event in events:
        for chunk in decoder.chunks(event if isinstance(event, str) else json.dumps(event)):
            fold.add(chunk)
    decoder.end()
    return fold.response()


def event(kind: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "sequence_number": 7, "output_index": index, **fields}


def ended(*items: Any, kind: str = "completed", **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": answer(*items, **fields)}


def piecewise(kind: str, text: str, **where: Any) -> list[dict[str, Any]]:
    """Return the events of a text: its halves, and the whole of it again."""
    half = len(text) // 2
    whole = {"function_call_arguments": "arguments", "refusal": "refusal"}.get(kind, "text")
    deltas = [event(f"{kind}.delta", delta=piece, **where) for piece in (text[:half], "", text[half:])]
    return [*deltas, event(f"{kind}.done", **{whole: text}, **where)]


def in_pieces(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of an item the way the API streams it, with all that is said twice."""
    begun, pieces = dict(item), []
    where = {"index": index, "item_id": item.get("id")}
    match item:
        case {"type": "message", "content": content}:
            begun["content"] = []
            for number, part in enumerate(content):
                kind = "refusal" if "refusal" in part else "output_text"
                pieces += piecewise(kind, part.get("refusal") or part["text"], content_index=number, **where)
                pieces.append(event("content_part.done", part=part, **where))
        case {"type": "function_call", "arguments": arguments}:
            begun["arguments"] = ""
            pieces += piecewise("function_call_arguments", arguments, **where) if arguments else []
        case {"type": "reasoning", "summary": summary}:
            begun |= {
                "summary": [],
                "encrypted_content": "another one",
                **({"content": []} if "content" in item else {}),
            }
            for number, part in enumerate(summary):
                pieces.append(event("reasoning_summary_part.added", summary_index=number, part=part, **where))
                pieces += piecewise("reasoning_summary_text", part["text"], summary_index=number, **where)
            for number, part in enumerate(item.get("content", ())):
                pieces += piecewise("reasoning_text", part["text"], content_index=number, **where)
    return [event("output_item.added", index, item=begun), *pieces, event("output_item.done", index, item=item)]


def streamed(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    begun = [
        {"type": f"response.{kind}", "response": answer(status="in_progress")} for kind in ("created", "in_progress")
    ]
    grown = [each for index, item in enumerate(items) for each in in_pieces(index, item)]
    return [*begun, *grown, ended(*items, **fields)]


def record(**fields: str) -> ProviderPart:
    return ProviderPart(json.dumps({"type": "message", **fields}))


WEATHER_CALL = ToolCall("weather", '{"city":"Oslo"}', "c1", signature='{"id": "fc_1"}')
ITEMS = [
    ([MESSAGE], (TextPart("It is sunny."), record(id="msg_1"))),
    ([FINAL], (TextPart("It is sunny."), record(id="msg_1", phase="final_answer"))),
    ([REFUSAL], (TextPart("I may not."), record(id="msg_1"))),
    ([PLAIN], (TextPart("It is sunny."),)),
    ([{**MESSAGE, "content": [TEXT, TEXT]}], (TextPart("It is sunny.It is sunny."), record(id="msg_1"))),
    (
        [MESSAGE, FINAL],
        (
            *(TextPart("It is sunny."), record(id="msg_1")),
            TextPart("It is sunny."),
            record(id="msg_1", phase="final_answer"),
        ),
    ),
    ([{**MESSAGE, "content": []}], ()),
    ([CALL, CLOCK], (WEATHER_CALL, ToolCall("clock", "{}", "c2", signature='{"id": "fc_2"}'))),
    ([NAMESPACED], (WEATHER_CALL.replace(signature='{"id": "fc_1", "namespace": "maps"}'),)),
    ([STORED, CALL], (ReasoningPart("", id="rs_1"), WEATHER_CALL)),
    ([SEALED, STORED], (ReasoningPart("", id="rs_1", signature="xyz"), ReasoningPart("", id="rs_1"))),
    (
        [SUMMARIZED, PLAIN],
        (
            ReasoningPart("First.", id="rs_1"),
            ReasoningPart("Then.", id="rs_1"),
            ReasoningPart("So.", id="rs_1", signature="xyz"),
            TextPart("It is sunny."),
        ),
    ),
    ([OPEN, CALL], (ReasoningPart("hm, yes"), ProviderPart(json.dumps(OPEN)), WEATHER_CALL)),
    (
        [{**OPEN, "content": [*OPEN["content"]] * 2}],
        (
            ReasoningPart("hm, yes"),
            ReasoningPart("hm, yes"),
            ProviderPart(json.dumps({**OPEN, "content": [*OPEN["content"]] * 2})),
        ),
    ),
    ([SEARCH, MESSAGE], (ProviderPart(json.dumps(SEARCH)), TextPart("It is sunny."), record(id="msg_1"))),
    ([PICTURE], (ImagePart(data=b"\1\2\3", media_type="image/webp"), ProviderPart(json.dumps(PICTURE)))),
    ([], ()),
]


@pytest.mark.parametrize(("items", "parts"), ITEMS)
def test_a_body_and_a_stream_of_it_are_the_same_message(items: list[Any], parts: tuple[Any, ...]) -> None:
    whole = decoded(*items, usage=USAGE)
    assert whole.message.parts == parts
    assert (whole.id, whole.model) == ("resp_1", "m-1")
    assert folded(*streamed(*items, usage=USAGE)) == whole


@pytest.mark.parametrize(("items", "parts"), ITEMS)
def test_a_stream_without_pieces_is_the_same_message(items: list[Any], parts: tuple[Any, ...]) -> None:
    done = [event("output_item.done", index, item=item) for index, item in enumerate(items)]
    assert folded(*done, ended(*items)).message.parts == parts
    assert folded(*done, ended()).message.parts == parts
    assert folded(ended(*items)) == decoded(*items)


def test_chunks_arrive_with_the_pieces_of_text() -> None:
    decoder = CODEC.decoder()
    chunks = [chunk for each in streamed(SUMMARIZED, CALL, MESSAGE) for chunk in decoder.chunks(json.dumps(each))]
    assert [chunk.reasoning for chunk in chunks if chunk.reasoning] == ["Fir", "st.", "Th", "en.", "S", "o."]
    assert [chunk.text for chunk in chunks if chunk.text] == ["It is ", "sunny."]
    assert [delta.arguments for chunk in chunks for delta in chunk.tool_calls] == ["", '{"city"', ':"Oslo"}']
    assert ChatChunk() not in chunks


def test_interleaved_pieces_of_calls_are_distinguished() -> None:
    deltas = [event("function_call_arguments.delta", index, delta=text) for text in ("{", "}") for index in (0, 1)]
    begun = [
        event("output_item.added", index, item=item) for index, item in enumerate([CLOCK, {**CLOCK, "call_id": "c3"}])
    ]
    response = folded(*begun, *deltas, ended())
    assert [(call.id, call.arguments) for call in response.tool_calls] == [("c2", "{}"), ("c3", "{}")]
    assert response.finish_reason == "tool_call"


def test_items_that_share_an_index_are_distinguished_by_their_end_events() -> None:
    events = [{**each, "output_index": 0} for each in streamed(SUMMARIZED, CALL, MESSAGE)]
    assert folded(*events) == decoded(SUMMARIZED, CALL, MESSAGE)


def test_arguments_that_are_an_object_become_text() -> None:
    assert decoded({**CALL, "arguments": {"city": "Oslo"}}).tool_calls[0].arguments == '{"city": "Oslo"}'


@pytest.mark.parametrize(
    ("items", "fields", "reason"),
    [
        ([MESSAGE], {}, "stop"),
        ([MESSAGE], {"status": None}, "stop"),
        ([REFUSAL], {}, "stop"),
        ([CALL], {}, "tool_call"),
        ([MESSAGE], {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ([], {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ([], {"status": "incomplete", "incomplete_details": {"reason": "new"}}, "error"),
        ([], {"status": "incomplete", "incomplete_details": None}, "error"),
    ],
)
def test_the_finish_reason_follows_from_status_and_calls(items: Any, fields: dict[str, Any], reason: str) -> None:
    assert decoded(*items, **fields).finish_reason == reason
    assert folded(*streamed(*items, **fields)).finish_reason == reason


def test_usage_counts_cached_and_reasoning_tokens() -> None:
    known = {**USAGE, "output_tokens_details": {"reasoning_tokens": 3}}
    assert decoded(usage=known).usage == Usage(input_tokens=9, output_tokens=5, cache_read_tokens=4, reasoning_tokens=3)
    assert decoded(usage=USAGE).usage == Usage(input_tokens=9, output_tokens=5, cache_read_tokens=4)
    assert decoded(usage=None).usage is None


def test_a_null_error_is_ignored() -> None:
    assert decoded(MESSAGE, error=None).message == decoded(MESSAGE, error={}).message


FAILED = {"status": "failed", "error": {"code": "server_error", "message": SECRET}}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"{SECRET} is no JSON", "cannot be understood"),
        (json.dumps([SECRET]), "cannot be understood"),
        (json.dumps({"output": SECRET}), "output"),
        (json.dumps({"id": "resp_1"}), "no output"),
        (json.dumps(answer({**CALL, "name": [SECRET]})), "output.0.function_call.name"),
        (json.dumps(answer({**PICTURE, "result": f"{SECRET}!"})), "output.0.image_generation_call.result"),
        (json.dumps(answer(SECRET)), "output.0"),
        (
            json.dumps({"error": {"message": SECRET, "code": None, "type": "invalid_request_error"}}),
            "invalid_request_error",
        ),
        (json.dumps(answer(**FAILED)), "an error object .*server_error"),
        (json.dumps(answer(status="failed")), "not completed .*failed"),
        (json.dumps(answer(status="queued")), "not completed .*queued"),
        (json.dumps(answer(status=f"{SECRET} {SECRET}")), "not completed"),
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
        ([f"{SECRET} is no JSON"], "an event of the stream cannot be understood"),
        ([event("output_text.delta", delta=[SECRET])], "delta"),
        ([event("output_item.done", item=SECRET)], "item"),
        ([{"type": "error", "code": "rate_limit_exceeded", "message": SECRET}], "error object .*rate_limit_exceeded"),
        ([{"type": "error", "error": {"type": "too_many_requests", "message": SECRET}}], "error object .*too_many"),
        ([ended(kind="failed", **FAILED)], "not completed .*server_error"),
        (streamed(MESSAGE)[:-1], "ended before the answer did"),
        ([*streamed(MESSAGE)[:-1], "[DONE]"], "ended before the answer did"),
        ([], "ended before the answer did"),
    ],
)
def test_an_invalid_stream_raises_an_error_that_quotes_nothing(events: list[Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        folded(*events)
    assert SECRET not in str(caught.value) + repr(caught.value)
    assert caught.value.__context__ is None


def test_unknown_events_and_items_are_ignored() -> None:
    unknown = [{"type": "response.new", "delta": 1, "item": 2, "response": 3}, {"type": "keepalive"}, {}, "", "[DONE]"]
    assert folded(*unknown, *streamed(MESSAGE), *unknown) == decoded(MESSAGE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "message", "reasoning", "function_call"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "output", "content", "summary", "text", "id", "arguments", "item", "delta", "error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
KINDS = ["output_item.added", "output_item.done", "output_text.delta", "reasoning_text.delta", "completed"]


@given(JSON, st.sampled_from(KINDS))
def test_any_server_answer_raises_only_model_errors(body: Any, kind: str) -> None:
    events = [{"type": f"response.{kind}", "item": body, "delta": body, "response": body} for _ in range(2)]
    for attempt in (lambda: CODEC.decode(json.dumps(body).encode()), lambda: folded(body), lambda: folded(*events)):
        try:
            attempt()
        except ModelError as error:
            assert error.provider == "openai"


def model_at(url: str, **http: Any) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("m", base_url=url, retries=0, **http)


def test_a_loop_runs_in_every_mode(mode: str) -> None:
    def weather(city: str) -> str:
        return f"sunny in {city}"

    bodies = [(SEALED, CALL), (FINAL,)]
    replies = [Reply.sse(streamed(*items)) if "stream" in mode else Reply.json(answer(*items)) for items in bodies]
    with ReplayServer(replies) as server:
        model = model_at(server.url)
        response = modes.run(mode, ChatClient(model, tools=[weather]).prompt("Oslo?"), model)
        first, second = (request.json() for request in server.requests)
    assert (response.content, response.stop_reason) == ("It is sunny.", "answered")
    assert [request.path for request in server.requests] == ["/responses"] * 2
    assert first["input"] == [{"role": "user", "content": "Oslo?"}]
    assert second["input"][1:] == [
        SEALED,
        CALL,
        {"type": "function_call_output", "call_id": "c1", "output": "sunny in Oslo"},
    ]


def test_an_error_answer_has_its_code() -> None:
    body = {"error": {"message": SECRET, "type": "invalid_request_error", "param": "input", "code": "unsupported_file"}}
    reply = Reply.json(body, 400, {"x-request-id": "req_1"})
    with ReplayServer([reply]) as server, model_at(server.url) as model, pytest.raises(InvalidRequest) as caught:
        model.call(recorded.REQUEST)
    error = caught.value
    assert (error.status_code, error.code, error.request_id) == (400, "unsupported_file", "req_1")
    assert SECRET not in str(error) + repr(error)
