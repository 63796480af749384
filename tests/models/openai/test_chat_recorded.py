"""The recorded traffic of real providers goes through the model, and whole recorded loops through the client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import Exchange, exchanges, wire_cases
from tests.helpers import relaxed
from tests.models import recorded
from tests.models.recorded import RecordedTool
from traced_tools import (
    ChatClient,
    ChatClientRequestSpec,
    ChatOptions,
    InvalidRequest,
    InvalidResponse,
    Message,
    ModelError,
    SystemMessage,
    ToolDefinition,
    UserMessage,
)
from traced_tools.models import ChatResponse, OpenAIChatModel
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions
from traced_tools.testing import Reply

COMPATIBLE = (
    "openai-chat",
    "groq-chat",
    "huggingface-chat",
    "mistral-chat",
    "ollama-chat",
    "openrouter-chat",
    "vllm-chat",
)
CLOSING = Reply.json({"choices": [{"message": {"content": "closing words"}, "finish_reason": "stop"}]})
CLOSING_STREAM = [{"choices": [{"delta": {"content": "closing words"}, "finish_reason": "stop"}]}, "[DONE]"]


def model_at(url: str, **http: Unpack[HttpOptions]) -> OpenAIChatModel:
    return OpenAIChatModel("m", base_url=url, retries=0, **http)


def ask(exchange: Exchange) -> ChatResponse:
    return recorded.ask(model_at, exchange.reply(), streamed=exchange.streamed)


@pytest.mark.parametrize("case", wire_cases(*COMPATIBLE))
def test_every_recorded_exchange_decodes_to_the_calls_it_holds(case: str) -> None:
    for exchange in exchanges(case):
        if exchange.status != 200 or b'"error":{' in exchange.body.replace(b" ", b""):
            continue
        response = ask(exchange)
        assert len(response.tool_calls) == exchange.tool_calls
        assert all(
            isinstance(json.loads(call.arguments), dict) and call.id and call.name for call in response.tool_calls
        )
        assert response.tool_calls or response.message.text
        assert response.model


@pytest.mark.parametrize("case", wire_cases("openai-chat--err", "groq-chat--err"))
def test_a_recorded_refusal_is_an_invalid_request_with_its_code(case: str) -> None:
    refused = [exchange for exchange in exchanges(case) if exchange.status != 200]
    assert refused
    for exchange in refused:
        with pytest.raises(InvalidRequest) as caught:
            ask(exchange)
        assert caught.value.status_code == exchange.status
        assert caught.value.code in ("model_not_found", "tool_use_failed")
        assert "does not exist" not in str(caught.value)


@pytest.mark.parametrize("case", wire_cases("groq-chat--sse-one"))
def test_a_stream_that_breaks_off_with_an_error_object_is_an_invalid_response(case: str) -> None:
    broken = exchanges(case)[0]
    assert broken.status == 200 and b"failed_generation" in broken.body
    with pytest.raises(InvalidResponse) as caught:
        ask(broken)
    assert caught.value.code == "tool_use_failed"


@pytest.mark.parametrize("case", wire_cases("openai-chat--sse-one--01"))
def test_calls_count_although_the_stream_gives_no_finish_reason(case: str) -> None:
    response = ask(exchanges(case)[0])
    assert (response.finish_reason, [call.name for call in response.tool_calls]) == (None, ["llm_version"])


def is_first(request: Mapping[str, Any]) -> bool:
    return not any(message["role"] == "assistant" for message in request["messages"])


def specification(loop: Sequence[Exchange], model: HttpChatModel) -> ChatClientRequestSpec:
    answers = {
        message["tool_call_id"]: message["content"]
        for exchange in loop
        for message in exchange.request["messages"]
        if message["role"] == "tool"
    }
    first = loop[0].request
    tools = [
        RecordedTool(definition(tool["function"]), lambda call_id, _: answers.get(call_id, "not recorded"))
        for tool in first.get("tools", ())
    ]
    # a forced call is repeated in each pass of the recording
    options = ChatOptions(tool_choice=first.get("tool_choice"))
    return ChatClient(model, tools=tools, options=options).prompt(messages=_messages(first["messages"]))


def definition(function: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(
        name=function["name"],
        description=function.get("description") or "",
        input_schema=function.get("parameters") or {"type": "object"},
    )


def _messages(said: list[dict[str, Any]]) -> list[Message]:
    kinds = {"system": SystemMessage, "user": UserMessage}
    return [kinds[message["role"]](message["content"]) for message in said]


def meaning(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a request says.

    Left out, because it says nothing to the model or is another recorder's habit: the model's name and `stream`;
    `strict` and descriptions of tools; the order of tools; an assistant message without text and calls; `annotations`;
    white space in arguments.
    """
    return {
        "messages": [_said(message) for message in request["messages"] if _says_something(message)],
        "tools": sorted(tool["function"]["name"] for tool in request.get("tools", ())),
        "tool_choice": request.get("tool_choice"),
    }


def _says_something(message: dict[str, Any]) -> bool:
    return bool(message.get("content") or message.get("tool_calls"))


def _said(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return message["role"], message.get("content") or "", message.get("tool_call_id"), calls


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
@pytest.mark.parametrize("case", wire_cases("openai-chat--json", "openai-chat--sse"))
def test_a_recorded_loop_runs_through_the_client_and_sends_what_was_sent(case: str, colour: str) -> None:
    for loop in recorded.loops(exchanges(case), is_first):
        mode = recorded.mode_of(loop, colour)
        closing = Reply.sse(CLOSING_STREAM) if loop[0].streamed else CLOSING
        response, sent = recorded.replayed(loop, closing, model_at, partial(specification, loop), mode)
        assert [meaning(request) for request in sent[: len(loop)]] == [meaning(each.request) for each in loop]
        answered = not loop[-1].tool_calls
        assert len(sent) == len(loop) + (not answered)
        assert (response.content == "closing words") is (not answered)
        assert len(response.tool_results) == sum(exchange.tool_calls for exchange in loop)
        assert response.stop_reason == "answered"


@pytest.mark.parametrize("case", wire_cases("openai-chat--err"))
def test_a_recorded_refusal_leaves_the_loop_as_it_is(case: str) -> None:
    loop = exchanges(case)[:1]
    with pytest.raises(ModelError):
        recorded.replayed(loop, CLOSING, model_at, partial(specification, loop), "call")


@pytest.mark.parametrize("case", wire_cases(*(f"{name}--sse" for name in COMPATIBLE)))
@relaxed
@given(places=st.lists(st.integers(0, 2**20), max_size=40))
def test_a_stream_is_the_same_message_wherever_it_is_cut(case: str, places: list[int]) -> None:
    for exchange in exchanges(case):
        if exchange.streamed and b"failed_generation" not in exchange.body:
            whole = recorded.ask_in_pieces(model_at, exchange.body, exchange.content_type, [])
            assert recorded.ask_in_pieces(model_at, exchange.body, exchange.content_type, places) == whole
            assert len(whole.tool_calls) == exchange.tool_calls
