"""Recorded traffic of real providers runs through the model, and whole recorded loops through the client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import Exchange, exchanges, wire_cases
from tests.models import recorded
from tests.models.openai.completions import DONE, codec_of
from tests.models.recorded import ModelAt
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ChatClientRequestSpec,
    ChatOptions,
    ImagePart,
    Message,
    ModelError,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolContext,
    ToolMessage,
    UserMessage,
)
from traced_tools.core import ToolDefinition, ToolResultPart
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.models import ChatRequest, ChatResponse, OpenAIChatModel
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions
from traced_tools.testing import Reply
from traced_tools.tools import FunctionToolCallback

PROVIDERS = {
    "groq-chat": "groq",
    "huggingface-chat": "huggingface",
    "mistral-chat": "mistral_ai",
    "ollama-chat": None,
    "openai-chat": "openai",
    "openrouter-chat": "openrouter",
    "vllm-chat": None,
}
CASES = wire_cases(*PROVIDERS)
STREAMS = wire_cases(*(f"{name}--sse" for name in PROVIDERS))
CLOSING = Reply.json({"choices": [{"message": {"content": "closing words"}, "finish_reason": "stop"}]})
CLOSING_STREAM = Reply.sse([{"choices": [{"delta": {"content": "closing words"}, "finish_reason": "stop"}]}, DONE])


def provider_of(case: str) -> str | None:
    return PROVIDERS[case.partition("--")[0]]


def model_of(case: str) -> ModelAt:
    def model_at(url: str, **http: Unpack[HttpOptions]) -> HttpChatModel:
        return OpenAIChatModel("m", base_url=url, provider=provider_of(case), retries=0, **http)

    return model_at


def ask(case: str, exchange: Exchange) -> ChatResponse:
    return recorded.ask(model_of(case), exchange.reply(), streamed=exchange.streamed)


def is_answer(exchange: Exchange) -> bool:
    """Whether the model was heard out: some refused, and one stream breaks off with an error object."""
    return exchange.status == 200 and b'"error":{' not in exchange.body


# Single exchanges.


@pytest.mark.parametrize("case", CASES)
def test_every_recorded_answer_decodes_to_its_calls(case: str) -> None:
    for exchange in filter(is_answer, exchanges(case)):
        response = ask(case, exchange)
        recorded.check_answer(response, exchange)
        assert all(call.id for call in response.tool_calls)


@pytest.mark.parametrize("case", wire_cases("groq-chat", "mistral-chat", "openrouter-chat", "ollama-chat"))
def test_every_recorded_answer_of_these_servers_has_its_usage(case: str) -> None:
    for exchange in filter(is_answer, exchanges(case)):
        usage = ask(case, exchange).usage
        assert usage is not None
        assert usage.input_tokens and usage.output_tokens


@pytest.mark.parametrize("case", wire_cases("openai-chat--err", "groq-chat--err"))
def test_a_recorded_error_answer_raises_invalid_request_with_its_code(case: str) -> None:
    refused = [exchange for exchange in exchanges(case) if exchange.status != 200]
    assert refused
    for exchange in refused:
        with pytest.raises(InvalidRequest) as caught:
            ask(case, exchange)
        error = json.loads(exchange.body)["error"]
        assert (caught.value.status_code, caught.value.code) == (exchange.status, error["code"])
        assert error["code"] in ("model_not_found", "tool_use_failed")
        assert error["message"] not in str(caught.value) + repr(vars(caught.value))


@pytest.mark.parametrize("case", wire_cases("groq-chat--sse-one"))
def test_a_stream_that_breaks_off_with_an_error_object_is_an_invalid_response(case: str) -> None:
    broken = exchanges(case)[0]
    assert broken.status == 200 and b"failed_generation" in broken.body
    with pytest.raises(InvalidResponse) as caught:
        ask(case, broken)
    assert caught.value.code == "tool_use_failed"


@pytest.mark.parametrize("case", wire_cases("groq-chat--sse-one", "groq-chat--err"))
def test_groqs_reasoning_is_decoded(case: str) -> None:
    assert all(ask(case, exchange).message.reasoning for exchange in filter(is_answer, exchanges(case)))


@pytest.mark.parametrize("case", wire_cases("openai-chat--sse-one--01"))
def test_calls_count_although_the_stream_gives_no_finish_reason(case: str) -> None:
    response = ask(case, exchanges(case)[0])
    assert (response.finish_reason, [call.name for call in response.tool_calls]) == (None, ["llm_version"])


# Streams.


@pytest.mark.parametrize("case", STREAMS)
@given(places=st.lists(st.integers(0, 2**20), max_size=40))
def test_a_stream_is_the_same_message_wherever_it_is_cut(case: str, places: list[int]) -> None:
    for exchange in exchanges(case):
        if exchange.streamed:
            ask_in_pieces = partial(recorded.ask_in_pieces, model_of(case), exchange.body, exchange.content_type)
            if is_answer(exchange):
                whole = ask_in_pieces([])
                assert ask_in_pieces(places) == whole
                assert len(whole.tool_calls) == exchange.tool_calls
            else:
                with pytest.raises(InvalidResponse, match="tool_use_failed"):
                    ask_in_pieces(places)


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_cut_short_is_an_invalid_response(case: str) -> None:
    for exchange in filter(is_answer, exchanges(case)):
        if exchange.streamed:
            begun = exchange.body[: exchange.body.index(b"\n\n") + 2]
            with pytest.raises(InvalidResponse):
                recorded.ask(model_of(case), Reply([begun], content_type=exchange.content_type), streamed=True)


# Requests, and whole loops.


def conversation(said: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    """Give the messages of a recorded request as ours."""
    names = {call["id"]: call["function"]["name"] for message in said for call in message.get("tool_calls") or ()}
    for message in said:
        text, images = text_of(message), images_of(message)
        match message["role"]:
            case "system":
                yield SystemMessage(text)
            case "user":
                yield UserMessage([TextPart(text)] * bool(text) + [ImagePart(url=url) for url in images])
            case "assistant":
                calls = [call["function"] | {"id": call["id"]} for call in message.get("tool_calls") or ()]
                yield AssistantMessage(text, tool_calls=[ToolCall(**call) for call in calls])
            case "tool":
                call_id = message["tool_call_id"]
                yield ToolMessage([ToolResultPart(call_id=call_id, name=names[call_id], content=text)])


def text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(each.get("text", "") for each in content)


def images_of(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    return [each["image_url"]["url"] for each in content if "image_url" in each] if isinstance(content, list) else []


def functions(request: Mapping[str, Any]) -> list[ToolDefinition]:
    """Return the tools of a recorded request that a client runs, and not the server."""
    return [
        ToolDefinition(
            name=tool["function"]["name"],
            description=tool["function"].get("description") or "",
            input_schema=tool["function"].get("parameters") or {"type": "object"},
        )
        for tool in request.get("tools", ())
        if "function" in tool
    ]


def chosen(request: Mapping[str, Any]) -> str | None:
    choice = request.get("tool_choice")
    return choice["function"]["name"] if isinstance(choice, dict) else choice


def meaning(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request says.

    Left out, because it says nothing to the model or is another recorder's habit: the model's name, settings of the
    answer, `stream`; `strict` and descriptions of tools; the order of tools, and those that the server runs; an
    assistant message that says nothing; `annotations`; white space in arguments; reasoning written into a text. Our
    own habit is the line that says which call's images follow.
    """
    return {
        "messages": [meant for message in request["messages"] if any((meant := _said(message))[1:])],
        "tools": sorted(tool.name for tool in functions(request)),
        "tool_choice": chosen(request),
    }


