"""Promise 6: each run has its own, correct context."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from opentelemetry import trace

from tests.captured import Telemetry, span_id, trace_id
from tests.modes import arun, run
from tests.waiting import PATIENCE, patiently
from traced_tools import Advisor, ChatClient, ChatClientRequest, ChatClientResponse, LoopLimits, ToolCall, ToolResult
from traced_tools.core.messages import AssistantMessage
from traced_tools.flow import perform
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models.base import ChatModel, ChatRequest, ChatResponse
from traced_tools.run_handles import AsyncChatStream, ChatRun, ChatStream
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

WHO: ContextVar[str] = ContextVar("who", default="nobody")


def no_span() -> bool:
    return not trace.get_current_span().get_span_context().is_valid


def current_name() -> str:
    return str(getattr(trace.get_current_span(), "name", None))


def look() -> str:
    return f"{current_name()} for {WHO.get()}"


async def alook() -> str:
    await asyncio.sleep(0)
    return look()


def looking(telemetry: Telemetry, *advisors: Advisor) -> ChatClient:
    model = ScriptedChatModel([["let me look", ToolCall("look"), ToolCall("alook")], "it is all there"])
    return ChatClient(model, tools=[look, alook], advisors=advisors, telemetry=telemetry.options)


def test_the_consumer_of_a_stream_never_sees_a_span(telemetry: Telemetry) -> None:
    seen = []
    for chunk in looking(telemetry).prompt("?").stream():
        seen.append((chunk.text, no_span()))
    assert len(seen) > 5
    assert all(clean for _, clean in seen)
    assert no_span()
    telemetry.check_each_ended_once()


def test_the_consumer_of_an_async_stream_never_sees_a_span(telemetry: Telemetry) -> None:
    async def main() -> None:
        seen = []
        async for chunk in looking(telemetry).prompt("?").astream():
            seen.append((chunk.text, no_span()))
            await asyncio.sleep(0)
        assert len(seen) > 5
        assert all(clean for _, clean in seen)
        assert no_span()

    asyncio.run(patiently(main()))
    telemetry.check_each_ended_once()


def test_the_consumers_own_span_stays_current_between_chunks(telemetry: Telemetry) -> None:
    stream = looking(telemetry).prompt("?").stream()
    next(stream)
    with telemetry.tracer.start_as_current_span("rendering"):
        for _ in stream:
            assert current_name() == "rendering"
    assert telemetry.parent(telemetry.one("invoke_agent")) is None
    telemetry.check_each_ended_once()


def test_each_chunk_may_be_pulled_from_another_task(telemetry: Telemetry) -> None:
    async def main() -> None:
        stream = looking(telemetry).prompt("?").astream()
        texts = []

        async def pull(number: int) -> bool:
            WHO.set(f"puller {number}")
            try:
                texts.append((await anext(stream)).text)
            except StopAsyncIteration:
                return False
            assert (WHO.get(), no_span()) == (f"puller {number}", True)
            return True

        number = 0
        while await asyncio.create_task(pull(number)):
            number += 1
        assert "".join(texts) == "let me lookit is all there"
        assert stream.response.content == "it is all there"
        assert {each.content for each in stream.response.tool_results} == {
            "execute_tool look for puller 0",
            "execute_tool alook for puller 0",
        }

    asyncio.run(patiently(main()))
    telemetry.check_each_ended_once()
    telemetry.check_run("answered")


def test_each_chunk_may_be_pulled_from_another_thread(telemetry: Telemetry) -> None:
    stream = looking(telemetry).prompt("?").stream()
    texts: list[str] = []

    def pull() -> None:
        for chunk in stream:
            texts.append(chunk.text)
            return

    while True:
        before = len(texts)
        thread = threading.Thread(target=pull)
        thread.start()
        thread.join(PATIENCE)
        if len(texts) == before:
            break
    assert "".join(texts) == "let me lookit is all there"
    telemetry.check_each_ended_once()


class Spanning(Advisor):
    name, order = "spanning", 400

    def __init__(self, telemetry: Telemetry, order: int = 400) -> None:
        self.order = order
        self.tracer = telemetry.tracer

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        with self.tracer.start_as_current_span("mine"):
            response = await call_next(request)
            assert current_name() == "mine"
        return response

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        with self.tracer.start_as_current_span(f"mine of {call.name}"):
            return await call_next(call)


def test_a_user_span_inside_the_loop_is_the_parent_of_each_chat_span(mode: str, telemetry: Telemetry) -> None:
    run(mode, looking(telemetry, Spanning(telemetry)).prompt("?"))
    assert [telemetry.parent(span) for span in telemetry.named("chat")] == ["mine", "mine"]
    parents = [telemetry.parent(span) for span in telemetry.spans if span.name == "mine"]
    assert parents == ["advise spanning"] * 2
    telemetry.check_each_ended_once()


def test_a_user_span_around_the_loop_is_the_parent_of_the_loop_span(mode: str, telemetry: Telemetry) -> None:
    run(mode, looking(telemetry, Spanning(telemetry, order=100)).prompt("?"))
    mine = next(span for span in telemetry.spans if span.name == "mine")
    loop = telemetry.one("advise tool_calling")
    assert loop.parent is not None
    assert loop.parent.span_id == span_id(mine)
    for span in (*telemetry.named("iteration"), *telemetry.named("chat")):
        assert trace_id(span) == trace_id(mine)
    assert [telemetry.parent(span) for span in telemetry.named("iteration")] == ["advise tool_calling"] * 2
    telemetry.check_each_ended_once()


def test_a_user_span_around_a_tool_is_current_in_the_tool(mode: str, telemetry: Telemetry) -> None:
    response = run(mode, looking(telemetry, Spanning(telemetry)).prompt("?"))
    assert [each.content for each in response.tool_results] == ["mine of look for nobody", "mine of alook for nobody"]
    telemetry.check_each_ended_once()


def test_the_callers_span_is_the_parent_of_the_run_span(mode: str, telemetry: Telemetry) -> None:
    client = looking(telemetry)
    with telemetry.tracer.start_as_current_span("outer"):
        run(mode, client.prompt("?"))
        assert current_name() == "outer"
    assert telemetry.parent(telemetry.one("invoke_agent")) == "outer"
    assert len({trace_id(span) for span in telemetry.spans}) == 1
    assert no_span()
    telemetry.check_each_ended_once()


def read(stream: ChatStream) -> str:
    return next(stream).run_id


def aread(stream: AsyncChatStream) -> str:
    async def main() -> str:
        async with stream:
            return (await anext(stream)).run_id

    return asyncio.run(patiently(main()))


def step(started: ChatRun) -> None:
    started.next()


@pytest.mark.parametrize(("way", "begin"), [("stream", read), ("astream", aread), ("start", step)])
def test_a_run_uses_the_context_in_which_its_first_chunk_or_step_is_requested(
    way: str, begin: Callable[[Any], object], telemetry: Telemetry
) -> None:
    advisor = Watching()
    client = looking(telemetry, advisor)
    token = WHO.set("the maker")
    try:
        with telemetry.tracer.start_as_current_span("making"):
            under_way = getattr(client.prompt("?"), way)()
        WHO.set("the reader")
        with telemetry.tracer.start_as_current_span("reading"):
            if way == "stream":
                under_way.__enter__()  # entering a block reads nothing yet
            begin(under_way)
            if way != "astream":
                under_way.close()
    finally:
        WHO.reset(token)
    assert telemetry.parent(telemetry.one("invoke_agent")) == "reading"
    assert advisor.seen[0] == "in the reader"
    telemetry.check_each_ended_once()


def test_the_time_limit_of_a_stream_starts_with_its_first_read() -> None:
    client = ChatClient(ScriptedChatModel([ToolCall("look"), "x"]), tools=[look], limits=LoopLimits(max_seconds=1000))
    now = [0.0]
    with mock.patch("traced_tools.core.limits.time", SimpleNamespace(monotonic=lambda: now[0])):
        stream = client.prompt("?").stream()
        now[0] = 2000.0
        assert "".join(chunk.text for chunk in stream) == "x"
    assert stream.response.stop_reason == "answered"


def test_the_model_and_the_tools_see_their_own_span_as_the_current_one(mode: str, telemetry: Telemetry) -> None:
    seen: list[str] = []

    class Model(ChatModel):
        model, provider = "looking", "tests"

        def call(self, request: ChatRequest) -> ChatResponse:
            seen.append(current_name())
            return ChatResponse(AssistantMessage("hello" if len(request.messages) > 1 else [ToolCall("look")]))

    client = ChatClient(Model(), tools=[look], telemetry=telemetry.options)
    response = run(mode, client.prompt("?"))
    assert seen == ["chat looking", "chat looking"]
    assert response.tool_results[0].content == "execute_tool look for nobody"


class Watching(Advisor):
    name, order = "watching", 400

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self.seen.append(f"in {WHO.get()}")
        await perform(lambda: self.seen.append(f"performing {WHO.get()}"))
        response = await call_next(request)
        self.seen.append(f"out {WHO.get()}")
        WHO.set("the advisor")
        return response


def test_context_variables_of_the_caller_are_visible_in_advisors_and_tools(mode: str, telemetry: Telemetry) -> None:
    advisor = Watching()
    token = WHO.set("the caller")
    try:
        response = run(mode, looking(telemetry, advisor).prompt("?"))
        assert WHO.get() == "the caller"
    finally:
        WHO.reset(token)
    assert advisor.seen[:3] == ["in the caller", "performing the caller", "out the caller"]
    assert response.tool_results[0].content == "execute_tool look for the advisor"


def test_a_context_variable_set_in_an_advisor_or_a_tool_does_not_leak(mode: str) -> None:
    def change() -> None:
        WHO.set("the tool")

    async def achange() -> None:
        WHO.set("the tool")

    seen: list[str] = []

    class After(Advisor):
        name, order = "after", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            response = await call_next(request)
            seen.append(WHO.get())
            WHO.set("the advisor")
            return response

    model = ScriptedChatModel([[ToolCall("change"), ToolCall("achange")], [ToolCall("change", {}, "alone")], "done"])
    client = ChatClient(model, tools=[change, achange], advisors=[After()])
    run(mode, client.prompt("?"))
    assert WHO.get() == "nobody"
    assert seen == ["nobody"]


def test_runs_at_the_same_time_keep_their_contexts_apart(async_mode: str, telemetry: Telemetry) -> None:
    async def one(number: int) -> str:
        WHO.set(f"caller {number}")
        with telemetry.tracer.start_as_current_span(f"outer {number}"):
            response = await arun(async_mode, looking(telemetry).prompt("?"))
        return response.tool_results[0].content.rpartition(" for ")[2]

    async def main() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(10)))

    assert asyncio.run(patiently(main())) == [f"caller {number}" for number in range(10)]
    assert sorted(str(telemetry.parent(span)) for span in telemetry.named("invoke_agent")) == [
        f"outer {number}" for number in range(10)
    ]
    telemetry.check_each_ended_once()
