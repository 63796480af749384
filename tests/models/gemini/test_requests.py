"""Requests to Gemini: turns, tools, options, address and key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from traced_tools import (
    AssistantMessage,
    ChatOptions,
    ConfigurationError,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from traced_tools.core import ProviderPart, ReasoningPart, ToolDefinition, ToolResultPart, dump_messages, load_messages
from traced_tools.errors import ToolDefinitionError
from traced_tools.models import ChatRequest, GeminiChatModel
from traced_tools.models.base import MADE_UP_ID
from traced_tools.models.gemini.chat import GeminiChatCodec
from traced_tools.testing import ReplayServer, Reply

SECRET = "the-secret-of-the-test"
CODEC = GeminiChatCodec("gemini-3-flash-preview")
OLDER = GeminiChatCodec("gemini-2.5-flash")
WEATHER = ToolDefinition(name="weather", description="Get it.", input_schema={"type": "object"})
DOT = ImagePart(data=b"\x01", media_type="image/webp")
MAP = ImagePart(url="https://example.org/map")
SENT_DOT = {"inlineData": {"mimeType": "image/webp", "data": "AQ=="}}
SENT_MAP = {"fileData": {"fileUri": "https://example.org/map"}}
NOT_SIGNED = "skip_thought_signature_validator"


def encoded(
    *messages: Message, tools: tuple[ToolDefinition, ...] = (), codec: GeminiChatCodec = CODEC, **options: Any
) -> dict[str, Any]:
    return codec.encode(ChatRequest(messages, tools, ChatOptions(**options)), stream=False)


def turns(*messages: Message, codec: GeminiChatCodec = CODEC) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(turn["role"], turn["parts"]) for turn in encoded(*messages, codec=codec)["contents"]]


def answer(*parts: Any, provider: str | None = "gcp.gemini") -> AssistantMessage:
    return AssistantMessage(parts, provider=provider)


def parts_of(message: AssistantMessage) -> list[dict[str, Any]]:
    ((role, parts),) = turns(message)
    assert role == "model"
    return parts


def result(call_id: str, content: str = "sunny", **fields: Any) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="weather", content=content, **fields)


def responses(*results: ToolResultPart, calls: AssistantMessage) -> list[dict[str, Any]]:
    (_, (role, parts)) = turns(calls, ToolMessage(results))
    assert role == "user"
    return [part["functionResponse"] for part in parts]


# Turns.


def test_each_message_is_encoded_in_the_format_of_the_api() -> None:
    body = encoded(
        SystemMessage("be brief"),
        UserMessage("hi"),
        answer(TextPart("looking"), ToolCall("weather", {"city": "Oslo"}, "c1", signature="sealed")),
        ToolMessage([result("c1")]),
        SystemMessage("be kind"),
    )
    assert body == {
        "systemInstruction": {"parts": [{"text": "be brief"}, {"text": "be kind"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "looking"},
                    {
                        "functionCall": {"name": "weather", "args": {"city": "Oslo"}, "id": "c1"},
                        "thoughtSignature": "sealed",
                    },
                ],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "weather", "response": {"output": "sunny"}, "id": "c1"}}],
            },
        ],
    }


def test_each_signature_is_sent_back_in_its_part() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s6"}
    assert parts_of(
        answer(
            ReasoningPart("hm", signature="s1"),
            ReasoningPart("well"),
            TextPart("a"),
            TextPart("b", signature="s2"),
            TextPart("", signature="s3"),
            ToolCall("weather", signature="s4"),
            ToolCall("weather"),
            ImagePart(data=b"\x01", signature="s5"),
            ProviderPart(json.dumps(code)),
        )
    ) == [
        {"text": "hm", "thought": True, "thoughtSignature": "s1"},
        {"text": "well", "thought": True},
        {"text": "a"},
        {"text": "b", "thoughtSignature": "s2"},
        {"text": "", "thoughtSignature": "s3"},
        {"functionCall": {"name": "weather", "args": {}}, "thoughtSignature": "s4"},
        {"functionCall": {"name": "weather", "args": {}}},
        {"inlineData": {"mimeType": "image/png", "data": "AQ=="}, "thoughtSignature": "s5"},
        code,
    ]


def test_parts_signed_by_another_provider_are_not_sent_and_its_first_call_gets_a_placeholder_signature() -> None:
    calls = answer(
        ReasoningPart("hm", signature="theirs"),
        ProviderPart("{}"),
        TextPart("a", signature="theirs"),
        TextPart("", signature="theirs"),
        ImagePart(data=b"\x01", signature="theirs"),
        ToolCall("weather", {"city": "Oslo"}, "their-1", signature="theirs"),
        ToolCall("weather", {"city": "Rome"}, "their-2"),
        provider="openai",
    )
    assert parts_of(calls) == [
        {"text": "a"},
        {"inlineData": {"mimeType": "image/png", "data": "AQ=="}},
        {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": NOT_SIGNED},
        {"functionCall": {"name": "weather", "args": {"city": "Rome"}}},
    ]
    assert NOT_SIGNED not in str(turns(calls, codec=OLDER))
    assert ["id" in each for each in responses(result("their-1"), result("their-2"), calls=calls)] == [False, False]


def test_an_answer_without_a_provider_keeps_its_signatures() -> None:
    signed, not_signed = ToolCall("weather", signature="s1"), ToolCall("weather")
    call = {"name": "weather", "args": {}}
    assert parts_of(answer(ReasoningPart("hm", signature="s0"), signed, provider=None)) == [
        {"text": "hm", "thought": True, "thoughtSignature": "s0"},
        {"functionCall": call, "thoughtSignature": "s1"},
    ]
    assert parts_of(answer(not_signed, provider=None)) == [{"functionCall": call, "thoughtSignature": NOT_SIGNED}]


def test_an_empty_turn_is_omitted() -> None:
    said = turns(UserMessage("hi"), answer(), answer(TextPart("")), ToolMessage([]), UserMessage(), UserMessage("so?"))
    assert said == [("user", [{"text": "hi"}]), ("user", [{"text": "so?"}])]


# Results.


def test_a_call_id_is_sent_only_if_gemini_assigned_it() -> None:
    made_up = f"{MADE_UP_ID}1"
    calls = answer(ToolCall("weather", id="c1"), ToolCall("weather", id=made_up))
    assert [part["functionCall"].get("id") for part in parts_of(calls)] == ["c1", None]
    assert [each.get("id") for each in responses(result("c1"), result(made_up, "rain"), calls=calls)] == ["c1", None]


def test_results_of_one_batch_are_one_turn_in_the_order_of_the_calls() -> None:
    calls = answer(ToolCall("weather"), ToolCall("weather"))
    for messages in (
        [ToolMessage([result("x", "1"), result("y", "2")])],
        [ToolMessage([result("x", "1")]), ToolMessage([result("y", "2")])],
    ):
        (_, (_, parts)) = turns(calls, *messages)
        assert [part["functionResponse"]["response"] for part in parts] == [{"output": "1"}, {"output": "2"}]


@pytest.mark.parametrize("text", ["sunny", "", "[1]", '{"id": 9007199254740993, "$ref": "#/x", "error": null}'])
def test_a_result_is_sent_as_text_whatever_the_text_looks_like(text: str) -> None:
    (said,) = responses(result("c1", text), calls=answer(ToolCall("weather", id="c1")))
    assert said["response"] == {"output": text}


def test_an_error_result_is_marked_as_one() -> None:
    (said,) = responses(result("c1", "no route", is_error=True), calls=answer(ToolCall("weather", id="c1")))
    assert said["response"] == {"error": "no route"}


def test_arguments_that_are_not_an_object_are_sent_as_text_in_one() -> None:
    call = ToolCall("weather", '{"city": ', signature="s")
    assert parts_of(answer(call))[0]["functionCall"]["args"] == {"invalid_arguments": '{"city": '}


def test_images_are_sent_as_bytes_or_url() -> None:
    typed = ImagePart(url="https://example.org/b", media_type="image/jpeg")
    parts = [TextPart("what is it?"), DOT, MAP, typed]
    ((_, sent),) = turns(UserMessage(parts))
    assert sent == [
        {"text": "what is it?"},
        SENT_DOT,
        SENT_MAP,
        {"fileData": {"fileUri": "https://example.org/b", "mimeType": "image/jpeg"}},
    ]


def test_images_of_a_result_are_part_of_it() -> None:
    calls = answer(ToolCall("weather", id="c1"), ToolCall("weather", id="c2"))
    said = responses(result("c1", images=(DOT, MAP)), result("c2"), calls=calls)
    assert [each.get("parts") for each in said] == [[SENT_DOT, SENT_MAP], None]


def test_images_of_results_follow_as_user_content_for_models_that_refuse_them_in_results() -> None:
    calls = answer(ToolCall("weather", id="c1"), ToolCall("weather", id="c2"))
    batch = ToolMessage([result("c1", images=(DOT,)), result("c2", images=(MAP,))])
    (_, (_, results), after, last) = turns(calls, batch, UserMessage("nice"), codec=OLDER)
    assert [set(part["functionResponse"]) for part in results] == [{"name", "response", "id"}] * 2
    said = {"text": "Images returned by the tool weather:"}
    assert after == ("user", [said, SENT_DOT, said, SENT_MAP])
    assert last == ("user", [{"text": "nice"}])


def test_a_conversation_is_sent_the_same_after_it_was_stored() -> None:
    said = [
        answer(TextPart("", signature="s"), DOT, ProviderPart('{"toolCall": {"id": "t"}}')),
        answer(ToolCall("weather", id="c1", signature="s"), provider="openai"),
        ToolMessage([result("c1", images=(DOT,))]),
    ]
    assert turns(*load_messages(dump_messages(said))) == turns(*said)


# Tools and options.


def test_the_schema_of_a_tool_is_sent_without_references() -> None:
    leaf = {"type": "object", "properties": {"name": {"type": "string"}}}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"root": {"$ref": "#/definitions/Leaf", "description": "Where."}},
        "definitions": {"Leaf": leaf},
    }
    tool = ToolDefinition(name="plant", description="Do.", input_schema=schema)
    expected = {"type": "object", "properties": {"root": {**leaf, "description": "Where."}}}
    assert encoded(UserMessage("hi"), tools=(tool, WEATHER))["tools"] == [
        {
            "functionDeclarations": [
                {"name": "plant", "description": "Do.", "parametersJsonSchema": expected},
                {
                    "name": "weather",
                    "description": "Get it.",
                    "parametersJsonSchema": {"type": "object", "properties": {}},
                },
            ]
        }
    ]
    (first,), (second,) = (encoded(UserMessage("hi"), tools=(tool,))["tools"] for _ in range(2))
    assert first["functionDeclarations"][0] is second["functionDeclarations"][0]


def test_an_unsupported_schema_raises_an_error_that_names_its_owner() -> None:
    schema = {"type": "object", "properties": {"any": {"$ref": "#/$defs/none"}}}
    with pytest.raises(ToolDefinitionError, match="the tool plant cannot be sent: "):
        encoded(UserMessage("hi"), tools=(ToolDefinition(name="plant", input_schema=schema),))
    with pytest.raises(ConfigurationError, match="output_schema cannot be sent: "):
        encoded(UserMessage("hi"), output_schema=schema)


def test_only_options_that_are_set_are_sent() -> None:
    assert set(encoded(UserMessage("hi"))) == {"contents"}
    body = encoded(
        UserMessage("hi"),
        temperature=0.0,
        top_p=0.5,
        max_tokens=9,
        stop=("x",),
        seed=0,
        reasoning_effort="low",
        output_schema={"$ref": "#/$defs/City", "$defs": {"City": {"type": "string"}}},
    )
    assert body["generationConfig"] == {
        "temperature": 0.0,
        "topP": 0.5,
        "maxOutputTokens": 9,
        "stopSequences": ["x"],
        "seed": 0,
        "thinkingConfig": {"thinkingLevel": "low"},
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "string"},
    }


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("weather", {"mode": "ANY", "allowedFunctionNames": ["weather"]}),
    ],
)
def test_a_tool_choice_is_a_mode_of_calling(choice: str, sent: dict[str, Any]) -> None:
    body = encoded(UserMessage("hi"), tools=(WEATHER,), tool_choice=choice, parallel_tool_calls=True)
    assert body["toolConfig"] == {"functionCallingConfig": sent}


def test_without_tools_no_tool_choice_is_sent() -> None:
    assert set(encoded(UserMessage("hi"), tool_choice="required", parallel_tool_calls=False)) == {"contents"}


def test_an_unsupported_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"gcp\.gemini .* parallel_tool_calls"):
        encoded(UserMessage("hi"), tools=(WEATHER,), parallel_tool_calls=False)


def test_extra_adds_to_the_objects_and_lists_of_the_body() -> None:
    settings = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    body = encoded(
        UserMessage("hi"),
        tools=(WEATHER,),
        max_tokens=9,
        temperature=0.5,
        extra={
            "generationConfig": {"temperature": 1.0, "topK": 3},
            "tools": [{"googleSearch": {}}],
            "safetySettings": settings,
        },
    )
    assert body["generationConfig"] == {"temperature": 1.0, "maxOutputTokens": 9, "topK": 3}
    assert [list(tool) for tool in body["tools"]] == [["functionDeclarations"], ["googleSearch"]]
    assert body["safetySettings"] == settings


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-2.5-flash", "/models/gemini-2.5-flash"),
        ("models/gemini-2.5-flash", "/models/gemini-2.5-flash"),
        ("tunedModels/my-own", "/tunedModels/my-own"),
        ("../x?key=1#y", "/models/..%2Fx%3Fkey%3D1%23y"),
        ("models/a/b:c", "/models/a%2Fb%3Ac"),
    ],
)
def test_the_model_is_named_in_the_path_and_the_key_in_a_header(model: str, path: str) -> None:
    body = {"candidates": [{"content": {"parts": [{"text": "ok"}]}, "finishReason": "STOP"}]}
    with ReplayServer([Reply.json(body), Reply.sse([body])]) as server:
        request = ChatRequest((UserMessage("hi"),))
        with GeminiChatModel(model, base_url=f"{server.url}/v1beta/", api_key=SECRET, retries=0) as gemini:
            assert gemini.call(request).message.text == "ok"
            assert "".join(chunk.text for chunk in gemini.stream(request)) == "ok"
    assert [each.path for each in server.requests] == [
        f"/v1beta{path}:generateContent",
        f"/v1beta{path}:streamGenerateContent?alt=sse",
    ]
    assert [each.headers["x-goog-api-key"] for each in server.requests] == [SECRET, SECRET]


@pytest.fixture
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_server_and_key_come_from_the_same_variables_as_in_googles_clients(
    empty_environment: pytest.MonkeyPatch,
) -> None:
    body = {"candidates": [{"content": {"parts": [{"text": "ok"}]}, "finishReason": "STOP"}]}
    with ReplayServer([Reply.json(body), Reply.json(body)]) as server:
        empty_environment.setenv("GOOGLE_GEMINI_BASE_URL", f"{server.url}/")
        for name, key in (("GEMINI_API_KEY", "second"), ("GOOGLE_API_KEY", "first")):
            empty_environment.setenv(name, key)
            with GeminiChatModel("m", retries=0) as model:
                model.call(ChatRequest((UserMessage("hi"),)))
                assert "second" not in repr(model) + repr(vars(model))
    assert [each.headers["x-goog-api-key"] for each in server.requests] == ["second", "first"]
    assert server.requests[0].path == "/v1beta/models/m:generateContent"
