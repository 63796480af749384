"""Any conversation, whoever wrote its messages in whatever order: the request follows the known rules of its API.

A rule is one whose violation the API answers with a 400; each check names its rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sweeps import check_each
from traced_tools import AssistantMessage, ImagePart, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from traced_tools.core import ProviderPart, ReasoningPart, ToolDefinition, ToolResultPart
from traced_tools.models import ChatRequest
from traced_tools.models.anthropic.chat import AnthropicChatCodec
from traced_tools.models.base import MADE_UP_ID
from traced_tools.models.codec import Codec
from traced_tools.models.gemini.chat import GeminiChatCodec
from traced_tools.models.http.transport import _encode_json
from traced_tools.models.ollama.chat import OllamaChatCodec
from traced_tools.models.openai.chat import OpenAIChatCodec
from traced_tools.models.openai.responses import OpenAIResponsesCodec
from traced_tools.models.openai.servers import resolve_server

DOT = ImagePart(data=b"\x01")
PROVIDERS = ("openai", "anthropic", "gcp.gemini", "mistral_ai", "openrouter", "deepseek", "ollama")
SEAL = "my-seal"
DETAIL = json.dumps({"type": "reasoning.encrypted", "data": SEAL})
CODECS: dict[str, Codec] = {
    "openai": OpenAIChatCodec("m", resolve_server("https://api.openai.com", None)),
    "mistral_ai": OpenAIChatCodec("m", resolve_server("https://api.mistral.ai", None)),
    "openrouter": OpenAIChatCodec("m", resolve_server("https://openrouter.ai", None)),
    "deepseek": OpenAIChatCodec("m", resolve_server("https://api.deepseek.com", None)),
    "perplexity": OpenAIChatCodec("m", resolve_server("https://api.perplexity.ai", None)),
    "responses": OpenAIResponsesCodec("m", provider="openai"),
    "anthropic": AnthropicChatCodec("m", max_tokens=9),
    "gcp.gemini": GeminiChatCodec("gemini-3-flash"),
    "ollama": OllamaChatCodec("m"),
}


def encoded(name: str, *messages: Any) -> dict[str, Any]:
    return CODECS[name].encode(ChatRequest(messages), stream=False)


# Conversations.

texts = st.sampled_from(["", " \n", "hi", "🌧"])
system = texts.map(SystemMessage)
user_parts = st.lists(texts.map(TextPart) | st.just(DOT), max_size=3)
user = (texts | user_parts).map(UserMessage)
ids = st.lists(st.sampled_from(["0", "functions.f:0", "functions_f:0", f"{MADE_UP_ID}1", "abcdefgh1"]), unique=True)
sealed = st.sampled_from(
    [
        (),
        (ReasoningPart("hm"),),
        (ReasoningPart("hm", signature=SEAL),),
        (ReasoningPart("", signature=SEAL, id="rs_1"),),
        (TextPart("", signature=SEAL),),
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> list[Any]:
    """Draw an answer of some provider's, with the results of its calls and what may stand among them."""
    called = draw(ids)
    calls = [ToolCall("f", draw(st.sampled_from(["{}", '{"a": ', "[1]"])), each) for each in called]
    said = [TextPart(draw(texts))] if draw(st.booleans()) else []
    parts = [*draw(sealed), *said, *calls, *draw(sealed)]
    results = [
        ToolResultPart(call_id=each, name="f", content=draw(texts), images=images, is_error=draw(st.booleans()))
        for each in called
        for images in [draw(st.sampled_from([(), (DOT,)]))]
    ]
    split = draw(st.integers(0, len(results)))
    batches = [ToolMessage(results[:split]), ToolMessage(results[split:])]
    by = draw(st.none() | st.sampled_from(PROVIDERS))
    return [AssistantMessage(parts, provider=by), *(batch for batch in batches if batch.results)]


turns = st.lists(st.one_of(answers(), user.map(lambda message: [message]), system.map(lambda message: [message])))
conversations = st.builds(lambda found: (UserMessage("go"), *chain.from_iterable(found), UserMessage("so?")), turns)


# Rules.