_HABITS = re.compile(r"<think>.*?</think>|Images returned by the tool call [\w-]+:", re.DOTALL)


def _said(message: Mapping[str, Any]) -> tuple[Any, ...]:
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return message["role"], _HABITS.sub("", text_of(message)), images_of(message), message.get("tool_call_id"), calls


@pytest.mark.parametrize("case", CASES)
def test_every_recorded_request_can_be_encoded_from_messages(case: str) -> None:
    for exchange in exchanges(case):
        options = ChatOptions(tool_choice=chosen(exchange.request))
        tools = tuple(functions(exchange.request))
        request = ChatRequest(tuple(conversation(exchange.request["messages"])), tools, options)
        sent = codec_of(provider_of(case)).encode(request, stream=exchange.streamed)
        assert meaning(sent) == meaning(exchange.request)


def is_first(request: Mapping[str, Any]) -> bool:
    return not any(message["role"] == "assistant" for message in request["messages"])


def answers_of(loop: Sequence[Exchange]) -> dict[str, list[str | ImagePart]]:
    """Return what each call of a loop was answered: a text, and images, which follow as the user's."""
    found: dict[str, list[str | ImagePart]] = {}
    for said in (exchange.request["messages"] for exchange in loop):
        for place, message in enumerate(said):
            if message["role"] == "tool":
                following = [url for later in said[place + 1 : place + 3] for url in images_of(later)]
                found[message["tool_call_id"]] = [message["content"], *(ImagePart(url=url) for url in following)]
    return found


def specification(loop: Sequence[Exchange], model: HttpChatModel) -> ChatClientRequestSpec:
    first, answers = loop[0].request, answers_of(loop)

    def answer(context: ToolContext, **arguments: Any) -> Any:
        text, *images = answers.get(context.call_id, ["not recorded"])
        return [text, *images] if images else text

    tools = [FunctionToolCallback(answer, definition=definition) for definition in functions(first)]
    # a forced call is repeated in each pass of the recording
    options = ChatOptions(tool_choice=chosen(first))
    return ChatClient(model, tools=tools, options=options).prompt(messages=list(conversation(first["messages"])))


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
@pytest.mark.parametrize("case", CASES)
def test_a_recorded_loop_runs_through_the_client_and_sends_the_recorded_requests(case: str, colour: str) -> None:
    for loop in recorded.loops([*filter(is_answer, exchanges(case))], is_first):
        mode = recorded.mode_of(loop, colour)
        closing = CLOSING_STREAM if loop[0].streamed else CLOSING
        response, sent = recorded.replayed(loop, closing, model_of(case), partial(specification, loop), mode)
        assert [meaning(request) for request in sent[: len(loop)]] == [meaning(each.request) for each in loop]
        answered = not loop[-1].tool_calls
        assert len(sent) == len(loop) + (not answered)
        assert (response.content == "closing words") is (not answered)
        assert len(response.tool_results) == sum(exchange.tool_calls for exchange in loop)
        assert response.stop_reason == "answered"


@pytest.mark.parametrize("case", wire_cases("openai-chat--err", "groq-chat--err"))
def test_a_recorded_refusal_leaves_the_loop_as_it_is(case: str) -> None:
    loop = exchanges(case)[:1]
    with pytest.raises(ModelError):
        recorded.replayed(loop, CLOSING, model_of(case), partial(specification, loop), "call")
