"""Requests to the Responses API: conversations, tools, options, and earlier answers."""

from __future__ import annotations

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
from traced_tools.errors import ToolDefinitionError
from traced_tools.models import ChatRequest, OpenAIResponsesModel
from traced_tools.models.openai.responses import OpenAIResponsesCodec

SECRET = "the-secret-key"
CODEC = OpenAIResponsesCodec("m", provider="openai")
WEATHER = ToolDefinition(name="weather", description="Get it.", input_schema={"type": "object"})
DOT = ImagePart(data=b"\x01", media_type="image/gif")
SENT_DOT = {"type": "input_image", "image_url": "data:image/gif;base64,AQ==", "detail": "auto"}
SENT_CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
STATELESS = {"store": False}


def encoded(
    *messages: Any, tools: tuple[ToolDefinition, ...] = (), stream: bool = False, **options: Any
) -> dict[str, Any]:
    return CODEC.encode(ChatRequest(messages, tools, ChatOptions(**options)), stream=stream)


def items(*messages: Any, **options: Any) -> list[dict[str, Any]]:
    return list(encoded(*messages, **options)["input"])


def call(signature: str | None = None) -> ToolCall:
    return ToolCall("weather", {"city": "Oslo"}, "c1", signature=signature)


def test_each_message_becomes_items() -> None:
    assert items(
        SystemMessage("be brief"),
        UserMessage("hi"),
        AssistantMessage("looking", reasoning="hm", tool_calls=[call()]),
        ToolMessage([ToolResultPart(call_id="c1", name="weather", content="no such city", is_error=True)]),
        SystemMessage("be kind"),
    ) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "looking"},
        SENT_CALL,
        {"type": "function_call_output", "call_id": "c1", "output": "no such city"},
        {"role": "system", "content": "be kind"},
    ]


def test_images_are_sent_as_url_or_data() -> None:
    parts = [TextPart("what is it?"), ImagePart(url="https://example.org/a.png"), DOT]
    (user,) = items(UserMessage(parts))
    assert user["content"] == [
        {"type": "input_text", "text": "what is it?"},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
        SENT_DOT,
    ]


def test_several_text_parts_of_the_user_are_joined() -> None:
    assert items(UserMessage([TextPart("a"), TextPart("b")])) == [{"role": "user", "content": "ab"}]


def test_images_of_a_result_are_sent_in_the_result() -> None:
    results = [
        ToolResultPart(call_id="c1", name="draw", content="drawn", images=(DOT,)),
        ToolResultPart(call_id="c2", name="draw", content="nothing"),
    ]
    assert items(ToolMessage(results)) == [
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "drawn"}, SENT_DOT],
        },
        {"type": "function_call_output", "call_id": "c2", "output": "nothing"},
    ]


def test_only_options_that_are_set_are_sent() -> None:
    assert encoded(UserMessage("hi")) == {"model": "m", "input": [{"role": "user", "content": "hi"}]}
    body = encoded(
        UserMessage("hi"),
        tools=(WEATHER,),
        stream=True,
        temperature=0.0,
        top_p=0.5,
        max_tokens=9,
        tool_choice="weather",
        parallel_tool_calls=False,
        reasoning_effort="low",
        extra={"user": "u"},
    )
    assert {name: body[name] for name in body.keys() - {"model", "input", "tools"}} == {
        "stream": True,
        "temperature": 0.0,
        "top_p": 0.5,
        "max_output_tokens": 9,
        "tool_choice": {"type": "function", "name": "weather"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "user": "u",
    }


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_tool_choice_keyword_is_sent_unchanged(choice: str) -> None:
    assert encoded(UserMessage("hi"), tools=(WEATHER,), tool_choice=choice)["tool_choice"] == choice


def test_a_tool_choice_without_tools_is_not_sent() -> None:
    body = encoded(UserMessage("hi"), tool_choice="required", parallel_tool_calls=True)
    assert body.keys() == {"model", "input"}


@pytest.mark.parametrize("option", [{"stop": ("x",)}, {"seed": 1}])
def test_an_unsupported_option_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"openai has no option {next(iter(option))}"):
        encoded(UserMessage("hi"), **option)


def test_extra_fields_extend_objects_and_lists() -> None:
    body = encoded(
        UserMessage("hi"),
        tools=(WEATHER,),
        reasoning_effort="low",
        output_schema={"type": "object"},
        extra={
            "reasoning": {"summary": "auto"},
            "text": {"verbosity": "low"},
            "tools": [{"type": "web_search"}],
            "include": ["reasoning.encrypted_content"],
            "store": False,
            "model": "n",
        },
    )
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert body["text"].keys() == {"format", "verbosity"}
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
    assert (body["include"], body["store"], body["model"]) == (["reasoning.encrypted_content"], False, "n")


