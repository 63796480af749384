"""Recorded traffic of Gemini runs through the model, and whole recorded loops through the client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

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
    ToolCall,
    UserMessage,
)
from traced_tools.core import ToolDefinition
from traced_tools.errors import InvalidRequest
from traced_tools.models import ChatResponse, GeminiChatModel
from traced_tools.models.base import MADE_UP_ID
from traced_tools.models.gemini.chat import GeminiChatCodec
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions
from traced_tools.testing import Reply

WORDS = {"candidates": [{"content": {"parts": [{"text": "closing words"}], "role": "model"}, "finishReason": "STOP"}]}


def model_at(url: str, **http: Unpack[HttpOptions]) -> GeminiChatModel:
    return GeminiChatModel("m", base_url=url, retries=0, **http)


def ask(exchange: Exchange) -> ChatResponse:
    return recorded.ask(model_at, exchange.reply(), streamed=exchange.streamed)


def events_of(stream: bytes) -> list[bytes]:
    return [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: ")]


# Single exchanges.


@pytest.mark.parametrize("case", wire_cases("gemini--json", "gemini--sse"))
def test_every_recorded_exchange_decodes_to_its_calls(case: str) -> None:
    for exchange in exchanges(case):
        response = ask(exchange)
        recorded.check_answer(response, exchange)
        assert response.finish_reason == ("tool_call" if response.tool_calls else "stop")
        assert bool(response.tool_calls) is not bool(response.message.text)


@pytest.mark.parametrize("case", wire_cases("gemini--json", "gemini--sse"))
def test_every_recorded_token_is_counted(case: str) -> None:
    for exchange in exchanges(case):
        events = map(json.loads, events_of(exchange.body)) if exchange.streamed else [json.loads(exchange.body)]
        *_, last = [each for event in events for each in (event if isinstance(event, list) else [event])]
        usage = ask(exchange).usage
        assert usage is not None
        assert usage.total_tokens == last["usageMetadata"]["totalTokenCount"]
        assert usage.reasoning_tokens == last["usageMetadata"].get("thoughtsTokenCount")


@pytest.mark.parametrize("case", wire_cases("gemini--json", "gemini--sse"))
def test_every_recorded_signature_is_kept_on_a_separate_part(case: str) -> None:
    for exchange in exchanges(case):
        message = ask(exchange).message
        sealed = [part for part in message.parts if getattr(part, "signature", None)]
        assert len(sealed) == exchange.body.count(b'"thoughtSignature"')
        assert message.provider == ("gcp.gemini" if sealed else None)


@pytest.mark.parametrize("case", wire_cases("gemini--json-one--01"))
def test_a_whole_answer_may_be_the_list_of_a_stream(case: str) -> None:
    called, answered = exchanges(case)
    assert called.body.startswith(b"[") and answered.body.startswith(b"[")
    assert ask(called).tool_calls[0].id == "whZntcQw"
    assert ask(answered).message.text.endswith("has been successfully added to the database.")


@pytest.mark.parametrize("case", wire_cases("gemini--sse"))
def test_a_stream_is_the_message_that_its_events_are_as_a_list(case: str) -> None:
    for exchange in exchanges(case):
        assert b"\r\n" in exchange.body
        whole = GeminiChatCodec("m").decode(b"[" + b",".join(events_of(exchange.body)) + b"]")
        streamed = ask(exchange)
        assert recorded.without_made_up_ids(whole).message.parts == streamed.message.parts
        assert (whole.usage, whole.finish_reason) == (streamed.usage, streamed.finish_reason)


@pytest.mark.parametrize("case", wire_cases("gemini--sse"))
@given(places=st.lists(st.integers(0, 2**20), max_size=40))
def test_a_stream_is_the_same_message_wherever_it_is_cut(case: str, places: list[int]) -> None:
    for exchange in exchanges(case):
        whole = recorded.ask_in_pieces(model_at, exchange.body, exchange.content_type, [])
        assert recorded.ask_in_pieces(model_at, exchange.body, exchange.content_type, places) == whole
        assert len(whole.tool_calls) == exchange.tool_calls


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", wire_cases("gemini--err"))
def test_a_recorded_error_answer_raises_invalid_request_with_its_code(case: str, streamed: bool) -> None:
    for exchange in exchanges(case):
        with pytest.raises(InvalidRequest, match="check base_url and the model's name") as caught:
            recorded.ask(model_at, exchange.reply(), streamed=streamed)
        assert (caught.value.status_code, caught.value.code, caught.value.request_id) == (404, "NOT_FOUND", None)
        assert "this-model" not in str(caught.value) + repr(caught.value)


# Whole loops. What was recorded is read as `meaning` says.


def camel(value: Any) -> Any:
    """Return `value` with the API's own field names in camel case; what a user named stays as it is."""
    if isinstance(value, list):
        return [camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    users_own = ("args", "response", "parameters", "parametersJsonSchema", "responseJsonSchema")
    named = {to_camel(name): each for name, each in value.items()}
    return {name: each if name in users_own else camel(each) for name, each in named.items()}


def is_first(request: Mapping[str, Any]) -> bool:
    return not any("functionResponse" in part for part in camel(request["contents"])[-1]["parts"])


def batches(request: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Give each call in a request with its response: those of one turn are in the same order."""
    turns = camel(request["contents"])
    for turn, following in pairwise(turns):
        calls = [part["functionCall"] for part in turn["parts"] if "functionCall" in part]
        found = [part["functionResponse"] for part in following["parts"] if "functionResponse" in part]
        yield from zip(calls, found, strict=True)


def content_of(response: Mapping[str, Any]) -> Any:
    """Return the only value of a response, under any name."""
    (said,) = response.values()
    return said


def key(name: str, arguments: Mapping[str, Any]) -> str:
    return name + json.dumps(arguments, sort_keys=True)


def specification(loop: Sequence[Exchange], model: HttpChatModel) -> ChatClientRequestSpec:
    answers = {
        key(call["name"], call["args"]): content_of(response["response"])
        for exchange in loop
        for call, response in batches(exchange.request)
    }
    first = camel(loop[0].request)
    functions = [function for tool in first["tools"] for function in tool["functionDeclarations"]]
    tools = [RecordedTool(definition(each), partial(answer, answers, each["name"])) for each in functions]
    return ChatClient(model, tools=tools, options=options(first)).prompt(messages=list(messages(first)))


def answer(answers: Mapping[str, str], name: str, call_id: str, arguments: str) -> str:
    return answers.get(key(name, json.loads(arguments)), "not recorded")


def definition(function: dict[str, Any]) -> ToolDefinition:
    schema = function.get("parameters") or function["parametersJsonSchema"]
    return ToolDefinition(name=function["name"], description=function["description"], input_schema=schema)


def options(first: Mapping[str, Any]) -> ChatOptions:
    chosen = first.get("toolConfig", {}).get("functionCallingConfig", {}).get("allowedFunctionNames", [None])
    extra = {name: first[name] for name in ("generationConfig", "safetySettings") if name in first}
    return ChatOptions(tool_choice=chosen[0], extra=extra)


def messages(first: Mapping[str, Any]) -> Iterator[Message]:
    if system := first.get("systemInstruction"):
        yield SystemMessage(system["parts"][0]["text"])
    for turn in first["contents"]:
        said = turn["parts"][0]["text"]
        yield UserMessage(said) if turn["role"] == "user" else AssistantMessage(said)


def meaning(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a request says.

    Left out, because it says nothing to the model or is another recorder's habit: whether names are in camel or in
    snake case; the alphabet of the base64 that signatures are in (pydantic-ai and Mirascope write the URL-safe one,
    Gemini sends the other and reads both); the role of the system instruction; empty settings; the name a result
    stands under (`output` or `return_value`); ids that the recorder made up; schemas of tools, which are in another
    dialect.
    """
    said = camel(request)
    functions = [each for tool in said["tools"] for each in tool["functionDeclarations"]]
    return {
        "contents": [(turn["role"], [part_of(part) for part in turn["parts"]]) for turn in said["contents"]],
        "system": [part["text"] for part in said.get("systemInstruction", {}).get("parts", ())],
        "tools": [(each["name"], each["description"]) for each in functions],
        "toolConfig": said.get("toolConfig"),
        "settings": (said.get("generationConfig") or None, said.get("safetySettings")),
    }


def part_of(part: dict[str, Any]) -> dict[str, Any]:
    part = dict(part)
    if "thoughtSignature" in part:
        part["thoughtSignature"] = part["thoughtSignature"].replace("-", "+").replace("_", "/")
    for name in part.keys() & {"functionCall", "functionResponse"}:
        part[name] = {field: value for field, value in part[name].items() if not is_made_up(field, value)}
    if "functionResponse" in part:
        part["functionResponse"]["response"] = content_of(part["functionResponse"]["response"])
    return part


def is_made_up(field: str, value: Any) -> bool:
    return field == "id" and value.startswith("pyd_ai_")


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
@pytest.mark.parametrize("case", wire_cases("gemini--json", "gemini--sse"))
def test_a_recorded_loop_runs_through_the_client_and_sends_the_recorded_requests(case: str, colour: str) -> None:
    for loop in recorded.loops(exchanges(case), is_first):
        mode = recorded.mode_of(loop, colour)
        closing = Reply.sse([WORDS]) if loop[0].streamed else Reply.json(WORDS)
        response, sent = recorded.replayed(loop, closing, model_at, partial(specification, loop), mode)
        assert [meaning(request) for request in sent[: len(loop)]] == [meaning(each.request) for each in loop]
        assert MADE_UP_ID not in json.dumps(sent)
        answered = not loop[-1].tool_calls
        assert len(sent) == len(loop) + (not answered)
        assert (response.content == "closing words") is (not answered)
        assert len(response.tool_results) == sum(exchange.tool_calls for exchange in loop)
        assert response.stop_reason == "answered"


@pytest.mark.parametrize("case", wire_cases("gemini--json-par", "gemini--sse-par"))
def test_generated_ids_of_parallel_calls_are_not_sent_to_gemini(case: str) -> None:
    called = exchanges(case)[0]
    assert b'"id"' not in called.body
    calls: tuple[ToolCall, ...] = ask(called).tool_calls
    assert [json.loads(call.arguments)["password"] for call in calls] == ["mellon", "radiance"]
    assert [bool(call.signature) for call in calls] == [True, False]
