"""Answers of the Messages API: whole, streamed, and errors, and loops over them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import modes
from tests.models import recorded
from traced_tools import AssistantMessage, ChatClient, LoopLimits, ModelError, RateLimited, TextPart, ToolCall, Usage
from traced_tools.core import ProviderPart, ReasoningPart
from traced_tools.models import AnthropicChatModel, ChatResponse
from traced_tools.models.anthropic.chat import AnthropicChatCodec
from traced_tools.models.folding import ChunkFold
from traced_tools.testing import ReplayServer, Reply

SECRET = "the-secret-in-the-body"
CODEC = AnthropicChatCodec("m", max_tokens=100)
THOUGHT = {"type": "thinking", "thinking": "hm, yes", "signature": "sealed"}
SILENT = {"type": "thinking", "thinking": "", "signature": "sealed too"}
REDACTED = {"type": "redacted_thinking", "data": "xyz"}
CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}
BARE_CALL = {"type": "tool_use", "id": "c2", "name": "clock", "input": {}}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "Oslo"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"title": "Oslo", "page_age": None}]}
COMPACTED = {"type": "compaction", "content": "so far: nothing"}
START = {"type": "message_start", "message": {"id": "msg_1", "model": "m-1", "content": []}}
STOP = {"type": "message_stop"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def answer(*blocks: dict[str, Any], reason: str | None = "end_turn", **fields: Any) -> dict[str, Any]:
    return {"id": "msg_1", "model": "m-1", "content": list(blocks), "stop_reason": reason, **fields}


def decoded(*blocks: dict[str, Any], **fields: Any) -> ChatResponse:
    return CODEC.decode(json.dumps(answer(*blocks, **fields)).encode())


def folded(*events: Any) -> ChatResponse:
    decoder, fold = CODEC.decoder(), ChunkFold()
    for event in events:
        for chunk in decoder.chunks(event if isinstance(event, str) else json.dumps(event)):
            fold.add(chunk)
    decoder.end()
    return fold.response()


def begun(block: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def ended(index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def closing(reason: str = "end_turn", **usage: Any) -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, STOP]


def halves(value: str) -> tuple[str, str]:
    return value[: len(value) // 2], value[len(value) // 2 :]


def in_pieces(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a block the way the API streams it."""
    match block:
        case {"type": "text", "text": said}:
            empty, grown = text(""), [delta(index, type="text_delta", text=each) for each in halves(said)]
        case {"type": "thinking", "thinking": thought, "signature": seal}:
            empty = {**block, "thinking": "", "signature": ""}
            grown = [delta(index, type="thinking_delta", thinking=each) for each in halves(thought)]
            grown.append(delta(index, type="signature_delta", signature=seal))
        case {"input": {} as given} if given:
            partial = ("", *halves(json.dumps(given)))  # the first piece is empty
            empty = {**block, "input": {}}
            grown = [delta(index, type="input_json_delta", partial_json=each) for each in partial]
        case {"type": "compaction", "content": content}:
            empty, grown = {**block, "content": None}, [delta(index, type="compaction_delta", content=content)]
        case _:
            empty, grown = block, []
    return [begun(empty, index), *grown, ended(index)]


def streamed(*blocks: dict[str, Any], reason: str = "end_turn", **usage: Any) -> list[dict[str, Any]]:
    grown = [event for index, block in enumerate(blocks) for event in in_pieces(index, block)]
    return [START, {"type": "ping"}, *grown, *closing(reason, **usage)]


