"""Clients of Anthropic's SDK run the small agent, and what can be seen is as with our model and our loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, Stream
from anthropic.types import Message, RawMessageStreamEvent, TextBlock

from tests.captured import Telemetry
from tests.fixtures import Exchange, exchanges, wire_cases
from tests.integrations.anthropic_api import MESSAGES_API, SETTINGS, blocking_client
from tests.integrations.sdk_agent import ask_ours, ask_sdk, serving, with_sorted_json
from tests.integrations.small_agent import TURNS, without_our_loop
from tests.models.anthropic import test_recorded as own_recorded
from tests.models.recorded import without_made_up_ids
from tests.modes import ALL_MODES
from traced_tools import observe
from traced_tools.integrations.anthropic import tool_calls, tool_result, traced
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ReplayServer, Reply


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with Telemetry("SPAN_AND_EVENT") as captured:
        yield captured


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_small_agent_is_seen_as_in_our_own_loop(mode: str) -> None:
    with serving(MESSAGES_API, mode) as server:
        ours, sdk = ask_ours(MESSAGES_API, server.url, mode), ask_sdk(MESSAGES_API, server.url, mode)
    assert without_our_loop(sdk.seen()) == without_our_loop(ours.seen())


def replayed(exchange: Exchange, telemetry: Telemetry) -> ChatResponse | None:
    """Send a recorded request with the SDK, and return the response that its run has."""
    with ReplayServer([exchange.reply()]) as server, observe.run(telemetry=telemetry.options) as run:
        answer = blocking_client(server.url).post(
            "/v1/messages",
            cast_to=Message,
            body=exchange.request,
            stream=exchange.streamed,
            stream_cls=Stream[RawMessageStreamEvent],
        )
        for _ in answer if isinstance(answer, Stream) else ():
            pass
    return None if run.response is None else with_sorted_json(without_made_up_ids(run.response))


@pytest.mark.parametrize("case", wire_cases("anthropic"))
def test_a_recorded_message_is_decoded_as_by_our_model(
    case: str, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    for exchange in exchanges(case):
        if exchange.status == 200:
            assert replayed(exchange, telemetry) == with_sorted_json(own_recorded.ask(exchange))
    assert "telemetry lost" not in caplog.text


def test_the_stream_helper_of_the_sdk_has_its_model_call(telemetry: Telemetry) -> None:
    replies = [Reply.sse([*MESSAGES_API.events(0, turn)]) for turn in (TURNS[0], "Done.")]
    with ReplayServer(replies) as server, Anthropic(base_url=server.url, **SETTINGS) as client:
        client = traced(client, telemetry=telemetry.options)
        with client.messages.stream(model="m", max_tokens=9, messages=MESSAGES_API.begin()) as stream:
            message = stream.get_final_message()
        with client.messages.stream(model="m", max_tokens=9, messages=MESSAGES_API.begin()) as stream:
            assert "".join(stream.text_stream) == "Done."
    assert [call.id for call in tool_calls(message)] == ["c1", "c2"]
    reasons = [span.attributes[names.RESPONSE_FINISH_REASONS] for span in telemetry.named("chat m") if span.attributes]
    assert reasons == [("tool_call",), ("stop",)]


def test_the_beta_api_is_observed_and_its_tool_runner_answers_calls(telemetry: Telemetry) -> None:
    from anthropic import beta_tool

    @beta_tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    calls = [call for call in TURNS[0] if call.name == "add"]
    replies = [Reply.json(MESSAGES_API.whole(number, turn)) for number, turn in enumerate([calls, "42"])]
    with ReplayServer(replies) as server, Anthropic(base_url=server.url, **SETTINGS) as client:
        client = traced(client)
        with observe.run(telemetry=telemetry.options) as run:
            runner = client.beta.messages.tool_runner(
                model="m", max_tokens=9, tools=[add], messages=MESSAGES_API.begin()
            )
            assert [message.id for message in runner] == ["r0", "r1"]
    assert [(result.call_id, result.content, result.decision) for result in run.tool_results] == [
        ("c1", "42", "answered")
    ]
    assert len(telemetry.named("iteration")) == 2


def test_a_copy_keeps_the_credentials_of_the_client(telemetry: Telemetry) -> None:
    replies = [Reply.json(MESSAGES_API.whole(0, "Hello."))] * 2
    with ReplayServer(replies) as server, Anthropic(base_url=server.url, auth_token="token", max_retries=0) as client:
        copied = traced(client, telemetry=telemetry.options).with_options(timeout=9)
        MESSAGES_API.create(copied, MESSAGES_API.begin(), (), False)
        assert server.requests[0].headers["Authorization"] == "Bearer token"
        MESSAGES_API.create(copied.with_options(timeout=9), MESSAGES_API.begin(), (), False)
    assert len(telemetry.named("chat m")) == 2


def test_answers_that_are_sent_back_as_objects_are_recorded(telemetry: Telemetry) -> None:
    replies = [Reply.json(MESSAGES_API.whole(number, turn)) for number, turn in enumerate([TURNS[0], "Done."])]
    with ReplayServer(replies) as server, Anthropic(base_url=server.url, **SETTINGS) as client:
        client = traced(client)
        with observe.run(telemetry=telemetry.options) as run:
            messages = MESSAGES_API.begin()
            answer = MESSAGES_API.create(client, messages, MESSAGES_API.tools, False)
            results = [
                {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": "x"}]}
                for call_id in ("c1", "c2")
            ]
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
            MESSAGES_API.create(client, messages, MESSAGES_API.tools, False)
    attributes = telemetry.named("chat m")[1].attributes
    assert attributes is not None
    sent = json.loads(str(attributes[names.INPUT_MESSAGES]))
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert [result.decision for result in run.tool_results] == ["answered", "answered"]


def test_only_an_answer_has_calls() -> None:
    assert tool_calls(Message.model_validate(MESSAGES_API.whole(0, TURNS[0])))[0].name == "add"
    for wrong in ("an answer", TextBlock(type="text", text="an answer"), Message):
        with pytest.raises(TypeError, match="answer must be a Message"):
            tool_calls(wrong)


def test_only_a_result_is_written_for_the_model() -> None:
    wrong: Any
    for wrong in ("paid 90", None, {"content": "paid 90"}):
        with pytest.raises(TypeError, match="result must be a ToolResult"):
            tool_result(wrong)
