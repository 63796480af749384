"""Deviations of chat completions servers in their answers, each in a handwritten sample."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.openai.completions import CODEC, DONE, STOP, chunks_of, codec_of, decoded, delta, folded
from tests.models.recorded import folded as asked
from tests.models.recorded import without_made_up_ids
from traced_tools import AssistantMessage, ImagePart, TextPart, ToolCall
from traced_tools.core import ProviderPart, ReasoningPart
from traced_tools.errors import InvalidResponse
from traced_tools.models import OpenAIChatModel
from traced_tools.models.base import MADE_UP_ID
from traced_tools.testing import ReplayServer, Reply

USED = {"prompt_tokens": 3, "completion_tokens": 2}
PIXEL = "data:image/gif;base64,AQI="


def piece(index: int | None = None, id: str | None = None, name: str | None = None, arguments: str = "") -> Any:
    """Return an event with a piece of a call; what is None is not in it."""
    function = {"name": name, "arguments": arguments} if name is not None else {"arguments": arguments}
    call = {"index": index, "id": id, "function": function}
    return delta(tool_calls=[{field: value for field, value in call.items() if value is not None}])


def calls(*events: Any) -> list[tuple[str, str, str | None]]:
    """Return the calls of a stream, without the ids that were made up."""
    response = without_made_up_ids(folded(*events, STOP))
    return [(call.name, call.arguments, call.id) for call in response.tool_calls]


def streamed(body: str) -> AssistantMessage:
    """Return the message that a server's stream with this body amounts to."""
    reply = Reply([body.encode()], content_type="text/event-stream")
    with ReplayServer([reply]) as server, OpenAIChatModel("m", base_url=server.url, retries=0) as model:
        return asked(model).message


# Streams: framing and endings.


def test_comment_lines_yield_no_chunk() -> None:
    event = json.dumps(delta(content="hi"))
    body = f": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\ndata: {event}\n\n: x\n\ndata: [DONE]\n\n"
    assert streamed(body).text == "hi"


def test_lines_may_end_in_carriage_return_and_line_feed() -> None:
    event = json.dumps(delta(content="a\r\nb"))
    assert streamed(f"data: {event}\r\n\r\ndata: [DONE]\r\n\r\n").text == "a\r\nb"


def test_a_stream_without_done_is_complete_after_a_finish_reason() -> None:
    assert folded(delta(content="hi"), STOP).message.text == "hi"


def test_a_stream_without_a_finish_reason_is_complete_after_done() -> None:
    response = folded(piece(0, "0", "f", "{}"), DONE)
    assert (response.finish_reason, response.tool_calls) == (None, (ToolCall("f", "{}", "0"),))


def test_data_after_done_is_ignored() -> None:
    assert folded(delta(content="hi"), DONE, delta(content="more"), "no JSON", DONE).message.text == "hi"


def test_a_stream_may_end_in_an_error_object_instead() -> None:
    error = {
        "message": "bad call",
        "type": "invalid_request_error",
        "code": "tool_use_failed",
        "failed_generation": "x",
    }
    with pytest.raises(InvalidResponse, match="tool_use_failed"):
        folded(delta(reasoning="hm"), {"error": {**error, "status_code": 400}})


def test_the_finish_reason_of_a_failed_stream_is_error() -> None:
    response = folded(delta(content="hi"), {"choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}, DONE)
    assert (response.message.text, response.finish_reason) == ("hi", "error")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("eos", "stop"),
        ("model_length", "length"),
        ("function_call", "tool_call"),
        ("insufficient_system_resource", "error"),
    ],
)
def test_finish_reasons_of_other_servers_are_mapped(said: str, meant: str) -> None:
    assert decoded(content="hi", reason=said).finish_reason == meant


def test_only_the_first_of_several_choices_is_read() -> None:
    second = {"index": 1, "delta": {"content": "B"}, "message": {"content": "B"}, "finish_reason": "length"}
    first = {"index": 0, "delta": {"content": "A"}, "message": {"content": "A"}, "finish_reason": "stop"}
    assert folded({"choices": [second]}, {"choices": [second, first]}, DONE).message.text == "A"
    whole = CODEC.decode(json.dumps({"choices": [second, first]}).encode())
    assert (whole.message.text, whole.finish_reason) == ("A", "stop")


