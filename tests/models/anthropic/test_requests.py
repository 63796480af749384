"""Requests to the Messages API: turns of blocks, options, tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from traced_tools import (
    AssistantMessage,
    ChatOptions,
    ConfigurationError,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from traced_tools.core import ProviderPart, ReasoningPart, ToolDefinition, ToolResultPart
from traced_tools.models import ChatRequest
from traced_tools.models.anthropic.chat import AnthropicChatCodec

CODEC = AnthropicChatCodec("m", max_tokens=100)
WEATHER = ToolDefinition(name="weather", description="Get it.", input_schema={"type": "object"})
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sealed"}
REDACTED = {"type": "redacted_thinking", "data": "xyz"}
CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "Oslo"}}


def encoded(
    *messages: Any, tools: tuple[ToolDefinition, ...] = (), stream: bool = False, **options: Any
) -> dict[str, Any]:
    return CODEC.encode(ChatRequest(messages, tools, ChatOptions(**options)), stream=stream)


def turns(*messages: Any) -> Any:
    return encoded(*messages)["messages"]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def result(call_id: str = "c1", content: str = "sunny", **fields: Any) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="weather", content=content, **fields)


def test_each_message_becomes_blocks_of_a_turn_and_system_messages_a_separate_field() -> None:
    body = encoded(
        SystemMessage("be brief"),
        UserMessage("hi"),
        SystemMessage("be kind"),
        AssistantMessage("looking", tool_calls=[ToolCall("weather", {"city": "Oslo"}, "c1")]),
        ToolMessage([result()]),
    )
    assert (body["model"], body["max_tokens"]) == ("m", 100)
    assert body["system"] == [text("be brief"), text("be kind")]
    assert body["messages"] == [
        {"role": "user", "content": [text("hi")]},
        {"role": "assistant", "content": [text("looking"), CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [text("sunny")]}]},
    ]


def test_a_text_of_the_model_that_is_to_continue_ends_without_blanks() -> None:
    assert turns(UserMessage("a"), AssistantMessage("It is \n"))[1]["content"] == [text("It is")]
    assert turns(UserMessage("a"), AssistantMessage("It is "), UserMessage("b"))[1]["content"] == [text("It is ")]


@pytest.mark.parametrize("last", [[THOUGHT], [REDACTED], [REDACTED, THOUGHT]])
def test_a_turn_never_ends_with_thinking(last: list[dict[str, Any]]) -> None:
    parts: dict[str, Any] = {"thinking": ReasoningPart("hm", signature="sealed")}
    cut = [parts.get(block["type"]) or ProviderPart(json.dumps(block)) for block in last]
    answered, more = AssistantMessage([*cut, TextPart("hi"), *cut]), AssistantMessage(cut)
    assert turns(UserMessage("a"), answered, UserMessage("b"), more, UserMessage("c"), more) == [
        {"role": "user", "content": [text("a")]},
        {"role": "assistant", "content": [*last, text("hi")]},
        {"role": "user", "content": [text("b"), text("c")]},
    ]
    assert turns(UserMessage("a"), more, AssistantMessage("hi"))[1]["content"] == [*last, text("hi")]


def test_messages_of_one_role_are_joined_in_one_turn_with_results_first() -> None:
    called = AssistantMessage(tool_calls=[ToolCall("weather", "{}", "c1"), ToolCall("weather", "{}", "c2")])
    said = turns(
        UserMessage("a"),
        UserMessage("b"),
        called,
        UserMessage("quick"),
        ToolMessage([result("c1")]),
        SystemMessage("between"),
        ToolMessage([result("c2")]),
        UserMessage("now"),
    )
    assert [turn["role"] for turn in said] == ["user", "assistant", "user"]
    assert said[0]["content"] == [text("a"), text("b")]
    assert [block.get("tool_use_id") or block["text"] for block in said[2]["content"]] == ["c1", "c2", "quick", "now"]


def test_blank_texts_are_not_sent_because_the_api_refuses_them() -> None:
    called = AssistantMessage(" \n", tool_calls=[ToolCall("weather", {"city": "Oslo"}, "c1")])
    body = encoded(SystemMessage(" "), UserMessage("hi"), AssistantMessage(""), called, ToolMessage([result()]))
    assert "system" not in body
    assert [turn["content"] for turn in body["messages"][:2]] == [[text("hi")], [CALL]]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (result(is_error=True), {"content": [text("sunny")], "is_error": True}),
        (result(content=""), {}),
        (result(content="", is_error=True), {"content": [text("the tool failed")], "is_error": True}),
    ],
)
def test_a_result_has_an_error_flag_and_may_be_empty(part: ToolResultPart, block: dict[str, Any]) -> None:
    called = AssistantMessage(tool_calls=[ToolCall("weather", "{}", "c1")])
    (sent,) = turns(called, ToolMessage([part]))[1]["content"]
    assert sent == {"type": "tool_result", "tool_use_id": "c1", **block}


def test_images_are_sent_as_url_or_data_also_in_results() -> None:
    images = (ImagePart(url="https://example.org/a.png"), ImagePart(data=b"\x01", media_type="image/gif"))
    sent = [
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "AQ=="}},
    ]
    assert turns(UserMessage([TextPart("what?"), *images]))[0]["content"] == [text("what?"), *sent]
    called = AssistantMessage(tool_calls=[ToolCall("weather", "{}", "c1")])
    assert turns(called, ToolMessage([result(images=images)]))[1]["content"][0]["content"] == [text("sunny"), *sent]


@pytest.mark.parametrize("arguments", ['{"city": ', "[1]", '"Oslo"', '{"a": 1e999}', r'{"a": "\ud800"}', "[" * 10_000])
def test_arguments_that_are_not_an_object_are_wrapped_in_one(arguments: str) -> None:
    (block,) = turns(AssistantMessage(tool_calls=[ToolCall("weather", arguments, "c1")]))[0]["content"]
    assert block["input"] == {"invalid_arguments": arguments}


def test_a_call_without_arguments_has_an_empty_object() -> None:
    (block,) = turns(AssistantMessage(tool_calls=[ToolCall("weather", "", "c1")]))[0]["content"]
    assert block["input"] == {}


def test_call_ids_of_other_providers_are_sent_with_accepted_characters_only() -> None:
    call_id = "functions.weather:0|fc_1"
    said = turns(AssistantMessage(tool_calls=[ToolCall("weather", "{}", call_id)]), ToolMessage([result(call_id)]))
    assert said[0]["content"][0]["id"] == said[1]["content"][0]["tool_use_id"] == "functions_weather_0_fc_1"


def test_a_call_id_that_another_provider_repeats_is_made_unique_per_call() -> None:
    def batch(*call_ids: str) -> list[Any]:
        calls = [ToolCall("weather", "{}", each) for each in call_ids]
        return [AssistantMessage(tool_calls=calls), ToolMessage([result(each) for each in call_ids])]

    said = turns(UserMessage("hi"), *batch("0", "a.b"), *batch("a_b", "0"), *batch("0_2", "0"), *batch(""))
    asked, answered = (
        [block[name] for turn in said for block in turn["content"] if name in block] for name in ("id", "tool_use_id")
    )
    assert asked == answered == ["0", "a_b", "a_b_2", "0_2", "0_2_2", "0_3", "_"]


def test_an_error_result_has_only_text_and_its_images_follow_as_user_content() -> None:
    called = AssistantMessage(tool_calls=[ToolCall("weather", "{}", "c1"), ToolCall("weather", "{}", "c2")])
    dot = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQ=="}}
    failed = result("c1", is_error=True, images=(ImagePart(data=b"\x01"),))
    assert turns(called, ToolMessage([failed, result("c2")]))[1]["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": [text("sunny")]},
        {"type": "tool_result", "tool_use_id": "c2", "content": [text("sunny")]},
        text("Images returned by the tool weather:"),
        dot,
    ]


SEALED = [
    ReasoningPart("hm", signature="sealed"),
    ProviderPart(json.dumps(REDACTED)),
    TextPart("a"),
    ProviderPart(json.dumps(SEARCH)),
    ReasoningPart("", signature="sealed too"),
    ToolCall("weather", {"city": "Oslo"}, "c1"),
    ImagePart(url="https://example.org/a.png"),
]


@pytest.mark.parametrize("provider", [None, "anthropic"])
def test_signed_parts_are_sent_back_unchanged_and_in_the_same_position(provider: str | None) -> None:
    silent = {"type": "thinking", "thinking": "", "signature": "sealed too"}
    said = turns(AssistantMessage(SEALED, provider=provider))[0]["content"]
    assert said == [THOUGHT, REDACTED, text("a"), SEARCH, silent, CALL]


def test_parts_signed_by_another_provider_and_unsigned_reasoning_are_not_sent() -> None:
    assert turns(AssistantMessage(SEALED, provider="openai"))[0]["content"] == [text("a"), CALL]
    assert turns(AssistantMessage("a", reasoning="hm"))[0]["content"] == [text("a")]


def test_only_options_that_are_set_are_sent() -> None:
    assert set(encoded(UserMessage("hi"))) == {"model", "max_tokens", "messages"}
    body = encoded(
        UserMessage("hi"),
        stream=True,
        temperature=0.0,
        top_p=0.5,
        max_tokens=9,
        stop=("x",),
        reasoning_effort="low",
        parallel_tool_calls=True,
        extra={"thinking": {"type": "adaptive"}, "output_config": {"task_budget": 1}},
    )
    assert {name: body[name] for name in body.keys() - {"model", "messages"}} == {
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 9,
        "stop_sequences": ["x"],
        "output_config": {"effort": "low", "task_budget": 1},
        "thinking": {"type": "adaptive"},
        "stream": True,
    }


def test_a_seed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="anthropic has no option seed"):
        encoded(UserMessage("hi"), seed=0)


def test_an_output_schema_is_sent_with_closed_objects() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    sent = encoded(UserMessage("hi"), output_schema=schema)["output_config"]
    assert sent == {"format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}}


ONE = {"disable_parallel_tool_use": True}


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        (None, None, None),
        (None, True, None),
        (None, False, {"type": "auto", **ONE}),
        ("auto", None, {"type": "auto"}),
        ("none", False, {"type": "none"}),
        ("required", False, {"type": "any", **ONE}),
        ("weather", True, {"type": "tool", "name": "weather"}),
        ("weather", False, {"type": "tool", "name": "weather", **ONE}),
    ],
)
def test_the_tool_choice_includes_whether_calls_may_be_parallel(choice: Any, parallel: Any, sent: Any) -> None:
    body = encoded(UserMessage("hi"), tools=(WEATHER,), tool_choice=choice, parallel_tool_calls=parallel)
    schema = {"type": "object", "properties": {}}
    assert body["tools"] == [{"name": "weather", "description": "Get it.", "input_schema": schema}]
    assert body.get("tool_choice") == sent
    assert "tool_choice" not in encoded(UserMessage("hi"), tool_choice=choice, parallel_tool_calls=parallel)


def test_tools_are_encoded_once_and_extra_adds_provider_tools() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    first, second = (encoded(UserMessage("hi"), tools=(WEATHER,), extra={"tools": [search]})["tools"] for _ in range(2))
    assert first == second == [*encoded(UserMessage("hi"), tools=(WEATHER,))["tools"], search]
    assert first[0] is second[0]


def test_called_tools_are_declared_but_forbidden_if_no_tools_are_offered() -> None:
    called = AssistantMessage(tool_calls=[ToolCall("weather", "{}", "c1"), ToolCall("weather", "{}", "c2")])
    body = encoded(UserMessage("hi"), called, ToolMessage([result("c1"), result("c2")]), tool_choice="required")
    assert body["tools"] == [{"name": "weather", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}
