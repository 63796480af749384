"""Clients of OpenAI's SDK run the small agent, and all that can be seen is as with our own models and our own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncAzureOpenAI, AzureOpenAI, OpenAI, Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from tests.captured import Telemetry
from tests.fixtures import Exchange, exchanges, wire_cases
from tests.integrations.openai_apis import APIS, CHAT, RESPONSES, SETTINGS, blocking_client
from tests.integrations.sdk_agent import ask_ours, ask_sdk, serving, with_sorted_json
from tests.integrations.small_agent import TURNS, without_our_loop
from tests.models.openai import test_chat_recorded as chat_recorded
from tests.models.openai import test_responses_recorded as responses_recorded
from tests.models.recorded import without_made_up_ids
from tests.modes import ALL_MODES
from tests.waiting import patiently
from traced_tools import ToolCall, observe
from traced_tools.integrations.openai import tool_calls, tool_message, tool_output, traced
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ReplayServer, Reply


class Weather(BaseModel):
    """What an answer has to say."""

    city: str


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with Telemetry("SPAN_AND_EVENT") as captured:
        yield captured


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("api", APIS)
def test_the_small_agent_is_seen_as_in_our_own_loop(api: str, mode: str) -> None:
    with serving(APIS[api], mode) as server:
        ours, sdk = ask_ours(APIS[api], server.url, mode), ask_sdk(APIS[api], server.url, mode)
    assert without_our_loop(sdk.seen()) == without_our_loop(ours.seen())


def replayed(path: str, exchange: Exchange, kinds: tuple[Any, Any], telemetry: Telemetry) -> ChatResponse | None:
    """Send a recorded request with the SDK, and return the response that its run has."""
    with ReplayServer([exchange.reply()]) as server, observe.run(telemetry=telemetry.options) as run:
        client = blocking_client(server.url)
        stream_class = Stream[kinds[1]]  # type: ignore[valid-type]
        body = exchange.request
        answer = client.post(path, cast_to=kinds[0], body=body, stream=exchange.streamed, stream_cls=stream_class)
        for _ in answer if exchange.streamed else ():
            pass
    return None if run.response is None else with_sorted_json(without_made_up_ids(run.response))


@pytest.mark.parametrize("case", chat_recorded.CASES)
def test_a_recorded_completion_is_decoded_as_by_our_model(
    case: str, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    for exchange in filter(chat_recorded.is_answer, exchanges(case)):
        kinds = ChatCompletion, ChatCompletionChunk
        response = replayed("/chat/completions", exchange, kinds, telemetry)
        assert response == with_sorted_json(chat_recorded.ask(case, exchange))
    assert "telemetry lost" not in caplog.text


@pytest.mark.parametrize("case", wire_cases("openai-responses", "deepseek-responses"))
def test_a_recorded_response_is_decoded_as_by_our_model(
    case: str, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    for exchange in exchanges(case):
        if exchange.status != 200:
            continue
        response = replayed("/responses", exchange, (Response, ResponseStreamEvent), telemetry)
        assert response == with_sorted_json(responses_recorded.ask(exchange))
    assert "telemetry lost" not in caplog.text


def test_a_parsed_completion_has_its_model_call(telemetry: Telemetry) -> None:
    reply = Reply.json(CHAT.whole(0, '{"city": "Oslo"}'))
    with ReplayServer([reply]) as server, OpenAI(base_url=server.url, **SETTINGS) as client:
        completions = traced(client, telemetry=telemetry.options).chat.completions
        answer = completions.parse(model="m", messages=CHAT.begin(), response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Oslo")
    attributes = telemetry.one("chat m").attributes
    assert attributes is not None
    assert attributes[names.OUTPUT_TYPE] == "json"
    assert "Oslo" in str(attributes[names.OUTPUT_MESSAGES])


def test_a_parsed_response_has_its_model_call(telemetry: Telemetry) -> None:
    reply = Reply.json(RESPONSES.whole(0, '{"city": "Oslo"}'))
    with ReplayServer([reply]) as server, OpenAI(base_url=server.url, **SETTINGS) as client:
        answer = traced(client, telemetry=telemetry.options).responses.parse(
            model="m", input="Where?", text_format=Weather
        )
    assert answer.output_parsed == Weather(city="Oslo")
    attributes = telemetry.one("chat m").attributes
    assert attributes is not None
    assert attributes[names.OUTPUT_TYPE] == "json"
    assert "Where?" in str(attributes[names.INPUT_MESSAGES])


def test_the_stream_helpers_of_the_sdk_have_their_model_calls(telemetry: Telemetry) -> None:
    replies = [Reply.sse([*api.events(0, TURNS[0])]) for api in (CHAT, RESPONSES)]
    with ReplayServer(replies) as server, OpenAI(base_url=server.url, **SETTINGS) as client:
        client = traced(client, telemetry=telemetry.options)
        with client.chat.completions.stream(model="m", messages=CHAT.begin(), tools=[]) as stream:
            completion = stream.get_final_completion()
        with client.responses.stream(model="m", input="?") as response_stream:
            response = response_stream.get_final_response()
    assert [call.id for call in tool_calls(completion)] == ["c1", "c2"]
    assert [call.id for call in tool_calls(response)] == ["c1", "c2"]
    reasons = [span.attributes[names.RESPONSE_FINISH_REASONS] for span in telemetry.named("chat m") if span.attributes]
    assert reasons == [("tool_call",), ("tool_call",)]


@pytest.mark.parametrize("on_asyncio", [False, True])
def test_a_client_for_azure_is_traced(on_asyncio: bool, telemetry: Telemetry) -> None:
    settings: Any = {"api_key": "k", "api_version": "2024-10-21", "max_retries": 0}

    async def ask(url: str) -> None:
        async with AsyncAzureOpenAI(azure_endpoint=url, **settings) as client:
            azure = traced(client, telemetry=telemetry.options).with_options(timeout=9)
            await CHAT.create(azure, CHAT.begin(), (), False)

    with ReplayServer([Reply.json(CHAT.whole(0, "Hello."))]) as server:
        if on_asyncio:
            asyncio.run(patiently(ask(server.url)))
        else:
            with AzureOpenAI(azure_endpoint=server.url, **settings) as client:
                azure = traced(client, telemetry=telemetry.options).with_options(timeout=9)
                CHAT.create(azure, CHAT.begin(), (), False)
        assert server.requests[0].path.startswith("/openai/deployments/m/chat/completions")
    attributes = telemetry.one("chat m").attributes
    assert attributes is not None
    assert attributes[names.PROVIDER_NAME] == "azure.ai.openai"


def test_options_and_images_of_a_request_are_recorded(telemetry: Telemetry) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "Look."}, image]}]
    with (
        ReplayServer([Reply.json(CHAT.whole(0, "A cat."))]) as server,
        OpenAI(base_url=server.url, **SETTINGS) as client,
    ):
        traced(client, telemetry=telemetry.options).chat.completions.create(
            model="m", messages=messages, temperature=0.5, stop="END", max_completion_tokens=9, seed=3
        )
    attributes = telemetry.one("chat m").attributes
    assert attributes is not None
    assert attributes[names.REQUEST_TEMPERATURE] == 0.5
    assert attributes[names.REQUEST_STOP_SEQUENCES] == ("END",)
    assert attributes[names.REQUEST_MAX_TOKENS] == 9
    assert attributes[names.REQUEST_SEED] == 3
    assert "https://example.org/a.png" in str(attributes[names.INPUT_MESSAGES])


def test_other_requests_are_not_observed(telemetry: Telemetry) -> None:
    embeddings = {"object": "list", "data": [], "model": "e", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    queued = {**RESPONSES.whole(0, "?"), "status": "queued", "output": []}
    with ReplayServer([Reply.json(embeddings), Reply.json(queued)]) as server:
        with OpenAI(base_url=server.url, **SETTINGS) as client:
            client = traced(client, telemetry=telemetry.options)
            with pytest.raises(ValueError, match="No embedding data"):
                client.embeddings.create(model="e", input="a")
            client.responses.create(model="m", input="?", background=True)
    assert not telemetry.spans


def test_only_an_answer_has_calls() -> None:
    assert tool_calls(ChatCompletion.model_validate(CHAT.whole(0, TURNS[0]))) == tuple(TURNS[0])
    assert tool_calls(Response.model_construct(**RESPONSES.whole(0, [ToolCall("f", {}, id="c")])))[0].name == "f"
    for wrong in ("an answer", ChatCompletionMessage(role="assistant"), ChatCompletion):
        with pytest.raises(TypeError, match="answer must be a ChatCompletion or a Response"):
            tool_calls(wrong)


@pytest.mark.parametrize("written", [tool_message, tool_output])
def test_only_a_result_is_written_for_the_model(written: Any) -> None:
    for wrong in ("paid 90", None, {"content": "paid 90"}):
        with pytest.raises(TypeError, match="result must be a ToolResult"):
            written(wrong)