def obeys_openai(body: dict[str, Any]) -> None:
    """The results of an answer's calls follow it at once, each once."""
    messages = body["messages"]
    for number, message in enumerate(messages):
        asked = [call["id"] for call in message.get("tool_calls", ())]
        following = messages[number + 1 : number + 1 + len(asked)]
        assert [each.get("tool_call_id") for each in following] == asked
    assert sum(len(each.get("tool_calls", ())) for each in messages) == sum("tool_call_id" in each for each in messages)


def obeys_mistral(body: dict[str, Any]) -> None:
    """As OpenAI; an answer says something, no user follows a result, instructions follow none but the user and each
    other."""
    obeys_openai(body)
    for before, after in pairwise(each["role"] for each in body["messages"]):
        assert (before, after) not in {("tool", "user"), ("tool", "system"), ("assistant", "system")}
    for message in body["messages"]:
        assert message["role"] != "assistant" or message.get("content") or message.get("tool_calls")


def obeys_perplexity(body: dict[str, Any]) -> None:
    """As OpenAI; instructions come first, and the user never speaks twice at a stretch."""
    obeys_openai(body)
    for before, after in pairwise(each["role"] for each in body["messages"]):
        assert after != "system" or before == "system"
        assert (before, after) != ("user", "user")


def obeys_responses(body: dict[str, Any]) -> None:
    """Each call has its result, and reasoning is followed by what it led to."""
    items = body["input"]
    asked = [item["call_id"] for item in items if item.get("type") == "function_call"]
    assert asked == [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    for item, following in pairwise([*items, {"role": "user"}]):
        if item.get("type") == "reasoning":
            assert following.get("type") in ("function_call", "message", "reasoning") or "role" in following
            assert following.get("role", "assistant") == "assistant"
            assert following.get("type") != "function_call_output"


def obeys_anthropic(body: dict[str, Any]) -> None:
    """Turns take turns; ids are unique, and answered in the next turn before anything else; no text is blank; a result
    that is an error is a text."""
    said = body["messages"]
    assert all(before["role"] != after["role"] for before, after in pairwise(said))
    blocks = [block for turn in said for block in turn["content"]]
    given_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert len(set(given_ids)) == len(given_ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", each) for each in given_ids)
    for turn, following in pairwise([*said, {"content": []}]):
        asked = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        assert [block.get("tool_use_id") for block in following["content"][: len(asked)]] == asked
    for turn in said:
        assert turn["role"] == "user" or turn["content"][-1]["type"] not in ("thinking", "redacted_thinking")
    for block in blocks:
        assert block["type"] != "text" or block["text"].strip()
        if block.get("is_error"):
            assert {each["type"] for each in block["content"]} == {"text"}


def obeys_gemini(body: dict[str, Any]) -> None:
    """Calls follow the user and are answered in the next turn, each once; no text is empty, the first call signed."""
    said = body["contents"]
    for number, turn in enumerate(said):
        assert turn["parts"]
        assert all(part.get("text") != "" or "thoughtSignature" in part for part in turn["parts"])
        asked = [part for part in turn["parts"] if "functionCall" in part]
        answered = [
            part for each in said[number + 1 : number + 2] for part in each["parts"] if "functionResponse" in part
        ]
        assert len(answered) == len(asked)
        assert not asked or (number and said[number - 1]["role"] == "user")
        assert not asked or "thoughtSignature" in asked[0]


RULES: dict[str, Callable[[dict[str, Any]], None]] = {
    "openai": obeys_openai,
    "deepseek": obeys_openai,
    "perplexity": obeys_perplexity,
    "openrouter": obeys_openai,
    "mistral_ai": obeys_mistral,
    "responses": obeys_responses,
    "anthropic": obeys_anthropic,
    "gcp.gemini": obeys_gemini,
}


@pytest.mark.parametrize("name", RULES)
@given(conversation=conversations)
def test_any_conversation_is_encoded_by_the_rules_of_the_api(name: str, conversation: tuple[Any, ...]) -> None:
    RULES[name](encoded(name, *conversation))


NOT_STRICT = [
    *('{"x": "cut', '{"x": "a\nb"}', "[1]", '"x"', "null", "", "{} {}", '{"x": NaN}', '{"x": [Infinity]}'),
    *('{"x": -Infinity}', '{"x": 1e999}', '{"x": "\\ud83d"}', '{"\\udc00": 1}', '{"x": ' + "[" * 99_999),
]


def objects_in(body: Any) -> Iterator[Any]:
    """Yield the arguments of each call in a request, read by a strict parser if they are a text."""
    match body:
        case {"arguments": str(text)}:
            yield json.loads(text, parse_constant=pytest.fail)
        case {"arguments": dict(found)} | {"type": "tool_use", "input": found} | {"functionCall": {"args": found}}:
            yield found
        case dict():
            yield from chain.from_iterable(map(objects_in, body.values()))
        case list():
            yield from chain.from_iterable(map(objects_in, body))


@pytest.mark.parametrize("name", CODECS)
def test_arguments_that_a_strict_parser_refuses_are_never_sent_as_they_are(name: str) -> None:
    def check(text: str) -> None:
        called = AssistantMessage(tool_calls=[ToolCall("f", text, "abcdefgh1")])
        result = ToolMessage([ToolResultPart(call_id="abcdefgh1", name="f", content="\ud83d NaN", is_error=True)])
        body = json.loads(_encode_json(encoded(name, UserMessage("go \udc00"), called, result)).decode())
        (sent,) = objects_in(body)
        assert isinstance(sent, dict)
        json.dumps(sent, allow_nan=False, ensure_ascii=False).encode()

    check_each(NOT_STRICT, check)


# Seals.

SEALED: dict[str, Any] = {
    "anthropic": ReasoningPart("hm", signature=SEAL),
    "gcp.gemini": ToolCall("f", signature=SEAL),
    "responses": ReasoningPart("", signature=SEAL, id="rs_1"),
    "openrouter": ProviderPart(DETAIL),
    "mistral_ai": ProviderPart(json.dumps({"type": "reference", "id": SEAL})),
}


def owner(name: str) -> str:
    return {"responses": "openai"}.get(name, name)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("by", SEALED)
def test_a_signature_is_sent_back_only_to_its_provider(name: str, by: str) -> None:
    said = AssistantMessage([SEALED[by], TextPart("hi"), ToolCall("f", id="c1")], provider=owner(by))
    result = ToolMessage([ToolResultPart(call_id="c1", name="f", content="done")])
    body = json.dumps(encoded(name, UserMessage("go"), said, result))
    assert (SEAL in body) is (name == by)


@pytest.mark.parametrize("name", CODECS)
@given(conversation=conversations)
def test_parts_signed_by_another_provider_are_never_sent(name: str, conversation: tuple[Any, ...]) -> None:
    elsewhere = [
        message.replace(provider="elsewhere") if isinstance(message, AssistantMessage) else message
        for message in conversation
    ]
    assert SEAL not in json.dumps(encoded(name, *elsewhere))


# Tools.

DIG = {"oneOf": [{"type": "object", "properties": {"deep": {"type": "integer"}}}], "$defs": {}}


@pytest.mark.parametrize("name", ["openai", "responses", "anthropic", "gcp.gemini", "ollama"])
@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"title": "Dig"}, DIG])
def test_the_schema_of_a_tool_is_an_object_with_properties(name: str, schema: dict[str, Any]) -> None:
    """OpenAI and Anthropic refuse every request that offers a tool with another root."""
    request = ChatRequest((UserMessage("go"),), (ToolDefinition(name="dig", input_schema=schema),))
    (tool,) = CODECS[name].encode(request, stream=False)["tools"]
    (tool,) = tool.get("functionDeclarations", [tool])
    tool = tool.get("function", tool)
    sent = next(tool[field] for field in ("input_schema", "parameters", "parametersJsonSchema") if field in tool)
    assert sent["type"] == "object"
    assert list(sent["properties"]) == (["deep"] if schema is DIG else [])
    assert not {"oneOf", "anyOf", "allOf"} & sent.keys()