BLOCKS = [
    ([text("hello")], (TextPart("hello"),)),
    ([text("It is "), text("cited"), text(".")], (TextPart("It is cited."),)),
    (
        [THOUGHT, REDACTED, SILENT, text("Let me see."), CALL, BARE_CALL],
        (
            ReasoningPart("hm, yes", signature="sealed"),
            ProviderPart(json.dumps(REDACTED)),
            ReasoningPart("", signature="sealed too"),
            TextPart("Let me see."),
            ToolCall("weather", {"city": "Oslo"}, "c1"),
            ToolCall("clock", "{}", "c2"),
        ),
    ),
    (
        [text("a"), SEARCH, FOUND, text("b"), COMPACTED],
        (
            TextPart("a"),
            ProviderPart(json.dumps(SEARCH)),
            ProviderPart(json.dumps(FOUND)),
            TextPart("b"),
            ProviderPart(json.dumps(COMPACTED)),
        ),
    ),
    (
        [THOUGHT, {**THOUGHT, "thinking": "more"}],
        tuple(ReasoningPart(t, signature="sealed") for t in ("hm, yes", "more")),
    ),
    ([{"type": "thinking", "thinking": "unsealed"}, text("a")], (ReasoningPart("unsealed"), TextPart("a"))),
    ([], ()),
]


@pytest.mark.parametrize(("blocks", "parts"), BLOCKS)
def test_an_answer_decodes_to_the_same_message_whole_and_streamed(blocks: list[Any], parts: tuple[Any, ...]) -> None:
    whole = decoded(*blocks, usage={"output_tokens": 3})
    assert whole.message.parts == parts
    assert (whole.id, whole.model, whole.finish_reason) == ("msg_1", "m-1", "stop")
    assert folded(*streamed(*blocks, output_tokens=3)) == whole


def test_a_block_that_is_complete_at_its_start_is_decoded_unchanged() -> None:
    blocks = [text("a"), THOUGHT, CALL, SEARCH]
    events = [event for index, block in enumerate(blocks) for event in (begun(block, index), ended(index))]
    assert folded(START, *events, *closing()) == decoded(*blocks)


def test_calls_with_interleaved_pieces_are_kept_separate() -> None:
    calls = [begun({**CALL, "id": each, "input": {}}, index) for index, each in enumerate(("a", "b"))]
    grown = [delta(index, type="input_json_delta", partial_json=each) for each in ('{"n"', ": 1}") for index in (0, 1)]
    response = folded(START, *calls, *grown, ended(0), ended(1), *closing("tool_use"))
    assert response.tool_calls == (ToolCall("weather", '{"n": 1}', "a"), ToolCall("weather", '{"n": 1}', "b"))


def test_the_truncated_input_of_an_opaque_block_is_omitted() -> None:
    cut = delta(type="input_json_delta", partial_json='{"query": "Os')
    response = folded(START, begun({**SEARCH, "input": {}}), cut, ended(), *closing("max_tokens"))
    assert response.message.parts == (ProviderPart(json.dumps({**SEARCH, "input": {}})),)


def test_unknown_events_and_deltas_are_ignored() -> None:
    events = [
        {"type": "notice", "message": "soon", "index": "none", "delta": []},
        {"type": "ping"},
        begun(text("")),
        delta(type="text_delta", text="a"),
        delta(type="citations_delta", citation={"url": "https://example.org"}),
        ended(),
    ]
    assert folded(START, *events, *closing()).message.parts == (TextPart("a"),)


def test_an_event_without_content_yields_no_chunk() -> None:
    decoder = CODEC.decoder()
    silent = [{"type": "ping"}, begun(text("")), delta(type="text_delta", text=""), ended()]
    assert [list(decoder.chunks(json.dumps(event))) for event in silent] == [[], [], [], []]


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_call"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "pause"),
        ("refusal", "content_filter"),
        ("something new", "other"),
    ],
)
def test_each_stop_reason_has_its_finish_reason(reason: str, finish_reason: str) -> None:
    assert decoded(CALL, reason=reason).finish_reason == finish_reason
    assert folded(*streamed(CALL, reason=reason)).finish_reason == finish_reason


USED = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 100, "output_tokens": 9}
THOUGHT_ABOUT = {"output_tokens_details": {"thinking_tokens": 4}}