def test_a_stream_yields_one_chunk_for_each_event_with_content() -> None:
    listed = delta(content=[{"type": "text", "text": "a"}])
    events = [delta(content="a"), delta(reasoning="b"), listed, piece(0, "c", "f"), STOP, {"usage": USED}, DONE]
    assert len(chunks_of(*events)) == 6


# Usage.


@pytest.mark.parametrize(
    "last",
    [
        [{**STOP, "usage": USED}],
        [STOP, {"choices": [], "usage": USED}],
        [STOP, {"usage": USED}],
        [{**STOP, "x_groq": {"id": "req", "usage": USED}}],
        [{**STOP, "usage": {"prompt_tokens": 3, "completion_tokens": 1}}, {**STOP, "usage": USED}],
    ],
    ids=["on the last chunk", "on an extra one", "without choices", "under x_groq", "on several"],
)
def test_usage_is_read_from_every_known_field(last: list[Any]) -> None:
    usage = folded(delta(content="hi"), *last, DONE).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (3, 2)


@pytest.mark.parametrize(
    ("used", "counted"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 4}}, {"cache_read_tokens": 4}),
        ({"num_cached_tokens": 4, "prompt_tokens_details": None}, {"cache_read_tokens": 4}),
        ({"prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6}, {"cache_read_tokens": 4}),
        (
            {"prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 7}},
            {"cache_read_tokens": 0, "cache_write_tokens": 7},
        ),
        ({"completion_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 15}, {"reasoning_tokens": 3}),
        ({"reasoning_tokens": 3}, {"reasoning_tokens": 3}),
        (
            {"completion_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 18},
            {"reasoning_tokens": 3, "output_tokens": 8},
        ),
    ],
    ids=["OpenAI", "Mistral", "DeepSeek", "OpenRouter", "in the output", "Perplexity", "xAI, beside the output"],
)
def test_usage_includes_cached_and_reasoning_tokens(used: dict[str, Any], counted: dict[str, int]) -> None:
    body = {"choices": [{"message": {}}], "usage": {"prompt_tokens": 10, "completion_tokens": 5, **used}}
    usage = CODEC.decode(json.dumps(body).encode()).usage
    assert usage is not None
    assert usage.model_dump(exclude_none=True) == {"input_tokens": 10, "output_tokens": 5, **counted}


# Calls.


def test_a_call_may_come_whole_in_one_delta() -> None:
    assert calls(piece(0, "call_1", "f", '{"a": 1}')) == [("f", '{"a": 1}', "call_1")]


def test_calls_count_although_the_reason_is_a_plain_stop() -> None:
    response = decoded(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{}"}}], reason="stop")
    assert (response.finish_reason, response.tool_calls) == ("stop", (ToolCall("f", "{}", "a"),))


def test_an_id_repeated_on_each_delta_starts_no_new_call() -> None:
    assert calls(piece(0, "0", "f", ""), piece(0, "0", "f", "{"), piece(0, "0", None, "}")) == [("f", "{}", "0")]
    assert calls(piece(None, "a", "f", "{"), piece(None, "a", "f", "}")) == [("f", "{}", "a")]


def test_calls_without_an_index_are_distinguished_by_their_ids() -> None:
    events = [piece(None, "a", "f", "{"), piece(arguments="}"), piece(None, "b", "g", "{}")]
    assert calls(*events) == [("f", "{}", "a"), ("g", "{}", "b")]


def test_calls_without_index_and_id_are_distinguished_by_their_names() -> None:
    events = [piece(None, "", "f", "{"), piece(arguments="}"), piece(None, None, "f", "{}")]
    assert calls(*events) == [("f", "{}", None), ("f", "{}", None)]


def test_calls_that_all_have_index_0_are_distinguished_by_their_ids() -> None:
    assert calls(piece(0, "a", "f", "{}"), piece(0, "b", "g", "{}")) == [("f", "{}", "a"), ("g", "{}", "b")]
    parallel = [{"index": 0, "id": each, "function": {"name": "f", "arguments": "{}"}} for each in "ab"]
    assert [call.id for call in decoded(tool_calls=parallel).tool_calls] == ["a", "b"]


def test_two_calls_that_share_an_id_get_different_ids() -> None:
    twins = [{"id": "0", "function": {"name": name, "arguments": "{}"}} for name in "fg"]
    for response in (
        decoded(tool_calls=twins).with_call_ids(),
        folded(piece(0, "0", "f", "{}"), piece(1, "0", "g", "{}"), STOP),
    ):
        first, second = response.tool_calls
        assert (first.name, first.id, second.name) == ("f", "0", "g")
        assert second.id is not None and second.id.startswith(MADE_UP_ID)


def test_pieces_of_two_calls_may_be_mixed() -> None:
    events = [piece(0, "a", "f", "{"), piece(1, "b", "g", "{"), piece(0, None, None, "}"), piece(1, None, None, "}")]
    assert calls(*events) == [("f", "{}", "a"), ("g", "{}", "b")]


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}, {"arguments": ""}])
def test_a_call_without_arguments_has_an_empty_object(arguments: dict[str, Any]) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", **arguments}}
    assert decoded(tool_calls=[call]).tool_calls == folded(delta(tool_calls=[call]), STOP).tool_calls
    assert decoded(tool_calls=[call]).tool_calls[0].arguments == "{}"


def test_arguments_may_be_an_object() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": {"city": "Zürich"}}}
    assert decoded(tool_calls=[call]).tool_calls == (ToolCall("f", {"city": "Zürich"}, "a"),)


def test_the_legacy_function_call_field_is_decoded() -> None:
    called = {"name": "f", "arguments": "{}"}
    assert decoded(function_call=called, tool_calls=None).tool_calls == (ToolCall("f", "{}"),)
    pieces = [delta(function_call={"name": "f"}), delta(function_call={"arguments": "{"})]
    assert calls(*pieces, delta(function_call={"arguments": "}"})) == [("f", "{}", None)]
    assert decoded(content="hi", function_call={}).tool_calls == ()


# Messages.

NULLS = {
    "content": None,
    "refusal": None,
    "reasoning": None,
    "reasoning_content": None,
    "reasoning_details": None,
    "images": None,
    "tool_calls": None,
    "function_call": None,
    "annotations": None,
    "audio": None,
}


def test_a_null_field_counts_as_missing() -> None:
    call = {"index": None, "id": None, "type": None, "function": {"name": "f", "arguments": None}}
    choice = {"index": None, "finish_reason": None, "logprobs": None, "error": None}
    body = {"id": None, "model": None, "usage": None, "x_groq": None, "error": None}
    deltas = [{**NULLS, "tool_calls": [call]}, None, NULLS]
    events = [{**body, "choices": None}, *({**body, "choices": [{**choice, "delta": each}]} for each in deltas)]
    assert [call.name for call in folded(*events, DONE).tool_calls] == ["f"]
    whole = {**body, "choices": [{**choice, "message": {**NULLS, "tool_calls": [call]}}]}
    response = CODEC.decode(json.dumps(whole).encode())
    assert response.message.parts == (ToolCall("f", "{}"),)
    assert (response.usage, response.finish_reason, response.id, response.model) == (None, None, None, None)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_from_each_of_its_fields(name: str) -> None:
    parts = (ReasoningPart("thought"), TextPart("x"))
    assert decoded(content="x", **{name: "thought"}).message.parts == parts
    assert folded(delta(**{name: "thou"}), delta(**{name: "ght"}), delta(content="x"), STOP).message.parts == parts


def test_reasoning_in_two_fields_is_read_once() -> None:
    assert decoded(reasoning="thought", reasoning_content="thought").message.reasoning == "thought"


def test_a_refusal_is_decoded_as_the_answers_text() -> None:
    assert decoded(content=None, refusal="No.").message.text == "No."
    assert folded(delta(refusal="N"), delta(refusal="o."), STOP).message.text == "No."


def test_content_that_is_a_list_is_read_in_its_order() -> None:
    """As Mistral answers: thoughts, text, and references to what it was given."""
    reference = {"type": "reference", "reference_ids": [1, 2]}
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}, reference, {"type": "text", "text": "m."}]},
        {"type": "text", "text": "It is "},
        {"type": "text", "text": "so"},
        reference,
        {"type": "text", "text": "."},
    ]
    parts = (
        ReasoningPart("Hmm."),
        TextPart("It is so"),
        ProviderPart('{"type": "reference", "reference_ids": [1, 2]}'),
        TextPart("."),
    )
    assert decoded(content=content).message.parts == parts
    assert folded(*(delta(content=[each]) for each in content), STOP).message.parts == parts


