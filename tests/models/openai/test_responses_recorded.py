"""Recorded traffic of Responses APIs runs through the model, and whole recorded loops through the client."""

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
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ChatClientRequestSpec,
    ChatOptions,
    Message,
    SystemMessage,
    UserMessage,
)
from traced_tools.core import ProviderPart, ReasoningPart, ToolDefinition
from traced_tools.errors import InvalidRequest
from traced_tools.models import ChatResponse, OpenAIResponsesModel
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions
from traced_tools.testing import Reply

WORKING = ("openai-responses--json", "openai-responses--sse", "deepseek-responses")
CLOSING = {
    "status": "completed",
    "output": [{"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "closing words"}]}],
}
CLOSING_STREAM = [{"type": "response.completed", "response": CLOSING}]


def model_at(url: str, **http: Unpack[HttpOptions]) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("m", base_url=url, retries=0, **http)


def ask(exchange: Exchange) -> ChatResponse:
    return recorded.ask(model_at, exchange.reply(), streamed=exchange.streamed)


@pytest.mark.parametrize("case", wire_cases(*WORKING))
def test_every_recorded_exchange_decodes_to_its_calls(case: str) -> None:
    for exchange in exchanges(case):
        response = ask(exchange)
        recorded.check_answer(response, exchange)
        assert all((call.id or "").startswith("call_") for call in response.tool_calls)
        assert response.finish_reason == ("tool_call" if exchange.tool_calls else "stop")
        assert response.usage and response.usage.input_tokens and response.usage.output_tokens


@pytest.mark.parametrize("case", wire_cases("openai-responses--sse", "deepseek-responses--sse"))
def test_a_stream_folds_to_the_answer_in_its_last_event(case: str) -> None:
    for exchange in exchanges(case):
        last = exchange.body.decode().rstrip().rpartition("data: ")[2]
        whole = Reply.json(json.loads(last)["response"])
        assert ask(exchange) == recorded.ask(model_at, whole, streamed=False)


@pytest.mark.parametrize("case", wire_cases("openai-responses--err"))
def test_a_recorded_error_answer_raises_invalid_request_with_its_code(case: str) -> None:
    answered, refused = exchanges(case)
    assert [call.name for call in ask(answered).tool_calls] == ["get_file"]
    with pytest.raises(InvalidRequest) as caught:
        ask(refused)
    assert (caught.value.status_code, caught.value.code) == (400, "unsupported_file")
    assert "pdf" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("case", wire_cases("deepseek-responses"))
def test_plain_text_reasoning_is_decoded_and_keeps_its_item(case: str) -> None:
    thought, item, _ = ask(exchanges(case)[0]).message.parts
    assert isinstance(thought, ReasoningPart) and isinstance(item, ProviderPart)
    assert json.loads(item.data)["content"] == [{"type": "reasoning_text", "text": thought.text}]


@pytest.mark.parametrize("case", wire_cases("openai-responses--sse-one--00"))
def test_a_provider_search_precedes_the_call_it_led_to(case: str) -> None:
    searched, found, call = ask(exchanges(case)[0]).message.parts
    assert isinstance(searched, ProviderPart) and isinstance(found, ProviderPart)
    assert json.loads(searched.data)["arguments"] == {"paths": ["get_exchange_rate"]}
    assert call.name == "get_exchange_rate"  # type: ignore[union-attr]


# Whole loops.

_SETTINGS = ("include", "store", "reasoning")


def is_first(request: Mapping[str, Any]) -> bool:
    return not any("output" in item for item in request["input"])


def specification(loop: Sequence[Exchange], model: HttpChatModel) -> ChatClientRequestSpec:
    first = loop[0].request
    items = [item for exchange in loop for item in exchange.request["input"]]
    answers = {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}
    tools = [
        RecordedTool(definition(tool), lambda call_id, _: answers.get(call_id, "not recorded"))
        for tool in first["tools"]
        if tool["type"] == "function"
    ]
    extra = {name: first[name] for name in _SETTINGS if name in first}
    extra["tools"] = [tool for tool in first["tools"] if tool["type"] != "function"]
    options = ChatOptions(tool_choice=first.get("tool_choice"), extra=extra)
    return ChatClient(model, tools=tools, options=options).prompt(messages=_messages(first["input"]))


def definition(tool: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(name=tool["name"], description=tool["description"] or "", input_schema=tool["parameters"])


def _messages(items: list[dict[str, Any]]) -> list[Message]:
    kinds = {"developer": SystemMessage, "user": UserMessage}
    return [kinds[item["role"]](item["content"]) for item in items]


def meaning(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a request says.

    Left out, because it says nothing to the model or is another recorder's habit: the model's name and `stream`;
    `strict`, `defer_loading` and the order of tools; whether instructions are `system` or `developer`, which the API
    takes for the same; fields that are null, `status`, and the ids of calls' items (a reasoning item's id is kept);
    white space in arguments; a tool search that the provider ran, which this recorder sends changed and without its
    result.
    """
    return {
        "input": [_said(item) for item in request["input"] if not str(item.get("type")).startswith("tool_search")],
        "tools": sorted(_tool(tool) for tool in request["tools"]),
        "tool_choice": request.get("tool_choice"),
        **{name: request.get(name) for name in _SETTINGS},
    }


def _said(item: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in item.items() if value is not None and name != "status"}
    if said.get("role") == "system":
        said["role"] = "developer"
    if said.get("type") == "function_call":
        said = {**said, "id": None, "arguments": json.loads(said["arguments"])}
    return said


def _tool(tool: dict[str, Any]) -> tuple[str, str]:
    return tool.get("name", tool["type"]), json.dumps(tool.get("parameters"), sort_keys=True)


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
@pytest.mark.parametrize("case", wire_cases(*WORKING))
def test_a_recorded_loop_runs_through_the_client_and_sends_the_recorded_requests(case: str, colour: str) -> None:
    for loop in recorded.loops(exchanges(case), is_first):
        mode = recorded.mode_of(loop, colour)
        closing = Reply.sse(CLOSING_STREAM) if loop[0].streamed else Reply.json(CLOSING)
        response, sent = recorded.replayed(loop, closing, model_at, partial(specification, loop), mode)
        assert [meaning(request) for request in sent[: len(loop)]] == [meaning(each.request) for each in loop]
        answered = not loop[-1].tool_calls
        assert len(sent) == len(loop) + (not answered)
        assert (response.content == "closing words") is (not answered)
        assert len(response.tool_results) == sum(exchange.tool_calls for exchange in loop)
        assert response.stop_reason == "answered"
        assert all(message.provider == "openai" for message in response.messages if _is_answer(message))


def _is_answer(message: object) -> bool:
    return isinstance(message, AssistantMessage)


@pytest.mark.parametrize("case", wire_cases("openai-responses--err"))
def test_items_of_a_stored_answer_are_sent_back_with_their_ids(case: str) -> None:
    loop = exchanges(case)[:1]
    recorded_items = exchanges(case)[1].request["input"][:3]
    _, sent = recorded.replayed(loop, Reply.json(CLOSING), model_at, partial(specification, loop), "call")
    assert sent[1]["input"][:3] == recorded_items


@pytest.mark.parametrize("case", wire_cases("openai-responses--sse-one--00"))
def test_a_provider_search_is_sent_back_unchanged(case: str) -> None:
    loop = exchanges(case)
    _, sent = recorded.replayed(loop, Reply.sse(CLOSING_STREAM), model_at, partial(specification, loop), "stream")
    last = json.loads(loop[0].body.decode().rstrip().rpartition("data: ")[2])
    assert sent[1]["input"][1:3] == last["response"]["output"][:2]


@pytest.mark.parametrize("case", wire_cases("openai-responses--sse", "deepseek-responses--sse"))
@given(places=st.lists(st.integers(0, 2**20), max_size=40))
def test_a_stream_is_the_same_message_wherever_it_is_cut(case: str, places: list[int]) -> None:
    for exchange in exchanges(case):
        whole = recorded.ask_in_pieces(model_at, exchange.body, exchange.content_type, [])
        assert recorded.ask_in_pieces(model_at, exchange.body, exchange.content_type, places) == whole
        assert len(whole.tool_calls) == exchange.tool_calls
