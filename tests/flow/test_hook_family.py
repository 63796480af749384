"""Promises 1, 2 and 4: advisors are written once, re-entering the chain is a loop, and loops can be driven manually."""

from __future__ import annotations

import asyncio

import pytest

from tests.captured import Telemetry
from tests.flow.models import StreamedModel
from tests.modes import MODES, arun, run
from tests.waiting import patiently
from traced_tools import (
    Advisor,
    BaseAdvisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from traced_tools.core.messages import AssistantMessage
from traced_tools.flow import perform
from traced_tools.flow.flow import Execution, call
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models.base import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.batch import ExecuteTools
from traced_tools.tools.invocation import CallNext
from traced_tools.tools.selection import tool_callbacks


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def sums() -> ScriptedChatModel:
    return ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "it is three"])


class Recorder(Advisor):
    """Overrides every hook of the family and writes down what it sees."""

    def __init__(self, name: str, order: int, seen: list[str]) -> None:
        self.name, self.order, self.seen = name, order, seen
        self.text = ""

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self.seen.append(f"{self.name} in {request.iteration}")
        response = await call_next(request)
        await perform(self.seen.append, f"{self.name} out {response.content!r}")
        return response

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        self.seen.append(f"{self.name} tool {call.name} {call.arguments}")
        result = await call_next(call)
        self.seen.append(f"{self.name} tool gave {result.content}")
        return result

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        self.text += chunk.text
        return chunk


def test_the_same_advisors_see_the_same_calls_in_all_four_modes() -> None:
    sequences, contents = {}, {}
    for mode in MODES:
        seen: list[str] = []
        advisors = [Recorder("outer", 100, seen), Recorder("inner", 400, seen)]
        response = run(mode, ChatClient(sums(), tools=[add], advisors=advisors).prompt("1 + 2?"))
        sequences[mode], contents[mode] = seen, (response.content, [each.content for each in response.tool_results])

    assert sequences["call"] == [
        "outer in 0",
        "inner in 1",
        "inner out ''",
        'outer tool add {"a":1,"b":2}',
        'inner tool add {"a":1,"b":2}',
        "inner tool gave 3",
        "outer tool gave 3",
        "inner in 2",
        "inner out 'it is three'",
        "outer out 'it is three'",
    ]
    assert contents["call"] == ("it is three", ["3"])
    for mode in MODES:
        assert (sequences[mode], contents[mode]) == (sequences["call"], contents["call"]), mode


@pytest.mark.parametrize("streaming", ["stream", "astream"])
def test_on_chunk_gets_the_text_of_the_response(streaming: str) -> None:
    outer, inner = Recorder("outer", 100, []), Recorder("inner", 400, [])
    response = run(streaming, ChatClient(sums(), tools=[add], advisors=[outer, inner]).prompt("1 + 2?"))

    assert outer.text == inner.text == response.content == "it is three"


class Shouting(Advisor):
    name, order = "shouting", 400

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        if chunk.delta is None or chunk.text == "is ":
            return None
        return chunk.replace(delta=type(chunk.delta)(text=chunk.text.upper()))


def test_on_chunk_can_replace_and_drop_chunks() -> None:
    outer = Recorder("outer", 100, [])
    client = ChatClient(ScriptedChatModel(["it is three"]), advisors=[Shouting(), outer])

    with client.prompt("?").stream() as stream:
        assert "".join(chunk.text for chunk in stream) == "IT THREE"
    assert outer.text == "IT THREE"
    assert stream.response.content == "it is three"


class Again(Advisor):
    """Asks the rest of the chain again as long as the answer is `bad`."""

    name = "again"

    def __init__(self, order: int) -> None:
        self.order = order

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        response = await call_next(request)
        while response.content == "bad":
            response = await call_next(request.replace(messages=(*request.messages, UserMessage("again"))))
        return response


def test_awaiting_call_next_again_runs_the_downstream_chain_again(mode: str, telemetry: Telemetry) -> None:
    seen: list[str] = []
    model = ScriptedChatModel(["bad", "bad", "good"])
    advisors = [Recorder("before", 100, seen), Again(350), Recorder("after", 400, seen)]
    response = run(mode, ChatClient(model, advisors=advisors, telemetry=telemetry.options).prompt("?"))

    assert response.content == "good"
    assert [len(request.messages) for request in model.requests] == [1, 2, 2]
    assert [each for each in seen if " in " in each] == ["before in 0", "after in 1", "after in 1", "after in 1"]
    assert len(telemetry.named("chat")) == len(telemetry.named("advise after")) == 3
    telemetry.check_each_ended_once()


def test_an_advisor_around_the_loop_runs_the_whole_loop_again(mode: str) -> None:
    calls = ToolCall("add", {"a": 1, "b": 2})
    model = ScriptedChatModel([calls, "bad", calls, "good"])
    response = run(mode, ChatClient(model, tools=[add], advisors=[Again(100)]).prompt("?"))

    assert response.content == "good"
    assert len(model.requests) == 4