def test_a_stream_may_turn_from_lists_to_plain_text() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    events = [delta(content=[thought]), delta(content=[thought]), delta(content="so "), delta(content="it is")]
    assert folded(*events, STOP).message.parts == (ReasoningPart("HmHm"), TextPart("so it is"))


@pytest.mark.parametrize("where", ["images", "content"])
def test_images_in_an_answer_are_parts_of_it(where: str) -> None:
    """As OpenRouter answers, in a field of their own, or in the content."""
    images = [{"type": "image_url", "image_url": {"url": PIXEL}}, {"type": "image_url", "image_url": "http://x/y.png"}]
    parts = (ImagePart(data=b"\x01\x02", media_type="image/gif"), ImagePart(url="http://x/y.png"))
    assert decoded(**{where: images}).message.parts == parts
    assert folded(*(delta(**{where: [image]}) for image in images), STOP).message.parts == parts


def test_an_undecodable_image_stays_a_url() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}
    assert decoded(images=[image]).message.parts == (ImagePart(url="data:image/png;base64,?"),)


OPENROUTER = codec_of("openrouter")


def details(message: AssistantMessage) -> list[Any]:
    return [json.loads(part.data) for part in message.parts if isinstance(part, ProviderPart)]


def test_reasoning_details_in_pieces_are_joined() -> None:
    text = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    seal = {"type": "reasoning.encrypted", "data": "xyz", "index": 1, "id": None}
    whole = [{**text, "text": "Hm.", "signature": "s"}, {"type": "reasoning.encrypted", "data": "xyz", "index": 1}]
    message = folded(
        delta(reasoning="H", reasoning_details=[{**text, "text": "H", "signature": None}]),
        delta(reasoning="m.", reasoning_details=[{**text, "text": "m."}]),
        delta(reasoning_details=[{**text, "signature": "s"}]),
        delta(content="So", reasoning_details=[]),
        delta(reasoning_details=[seal], tool_calls=[{"index": 0, "id": "a", "function": {"name": "f"}}]),
        STOP,
        STOP,
        DONE,
        codec=OPENROUTER,
    ).message
    assert details(message) == whole
    assert (message.reasoning, message.text) == ("Hm.", "So")
    call = {"id": "a", "function": {"name": "f"}}
    same = decoded(OPENROUTER, reasoning="Hm.", reasoning_details=whole, content="So", tool_calls=[call]).message
    assert same == message