def test_usage_counts_cached_tokens_as_input_and_thinking_as_output() -> None:
    usage = decoded(text("a"), usage={**USED, **THOUGHT_ABOUT}).usage
    expected = Usage(
        input_tokens=125, output_tokens=9, cache_read_tokens=20, cache_write_tokens=100, reasoning_tokens=4
    )
    assert usage == expected
    first = {**START, "message": {"usage": {**USED, "output_tokens": 1}}}
    assert folded(first, *closing(output_tokens=9, **THOUGHT_ABOUT)).usage == expected


def test_later_counts_of_a_stream_replace_earlier_ones() -> None:
    first = {**START, "message": {"usage": {"input_tokens": 700, "output_tokens": 1}}}
    last = {"input_tokens": 1591, "cache_read_input_tokens": None, "output_tokens": 175}
    assert folded(first, *closing(**last)).usage == Usage(input_tokens=1591, output_tokens=175)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ({"input_tokens": 50}, {"input_tokens": 0}, 50),
        ({"input_tokens": 5, "cache_read_input_tokens": 45}, {"input_tokens": 0, "cache_read_input_tokens": 0}, 50),
        ({"input_tokens": 5, "cache_read_input_tokens": 45}, {"input_tokens": 5}, 50),
        ({"input_tokens": 50}, {"input_tokens": 5, "cache_read_input_tokens": 45}, 50),
        ({"input_tokens": 50}, {"input_tokens": 0, "cache_read_input_tokens": 50}, 50),
        ({"input_tokens": 0}, {"input_tokens": 50}, 50),
        ({"input_tokens": 0}, {"input_tokens": 0}, 0),
    ],
)
def test_later_counts_of_zero_do_not_replace_the_prompt(begin: Any, end: Any, expected: int) -> None:
    first = {**START, "message": {"usage": {**begin, "output_tokens": 1}}}
    usage = folded(first, *closing(**end, output_tokens=9)).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (expected, 9)


def test_usage_that_is_not_reported_is_none() -> None:
    assert decoded(text("a")).usage is folded(*streamed(text("a"))).usage is None


