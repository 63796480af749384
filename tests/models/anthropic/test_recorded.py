"""Recorded traffic of Anthropic's API runs through the model, and whole recorded loops through the client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import Exchange, exchanges, wire_cases
from tests.models import recorded
from tests.models.recorded import RecordedTool
from traced_tools import ChatClient, ChatClientRequestSpec, ChatOptions, TextPart, ToolCall, UserMessage
from traced_tools.core import ProviderPart, ReasoningPart, ToolDefinition
from traced_tools.errors import InvalidRequest
from traced_tools.models import AnthropicChatModel, ChatRequest, ChatResponse
from traced_tools.models.anthropic.chat import AnthropicChatCodec
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions
from traced_tools.testing import Reply

CLOSING_WORDS = {"type": "text", "text": "closing words"}
CLOSING = Reply.json({"content": [CLOSING_WORDS], "stop_reason": "end_turn"})
CLOSING_STREAM = [
    {"type": "content_block_start", "index": 0, "content_block": CLOSING_WORDS},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_stop"},
]


def model_at(url: str, **http: Unpack[HttpOptions]) -> AnthropicChatModel:
    return AnthropicChatModel("m", base_url=url, retries=0, **http)


def ask(exchange: Exchange) -> ChatResponse:
    return recorded.ask(model_at, exchange.reply(), streamed=exchange.streamed)


@pytest.mark.parametrize("case", wire_cases("anthropic--json", "anthropic--sse"))
def test_every_recorded_exchange_decodes_to_its_calls(case: str) -> None:
    for exchange in exchanges(case):
        response = ask(exchange)
        recorded.check_answer(response, exchange)
        assert all((call.id or "").startswith("toolu_") for call in response.tool_calls)
        assert response.finish_reason == ("tool_call" if exchange.tool_calls else "stop")
        assert response.usage and response.usage.input_tokens and response.usage.output_tokens


@pytest.mark.parametrize("case", wire_cases("anthropic--err"))
def test_a_recorded_error_answer_raises_invalid_request_with_its_code_and_request_id(case: str) -> None:
    for exchange in exchanges(case):
        with pytest.raises(InvalidRequest) as caught:
            ask(exchange)
        assert (caught.value.status_code, caught.value.code) == (404, "not_found_error")
        assert caught.value.request_id == json.loads(exchange.body)["request_id"]
        assert "does-not-exist" not in str(caught.value)


@pytest.mark.parametrize("case", wire_cases("anthropic--json-one-think", "anthropic--sse-none-think"))
def test_reasoning_is_decoded_with_its_signature(case: str) -> None:
    message = ask(exchanges(case)[0]).message
    thought, said, *_ = message.parts
    assert isinstance(thought, ReasoningPart) and thought.text and isinstance(said, TextPart)
    request = ChatRequest((UserMessage("anything"), message))
    sent = AnthropicChatCodec("m", max_tokens=1).encode(request, stream=False)["messages"][1]["content"]
    assert sent[0] == {"type": "thinking", "thinking": thought.text, "signature": thought.signature}
    assert (thought.signature or "").encode() in exchanges(case)[0].body


@pytest.mark.parametrize("case", wire_cases("anthropic--sse-one--00"))
def test_a_provider_search_keeps_its_position_and_input(case: str) -> None:
    message = ask(exchanges(case)[0]).message
    assert [type(part) for part in message.parts] == [TextPart, ProviderPart, ProviderPart, TextPart, ToolCall]
    searched = message.parts[1]
    assert isinstance(searched, ProviderPart)
    assert json.loads(searched.data)["input"] == {"query": "USD EUR exchange rate currency conversion"}


@pytest.mark.parametrize("case", wire_cases("anthropic--sse-one--00"))
def test_the_last_usage_of_a_stream_counts(case: str) -> None:
    usage = ask(exchanges(case)[0]).usage
    assert usage is not None and (usage.input_tokens, usage.output_tokens) == (1591, 175)


# Whole loops.


def is_first(request: Mapping[str, Any]) -> bool:
    return not any(message["role"] == "assistant" for message in request["messages"])


def specification(loop: Sequence[Exchange], model: HttpChatModel) -> ChatClientRequestSpec:
    first = loop[0].request
    blocks = [block for exchange in loop for turn in exchange.request["messages"] for block in _blocks(turn["content"])]
    answers = {block["tool_use_id"]: _text(block["content"]) for block in blocks if block["type"] == "tool_result"}
    tools = [
        RecordedTool(definition(tool), lambda call_id, _: answers.get(call_id, "not recorded"))
        for tool in first["tools"]
        if "input_schema" in tool
    ]
    extra = {"tools": [tool for tool in first["tools"] if "input_schema" not in tool]}
    if "thinking" in first:
        extra["thinking"] = first["thinking"]
    options = ChatOptions(max_tokens=first["max_tokens"], extra=extra)
    prompt = _text(first["messages"][0]["content"])
    return ChatClient(model, tools=tools, options=options).prompt(prompt, system=_text(first.get("system", "")) or None)


def definition(tool: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(name=tool["name"], description=tool["description"], input_schema=tool["input_schema"])


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(content: str | list[dict[str, Any]]) -> str:
    return "".join(block.get("text", "") for block in _blocks(content))


def meaning(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a request says.

    Left out, because it says nothing to the model or is another recorder's habit: the model's name and `stream`; cache
    marks; `strict`, `defer_loading` and the order of tools; a tool choice of `auto`, which is what the API does without
    one; whether one text is a string or a block; that a result is no error; calls that a recorder's client made up
    (`auto_load_...`), with their results, to list tools it had loaded.
    """
    choice = request.get("tool_choice", {"type": "auto"})
    return {
        "system": _text(request.get("system", "")),
        "messages": [turn for message in request["messages"] if (turn := _turn(message))["content"]],
        "tools": sorted(_tool(tool) for tool in request["tools"]),
        "tool_choice": None if choice == {"type": "auto"} else choice,
        "max_tokens": request["max_tokens"],
        "thinking": request.get("thinking"),
    }


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    made_up = "auto_load_"
    blocks = [_block(block) for block in _blocks(message["content"])]
    kept = [block for block in blocks if not str(block.get("id", block.get("tool_use_id", ""))).startswith(made_up)]
    return {"role": message["role"], "content": kept}


def _block(block: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in block.items() if name != "cache_control"}
    if block["type"] == "tool_result":
        kept = {**kept, "content": _blocks(block["content"]), "is_error": block.get("is_error", False)}
    return kept


def _tool(tool: dict[str, Any]) -> tuple[str, str]:
    return tool["name"], json.dumps(tool.get("input_schema"), sort_keys=True)


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
@pytest.mark.parametrize("case", wire_cases("anthropic--json", "anthropic--sse-one", "anthropic--sse-par"))
def test_a_recorded_loop_runs_through_the_client_and_sends_the_recorded_requests(case: str, colour: str) -> None:
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


@pytest.mark.parametrize("case", wire_cases("anthropic--sse"))
@given(places=st.lists(st.integers(0, 2**20), max_size=40))
def test_a_stream_is_the_same_message_wherever_it_is_cut(case: str, places: list[int]) -> None:
    for exchange in exchanges(case):
        whole = recorded.ask_in_pieces(model_at, exchange.body, exchange.content_type, [])
        assert recorded.ask_in_pieces(model_at, exchange.body, exchange.content_type, places) == whole
        assert len(whole.tool_calls) == exchange.tool_calls
