"""The recorded traffic of real providers goes through the model, and whole recorded loops through the client."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests import support
from tests.fixtures import Exchange, exchanges, wire_cases
from tests.support import BLOCKING_MODES
from traced_tools import (
    ChatClient,
    ChatClientRequestSpec,
    ChatClientResponse,
    ChatOptions,
    InvalidRequest,
    InvalidResponse,
    Message,
    ModelError,
    SystemMessage,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    UserMessage,
)
from traced_tools.models import ChatRequest, ChatResponse, OpenAIChatModel
from traced_tools.models.folding import ChunkFold
from traced_tools.testing import ReplayServer, Reply

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


def ask(exchange: Exchange) -> ChatResponse:
    """Ask a server that replays one exchange, the way it was asked when it was recorded."""
    request = ChatRequest((UserMessage("anything"),))
    with ReplayServer([exchange.reply()]) as server, OpenAIChatModel("m", base_url=server.url, retries=0) as model:
        if not exchange.streamed:
            return model.call(request)
        fold = ChunkFold()
        for chunk in model.stream(request):
            fold.add(chunk)
        return fold.response()


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


class RecordedTool:
    """A tool of a recorded request; it answers each call as the recording says."""

    def __init__(self, described: dict[str, Any], answers: dict[str, str]) -> None:
        function = described["function"]
        schema = function.get("parameters") or {"type": "object"}
        self.definition = ToolDefinition(
            name=function["name"], description=function.get("description") or "", input_schema=schema
        )
        self.metadata = ToolMetadata()
        self._answers = answers

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Return the recorded answer."""
        assert context is not None
        return self._answers.get(context.call_id, "not recorded")


def loops(case: str) -> Iterator[list[Exchange]]:
    """Split a case into loops: one begins with each request that holds no answer yet."""
    for _, group in itertools.groupby(_numbered(exchanges(case)), key=lambda pair: pair[0]):
        yield [exchange for _, exchange in group]


def _numbered(recorded: Sequence[Exchange]) -> Iterator[tuple[int, Exchange]]:
    number = 0
    for exchange in recorded:
        number += not any(message["role"] == "assistant" for message in exchange.request["messages"])
        yield number, exchange


def replayed(loop: list[Exchange], mode: str) -> tuple[ChatClientResponse, list[dict[str, Any]]]:
    """Run a recorded loop through the client; return its response and the requests it sent."""
    streamed = loop[0].streamed
    closing = Reply.sse(CLOSING_STREAM) if streamed else CLOSING
    with ReplayServer([*(exchange.reply() for exchange in loop), closing]) as server:
        with OpenAIChatModel("m", base_url=server.url, retries=0) as model:
            response = run(specification(loop, model), mode, model)
        return response, [request.json() for request in server.requests]


def specification(loop: list[Exchange], model: OpenAIChatModel) -> ChatClientRequestSpec:
    answers = {
        message["tool_call_id"]: message["content"]
        for exchange in loop
        for message in exchange.request["messages"]
        if message["role"] == "tool"
    }
    first = loop[0].request
    tools = [RecordedTool(tool, answers) for tool in first.get("tools", ())]
    # a forced call is repeated in each pass of the recording
    options = ChatOptions(tool_choice=first.get("tool_choice"))
    return ChatClient(model, tools=tools, options=options).prompt(messages=_messages(first["messages"]))


def run(spec: ChatClientRequestSpec, mode: str, model: OpenAIChatModel) -> ChatClientResponse:
    if mode in BLOCKING_MODES:
        return support.run(mode, spec)

    async def on_asyncio() -> ChatClientResponse:
        async with model:
            return await support.arun(mode, spec)

    return asyncio.run(on_asyncio())


def _messages(recorded: list[dict[str, Any]]) -> list[Message]:
    kinds = {"system": SystemMessage, "user": UserMessage}
    return [kinds[message["role"]](message["content"]) for message in recorded]


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
    for loop in loops(case):
        mode = {"blocking": ("call", "stream"), "asyncio": ("acall", "astream")}[colour][loop[0].streamed]
        response, sent = replayed(loop, mode)
        assert [meaning(request) for request in sent[: len(loop)]] == [meaning(each.request) for each in loop]
        answered = not loop[-1].tool_calls
        assert len(sent) == len(loop) + (not answered)
        assert (response.content == "closing words") is (not answered)
        assert len(response.tool_results) == sum(exchange.tool_calls for exchange in loop)
        assert response.stop_reason == "answered"


@pytest.mark.parametrize("case", wire_cases("openai-chat--err"))
def test_a_recorded_refusal_leaves_the_loop_as_it_is(case: str) -> None:
    with pytest.raises(ModelError):
        replayed(exchanges(case)[:1], "call")