# What is refused.


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"{SECRET} is no JSON", "cannot be understood"),
        (json.dumps([SECRET]), "cannot be understood"),
        (json.dumps({"id": SECRET}), "no content"),
        (json.dumps({"content": [SECRET]}), "content.0"),
        (json.dumps({"content": [{"type": "text", "text": [SECRET]}]}), "content.0.text.text"),
        (json.dumps({"content": [{"type": "tool_use", "input": SECRET}]}), "content.0.tool_use.input"),
        (json.dumps({"type": "error", "error": {"type": "api_error", "message": SECRET}}), "error object .*api_error"),
    ],
)
def test_an_invalid_body_raises_an_error_that_quotes_nothing(body: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        CODEC.decode(body.encode())
    assert SECRET not in str(caught.value) + repr(caught.value)


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": SECRET}, "request_id": "req_1"}


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([f"{SECRET} is no JSON"], "an event of the stream cannot be understood"),
        ([begun(text(""))], "ended before the answer did"),
        ([begun(text("")), delta(text=SECRET), ended(), closing()[0]], "ended before the answer did"),
        ([begun(text(SECRET)), STOP], "ended before the answer did"),
        ([delta(text=SECRET)], "refers to a block that is not open"),
        ([begun(text("")), ended(), ended()], "refers to a block that is not open"),
        ([begun(text("")), delta(text=[SECRET])], "delta.text"),
        ([begun(text("a")), OVERLOADED], "error object .*overloaded_error"),
        ([], "ended before the answer did"),
    ],
)
def test_an_invalid_stream_raises_an_error_that_quotes_nothing(events: list[Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        folded(START, *events)
    assert SECRET not in str(caught.value) + repr(caught.value)


NAMES = ["type", "content", "message", "delta", "index", "content_block", "usage", "error", "input", "text", "thinking"]
TYPES = ["message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop", "tool_use"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(TYPES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, JSON)
def test_any_server_answer_raises_only_model_errors(body: Any, block: Any) -> None:
    events = [{"type": "content_block_start", "index": 0, "content_block": block}, delta(text="a"), ended(), body]
    for attempt in (lambda: CODEC.decode(json.dumps(body).encode()), lambda: folded(body), lambda: folded(*events)):
        try:
            attempt()
        except ModelError as error:
            assert error.provider == "anthropic"


@pytest.mark.parametrize(
    ("status", "kind", "error_class", "retryable"),
    [(529, "overloaded_error", ModelError, True), (429, "rate_limit_error", RateLimited, True)],
)
def test_an_error_answer_exposes_only_its_code_and_request_id(
    status: int, kind: str, error_class: type[ModelError], retryable: bool
) -> None:
    body = {"type": "error", "error": {"type": kind, "message": SECRET}, "request_id": "req_1"}
    with pytest.raises(error_class) as caught:
        recorded.ask(model_at, Reply.json(body, status), streamed=False)
    error = caught.value
    assert (error.status_code, error.code, error.request_id, error.retryable) == (status, kind, "req_1", retryable)
    assert SECRET not in str(error) + repr(error)


# The model.


def model_at(url: str, **http: Any) -> AnthropicChatModel:
    return AnthropicChatModel("m", base_url=url, **{"retries": 0, **http})


def reply(mode: str, *blocks: dict[str, Any], reason: str = "end_turn") -> Reply:
    if "stream" in mode:
        return Reply.sse(streamed(*blocks, reason=reason))
    return Reply.json(answer(*blocks, reason=reason))


def weather(city: str) -> str:
    return f"sunny in {city}"


def test_a_loop_sends_reasoning_and_calls_back_followed_by_the_results(mode: str) -> None:
    blocks = [THOUGHT, text("Let me see."), CALL]
    with ReplayServer([reply(mode, *blocks, reason="tool_use"), reply(mode, text("It is sunny."))]) as server:
        model = model_at(server.url)
        response = modes.run(mode, ChatClient(model, tools=[weather]).prompt("Weather?"), model)
        sent = server.requests[1].json()["messages"]
    assert response.content == "It is sunny."
    assert response.messages[1] == AssistantMessage(
        [
            ReasoningPart("hm, yes", signature="sealed"),
            TextPart("Let me see."),
            ToolCall("weather", {"city": "Oslo"}, "c1"),
        ],
        provider="anthropic",
    )
    assert sent == [
        {"role": "user", "content": [text("Weather?")]},
        {"role": "assistant", "content": blocks},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [text("sunny in Oslo")]}],
        },
    ]


def test_a_run_at_its_limit_concludes_although_tools_were_called(mode: str) -> None:
    with ReplayServer([reply(mode, CALL, reason="tool_use"), reply(mode, text("Enough."))]) as server:
        model = model_at(server.url)
        client = ChatClient(model, tools=[weather], limits=LoopLimits(max_iterations=1))
        response = modes.run(mode, client.prompt("Weather?"), model)
        last = server.requests[1].json()
    assert (response.stop_reason, response.content) == ("max_iterations", "Enough.")
    assert (last["tools"][0]["name"], last["tool_choice"]) == ("weather", {"type": "none"})


def test_a_request_is_posted_to_messages_with_key_version_and_extra_headers() -> None:
    with ReplayServer([Reply.json(answer(text("a")))]) as server:
        with model_at(f"{server.url}/", api_key=SECRET, headers={"anthropic-beta": "compact-2026-01-12"}) as model:
            model.call(recorded.REQUEST)
        request = server.requests[0]
    assert request.path == "/v1/messages"
    assert (request.headers["x-api-key"], request.headers["anthropic-version"]) == (SECRET, "2023-06-01")
    assert request.headers["anthropic-beta"] == "compact-2026-01-12"
    assert request.json()["max_tokens"] == 8192
    assert SECRET not in repr(model) + repr(vars(model))
