"""Promise 5, second half: async runs use the event loop and never block it."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from tests.captured import Telemetry
from tests.modes import arun, run
from tests.waiting import PATIENCE, in_time, patiently
from traced_tools import Advisor, ChatClient, ChatClientRequest, ChatClientResponse, LoopLimits, ToolCall
from traced_tools.core.messages import AssistantMessage
from traced_tools.errors import NeedsEventLoop
from traced_tools.flow import perform
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models.base import ChatModel, ChatRequest, ChatResponse
from traced_tools.testing import ScriptedChatModel

WHO: ContextVar[str] = ContextVar("who", default="nobody")


def calls(name: str, times: int) -> list[str | ToolCall]:
    return [ToolCall(name, {}, f"c{index}") for index in range(times)]


@pytest.mark.parametrize("times", [1, 2])
def test_blocking_tools_run_in_worker_threads_with_the_context_copied(async_mode: str, times: int) -> None:
    seen: list[tuple[bool, str]] = []

    def look() -> None:
        seen.append((threading.current_thread() is threading.main_thread(), WHO.get()))
        WHO.set("the tool")

    async def main() -> None:
        WHO.set("the caller")
        model = ScriptedChatModel([calls("look", times), calls("look", times), "done"])
        client = ChatClient(model, tools=[look], limits=LoopLimits(max_repeated_calls=None))
        await arun(async_mode, client.prompt("?"))
        assert WHO.get() == "the caller"

    asyncio.run(patiently(main()))
    assert seen == [(False, "the caller")] * 2 * times


@pytest.mark.parametrize("times", [1, 2])
def test_async_tools_run_on_the_callers_event_loop(async_mode: str, times: int) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def look() -> None:
        loops.append(asyncio.get_running_loop())

    async def main() -> None:
        client = ChatClient(ScriptedChatModel([calls("look", times), "done"]), tools=[look])
        await arun(async_mode, client.prompt("?"))
        assert loops == [asyncio.get_running_loop()] * times

    asyncio.run(patiently(main()))


def test_async_tools_of_a_batch_are_tasks_that_run_at_the_same_time(async_mode: str) -> None:
    async def main() -> None:
        barrier = asyncio.Barrier(3)
        tasks = set()

        async def meet() -> str:
            tasks.add(asyncio.current_task())
            await barrier.wait()
            return "met"

        client = ChatClient(ScriptedChatModel([calls("meet", 3), "done"]), tools=[meet])
        response = await arun(async_mode, client.prompt("?"))
        assert [each.content for each in response.tool_results] == ["met"] * 3
        assert len(tasks) == 3

    asyncio.run(patiently(main()))


def test_blocking_tools_of_a_batch_run_at_the_same_time(mode: str) -> None:
    barrier = threading.Barrier(3)

    def meet() -> str:
        barrier.wait(PATIENCE)
        return "met"

    response = run(mode, ChatClient(ScriptedChatModel([calls("meet", 3), "done"]), tools=[meet]).prompt("?"))
    assert [each.content for each in response.tool_results] == ["met"] * 3


def test_blocking_and_async_tools_of_a_batch_run_at_the_same_time(mode: str) -> None:
    first, second = threading.Event(), threading.Event()

    def blocking() -> bool:
        first.set()
        return second.wait(PATIENCE)

    async def coroutine() -> bool:
        met = await asyncio.to_thread(first.wait, PATIENCE)
        second.set()
        return met

    model = ScriptedChatModel([[ToolCall("blocking"), ToolCall("coroutine")], "done"])
    response = run(mode, ChatClient(model, tools=[blocking, coroutine]).prompt("?"))
    assert [each.content for each in response.tool_results] == ["true", "true"]


class Waiting(Advisor):
    """Awaits asyncio directly, before and after the rest of the chain."""

    name, order = "waiting", 400

    def __init__(self, go_on: asyncio.Event) -> None:
        self.go_on = go_on
        self.passed = 0

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        response = await call_next(request)
        await self.go_on.wait()
        self.passed += 1
        return response


def test_an_advisor_may_await_any_asyncio_function(async_mode: str, telemetry: Telemetry) -> None:
    async def main() -> None:
        advisor = Waiting(asyncio.Event())
        client = ChatClient(ScriptedChatModel(["hello"]), advisors=[advisor], telemetry=telemetry.options)
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        await asyncio.sleep(0)
        assert not task.done()
        advisor.go_on.set()
        assert (await task).content == "hello"
        assert advisor.passed == 1

    asyncio.run(patiently(main()))
    telemetry.check_each_ended_once()


def test_an_advisor_may_start_asyncio_tasks(async_mode: str) -> None:
    class Both(Advisor):
        name, order = "both", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(asyncio.sleep(0, "beside"))
                response = await call_next(request)
            return response.replace(context={"beside": task.result()})

    response = run(async_mode, ChatClient(ScriptedChatModel(["hello"]), advisors=[Both()]).prompt("?"))
    assert response.context == {"beside": "beside"}


def test_an_advisor_may_set_a_time_out_around_the_rest_of_the_chain(async_mode: str, telemetry: Telemetry) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    class Impatient(Advisor):
        name, order = "impatient", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            try:
                async with asyncio.timeout(0.01):
                    return await call_next(request)
            except TimeoutError:
                return ChatClientResponse(request.run, ChatResponse(AssistantMessage("too late")))

    client = ChatClient(
        ScriptedChatModel([ToolCall("never")]), tools=[never], advisors=[Impatient()], telemetry=telemetry.options
    )
    assert run(async_mode, client.prompt("?")).content == "too late"
    telemetry.check_each_ended_once()
    telemetry.check_run("answered")


def test_a_blocking_function_performed_by_an_advisor_does_not_block_the_event_loop(async_mode: str) -> None:
    threads: list[threading.Thread] = []

    class Storing(Advisor):
        name, order = "storing", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            await perform(lambda: threads.append(threading.current_thread()))
            return await call_next(request)

    run(async_mode, ChatClient(ScriptedChatModel(["hello"]), advisors=[Storing()]).prompt("?"))
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_the_error_names_the_awaiting_line_even_in_a_file_named_after_asyncio(blocking_mode: str) -> None:
    class Sleeping(Advisor):
        name, order = "sleeping", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            await asyncio.sleep(0.01)
            return await call_next(request)

    with pytest.raises(NeedsEventLoop, match=r"at .*test_asyncio\.py:\d+"):
        run(blocking_mode, ChatClient(ScriptedChatModel(["hello"]), advisors=[Sleeping()]).prompt("?"))


class BlockingModel(ChatModel):
    """A model that has nothing but `call`."""

    model, provider = "blocking", "tests"

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def call(self, request: ChatRequest) -> ChatResponse:
        self.threads.append(threading.current_thread())
        return ChatResponse(AssistantMessage("hello"), finish_reason="stop")


def test_a_model_that_implements_only_call_works_in_every_mode(mode: str) -> None:
    model = BlockingModel()
    assert run(mode, ChatClient(model).prompt("?")).content == "hello"
    assert (model.threads == [threading.main_thread()]) == (mode in ("call", "stream"))


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, ValueError])
@pytest.mark.parametrize("colour", ["blocking", "coroutine"])
@pytest.mark.parametrize("times", [1, 2])
def test_any_exception_of_a_tool_is_reported_to_the_model_and_the_loop_continues(
    mode: str, kind: type[Exception], colour: str, times: int
) -> None:
    def blocking() -> None:
        raise kind

    async def coroutine() -> None:
        raise kind

    client = ChatClient(ScriptedChatModel([calls(colour, times), "done"]), tools=[blocking, coroutine])
    response = in_time(lambda: run(mode, client.prompt("?")))
    assert response.content == "done"
    assert [each.outcome for each in response.tool_results] == ["error"] * times


def test_cancelling_a_run_cancels_its_async_tools_and_ends_every_span(async_mode: str, telemetry: Telemetry) -> None:
    async def main() -> None:
        under_way = asyncio.Semaphore(0)
        cancelled: list[str] = []

        async def never() -> None:
            under_way.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append("never")
                raise

        client = ChatClient(ScriptedChatModel([calls("never", 2)]), tools=[never], telemetry=telemetry.options)
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        for _ in range(2):
            await under_way.acquire()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cancelled == ["never", "never"]

    asyncio.run(patiently(main()))
    telemetry.check_cancelled()
    outcomes = [(span.attributes or {})["traced_tools.tool.outcome"] for span in telemetry.named("execute_tool")]
    assert outcomes == ["cancelled"] * 2


def test_a_run_cancelled_while_a_blocking_tool_works_returns_immediately(async_mode: str, telemetry: Telemetry) -> None:
    release, under_way = threading.Event(), threading.Event()

    def stuck() -> None:
        under_way.set()
        release.wait(PATIENCE)

    async def main() -> None:
        client = ChatClient(ScriptedChatModel([ToolCall("stuck")]), tools=[stuck], telemetry=telemetry.options)
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        await asyncio.to_thread(under_way.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not release.is_set()

    try:
        asyncio.run(patiently(main()))
    finally:
        release.set()
    telemetry.check_cancelled()
