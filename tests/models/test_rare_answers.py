"""Rare answers of providers and gateways: each is the same whole and streamed, in all four modes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests import modes
from tests.modes import MODES
from traced_tools import AssistantMessage, ChatClient, ChatClientResponse, ToolCall, ToolMessage, UserMessage
from traced_tools.core import ToolResultPart
from traced_tools.errors import InvalidResponse
from traced_tools.models import (
    AnthropicChatModel,
    ChatRequest,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
)
from traced_tools.testing import ReplayServer, Reply

STREAMING = ("stream", "astream")
every_mode = pytest.mark.parametrize("mode", MODES)

Answer = tuple[Any, Sequence[Any]]
"""The body of a whole answer, and the events of the same answer streamed."""


def shell(input: str) -> str:
    """Run a command."""
    return f"ran {input}"


def weather(city: str) -> str:
    """Get the weather in a city."""
    return f"rain in {city}"


def run(
    mode: str, kind: Callable[..., Any], answers: Sequence[Answer], tools: Sequence[Any] = (weather,), **settings: Any
) -> tuple[ChatClientResponse, list[Any]]:
    """Run a loop that gets `answers`; return its response and the bodies of its requests."""
    lines = {"content_type": "application/x-ndjson"}
    replies = []
    for whole, events in answers:
        if "stream" not in mode:
            replies.append(Reply.json(whole))
        elif kind is OllamaChatModel:
            replies.append(Reply("".join(f"{json.dumps(event)}\n" for event in events).encode(), **lines))
        else:
            replies.append(Reply.sse(events))
    with ReplayServer(replies) as server:
        model = kind("m", base_url=server.url, api_key="k", retries=0, **settings)
        response = modes.run(mode, ChatClient(model, tools=list(tools)).prompt("Go."), model)
        return response, [request.json() for request in server.requests]


# Chat completions.


def chat(message: Mapping[str, Any], deltas: Sequence[Mapping[str, Any]], reason: str) -> Answer:
    events = [{"choices": [{"index": 0, "delta": each}]} for each in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}, [*events, end, "[DONE]"]


CHAT_END = chat({"content": "Done."}, [{"content": "Done."}], "stop")
SIGNED = {"extra_content": {"google": {"thought_signature": "EqEE+/="}}}
FUNCTION = {"name": "weather", "arguments": '{"city": "Oslo"}'}
SIGNED_CALL = {"id": "c1", "type": "function", "function": FUNCTION, **SIGNED}


@every_mode
@pytest.mark.parametrize(
    "deltas",
    [
        [SIGNED_CALL],
        [{"index": 0, "id": "c1", "function": FUNCTION}, {"index": 0, **SIGNED}],
        [{"id": "c1", "function": FUNCTION}, SIGNED],
    ],
    ids=["with the call", "after the call", "after the call, without an index"],
)
def test_the_extra_content_of_a_call_is_sent_back(mode: str, deltas: list[Any]) -> None:
    asking = chat({"tool_calls": [SIGNED_CALL]}, [{"tool_calls": [each]} for each in deltas], "tool_calls")
    response, (_, second) = run(mode, OpenAIChatModel, [asking, CHAT_END])
    assert response.content == "Done."
    assert second["messages"][1]["tool_calls"] == [SIGNED_CALL]


@every_mode
def test_a_finish_reason_without_a_message_is_an_empty_answer(mode: str) -> None:
    choice = {"choices": [{"index": 0, "finish_reason": "content_filter"}]}
    response, _ = run(mode, OpenAIChatModel, [(choice, [choice, "[DONE]"])])
    assert (response.content, response.finish_reason) == ("", "content_filter")


@every_mode
def test_a_content_that_is_an_object_is_its_json_text(mode: str) -> None:
    content = {"city": "Oslo", "places": [1, None]}
    response, _ = run(mode, OpenAIChatModel, [chat({"content": content}, [{"content": content}], "stop")])
    assert json.loads(response.content) == content


@every_mode
@pytest.mark.parametrize(
    "pieces", [["{}", '{"city"', ': "Oslo"}'], ["{}", '{"city": "Oslo"}'], ['{"city": "Oslo"}', "{}"]]
)
def test_an_empty_object_beside_the_arguments_of_a_call_is_removed(mode: str, pieces: list[str]) -> None:
    whole = {"id": "c1", "function": {"name": "weather", "arguments": "".join(pieces)}}
    first = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": pieces[0]}}
    rest = [{"index": 0, "function": {"arguments": piece}} for piece in pieces[1:]]
    deltas = [{"tool_calls": [each]} for each in (first, *rest)]
    response, (_, second) = run(mode, OpenAIChatModel, [chat({"tool_calls": [whole]}, deltas, "tool_calls"), CHAT_END])
    assert response.tool_results[0].content == "rain in Oslo"
    assert json.loads(second["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}


CUSTOM = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": 'echo "ø"\n'}}


@every_mode
def test_a_call_of_a_custom_tool_keeps_its_name_and_input(mode: str) -> None:
    pieces = [
        {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "shell", "input": ""}},
        {"index": 0, "custom": {"input": 'echo "'}},
        {"index": 0, "custom": {"input": 'ø"\n'}},
    ]
    asking = chat({"tool_calls": [CUSTOM]}, [{"tool_calls": [each]} for each in pieces], "tool_calls")
    response, (_, second) = run(mode, OpenAIChatModel, [asking, CHAT_END], [shell])
    assert [result.content for result in response.tool_results] == ['ran echo "ø"\n']
    assert second["messages"][1]["tool_calls"] == [CUSTOM]
    assert second["messages"][2]["tool_call_id"] == "c1"


@every_mode
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_extra_content_of_a_custom_call_is_sent_back(mode: str, place: int) -> None:
    pieces: list[dict[str, Any]] = [
        {"index": 0, "id": "c1", "custom": {"name": "shell", "input": ""}},
        {"index": 0, "custom": {"input": 'echo "'}},
        {"index": 0, "custom": {"input": 'ø"\n'}},
    ]
    pieces[place] |= SIGNED
    signed = {**CUSTOM, **SIGNED}
    asking = chat({"tool_calls": [signed]}, [{"tool_calls": [each]} for each in pieces], "tool_calls")
    _, (_, second) = run(mode, OpenAIChatModel, [asking, CHAT_END], [shell])
    assert second["messages"][1]["tool_calls"] == [signed]


@every_mode
def test_a_call_of_a_custom_tool_that_is_cut_off_is_not_run(mode: str) -> None:
    ran = []

    def shell(input: str) -> str:
        """Run a command."""
        ran.append(input)
        return "ran"

    asking = chat({"tool_calls": [CUSTOM]}, [{"tool_calls": [{"index": 0, **CUSTOM}]}], "length")
    run(mode, OpenAIChatModel, [asking, CHAT_END], [shell])
    assert ran == []


@every_mode
def test_a_call_of_a_custom_tool_that_another_call_follows_is_not_cut_off(mode: str) -> None:
    half = {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"ci'}}
    pieces = [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate([CUSTOM, half])]
    asking = chat({"tool_calls": [CUSTOM, half]}, pieces, "length")
    response, _ = run(mode, OpenAIChatModel, [asking, CHAT_END], [shell, weather])
    assert response.tool_results[0].content == 'ran echo "ø"\n'
    assert not response.tool_results[1].content.startswith("rain")


@every_mode
def test_a_call_that_is_cut_off_before_its_arguments_is_not_run_whatever_follows_it(mode: str) -> None:
    called = []

    def clock() -> str:
        """Get the time."""
        called.append(1)
        return "noon"

    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "clock", "arguments": ""}}
    said = {"tool_calls": [call], "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}
    response, _ = run(mode, OpenAIChatModel, [chat(said, [said], "length")], [clock])
    assert (called, response.finish_reason) == ([], "length")


@every_mode
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_sent_back_in_the_configured_field(mode: str, field: Any) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": FUNCTION}
    asking = chat({field: "Hm.", "tool_calls": [call]}, [{field: "Hm."}, {"tool_calls": [call]}], "tool_calls")
    _, (_, second) = run(mode, OpenAIChatModel, [asking, CHAT_END], reasoning_field=field)
    assert second["messages"][1][field] == "Hm."
    _, (_, second) = run(mode, OpenAIChatModel, [asking, CHAT_END])
    assert field not in second["messages"][1]


@every_mode
@pytest.mark.parametrize(
    ("whole", "deltas"),
    [
        ({"content": "Rain", "refusal": " is secret."}, [{"content": "Rain"}, {"refusal": " is secret."}]),
        ({"content": "Rain is secret."}, None),
    ],
    ids=["a text and a refusal", "a stream of one whole message"],
)
def test_a_text_is_the_same_whole_and_streamed(mode: str, whole: Any, deltas: Any) -> None:
    body, events = chat(whole, deltas or [], "stop")
    response, _ = run(mode, OpenAIChatModel, [(body, events if deltas else [body, "[DONE]"])])
    assert response.content == "Rain is secret."


# Responses.


def responses(*items: dict[str, Any], deltas: Sequence[Any] = ()) -> Answer:
    whole = {"id": "r", "model": "m", "status": "completed", "output": list(items)}
    done = [{"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(items)]
    return whole, [*deltas, *done, {"type": "response.completed", "response": whole}]


RESPONSES_END = responses({"type": "message", "content": [{"type": "output_text", "text": "Done."}]})
CUSTOM_ITEM = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "shell", "input": 'echo "ø"\n'}


@every_mode
@pytest.mark.parametrize("in_pieces", [True, False])
def test_a_custom_tool_call_item_keeps_its_name_and_input(mode: str, in_pieces: bool) -> None:
    added = {"type": "response.output_item.added", "output_index": 0, "item": {**CUSTOM_ITEM, "input": ""}}
    pieces = [
        {"type": "response.custom_tool_call_input.delta", "output_index": 0, "delta": piece}
        for piece in ('echo "', 'ø"\n')
    ]
    asking = responses(CUSTOM_ITEM, deltas=[added, *(pieces if in_pieces else [])])
    response, (_, second) = run(mode, OpenAIResponsesModel, [asking, RESPONSES_END], [shell])
    assert [result.content for result in response.tool_results] == ['ran echo "ø"\n']
    sent = {name: value for name, value in CUSTOM_ITEM.items() if name != "id"}
    assert second["input"][1:] == [
        sent,
        {"type": "custom_tool_call_output", "call_id": "c1", "output": 'ran echo "ø"\n'},
    ]


CITY_ITEM = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
ROME_ITEM = {**CITY_ITEM, "id": "fc_2", "call_id": "c2", "arguments": '{"city": "Rome"}'}
CITY_ADDED = {"type": "response.output_item.added", "output_index": 0, "item": {**CITY_ITEM, "arguments": ""}}
CUSTOM_ADDED = {"type": "response.output_item.added", "output_index": 0, "item": {**CUSTOM_ITEM, "input": ""}}
CUSTOM_PIECE = {"type": "response.custom_tool_call_input.delta", "output_index": 0, "delta": CUSTOM_ITEM["input"]}


def done(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": 0, "item": item}


@pytest.mark.parametrize("mode", STREAMING)
@pytest.mark.parametrize(
    ("events", "items", "results"),
    [
        ([CITY_ADDED], [CITY_ITEM], ["rain in Oslo"]),
        ([{**CITY_ADDED, "item": CITY_ITEM}], [], ["rain in Oslo"]),
        ([done(CITY_ITEM)], [CITY_ITEM, ROME_ITEM], ["rain in Oslo", "rain in Rome"]),
        ([done(CITY_ITEM)], [{**CITY_ITEM, "call_id": "x"}], ["rain in Oslo"]),
        ([CUSTOM_ADDED, CUSTOM_PIECE], [CUSTOM_ITEM], ['ran echo "ø"\n']),
    ],
    ids=["arguments at the end", "arguments at the start", "a call at the end", "other ids at the end", "no item.done"],
)
def test_a_call_runs_once_with_its_arguments_wherever_they_are_in_the_stream(
    mode: str, events: list[Any], items: list[Any], results: list[str]
) -> None:
    whole = {"id": "r", "status": "completed", "output": items}
    asking = ({}, [*events, {"type": "response.completed", "response": whole}])
    response, _ = run(mode, OpenAIResponsesModel, [asking, RESPONSES_END], [shell, weather])
    assert [result.content for result in response.tool_results] == results


@pytest.mark.parametrize("mode", STREAMING)
@pytest.mark.parametrize("item", [CITY_ITEM, CUSTOM_ITEM], ids=["function", "custom"])
def test_a_call_item_that_is_cut_off_before_its_arguments_is_not_run(mode: str, item: dict[str, Any]) -> None:
    emptied = {**item, "arguments": "", "input": "", "status": "in_progress"}
    added = {"type": "response.output_item.added", "output_index": 0, "item": emptied}
    whole = {"id": "r", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}
    asking = ({}, [added, {"type": "response.incomplete", "response": whole}])
    response, _ = run(mode, OpenAIResponsesModel, [asking], [shell, weather])
    assert (response.tool_results, response.finish_reason) == ((), "length")


# Anthropic.


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any], ends: bool = True) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        *([{"type": "content_block_stop", "index": index}] if ends else []),
    ]


def start(name: str) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": name, "model": "m", "usage": {"input_tokens": 3}}}


def ended(reason: str) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}}


STOP = {"type": "message_stop"}
HALF = [start("a"), *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "half"}, ends=False)]
BLOCK_STOP = {"type": "content_block_stop", "index": 0}


@pytest.mark.parametrize("mode", STREAMING)
@pytest.mark.parametrize(
    "ending",
    [[BLOCK_STOP, STOP], [STOP, BLOCK_STOP], [STOP]],
    ids=["before the end", "after the end", "never"],
)
def test_a_text_that_is_cut_off_is_kept_whenever_its_block_ends(mode: str, ending: list[Any]) -> None:
    response, _ = run(mode, AnthropicChatModel, [({}, [*HALF, ended("max_tokens"), *ending])])
    assert (response.content, response.finish_reason) == ("half", "length")


@pytest.mark.parametrize("mode", STREAMING)
@pytest.mark.parametrize("reason", ["max_tokens", "refusal"])
def test_a_call_that_is_cut_off_before_its_input_is_not_run(mode: str, reason: str) -> None:
    called = []

    def clock() -> str:
        """Get the time."""
        called.append(1)
        return "noon"

    asking = block(0, {"type": "tool_use", "id": "c1", "name": "clock", "input": {}}, ends=False)
    response, _ = run(mode, AnthropicChatModel, [({}, [start("a"), *asking, ended(reason), STOP])], [clock])
    assert (called, response.tool_calls) == ([], ())


@pytest.mark.parametrize("mode", STREAMING)
def test_a_block_that_never_ends_in_an_answer_that_was_not_cut_off_is_an_invalid_response(mode: str) -> None:
    with pytest.raises(InvalidResponse, match="ended before the answer did"):
        run(mode, AnthropicChatModel, [({}, [*HALF, ended("end_turn"), STOP])])


@pytest.mark.parametrize("mode", STREAMING)
def test_a_second_message_start_restarts_the_answer(mode: str) -> None:
    whole_text = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Rain."})
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}
    events = [*HALF, *block(1, call), ended("tool_use"), start("b"), *whole_text, ended("end_turn"), STOP]
    response, requests = run(mode, AnthropicChatModel, [({}, events)])
    assert (response.content, response.finish_reason, response.tool_calls) == ("Rain.", "stop", ())
    assert response.chat_response is not None
    assert response.chat_response.id == "b"
    assert len(requests) == 1


def test_a_consumer_sees_where_the_answer_restarts() -> None:
    whole_text = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Rain."})
    reply = Reply.sse([*HALF, start("b"), *whole_text, ended("end_turn"), STOP])
    shown = ""
    with ReplayServer([reply]) as server, AnthropicChatModel("m", base_url=server.url, api_key="k") as model:
        with ChatClient(model).prompt("Go.").stream() as stream:
            for chunk in stream:
                assert chunk.delta is not None
                shown = chunk.text if chunk.delta.restarts else shown + chunk.text
    assert shown == stream.response.content == "Rain."


@every_mode
def test_blocks_that_share_an_index_are_separate_blocks(mode: str) -> None:
    calls = [{"type": "tool_use", "name": "weather", "input": {"city": city}} for city in ("Oslo", "Rome")]
    text = {"type": "text", "text": "Done."}
    asking = (
        {"content": calls, "stop_reason": "tool_use"},
        [start("a"), *block(0, calls[0]), *block(0, calls[1]), ended("tool_use"), STOP],
    )
    closing = ({"content": [text], "stop_reason": "end_turn"}, [start("b"), *block(0, text), ended("end_turn"), STOP])
    response, _ = run(mode, AnthropicChatModel, [asking, closing])
    assert [result.content for result in response.tool_results] == ["rain in Oslo", "rain in Rome"]


@every_mode
def test_the_further_fields_of_a_claude_call_are_sent_back(mode: str) -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}, "caller": caller}
    direct = {**call, "id": "c2", "caller": {"type": "direct"}}
    text = {"type": "text", "text": "Done."}
    asking = (
        {"content": [call, direct], "stop_reason": "tool_use"},
        [start("a"), *block(0, call), *block(1, direct), ended("tool_use"), STOP],
    )
    closing = ({"content": [text], "stop_reason": "end_turn"}, [start("b"), *block(0, text), ended("end_turn"), STOP])
    _, (_, second) = run(mode, AnthropicChatModel, [asking, closing])
    first_call, second_call = second["messages"][1]["content"]
    assert first_call == call
    assert "caller" not in second_call


# Gemini.


def gemini(*calls: dict[str, Any]) -> Answer:
    events = [{"candidates": [{"content": {"parts": [each]}}]} for each in calls]
    end = {"candidates": [{"finishReason": "STOP"}]}
    return [*events, end], [*events, end]


GEMINI_END: Answer = ({"candidates": [{"content": {"parts": [{"text": "Done."}]}, "finishReason": "STOP"}]},) * 2  # type: ignore[assignment]


def piece(path: str, **value: Any) -> dict[str, Any]:
    return {"functionCall": {"partialArgs": [{"jsonPath": path, **value}], "willContinue": True}}


@every_mode
def test_the_pieces_of_a_streamed_function_call_are_one_call(mode: str) -> None:
    asking = gemini(
        {"functionCall": {"name": "weather", "id": "c1", "willContinue": True}, "thoughtSignature": "sealed"},
        piece("$.city", stringValue="Os", willContinue=True),
        piece("$.city", stringValue="lo"),
        {"functionCall": {}},
    )
    closing = (GEMINI_END[0], [GEMINI_END[0]])
    response, (_, second) = run(mode, GeminiChatModel, [asking, closing])
    assert [result.content for result in response.tool_results] == ["rain in Oslo"]
    call = {"name": "weather", "args": {"city": "Oslo"}, "id": "c1"}
    assert second["contents"][1]["parts"] == [{"functionCall": call, "thoughtSignature": "sealed"}]


@every_mode
def test_a_function_call_that_stops_inside_a_text_is_not_run(mode: str) -> None:
    ran = []

    def pay(amount: str) -> str:
        """Pay an amount."""
        ran.append(amount)
        return "paid"

    begun = {"functionCall": {"name": "pay", "willContinue": True}}
    asking = gemini(begun, piece("$.amount", stringValue="9", willContinue=True))
    response, _ = run(mode, GeminiChatModel, [asking, (GEMINI_END[0], [GEMINI_END[0]])], [pay])
    assert (ran, response.content) == ([], "Done.")
    assert "not valid JSON" in response.tool_results[0].content


@every_mode
@pytest.mark.parametrize("words", ["", "I look."])
def test_a_function_call_with_a_text_in_the_same_part_is_run(mode: str, words: str) -> None:
    asking = gemini({"text": words, "functionCall": {"name": "weather", "args": {"city": "Oslo"}}})
    response, (_, second) = run(mode, GeminiChatModel, [asking, (GEMINI_END[0], [GEMINI_END[0]])])
    assert [result.content for result in response.tool_results] == ["rain in Oslo"]
    assert [part["text"] for part in second["contents"][1]["parts"] if "text" in part] == ([words] if words else [])


# All of them.

IMAGE_ITEM = {"type": "image_generation_call", "id": "i", "result": "AAAA", "output_format": None}
NULL_CALL = {"type": "tool_use", "id": "c1", "name": "clock", "input": None}
NULL_PART = {"inlineData": {"mimeType": None, "data": None}}
NULLS: dict[str, tuple[Any, list[Answer]]] = {
    "output_format": (
        OpenAIResponsesModel,
        [responses(IMAGE_ITEM, {"type": "message", "content": [{"type": "output_text", "text": "Done."}]})],
    ),
    "mimeType and data": (
        GeminiChatModel,
        [
            (
                {"candidates": [{"content": {"parts": [{"text": "Done."}, NULL_PART]}, "finishReason": "STOP"}]},
                [{"candidates": [{"content": {"parts": [{"text": "Done."}, NULL_PART]}, "finishReason": "STOP"}]}],
            )
        ],
    ),
    "text and input": (
        AnthropicChatModel,
        [
            (
                {"content": [{"type": "text", "text": None}, NULL_CALL], "stop_reason": "tool_use"},
                [start("a"), *block(0, {"type": "text", "text": None}), *block(1, NULL_CALL), ended("tool_use"), STOP],
            ),
            (
                {"content": [{"type": "text", "text": "Done."}], "stop_reason": "end_turn"},
                [start("b"), *block(0, {"type": "text", "text": "Done."}), ended("end_turn"), STOP],
            ),
        ],
    ),
    "message and done": (
        OllamaChatModel,
        [
            (
                {"message": {"content": "Done."}, "done": True},
                [{"message": {"content": "Done."}, "done": None}, {"message": None, "done": True}],
            )
        ],
    ),
}


@every_mode
@pytest.mark.parametrize("case", NULLS)
def test_a_null_field_counts_as_missing(mode: str, case: str) -> None:
    def clock() -> str:
        """Get the time."""
        return "noon"

    kind, answers = NULLS[case]
    response, _ = run(mode, kind, answers, [clock])
    assert response.content == "Done."
    assert [result.content for result in response.tool_results] == ["noon"] * (len(answers) - 1)


NAMELESS: dict[str, tuple[Any, Answer]] = {
    "chat": (OpenAIChatModel, chat({"tool_calls": [{"id": "1"}]}, [{"tool_calls": [{"id": "1"}]}], "tool_calls")),
    "chat, custom": (
        OpenAIChatModel,
        chat({"tool_calls": [{"id": "1", "type": "custom"}]}, [{"tool_calls": [{"id": "1"}]}], "tool_calls"),
    ),
    "responses": (OpenAIResponsesModel, responses({"type": "function_call", "call_id": "1", "arguments": "{}"})),
    "anthropic": (
        AnthropicChatModel,
        (
            {"content": [{"type": "tool_use", "id": "1", "input": {}}], "stop_reason": "tool_use"},
            [start("a"), *block(0, {"type": "tool_use", "id": "1", "input": {}}), ended("tool_use"), STOP],
        ),
    ),
    "gemini": (GeminiChatModel, gemini({"functionCall": {"args": {"city": "Oslo"}}})),
    "gemini, empty": (GeminiChatModel, gemini({"functionCall": {}})),
    "ollama": (
        OllamaChatModel,
        (
            {"message": {"tool_calls": [{"function": {"arguments": {}}}]}, "done": True, "done_reason": "stop"},
            [{"message": {"tool_calls": [{"function": {"arguments": {}}}]}, "done": True, "done_reason": "stop"}],
        ),
    ),
}


@every_mode
@pytest.mark.parametrize("case", NAMELESS)
def test_a_call_without_a_name_is_an_invalid_response(mode: str, case: str) -> None:
    kind, answer = NAMELESS[case]
    with pytest.raises(InvalidResponse, match="a tool call without a name"):
        run(mode, kind, [answer])


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel, AnthropicChatModel, GeminiChatModel])
@pytest.mark.parametrize(
    "signature",
    ['{"extra_content": {"google": {"thought_signature": "EqEE"}}}', '{"type": "custom", "caller": {"tool_id": "x"}}'],
)
def test_the_signature_of_a_call_is_not_sent_to_another_api(kind: Any, signature: str) -> None:
    said = AssistantMessage(tool_calls=[ToolCall("f", "{}", "c1", signature=signature)], provider="elsewhere")
    result = ToolMessage([ToolResultPart(call_id="c1", name="f", content="done")])
    request = ChatRequest((UserMessage("Go."), said, result))
    answers = {OpenAIChatModel: CHAT_END[0], OpenAIResponsesModel: RESPONSES_END[0], GeminiChatModel: GEMINI_END[0]}
    closing = answers.get(kind, {"content": [], "stop_reason": "end_turn"})
    with ReplayServer([Reply.json(closing)]) as server, kind("m", base_url=server.url, api_key="k") as model:
        model.call(request)
        sent = server.requests[0].body.decode()
    assert "EqEE" not in sent
    assert "custom" not in sent
    assert "tool_id" not in sent
