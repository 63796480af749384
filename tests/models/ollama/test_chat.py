"""Ollama's chat API: requests, answers, and errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models import recorded
from traced_tools import (
    AssistantMessage,
    ChatOptions,
    ConfigurationError,
    ImagePart,
    Message,
    ModelError,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from traced_tools.core import ReasoningPart, ToolDefinition, ToolResultPart
from traced_tools.errors import ToolDefinitionError
from traced_tools.models import ChatRequest, ChatResponse, OllamaChatModel
from traced_tools.models.base import MADE_UP_ID
from traced_tools.models.folding import ChunkFold
from traced_tools.models.ollama.chat import OllamaChatCodec

SECRET = "the-secret-in-the-body"
CODEC = OllamaChatCodec("m")
WEATHER = ToolDefinition(name="weather", description="Get it.", input_schema={"type": "object"})
DOT = ImagePart(data=b"\x01", media_type="image/gif")
CALL = {"id": "call_1", "function": {"index": 0, "name": "weather", "arguments": {"city": "Oslo"}}}
COUNTS = {"prompt_eval_count": 20, "prompt_eval_cached_count": 15, "eval_count": 5, "total_duration": 9}
END = {"model": "m:8b", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", **COUNTS}


def encoded(*messages: Message, tools: tuple[ToolDefinition, ...] = (), **options: Any) -> dict[str, Any]:
    return CODEC.encode(ChatRequest(messages, tools, ChatOptions(**options)), stream=False)


def sent(message: Message) -> dict[str, Any]:
    (found,) = encoded(message)["messages"]
    return dict(found)


def line(**said: Any) -> dict[str, Any]:
    return {"model": "m:8b", "message": {"role": "assistant", "content": "", **said}, "done": False}


def whole(reason: str = "stop", **said: Any) -> dict[str, Any]:
    return {**END, **line(**said), "done": True, "done_reason": reason}


def decoded(body: object) -> ChatResponse:
    return CODEC.decode(json.dumps(body).encode())


def folded(*lines: object) -> ChatResponse:
    decoder, fold = CODEC.decoder(), ChunkFold()
    for each in lines:
        for chunk in decoder.chunks(each if isinstance(each, str) else json.dumps(each)):
            fold.add(chunk)
    decoder.end()
    return fold.response()


def ndjson(*lines: object) -> bytes:
    return b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in lines)


def model_at(url: str, **http: Any) -> OllamaChatModel:
    return OllamaChatModel("m", base_url=url, retries=0, **http)


# What is sent.


def test_each_message_is_encoded_in_the_format_of_the_api() -> None:
    call = ToolCall("weather", {"city": "Oslo"}, "call_1")
    body = encoded(
        SystemMessage("be brief"),
        UserMessage("hi"),
        AssistantMessage("looking", reasoning="hm", tool_calls=[call]),
        ToolMessage([ToolResultPart(call_id="call_1", name="weather", content="sunny")]),
    )
    assert body == {
        "model": "m",
        "stream": False,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "looking",
                "thinking": "hm",
                "tool_calls": [{"id": "call_1", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}],
            },
            {"role": "tool", "content": "sunny", "tool_name": "weather", "tool_call_id": "call_1"},
        ],
    }


def test_the_stream_field_is_always_sent_because_ollama_streams_by_default() -> None:
    assert [CODEC.encode(recorded.REQUEST, stream=stream)["stream"] for stream in (True, False)] == [True, False]


def test_generated_call_ids_are_not_sent() -> None:
    made_up = f"{MADE_UP_ID}1"
    assert sent(AssistantMessage(tool_calls=[ToolCall("weather", id=made_up), ToolCall("time")]))["tool_calls"] == [
        {"function": {"name": "weather", "arguments": {}}},
        {"function": {"name": "time", "arguments": {}}},
    ]
    results = [ToolResultPart(call_id=made_up, name=name, content=name) for name in ("weather", "time")]
    assert encoded(ToolMessage(results))["messages"] == [
        {"role": "tool", "content": "weather", "tool_name": "weather"},
        {"role": "tool", "content": "time", "tool_name": "time"},
    ]


@pytest.mark.parametrize(("provider", "goes_back"), [("ollama", True), (None, True), ("anthropic", False)])
def test_reasoning_is_sent_to_no_other_provider(provider: str | None, goes_back: bool) -> None:
    message = sent(AssistantMessage("text", reasoning="hm", provider=provider))
    assert (message["content"], message.get("thinking")) == ("text", "hm" if goes_back else None)


@pytest.mark.parametrize("arguments", ["no JSON", "[1]", '{"a": NaN}'])
def test_arguments_that_are_not_an_object_are_wrapped_in_one(arguments: str) -> None:
    (call,) = sent(AssistantMessage(tool_calls=[ToolCall("weather", arguments)]))["tool_calls"]
    assert list(call["function"]["arguments"].values()) == [arguments]


def test_images_are_sent_as_plain_base64_in_all_messages() -> None:
    assert sent(UserMessage([TextPart("what "), DOT, TextPart("is it?")])) == {
        "role": "user",
        "content": "what is it?",
        "images": ["AQ=="],
    }
    result = ToolResultPart(call_id="c", name="draw", content="drawn", images=(DOT, DOT))
    assert sent(ToolMessage([result]))["images"] == ["AQ==", "AQ=="]
    assert sent(AssistantMessage([DOT]))["images"] == ["AQ=="]


def test_an_image_url_is_refused_with_the_alternative() -> None:
    with pytest.raises(ConfigurationError, match=r"ollama accepts no image by url: pass its bytes") as caught:
        encoded(UserMessage([ImagePart(url=f"https://example.org/{SECRET}.png")]))
    assert SECRET not in str(caught.value)


def test_only_options_that_are_set_are_sent() -> None:
    assert set(encoded(UserMessage("hi"))) == {"model", "messages", "stream"}
    body = encoded(
        UserMessage("hi"),
        temperature=0.0,
        top_p=0.5,
        max_tokens=9,
        stop=("x",),
        seed=0,
        output_schema={"type": "object"},
        extra={"keep_alive": "1h", "options": {"num_ctx": 32768, "seed": 1}},
    )
    assert {name: body[name] for name in body.keys() - {"model", "messages", "stream"}} == {
        "options": {"temperature": 0.0, "top_p": 0.5, "num_predict": 9, "stop": ["x"], "seed": 1, "num_ctx": 32768},
        "format": {"type": "object"},
        "keep_alive": "1h",
    }
    assert json.dumps(body)


@pytest.mark.parametrize(("effort", "think"), [("true", True), ("false", False), ("high", "high"), ("max", "max")])
def test_the_reasoning_effort_is_a_level_or_a_boolean(effort: str, think: object) -> None:
    assert encoded(UserMessage("hi"), reasoning_effort=effort)["think"] == think


@pytest.mark.parametrize("options", [{}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}])
def test_tools_are_sent_as_functions(options: dict[str, Any]) -> None:
    assert encoded(UserMessage("hi"), tools=(WEATHER,), **options)["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Get it.",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]


def test_tools_are_omitted_if_calls_are_forbidden() -> None:
    assert "tools" not in encoded(UserMessage("hi"), tools=(WEATHER,), tool_choice="none", parallel_tool_calls=False)


@pytest.mark.parametrize(
    "options", [{"tool_choice": "required"}, {"tool_choice": "weather"}, {"parallel_tool_calls": False}]
)
def test_unsupported_tool_options_are_refused_if_there_are_tools(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"ollama .*{next(iter(options))}"):
        encoded(UserMessage("hi"), tools=(WEATHER,), **options)
    assert "tools" not in encoded(UserMessage("hi"), **options)


def plant(ref: str) -> ToolDefinition:
    leaf = {"type": "object", "properties": {"name": {"type": "string"}}}
    schema = {"type": "object", "properties": {"root": {"$ref": ref}}, "$defs": {"Leaf": leaf}}
    return ToolDefinition(name="plant", input_schema=schema)


def test_references_in_schemas_are_inlined_because_ollama_drops_them() -> None:
    (tool,) = encoded(UserMessage("hi"), tools=(plant("#/$defs/Leaf"),))["tools"]
    assert tool["function"]["parameters"]["properties"]["root"]["properties"] == {"name": {"type": "string"}}


def test_an_unsupported_schema_raises_an_error_that_names_the_tool() -> None:
    with pytest.raises(ToolDefinitionError, match="the tool plant cannot be sent: ") as caught:
        encoded(UserMessage("hi"), tools=(plant("#/$defs/none"),))
    assert caught.value.__cause__ is None


def test_a_tool_is_encoded_once_and_not_per_request() -> None:
    first, second = (encoded(UserMessage("hi"), tools=(WEATHER,))["tools"][0] for _ in range(2))
    assert first is second


# What comes back.


def test_a_whole_answer_is_decoded() -> None:
    response = decoded(whole(content="One moment.", thinking="hm", tool_calls=[CALL]))
    call = ToolCall("weather", {"city": "Oslo"}, "call_1")
    assert response == ChatResponse(
        AssistantMessage("One moment.", reasoning="hm", tool_calls=[call]),
        usage=Usage(input_tokens=20, output_tokens=5, cache_read_tokens=15),
        finish_reason="tool_call",
        model="m:8b",
    )


def test_a_stream_folds_to_the_same_message_as_the_whole_answer() -> None:
    streamed = folded(
        line(thinking="h"),
        line(thinking="m"),
        line(content="One "),
        line(content="moment."),
        line(tool_calls=[CALL]),
        END,
    )
    assert streamed == decoded(whole(content="One moment.", thinking="hm", tool_calls=[CALL]))


def test_several_lines_may_contain_several_calls_each() -> None:
    calls = [{"id": f"call_{place}", "function": {"name": "add", "arguments": {"a": place}}} for place in range(4)]
    streamed = folded(line(tool_calls=calls[:2]), line(tool_calls=calls[2:3]), whole(tool_calls=calls[3:]))
    assert streamed.tool_calls == tuple(ToolCall("add", {"a": place}, f"call_{place}") for place in range(4))
    assert streamed.finish_reason == "tool_call"


def test_a_call_may_lack_its_id_or_arguments() -> None:
    assert decoded(whole(tool_calls=[{"function": {"name": "now"}}])).tool_calls == (ToolCall("now", "{}", None),)
    assert decoded(whole(tool_calls=[{"function": {"name": "now", "arguments": None}}])).tool_calls[0].arguments == "{}"


def test_images_of_an_answer_are_parts_of_it() -> None:
    images = [base64.b64encode(b"a picture").decode()]
    for response in (decoded(whole(content="x", images=images)), folded(line(content="x"), whole(images=images))):
        assert response.message.parts == (TextPart("x"), ImagePart(data=b"a picture"))


@pytest.mark.parametrize(
    ("said", "reason"),
    [("stop", "stop"), ("length", "length"), ("load", "stop"), ("unload", "stop"), ("news", "other"), (None, None)],
)
def test_finish_reasons_are_mapped(said: str | None, reason: str | None) -> None:
    body = {**END, "done_reason": said}
    assert (decoded(body).finish_reason, folded(body).finish_reason) == (reason, reason)


def test_calls_change_the_finish_reason_stop_but_not_length() -> None:
    for said, reason in (("stop", "tool_call"), ("tool_calls", "tool_call"), ("length", "length")):
        assert decoded(whole(said, tool_calls=[CALL])).finish_reason == reason
        assert folded(line(tool_calls=[CALL]), whole(said)).finish_reason == reason


def test_missing_token_counts_are_none() -> None:
    assert decoded({"done": True, "message": {"content": "x"}}).usage is None
    assert decoded({"done": True, "eval_count": 3}).usage == Usage(output_tokens=3)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"{SECRET} is no JSON", "cannot be understood"),
        (json.dumps([SECRET]), "cannot be understood"),
        (json.dumps({"message": SECRET}), "message"),
        (json.dumps(whole(tool_calls=[{"function": {"arguments": SECRET}}])), r"tool_calls\.0\.function\.arguments"),
        (json.dumps(whole(images=[SECRET])), r"message\.images\.0"),
        (json.dumps({}), "not complete"),
        (json.dumps(line(content=SECRET)), "not complete"),
        (json.dumps({"error": SECRET}), "error object"),
    ],
)
def test_an_invalid_body_raises_an_error_that_quotes_nothing(body: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        CODEC.decode(body.encode())
    assert SECRET not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([f"{SECRET} is no JSON"], "a line of the stream cannot be understood"),
        ([line(content="fi"), {"error": f"an error was met: {SECRET}"}], "error object"),
        ([line(content="fi"), {"error": f"overloaded by {SECRET}", "status": 503}], "error object"),
        ([line(content=SECRET), line(tool_calls=[CALL])], "ended before the answer did"),
        ([], "ended before the answer did"),
    ],
)
def test_an_invalid_stream_raises_an_error_that_quotes_nothing(lines: list[Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        folded(*lines)
    assert SECRET not in str(caught.value) + repr(caught.value)


NAMES = st.sampled_from(["message", "content", "tool_calls", "function", "arguments", "images", "error", "done", "id"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_server_answer_raises_only_model_errors(body: Any) -> None:
    for read in (decoded, folded):
        try:
            assert read(body).message.role == "assistant"
        except ModelError as error:
            assert isinstance(error, ModelError) and error.provider == "ollama"


@given(places=st.lists(st.integers(0, 2**20), max_size=40))
def test_a_stream_is_the_same_message_wherever_it_is_cut(places: list[int]) -> None:
    body = ndjson(line(thinking="å\u2028"), line(content="snø ❄\x85"), line(tool_calls=[CALL]), END)
    cut = recorded.ask_in_pieces(model_at, body, "application/x-ndjson", places)
    assert cut.message.parts == (
        ReasoningPart("å\u2028"),
        TextPart("snø ❄\x85"),
        ToolCall("weather", {"city": "Oslo"}, "call_1"),
    )