def test_reasoning_details_that_differ_are_not_joined() -> None:
    summaries = [{"type": "reasoning.summary", "summary": "a", "index": index} for index in (0, 1)]
    seals = [{"type": "reasoning.encrypted", "data": "x"}] * 2
    ids = [{"type": "reasoning.text", "text": "a", "id": each} for each in "pq"]
    kept = [*summaries, *seals, *ids]
    assert details(folded(*(delta(reasoning_details=[each]) for each in kept), DONE).message) == kept


def test_the_text_of_reasoning_details_is_decoded_as_reasoning() -> None:
    kept = [{"type": "reasoning.summary", "summary": "Hm"}, {"type": "reasoning.encrypted", "data": "x"}]
    assert decoded(reasoning_details=kept).message.reasoning == "Hm"


TEXTS = st.text(max_size=12)
CUTS = st.lists(st.integers(0, 12), max_size=3)


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[start:end] for start, end in pairwise(bounds)] or [text]


@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=3), CUTS)
def test_an_answer_is_the_same_message_whole_and_in_pieces(
    thoughts: str, text: str, arguments: list[str], places: list[int]
) -> None:
    sent = [{"id": f"c{place}", "function": {"name": "f", "arguments": each}} for place, each in enumerate(arguments)]
    detail = {"type": "reasoning.text", "index": 0, "text": thoughts}
    events = [delta(reasoning=each, reasoning_details=[{**detail, "text": each}]) for each in cut(thoughts, places)]
    events += [delta(content=each) for each in cut(text, places)]
    for place, each in enumerate(arguments):
        events.append(piece(place, f"c{place}", "f"))
        events += [piece(place, arguments=part) for part in cut(each, places)]
    whole = decoded(reasoning=thoughts, content=text, tool_calls=sent, reasoning_details=[detail])
    assert folded(*events, STOP, DONE) == whole