ANSWER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def test_an_output_schema_is_strict_if_strict_mode_has_the_same_meaning() -> None:
    body = encoded(UserMessage("hi"), output_schema={**ANSWER, "title": "A city"})
    exact = {**ANSWER, "additionalProperties": False}
    assert body["text"] == {"format": {"type": "json_schema", "name": "A_city", "schema": exact, "strict": True}}
    loose = {"type": "object", "properties": {"city": {"type": "string"}}}
    body = encoded(UserMessage("hi"), output_schema=loose)
    assert body["text"] == {"format": {"type": "json_schema", "name": "answer", "schema": loose, "strict": False}}


LEAF = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Leaf"}, "size": {"type": "integer", "default": 1}},
    "required": ["root"],
    "$defs": {"Leaf": LEAF},
}
PLANT = ToolDefinition(name="plant", description="Do.", input_schema=TREE)


def sent_tool(definition: ToolDefinition, **settings: bool) -> dict[str, Any]:
    codec = OpenAIResponsesCodec("m", provider="openai", **settings)
    (tool,) = codec.encode(ChatRequest((UserMessage("hi"),), (definition,)), stream=False)["tools"]
    return dict(tool)


def test_a_tool_is_sent_unchanged_and_marked_as_not_strict() -> None:
    expected = {"type": "function", "name": "plant", "description": "Do.", "parameters": TREE, "strict": False}
    assert sent_tool(PLANT) == expected


def test_strict_tools_are_sent_with_schemas_of_strict_mode() -> None:
    sent = sent_tool(PLANT, strict_tools=True)
    assert sent["strict"] is True
    assert (sent["parameters"]["required"], sent["parameters"]["additionalProperties"]) == (["root", "size"], False)


def test_definitions_are_inlined_for_servers_that_do_not_resolve_references() -> None:
    sent = sent_tool(PLANT, inline_definitions=True)
    assert (sent["parameters"]["properties"]["root"], sent["strict"]) == (LEAF, False)


def test_a_schema_is_encoded_once_per_tool_and_not_per_request() -> None:
    request = ChatRequest((UserMessage("hi"),), (PLANT, WEATHER))
    first, second = (CODEC.encode(request, stream=False)["tools"] for _ in range(2))
    assert [one is other for one, other in zip(first, second, strict=True)] == [True, True]


@pytest.mark.parametrize(
    "field", [{}, {"type": "object", "additionalProperties": {"type": "string"}}, {"propertyNames": {"pattern": "^x"}}]
)
def test_a_tool_that_strict_mode_cannot_express_is_sent_without_it(
    field: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"type": "object", "properties": {"any": field}}
    sent = sent_tool(ToolDefinition(name="plant", input_schema=schema), strict_tools=True)
    assert not sent.get("strict")
    assert sent["parameters"] == schema
    assert "the tool plant is sent without strict mode: strict mode refuses any" in caplog.text


def test_an_unsupported_schema_raises_an_error_that_names_the_tool() -> None:
    schema = {"type": "object", "properties": {"any": {"$ref": "#/$defs/none"}, "more": {}}}
    with pytest.raises(ToolDefinitionError, match="the tool plant cannot be sent: ") as caught:
        sent_tool(ToolDefinition(name="plant", input_schema=schema), inline_definitions=True)
    assert caught.value.__cause__ is None


# Answers that go back.

THOUGHTS = [
    ReasoningPart("First.", id="rs_1"),
    ReasoningPart("Then.", id="rs_1", signature="xyz"),
    ReasoningPart("", id="rs_2", signature="abc"),
]
SENT_THOUGHTS = [
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}],
        "encrypted_content": "xyz",
    },
    {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "abc"},
]
BARE = ReasoningPart("", id="rs_1")
SENT_BARE = {"type": "reasoning", "id": "rs_1", "summary": []}
RECORD = ProviderPart('{"type": "message", "id": "msg_1", "phase": "commentary"}')
SENT_TEXT = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    "phase": "commentary",
}
ANSWERED = [TextPart("I look."), RECORD, call('{"id": "fc_1", "namespace": "maps"}')]


def answered(*parts: Any, provider: str | None = "openai") -> AssistantMessage:
    return AssistantMessage(parts, provider=provider)


