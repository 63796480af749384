"""What each server of chat completions gets back of earlier messages, its own or those of another provider."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.openai.completions import codec_of, decoded, encoded
from traced_tools import (
    AssistantMessage,
    ConfigurationError,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from traced_tools.core import ProviderPart, ReasoningPart, ToolResultPart
from traced_tools.models.base import MADE_UP_ID
from traced_tools.models.openai.chat import OpenAIChatCodec
from traced_tools.models.openai.servers import resolve_server

REFERENCE = {"type": "reference", "reference_ids": [1]}
CALLED = (
    ReasoningPart("hm", signature="seal"),
    TextPart("I look"),
    ProviderPart(json.dumps(REFERENCE)),
    ToolCall("f", "{}", "abcdefgh1"),
)
PLAINLY = {
    "role": "assistant",
    "content": "I look",
    "tool_calls": [{"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


def said(provider: str | None, by: str | None, parts: Any = CALLED) -> Any:
    """Return how an answer of `by` goes back to the server of `provider`."""
    return encoded(AssistantMessage(parts, provider=by), codec=codec_of(provider))["messages"][0]


@pytest.mark.parametrize("provider", [None, "openai", "groq", "huggingface", "x_ai"])
def test_most_servers_get_neither_reasoning_nor_opaque_parts(provider: str | None) -> None:
    assert said(provider, provider) == PLAINLY


@pytest.mark.parametrize("by", ["deepseek", None])
def test_deepseek_gets_its_reasoning_back(by: str | None) -> None:
    assert said("deepseek", by) == {**PLAINLY, "reasoning_content": "hm"}


def test_deepseek_gets_empty_reasoning_for_an_answer_of_another_model_or_without_reasoning() -> None:
    assert said("deepseek", "openai") == {**PLAINLY, "reasoning_content": ""}
    assert said("deepseek", "deepseek", CALLED[1:])["reasoning_content"] == ""


def test_openrouter_gets_its_reasoning_details_back_unchanged() -> None:
    kept = [{"type": "reasoning.encrypted", "data": "x", "index": 0}, {"type": "reasoning.summary", "summary": "s"}]
    answer = decoded(codec_of("openrouter"), content="hi", reasoning="s", reasoning_details=kept).message
    back = encoded(answer, codec=codec_of("openrouter"))["messages"][0]
    assert back == {"role": "assistant", "content": "hi", "reasoning_details": kept}
    assert said("openrouter", "anthropic") == PLAINLY
    of_responses = ProviderPart('{"type": "message", "id": "msg_1"}')
    assert said("openrouter", "openrouter", [*CALLED[:2], of_responses, *CALLED[3:]]) == PLAINLY


def test_mistral_gets_its_content_back_in_its_order() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    content = [thought, {"type": "text", "text": "I look"}, REFERENCE]
    assert said("mistral_ai", "mistral_ai") == {**PLAINLY, "content": content}
    assert said("mistral_ai", "openai") == PLAINLY
    assert said("mistral_ai", "mistral_ai", CALLED[1:2]) == {"role": "assistant", "content": "I look"}


def test_a_custom_provider_name_for_a_known_server_still_identifies_its_signed_parts() -> None:
    codec = OpenAIChatCodec("m", resolve_server("https://api.deepseek.com", "mine"), provider="mine")
    body = encoded(AssistantMessage(CALLED, provider="mine"), codec=codec)
    assert body["messages"][0]["reasoning_content"] == "hm"


@pytest.mark.parametrize(("by", "goes_back"), [("vllm", True), (None, True), ("anthropic", False)])
def test_reasoning_is_sent_back_only_to_its_provider_if_the_field_is_set(by: str | None, goes_back: bool) -> None:
    codec = codec_of(provider="vllm", reasoning_field="reasoning")
    body = encoded(AssistantMessage(CALLED, provider=by), codec=codec)
    expected = {**PLAINLY, "reasoning": "hm"} if goes_back else PLAINLY
    assert body["messages"][0] == expected
    unsaid = encoded(AssistantMessage("hi", provider=by), codec=codec)
    assert unsaid["messages"][0] == {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize("provider", ["deepseek", "mistral_ai"])
def test_a_server_that_always_gets_reasoning_back_refuses_the_field(provider: str) -> None:
    with pytest.raises(ConfigurationError, match="omit reasoning_field"):
        codec_of(provider, reasoning_field="reasoning_content")


def results(*ids: str, images: tuple[ImagePart, ...] = ()) -> ToolMessage:
    return ToolMessage([ToolResultPart(call_id=each, name="f", content="done", images=images) for each in ids])


@pytest.mark.parametrize("given", ["call_PTLP8xhu3uwZk4l3nlnrrJha", f"{MADE_UP_ID}0123", "0", "abc-efgh1"])
def test_calls_of_other_providers_get_valid_mistral_ids(given: str) -> None:
    messages = (AssistantMessage(tool_calls=[ToolCall("f", "{}", given)]), results(given))
    called, result = encoded(*messages, codec=codec_of("mistral_ai"))["messages"]
    sent = called["tool_calls"][0]["id"]
    assert len(sent) == 9 and sent.isalnum() and sent.isascii()
    assert result["tool_call_id"] == sent
    assert said("mistral_ai", "openai")["tool_calls"][0]["id"] == "abcdefgh1"
    assert encoded(*messages)["messages"][1]["tool_call_id"] == given


def test_mistral_gets_no_user_message_directly_after_a_result() -> None:
    image = ImagePart(url="http://x/y.png")
    conversation = (
        AssistantMessage(tool_calls=[ToolCall("f", "{}", "abcdefgh1"), ToolCall("f", "{}", "abcdefgh2")]),
        results("abcdefgh1", images=(image,)),
        results("abcdefgh2"),
        UserMessage("and now?"),
    )
    plain, bridged = (encoded(*conversation, codec=codec_of(each))["messages"] for each in (None, "mistral_ai"))
    assert [each["role"] for each in plain] == ["assistant", "tool", "tool", "user", "user"]
    assert [each["role"] for each in bridged] == ["assistant", "tool", "tool", "assistant", "user", "user"]
    assert bridged[3] == {"role": "assistant", "content": "OK"}
    assert encoded(codec=codec_of("mistral_ai"))["messages"] == []


@pytest.mark.parametrize("arguments", ["{", "[1]", '{"a": 1'])
def test_arguments_that_are_not_an_object_are_wrapped_in_one_for_every_server(arguments: str) -> None:
    (call,) = said(None, None, [ToolCall("f", arguments, "a")])["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"invalid_arguments": arguments}


@pytest.mark.parametrize(
    ("arguments", "mended"),
    [("", {}), ("null", {}), ('"{\\"a\\": 1}"', {"a": 1}), ('```json\n{"a": 1}\n```', {"a": 1})],
)
def test_arguments_that_were_repaired_for_the_tool_are_sent_back_repaired(
    arguments: str, mended: dict[str, int]
) -> None:
    (call,) = said(None, None, [ToolCall("f", arguments, "a")])["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == mended


def test_mistral_gets_system_messages_first() -> None:
    conversation = (UserMessage("hi"), AssistantMessage("yes?"), SystemMessage("be brief"), UserMessage("so?"))
    roles = [
        [each["role"] for each in encoded(*conversation, codec=codec_of(by))["messages"]] for by in (None, "mistral_ai")
    ]
    assert roles == [["user", "assistant", "system", "user"], ["system", "user", "assistant", "user"]]


def test_perplexity_gets_alternating_messages() -> None:
    picture = ImagePart(url="http://x/y.png")
    conversation = (
        UserMessage("hi"),
        UserMessage([TextPart("look"), picture]),
        AssistantMessage("a"),
        SystemMessage("be brief"),
        AssistantMessage("b"),
        UserMessage("so?"),
    )
    shown = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    hi, look = ({"type": "text", "text": each} for each in ("hi", "look"))
    assert encoded(*conversation, codec=codec_of("perplexity"))["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [hi, look, shown]},
        {"role": "assistant", "content": "a\n\nb"},
        {"role": "user", "content": "so?"},
    ]


def test_mistral_gets_no_empty_answer() -> None:
    conversation = (UserMessage("hi"), AssistantMessage(), UserMessage("so?"))
    sent = encoded(*conversation, codec=codec_of("mistral_ai"))["messages"]
    assert sent == [{"role": "user", "content": "hi"}, {"role": "user", "content": "so?"}]


def test_images_of_an_answer_are_not_sent_back() -> None:
    assert said("openrouter", "openrouter", [TextPart("see"), ImagePart(data=b"1")]) == {
        "role": "assistant",
        "content": "see",
    }
