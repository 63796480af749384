"""Turns that Claude pauses: it is sent what it has written, and continues, in all four modes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests import modes
from tests.modes import MODES, STREAMING_MODES
from traced_tools import ChatClient, ChatClientResponse, ChatOptions, ModelError, Usage
from traced_tools.errors import InvalidResponse
from traced_tools.models import AnthropicChatModel, FallbackModel
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel, capture_telemetry

SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "oslo"}}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}
Block = dict[str, Any]


def text(said: str) -> Block:
    return {"type": "text", "text": said}


def call(name: str) -> Block:
    return {"type": "tool_use", "id": "c1", "name": name, "input": {}}


def answer(mode: str, blocks: Sequence[Block], reason: str, **more: Any) -> Reply:
    usage = {"input_tokens": 10, "output_tokens": 2}
    if "stream" not in mode:
        return Reply.json({"id": "m", "content": list(blocks), "stop_reason": reason, "usage": usage, **more})
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "m", "usage": usage}}]
    for index, block in enumerate(blocks):
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block.get("input", {}))}
        begun = {**block, "input": {}} if "input" in block else block
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": delta}] if "input" in block else []
        events.append({"type": "content_block_stop", "index": index})
    end = {"type": "message_delta", "delta": {"stop_reason": reason, **more}, "usage": usage}
    return Reply.sse([*events, end, {"type": "message_stop"}])


def ask(
    mode: str, replies: Sequence[Reply], options: ChatOptions | None = None
) -> tuple[ChatClientResponse, list[Any]]:
    with ReplayServer(list(replies)) as server:
        model = AnthropicChatModel("m", base_url=server.url, api_key="k", retries=0)
        response = modes.run(mode, ChatClient(model, tools=[lookup]).prompt("?", options=options), model)
        return response, [request.json() for request in server.requests]


def lookup() -> str:
    """Look it up."""
    return "found"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
def test_a_paused_turn_continues_with_what_the_model_has_written(mode: str, reason: str) -> None:
    first = answer(mode, [text("Looking. "), SEARCH], reason)
    second = answer(mode, [THINKING, text("It is "), SEARCH], reason)
    response, sent = ask(mode, [first, second, answer(mode, [text("cold.")], "end_turn")])
    assert (response.content, response.stop_reason, response.finish_reason) == (
        "Looking. It is cold.",
        "answered",
        "stop",
    )
    assert response.usage == Usage(input_tokens=30, output_tokens=6)
    assert [message.role for message in response.messages] == ["user", "assistant"]
    assert [body["messages"][1:] for body in sent] == [
        [],
        [{"role": "assistant", "content": [text("Looking. "), SEARCH]}],
        [{"role": "assistant", "content": [text("Looking. "), SEARCH, THINKING, text("It is "), SEARCH]}],
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_paused_turn_may_end_with_calls(mode: str) -> None:
    replies = [answer(mode, [SEARCH], "pause_turn"), answer(mode, [call("lookup")], "tool_use")]
    response, sent = ask(mode, [*replies, answer(mode, [text("Done.")], "end_turn")])
    assert response.content == "Done."
    assert sent[2]["messages"][1]["content"] == [SEARCH, call("lookup")]
    assert sent[2]["messages"][2]["content"][0]["content"] == [text("found")]


@pytest.mark.parametrize("mode", MODES)
def test_each_request_of_a_paused_turn_has_a_span(mode: str) -> None:
    replies = [answer(mode, [SEARCH], "pause_turn"), answer(mode, [text("cold.")], "end_turn")]
    with capture_telemetry() as captured, ReplayServer(replies) as server:
        model = AnthropicChatModel("m", base_url=server.url, api_key="k")
        modes.run(mode, ChatClient(model, telemetry=captured.options).prompt("?"), model)
    assert [span.name for span in captured.spans].count("chat m") == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_always_pauses_is_an_error(mode: str) -> None:
    with pytest.raises(InvalidResponse, match="paused its turn more than 20 times"):
        ask(mode, [answer(mode, [SEARCH], "pause_turn") for _ in range(30)])


@pytest.mark.parametrize("mode", STREAMING_MODES)
def test_an_error_after_a_streamed_pause_is_not_answered_by_the_next_model(mode: str) -> None:
    with ReplayServer([answer(mode, [text("Looking. "), SEARCH], "pause_turn"), Reply.json({}, 503)]) as server:
        model = AnthropicChatModel("m", base_url=server.url, api_key="k", retries=0)
        both = FallbackModel([model, ScriptedChatModel(["no"])])
        with pytest.raises(ModelError) as caught:
            modes.run(mode, ChatClient(both).prompt("?"))
        assert caught.value.streamed
        model.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("extra", [None, {"skills": ["x"]}], ids=["alone", "with skills"])
def test_a_turn_goes_on_in_its_container_and_the_next_turn_does_not(mode: str, extra: Any) -> None:
    options = None if extra is None else ChatOptions(extra={"container": extra})
    container = {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}
    replies = [
        answer(mode, [SEARCH], "pause_turn", container=container),
        answer(mode, [call("lookup")], "tool_use", container=container),
        answer(mode, [text("Done.")], "end_turn", container=container),
    ]
    response, sent = ask(mode, replies, options)
    expected = "container_1" if extra is None else {"id": "container_1", **extra}
    assert [body.get("container") for body in sent] == [extra, expected, expected]
    with ReplayServer([answer(mode, [text("Hi.")], "end_turn")]) as server:
        model = AnthropicChatModel("m", base_url=server.url, api_key="k")
        modes.run(mode, ChatClient(model).prompt("Thanks", messages=response.messages), model)
        (request,) = server.requests
    assert "container" not in request.json()
    assert "container_1" not in request.body.decode()
