"""What a consumer of a stream sees, and what happens if consumers interfere with each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import baggage
from opentelemetry import context as otel_context

from tests.modes import MODES, run
from tests.sample_tools import add
from traced_tools import Advisor, AssistantMessage, ChatClient, ChatClientResponse, ToolCall
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.models import ChatChunk, ChatResponse, ToolCallDelta
from traced_tools.models.folding import ChunkFold
from traced_tools.testing import ScriptedChatModel, capture_telemetry


def asking() -> ScriptedChatModel:
    return ScriptedChatModel([["Let me see. ", ToolCall("add", {"a": 1, "b": 2})], "It is three."])


def chunks(mode: str, client: ChatClient) -> list[Any]:
    if mode == "stream":
        return list(client.prompt("1 + 2?").stream())

    async def read() -> list[Any]:
        return [chunk async for chunk in client.prompt("1 + 2?").astream()]

    return asyncio.run(read())


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_no_chunk_has_tool_calls_and_only_the_last_iteration_has_the_finish_reason_stop(mode: str) -> None:
    seen = chunks(mode, ChatClient(asking(), tools=[add]))
    assert [chunk.finish_reason for chunk in seen if chunk.finish_reason] == ["stop"]
    assert not any(chunk.tool_calls for chunk in seen)
    assert "".join(chunk.text for chunk in seen if chunk.iteration == 2) == "It is three."


@pytest.mark.parametrize("mode", MODES)
def test_a_custom_checker_gets_whole_responses(mode: str) -> None:
    def is_tool_call(response: Any) -> bool:
        return bool(response.chat_response.tool_calls)

    loop = ToolCallingAdvisor(is_tool_call=is_tool_call)
    assert run(mode, ChatClient(asking(), tools=[add], advisors=[loop]).prompt("1 + 2?")).content == "It is three."


def test_calls_that_share_an_index_are_distinguished_by_their_ids() -> None:
    fold = ChunkFold()
    for call_id, text in (("a", '{"x":1}'), ("b", '{"x":2}')):
        fold.add(ChatChunk(tool_calls=(ToolCallDelta(0, call_id, "add", text),)))
    assert [(call.id, call.arguments) for call in fold.response().tool_calls] == [("a", '{"x":1}'), ("b", '{"x":2}')]


class Gated(ScriptedChatModel):
    """Streams a word, then waits for the gate."""

    def __init__(self, gate: threading.Event, waiting: threading.Event) -> None:
        super().__init__([])
        self._gate, self._waiting = gate, waiting

    def stream(self, request: Any) -> Iterator[ChatChunk]:
        """Give the first word, and the second once the gate is open."""
        yield ChatChunk(text="one ")
        self._waiting.set()
        assert self._gate.wait(10)
        yield ChatChunk(text="two", finish_reason="stop")


def in_a_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_closing_a_stream_in_another_thread_does_not_break_its_consumer() -> None:
    gate, waiting = threading.Event(), threading.Event()
    seen: list[str] = []
    stream = ChatClient(Gated(gate, waiting)).prompt("count").stream()
    reader = in_a_thread(lambda: seen.extend(chunk.text for chunk in stream))
    assert waiting.wait(10)
    with pytest.raises(RuntimeError, match="another thread or task waits"):
        stream.close()
    gate.set()
    reader.join(10)
    assert seen == ["one ", "two"]
    assert stream.response.content == "one two"


def test_a_stream_whose_event_loop_ended_raises_an_error_and_ends_its_spans() -> None:
    with capture_telemetry() as telemetry:
        model = ScriptedChatModel(["one two three"])
        stream = ChatClient(model, telemetry=telemetry.options).prompt("count").astream()

        async def pull() -> str:
            return (await anext(stream)).text

        assert asyncio.run(pull()) == "one "
        with pytest.raises(RuntimeError, match="closed before its end"):
            asyncio.run(pull())
        assert "invoke_agent assistant" in [span.name for span in telemetry.spans]


class Tagging(ToolCallingAdvisor):
    """Attaches baggage that outlives its hook."""

    def before(self, request: Any) -> Any:
        """Attach it."""
        otel_context.attach(baggage.set_baggage("tenant", "t-1"))
        return request


@pytest.mark.parametrize("mode", MODES)
def test_context_attached_by_a_hook_stays_and_the_span_tree_is_complete(mode: str) -> None:
    tenants: list[object] = []

    def who() -> str:
        tenants.append(baggage.get_baggage("tenant"))
        return "you"

    with capture_telemetry() as telemetry:
        model = ScriptedChatModel([ToolCall("who"), "It is you."])
        client = ChatClient(model, tools=[who], advisors=[Tagging()], telemetry=telemetry.options)
        run(mode, client.prompt("who?"))
        (root,) = telemetry.tree()
    (loop,) = root.children
    assert [node.name for node in loop.children] == [
        "initialize tool_calling",
        "iteration",
        "iteration",
        "finalize tool_calling",
    ]
    assert [node.name.split()[0] for node in loop.children[1].children] == ["before", "chat", "after", "execute_tool"]
    assert tenants == ["t-1"]


@pytest.mark.parametrize("mode", MODES)
def test_an_advisors_answer_is_streamed_and_marked_as_such(mode: str) -> None:
    class Guard(Advisor):
        """Answers in the model's place."""

        name, order = "guard", 100

        async def advise(self, request: Any, call_next: Any) -> Any:
            """Answer."""
            return ChatClientResponse(request.run, ChatResponse(AssistantMessage("not today")), request.messages)

    model = ScriptedChatModel([])
    client = ChatClient(model, advisors=[Guard()])
    response = run(mode, client.prompt("anything"))
    assert (response.content, response.stop_reason, model.requests) == ("not today", "advisor", [])
    if "stream" in mode:
        assert "".join(chunk.text for chunk in chunks(mode, client)) == "not today"
