"""Whole loops against aimock, for every provider it speaks for."""

from __future__ import annotations

from typing import Any

import pytest

from tests import modes
from tests.models.aimock.providers import LANGUAGES, PROVIDERS, Provider, each
from tests.models.aimock.server import Aimock, calls_in, said_in
from tests.waiting import PATIENCE
from traced_tools import ChatClient, ChatClientResponse

ASKED = "How is the weather?"
CLOSING = "In Tromsø it snows 🌨, in Århus it rains 🌧."  # which JavaScript cuts in the middle of a character
CITIES = ("Tromsø 🌨", "Århus 🌧")
CALLS = [{"name": "weather", "arguments": {"city": city}} for city in CITIES]


def used(input_tokens: int, output_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}


def served(aimock: Aimock, first: dict[str, Any], **options: Any) -> None:
    """Serve `first` to a question and the closing words to results."""
    closing = {"content": CLOSING, "usage": used(41, 9)}
    aimock.serve(
        {"match": {"userMessage": ASKED, "hasToolResult": True}, "response": closing, **options},
        {"match": {"userMessage": ASKED}, "response": {**first, "usage": used(20, 5)}, **options},
    )


def asked(aimock: Aimock, provider: Provider, mode: str) -> ChatClientResponse:
    def weather(city: str) -> str:
        """Return the weather of a city."""
        return f"weather of {city}"

    model = provider.model_at(aimock, timeout=PATIENCE)
    client = ChatClient(model, system="Be brief.", tools=[weather])
    return modes.run(mode, client.prompt(ASKED), model)


@each(PROVIDERS)
def test_two_parallel_calls_run_and_the_final_answer_is_returned(aimock: Aimock, provider: Provider, mode: str) -> None:
    served(aimock, {"toolCalls": CALLS})
    response = asked(aimock, provider, mode)
    assert response.content == CLOSING
    assert [result.content for result in response.tool_results] == [f"weather of {city}" for city in CITIES]
    assert (response.stop_reason, response.finish_reason) == ("answered", "stop")


@each(LANGUAGES)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_size_of_the_chunks_does_not_change_the_run(
    aimock: Aimock, provider: Provider, streaming: str, size: int
) -> None:
    served(aimock, {"toolCalls": CALLS}, chunkSize=size)
    assert asked(aimock, provider, streaming).content == CLOSING
    assert calls_in(aimock.requests[1]) == [("weather", {"city": city}) for city in CITIES]


@each(PROVIDERS)
def test_the_second_request_holds_the_conversation_so_far(aimock: Aimock, provider: Provider, mode: str) -> None:
    served(aimock, {"toolCalls": CALLS})
    asked(aimock, provider, mode)
    first, second = aimock.requests
    assert (calls_in(first), said_in(first, "tool")) == ([], [])
    assert calls_in(second) == [("weather", {"city": city}) for city in CITIES]
    assert all(city in result for city, result in zip(CITIES, said_in(second, "tool"), strict=True))
    for request in (first, second):
        assert (said_in(request, "system"), said_in(request, "user")) == (["Be brief."], [ASKED])
        assert [tool["function"]["name"] for tool in request["tools"]] == ["weather"]


@each(LANGUAGES, "ids")
def test_each_result_names_the_call_it_answers(aimock: Aimock, provider: Provider, mode: str) -> None:
    served(aimock, {"toolCalls": CALLS})
    asked(aimock, provider, mode)
    messages = aimock.requests[1]["messages"]
    ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ids


@each(LANGUAGES, "usage")
def test_the_tokens_of_both_requests_are_added_up(aimock: Aimock, provider: Provider, mode: str) -> None:
    served(aimock, {"toolCalls": CALLS})
    usage = asked(aimock, provider, mode).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (61, 14)


@each(LANGUAGES)
def test_text_between_calls_is_sent_back_with_them(aimock: Aimock, provider: Provider, mode: str) -> None:
    first, second = ({"type": "toolCall", **call} for call in CALLS)
    served(aimock, {"blocks": [first, {"type": "text", "text": "One moment."}, second]}, chunkSize=3)
    response = asked(aimock, provider, mode)
    assert response.content == CLOSING
    assert [result.tool for result in response.tool_results] == ["weather", "weather"]
    assert "One moment." in said_in(aimock.requests[1], "assistant")


@each(LANGUAGES, "length")
def test_an_answer_that_is_too_long_has_the_finish_reason_length(aimock: Aimock, provider: Provider, mode: str) -> None:
    served(aimock, {"content": "In Tromsø", "finishReason": "length"})
    response = asked(aimock, provider, mode)
    assert (response.content, response.finish_reason) == ("In Tromsø", "length")


@each(LANGUAGES, "content_filter")
def test_a_filtered_answer_has_the_finish_reason_content_filter(aimock: Aimock, provider: Provider, mode: str) -> None:
    served(aimock, {"content": "In Tromsø", "finishReason": "content_filter"})
    response = asked(aimock, provider, mode)
    assert (response.content, response.finish_reason) == ("In Tromsø", "content_filter")


@each(LANGUAGES, "reasoning")
def test_reasoning_is_separate_from_the_text(aimock: Aimock, provider: Provider, mode: str) -> None:
    served(aimock, {"content": CLOSING, "reasoning": "I know it by heart."}, chunkSize=4)
    response = asked(aimock, provider, mode)
    assert (response.content, response.message.reasoning) == (CLOSING, "I know it by heart.")