def test_advisors_of_equal_order_keep_their_registration_order_in_every_iteration(mode: str) -> None:
    seen: list[str] = []
    equals = [Recorder(name, 400, seen) for name in ("b", "a", "c")]
    model = ScriptedChatModel(["bad", ToolCall("add", {"a": 1, "b": 2}), "good"])
    run(mode, ChatClient(model, tools=[add], advisors=[*equals, Again(350)]).prompt("?"))

    entered = [each[0] for each in seen if " in " in each]
    assert entered == ["b", "a", "c"] * 3
    assert [each[0] for each in seen if "tool add" in each] == ["b", "a", "c"]


def test_an_iteration_returns_the_aggregated_response_while_its_chunks_go_to_the_consumer(mode: str) -> None:
    contents: list[str] = []

    class Reader(BaseAdvisor):
        name, order = "reader", 400

        def after(self, response: ChatClientResponse) -> ChatClientResponse:
            contents.append(response.content)
            assert response.delta is None
            return response

    run(
        mode,
        ChatClient(
            ScriptedChatModel([["let me see", ToolCall("add", {"a": 1, "b": 2})], "three"]),
            tools=[add],
            advisors=[Reader()],
        ).prompt("?"),
    )
    assert contents == ["let me see", "three"]


# The loop in the test's own hand: no client, no model, no event loop.


def request_of(*tools: object) -> ChatClientRequest:
    return ChatClientRequest((UserMessage("1 + 2?"),), tool_callbacks(*tools))  # type: ignore[arg-type]


def answer(request: ChatClientRequest, *parts: str | ToolCall) -> ChatClientResponse:
    message = AssistantMessage([TextPart(part) if isinstance(part, str) else part for part in parts])
    history = (*request.messages, message)
    return ChatClientResponse(request.run, ChatResponse(message), history, iteration=request.iteration)


def test_a_loop_runs_on_a_plain_function_for_the_rest_of_the_chain() -> None:
    asked: list[ChatClientRequest] = []

    async def call_next(request: ChatClientRequest) -> ChatClientResponse:
        asked.append(request)
        if len(asked) == 1:
            return answer(request, ToolCall("add", {"a": 1, "b": 2}, "c1"))
        return answer(request, "three")

    response = call(ToolCallingAdvisor().advise(request_of(add), call_next))

    assert response.content == "three"
    assert [request.iteration for request in asked] == [1, 2]
    assert isinstance(asked[1].messages[-1], ToolMessage)
    assert [(each.call_id, each.content) for each in response.tool_results] == [("c1", "3")]


def test_a_loop_is_resumed_manually_with_results_that_no_tool_returned() -> None:
    async def call_next(request: ChatClientRequest) -> ChatClientResponse:
        if request.iteration == 1:
            return answer(request, ToolCall("add", {"a": 1, "b": 2}, "c1"))
        last = request.messages[-1]
        assert isinstance(last, ToolMessage)
        return answer(request, f"heard {last.results[0].content}")

    execution = Execution(ToolCallingAdvisor().advise(request_of(add), call_next))
    execution.start()
    assert isinstance(execution.step, ExecuteTools)
    assert [made.name for made in execution.step.calls] == ["add"]
    execution.resume([ToolResult("c1", "add", "42", outcome="ok")])

    assert execution.finished
    assert execution.step is None
    assert execution.result.content == "heard 42"


def test_a_loop_resumed_with_an_error_raises_it() -> None:
    async def call_next(request: ChatClientRequest) -> ChatClientResponse:
        return answer(request, ToolCall("add", {"a": 1, "b": 2}, "c1"))

    execution = Execution(ToolCallingAdvisor().advise(request_of(add), call_next))
    execution.start()
    with pytest.raises(LookupError, match="nowhere"):
        execution.fail(LookupError("nowhere"))
    assert execution.finished


def test_a_request_runs_many_times_and_each_run_is_complete(mode: str) -> None:
    client = ChatClient(ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "three"] * 2), tools=[add])
    spec = client.prompt("?")
    first, second = run(mode, spec), run(mode, spec)

    assert first.run_id != second.run_id
    assert (first.content, len(first.tool_results)) == (second.content, len(second.tool_results)) == ("three", 1)


@pytest.mark.parametrize("streaming", ["stream", "astream"])
def test_a_stream_yields_a_chunk_as_soon_as_the_model_does(streaming: str) -> None:
    """Pull is back-pressure: the model is not asked for a chunk before the consumer wants it."""
    model = StreamedModel("a b c")
    spec = ChatClient(model).prompt("?")
    given: list[tuple[str, int]] = []
    if streaming == "stream":
        for chunk in spec.stream():
            given.append((chunk.text, model.given))
    else:

        async def main() -> None:
            async for chunk in spec.astream():
                given.append((chunk.text, model.given))

        asyncio.run(patiently(main()))
    assert given[:3] == [("a ", 1), ("b ", 2), ("c", 3)]


def test_several_runs_of_one_client_at_once_do_not_mix() -> None:
    def echo(text: str) -> str:
        return text

    async def one(number: int) -> str:
        model = ScriptedChatModel([ToolCall("echo", {"text": str(number)}), f"answer {number}"])
        response = await arun("acall", ChatClient(model, tools=[echo]).prompt("?"))
        return f"{response.tool_results[0].content} {response.content}"

    async def main() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(20)))

    assert asyncio.run(patiently(main())) == [f"{number} answer {number}" for number in range(20)]
