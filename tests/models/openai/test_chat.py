"""The codec of chat completions: requests, answers, and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.loops import replies
from tests.models.openai.completions import CODEC, DONE, codec_of, delta, encoded, folded
from tests.modes import run
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ImagePart,
    ModelError,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from traced_tools.core import ToolDefinition, ToolResultPart
from traced_tools.errors import ToolDefinitionError
from traced_tools.models import ChatRequest, OpenAIChatModel
from traced_tools.models.parsing import decode_answer
from traced_tools.testing import ReplayServer

SECRET = "the-secret-in-the-body"
WEATHER = ToolDefinition(name="weather", description="Get it.", input_schema={"type": "object"})


def test_each_message_is_encoded_in_the_format_of_the_api() -> None:
    body = encoded(
        SystemMessage("be brief"),
        UserMessage("hi"),
        AssistantMessage("looking", reasoning="hm", tool_calls=[ToolCall("weather", {"city": "Oslo"}, "c1")]),
        ToolMessage([ToolResultPart(call_id="c1", name="weather", content="sunny")]),
    )
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "looking",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]


def test_images_are_sent_as_url_or_data() -> None:
    parts = [
        TextPart("what is it?"),
        ImagePart(url="https://example.org/a.png"),
        ImagePart(data=b"\x01", media_type="image/gif"),
    ]
    assert encoded(UserMessage(parts))["messages"][0]["content"] == [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,AQ=="}},
    ]


def test_only_options_that_are_set_are_sent() -> None:
    assert set(encoded(UserMessage("hi"))) == {"model", "messages"}
    body = encoded(
        UserMessage("hi"),
        tools=(WEATHER,),
        temperature=0.0,
        top_p=0.5,
        max_tokens=9,
        stop=("x",),
        seed=0,
        tool_choice="weather",
        parallel_tool_calls=False,
        reasoning_effort="low",
        extra={"user": "u"},
    )
    assert {name: body[name] for name in body.keys() - {"model", "messages", "tools"}} == {
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 9,
        "stop": ["x"],
        "seed": 0,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "user": "u",
    }


def test_a_tool_choice_without_tools_is_not_sent() -> None:
    assert "tool_choice" not in encoded(UserMessage("hi"), tool_choice="required")


LEAF = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
STRICT_LEAF = {**LEAF, "additionalProperties": False}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Leaf"}, "size": {"type": "integer", "default": 1}},
    "required": ["root"],
    "$defs": {"Leaf": LEAF},
}


def sent_tool(definition: ToolDefinition, **settings: bool) -> dict[str, Any]:
    (tool,) = encoded(UserMessage("hi"), codec=codec_of(**settings), tools=[definition])["tools"]
    assert tool["type"] == "function"
    return dict(tool["function"])


def test_a_tool_is_sent_with_its_schema_unchanged() -> None:
    definition = ToolDefinition(name="plant", description="Do.", input_schema=TREE)
    assert sent_tool(definition) == {"name": "plant", "description": "Do.", "parameters": TREE}


def test_strict_tools_are_sent_with_schemas_of_strict_mode() -> None:
    sent = sent_tool(ToolDefinition(name="plant", input_schema=TREE), strict_tools=True)
    assert sent["strict"] is True
    assert sent["parameters"] == {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/Leaf"}, "size": {"type": ["integer", "null"]}},
        "required": ["root", "size"],
        "additionalProperties": False,
        "$defs": {"Leaf": STRICT_LEAF},
    }


def test_definitions_are_inlined_for_servers_that_do_not_resolve_references() -> None:
    definition = ToolDefinition(name="plant", input_schema=TREE)
    sent = sent_tool(definition, inline_definitions=True)
    assert "strict" not in sent
    assert sent["parameters"]["properties"]["root"] == LEAF
    both = sent_tool(definition, inline_definitions=True, strict_tools=True)
    assert (both["strict"], both["parameters"]["properties"]["root"]) == (True, STRICT_LEAF)


def test_a_schema_is_encoded_once_per_tool_and_not_per_request() -> None:
    codec = codec_of(strict_tools=True)
    request = ChatRequest((UserMessage("hi"),), (ToolDefinition(name="plant", input_schema=TREE), WEATHER))
    first, second = (codec.encode(request, stream=False)["tools"] for _ in range(2))
    assert [one is other for one, other in zip(first, second, strict=True)] == [True, True]
    again = codec.encode(ChatRequest(request.messages, (WEATHER, *request.tools)), stream=False)["tools"]
    assert [tool["function"]["name"] for tool in again] == ["weather", "plant", "weather"]


def test_a_codec_that_has_encoded_very_many_tools_still_encodes_each_correctly() -> None:
    codec = codec_of()
    tools = tuple(ToolDefinition(name=f"tool_{number}") for number in range(5_000))
    for _ in range(2):
        sent = codec.encode(ChatRequest((UserMessage("hi"),), tools), stream=False)["tools"]
        assert [tool["function"]["name"] for tool in sent] == [tool.name for tool in tools]


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


def test_a_null_required_by_strict_mode_counts_as_omitted(mode: str) -> None:
    def add(a: int, b: int = 2) -> int:
        return a + b

    with ReplayServer(replies(mode, "add", '{"a": 1, "b": null}', "It is 3.")) as server:
        model = OpenAIChatModel("m", base_url=server.url, retries=0, strict_tools=True)
        response = run(mode, ChatClient(model, tools=[add]).prompt("1 + 2"), model)
        function = server.requests[0].json()["tools"][0]["function"]
    assert [result.content for result in response.tool_results] == ["3"]
    assert function["strict"] is True
    assert function["parameters"]["properties"]["b"] == {"type": ["integer", "null"]}


def test_usage_is_requested_on_streams_by_default() -> None:
    assert encoded(UserMessage("hi"), stream=True)["stream_options"] == {"include_usage": True}
    without = codec_of(stream_usage=False)
    assert "stream_options" not in encoded(UserMessage("hi"), codec=without, stream=True)


def test_a_stream_of_fragments_folds_to_one_message() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"ci'}}
    response = folded(
        delta(role="assistant", content=""),
        delta(content="Let me "),
        delta(content="look."),
        delta(tool_calls=[call]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": 'ty":"Oslo"}'}}]),
        delta(tool_calls=[{"index": 1, "id": "c2", "function": {"name": "time", "arguments": "{}"}}]),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        DONE,
    )
    assert response.message == AssistantMessage(
        "Let me look.",
        tool_calls=[ToolCall("weather", '{"city":"Oslo"}', "c1"), ToolCall("time", "{}", "c2")],
    )
    assert (response.finish_reason, response.usage.total_tokens) == ("tool_call", 5)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"{SECRET} is no JSON", "cannot be understood"),
        (json.dumps([SECRET]), "cannot be understood"),
        (json.dumps({"choices": SECRET}), "choices"),
        (json.dumps({"choices": [{"message": {"content": 1, "secret": SECRET}}]}), "choices.0.message.content"),
        (json.dumps({"choices": [{"finish_reason": SECRET}]}), "no message"),
        (json.dumps({"choices": [{"message": {"tool_calls": [{"function": SECRET}]}}]}), "tool_calls.0.function"),
        (json.dumps({"choices": []}), "no message"),
        (json.dumps({"error": {"message": SECRET, "code": "boom"}}), "error object .*boom"),
        (json.dumps({"error": SECRET}), "error object"),
        (json.dumps({"object": "error", "message": SECRET, "type": "invalid_model", "code": "1500"}), "invalid_model"),
        (json.dumps({"detail": SECRET}), "no message"),
    ],
)
def test_an_invalid_body_raises_an_error_that_quotes_nothing(body: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        CODEC.decode(body.encode())
    assert SECRET not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([f"{SECRET} is no JSON"], "a chunk of the stream cannot be understood"),
        ([{"choices": [{"delta": SECRET}]}], "choices.0.delta"),
        ([{"error": {"message": SECRET, "type": "server_error"}}], "error object .*server_error"),
        ([delta(content=SECRET)], "ended before the answer did"),
        ([], "ended before the answer did"),
        ([{"choices": []}, DONE], "no answer"),
        ([{"object": "error", "message": SECRET, "type": "BadRequestError", "code": 400}, DONE], "BadRequestError"),
        ([delta(content="a"), {"choices": [{"delta": {}, "error": {"code": 502, "message": SECRET}}]}], "code 502"),
    ],
)
def test_an_invalid_stream_raises_an_error_that_quotes_nothing(events: list[Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        folded(*events)
    assert SECRET not in str(caught.value) + repr(caught.value)


FIELDS = [
    *(
        "choices",
        "message",
        "delta",
        "index",
        "id",
        "finish_reason",
        "error",
        "object",
        "usage",
        "prompt_tokens_details",
    ),
    *("content", "reasoning", "reasoning_details", "images", "tool_calls", "function_call", "function", "arguments"),
    *("type", "text", "summary", "thinking", "image_url", "url", "name"),
]
VALUES = st.sampled_from(["error", "text", "thinking", "reasoning.text", "stop", "data:;base64,", "data:;base64,?"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=16,
)
ANSWERS = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5)
"""What may stand where a message does."""


@given(JSON | st.builds(lambda said: {"choices": [{"message": said, "delta": said, "finish_reason": "stop"}]}, ANSWERS))
def test_any_server_answer_raises_only_invalid_response(body: Any) -> None:
    text = json.dumps(body)
    for decode in (lambda data: CODEC.decode(data.encode()), folded):
        try:
            decode_answer(decode, text, "openai")
        except ModelError as error:
            assert error.provider == "openai"