def test_reasoning_is_sent_back_as_one_item_per_id_and_the_following_items_with_their_ids() -> None:
    sent_call = {**SENT_CALL, "id": "fc_1", "namespace": "maps"}
    assert items(answered(*THOUGHTS, *ANSWERED)) == [*SENT_THOUGHTS, SENT_TEXT, sent_call]
    assert items(answered(BARE, *ANSWERED)) == [SENT_BARE, SENT_TEXT, sent_call]


def test_item_ids_are_omitted_if_no_reasoning_is_sent() -> None:
    message = {"type": "message", "role": "assistant", "content": "I look.", "phase": "commentary"}
    assert items(answered(*ANSWERED)) == [message, {**SENT_CALL, "namespace": "maps"}]
    assert items(answered(ReasoningPart("hm"), *ANSWERED)) == [message, {**SENT_CALL, "namespace": "maps"}]


def test_a_server_that_stores_nothing_gets_only_complete_reasoning() -> None:
    untied = [
        {"type": "message", "role": "assistant", "content": "I look.", "phase": "commentary"},
        {**SENT_CALL, "namespace": "maps"},
    ]
    assert items(answered(*THOUGHTS, *ANSWERED), extra=STATELESS) == [*SENT_THOUGHTS, *untied]
    assert items(answered(BARE, *ANSWERED), extra=STATELESS) == untied


def test_reasoning_without_an_id_is_sent_back_without_one() -> None:
    expected = {"type": "reasoning", "summary": [], "encrypted_content": "xyz"}
    assert items(answered(ReasoningPart("", signature="xyz"), call())) == [expected, SENT_CALL]


def test_opaque_parts_are_sent_back_unchanged() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "action": {"query": "Oslo"}}
    thought = {"type": "reasoning", "id": "1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    parts = [
        ReasoningPart("hm"),
        ProviderPart(str(thought).replace("'", '"')),
        ProviderPart(str(search).replace("'", '"')),
    ]
    assert items(answered(*parts, call())) == [thought, search, SENT_CALL]


def test_parts_signed_by_another_provider_are_not_sent() -> None:
    message = answered(*THOUGHTS, *ANSWERED, ProviderPart('{"type": "new"}'), provider="anthropic")
    assert items(message) == [{"role": "assistant", "content": "I look."}, SENT_CALL]


def test_parts_of_an_answer_without_a_provider_are_sent() -> None:
    assert items(answered(*THOUGHTS, call(), provider=None)) == [*SENT_THOUGHTS, SENT_CALL]


def test_reasoning_at_the_end_of_an_answer_is_not_sent_because_the_api_refuses_it() -> None:
    thought = ReasoningPart("Cut short.", id="rs_3")
    assert items(answered(thought)) == []
    assert items(answered(*THOUGHTS, *ANSWERED, thought, RECORD)) == items(answered(*THOUGHTS, *ANSWERED))


def test_reasoning_details_of_chat_completions_are_not_sent() -> None:
    assert items(answered(ProviderPart('{"type": "reasoning.text", "text": "hm"}'), call())) == [SENT_CALL]


def test_an_opaque_message_part_without_its_text_is_omitted() -> None:
    assert items(answered(RECORD)) == []
    assert items(answered(call(), RECORD)) == [SENT_CALL]


def test_images_in_answers_are_omitted() -> None:
    assert items(answered(TextPart("a dot"), DOT)) == [{"role": "assistant", "content": "a dot"}]


@pytest.mark.parametrize("signature", ["no JSON", "[1]", '"text"', "[" * 100_000])
def test_a_signature_of_another_api_is_omitted(signature: str) -> None:
    assert items(answered(call(signature), provider=None)) == [SENT_CALL]


def test_arguments_that_are_not_an_object_are_wrapped_in_one() -> None:
    (sent,) = items(AssistantMessage(tool_calls=[ToolCall("weather", '{"city": ', "c1")]))
    assert sent["arguments"] == '{"invalid_arguments": "{\\"city\\": "}'


# The model.


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DEEPSEEK_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_environment")
def test_a_known_server_without_a_key_raises_an_error_that_names_the_variable() -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        OpenAIResponsesModel("gpt-5-mini")
    with pytest.raises(ConfigurationError, match="DEEPSEEK_API_KEY"):
        OpenAIResponsesModel("deepseek-v4-flash", base_url="https://api.deepseek.com")


@pytest.mark.usefixtures("no_environment")
def test_the_provider_is_derived_from_the_address_by_default() -> None:
    def provider(base_url: str, **given: str) -> str:
        return OpenAIResponsesModel("m", base_url=base_url, api_key="k", **given).provider

    assert provider("http://127.0.0.1:1/v1") == "openai"
    assert provider("https://api.deepseek.com") == "deepseek"
    assert provider("https://api.deepseek.com", provider="mine") == "mine"
