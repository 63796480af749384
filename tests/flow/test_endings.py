"""Promise 7 in every ending of a run, and `finalize`, which is called once in each."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.flow.models import StreamedModel
from tests.modes import arun, run
from tests.waiting import PATIENCE, patiently
from traced_tools import (
    Advisor,
    ChatClient,
    ChatClientRequest,
    ChatClientRequestSpec,
    ChatClientResponse,
    LoopLimitExceeded,
    LoopLimits,
    ToolCall,
    ToolExecutionError,
    ToolResult,
    tool,
)
from traced_tools.core import ToolErrors
from traced_tools.errors import ToolNotFoundError
from traced_tools.flow import perform
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models.base import ChatModel
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext


class Finalizing(ToolCallingAdvisor):
    """Writes down each call of `finalize`, and by `perform` what still could be performed."""

    def __init__(self, waits: str) -> None:
        super().__init__()
        self.waits = waits
        self.called: list[str] = []
        self.performed: list[str] = []

    async def finalize(self, response: ChatClientResponse) -> ChatClientResponse:
        self.called.append(response.stop_reason)
        if self.waits == "blocking":
            await perform(self.performed.append, response.stop_reason)
        if self.waits == "async":
            await perform(self.aperformed, response.stop_reason)
        return response

    async def aperformed(self, reason: str) -> None:
        await asyncio.sleep(0)
        self.performed.append(reason)


@pytest.fixture(params=["blocking", "async"])
def loop(request: pytest.FixtureRequest) -> Finalizing:
    """A loop whose `finalize` performs a blocking or an async function."""
    return Finalizing(str(request.param))


class Raising(Advisor):
    def __init__(self, where: str, order: int) -> None:
        self.name, self.order, self.where = f"raising_{where}", order, where

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        if self.where == "before":
            raise LookupError("before")
        response = await call_next(request)
        if self.where == "after":
            raise LookupError("after")
        return response

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        if self.where == "tool":
            raise LookupError("tool")
        return await call_next(call)

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        if self.where == "chunk":
            raise LookupError("chunk")
        return chunk


def work() -> str:
    return "worked"


@tool(return_direct=True)
def direct() -> str:
    return "directly"


def broken() -> None:
    raise ZeroDivisionError


def client_of(turns: Sequence[Any], loop: Finalizing, telemetry: Telemetry, *advisors: Advisor) -> ChatClient:
    return ChatClient(
        ScriptedChatModel(turns),
        tools=[work, direct, broken],
        advisors=advisors,
        tool_calling_advisor=loop,
        telemetry=telemetry.options,
    )


def check(loop: Finalizing, telemetry: Telemetry, stop_reason: str, error_type: str | None = None) -> None:
    """The run ended for `stop_reason`; `finalize` was called once and did its work; each span ended once."""
    telemetry.check_each_ended_once()
    telemetry.check_run(stop_reason, error_type)
    assert loop.called == loop.performed == [stop_reason]
    assert len(telemetry.named("finalize")) == 1


def test_a_run_ends_with_an_answer(mode: str, loop: Finalizing, telemetry: Telemetry) -> None:
    assert run(mode, client_of([ToolCall("work"), "done"], loop, telemetry).prompt("?")).content == "done"
    check(loop, telemetry, "answered")


def test_a_run_ends_with_a_direct_result(mode: str, loop: Finalizing, telemetry: Telemetry) -> None:
    assert run(mode, client_of([ToolCall("direct")], loop, telemetry).prompt("?")).content == "directly"
    check(loop, telemetry, "return_direct")


@pytest.mark.parametrize("on_limit", ["conclude", "stop", "raise"])
def test_a_run_ends_at_a_limit(mode: str, on_limit: Any, loop: Finalizing, telemetry: Telemetry) -> None:
    spec = client_of([ToolCall("work"), "concluded"], loop, telemetry).prompt(
        "?", limits=LoopLimits(max_iterations=1, on_limit=on_limit)
    )
    if on_limit == "raise":
        with pytest.raises(LoopLimitExceeded) as caught:
            run(mode, spec)
        assert len(caught.value.response.tool_results) == 1
        check(loop, telemetry, "max_iterations", "traced_tools.errors.LoopLimitExceeded")
    else:
        assert run(mode, spec).content == ("concluded" if on_limit == "conclude" else "")
        check(loop, telemetry, "max_iterations")


@pytest.mark.parametrize("turns", [["down"], [ToolCall("work"), "down"]], ids=["first", "second"])
def test_a_run_ends_with_an_error_of_the_model(
    mode: str, turns: list[Any], loop: Finalizing, telemetry: Telemetry
) -> None:
    with pytest.raises(LookupError, match="down"):
        run(mode, client_of([*turns[:-1], LookupError(turns[-1])], loop, telemetry).prompt("?"))
    check(loop, telemetry, "error", "LookupError")


@pytest.mark.parametrize("where", ["before", "after", "tool"])
def test_a_run_ends_with_an_error_of_an_advisor_inside_the_loop(
    mode: str, where: str, loop: Finalizing, telemetry: Telemetry
) -> None:
    client = client_of([[ToolCall("work"), ToolCall("broken")], "done"], loop, telemetry, Raising(where, 400))
    with pytest.raises(LookupError, match=where):
        run(mode, client.prompt("?"))
    check(loop, telemetry, "error", "LookupError")


@pytest.mark.parametrize("streaming", ["stream", "astream"])
def test_a_run_ends_with_an_error_of_on_chunk(streaming: str, loop: Finalizing, telemetry: Telemetry) -> None:
    with pytest.raises(LookupError, match="chunk"):
        run(streaming, client_of(["hello"], loop, telemetry, Raising("chunk", 400)).prompt("?"))
    check(loop, telemetry, "error", "LookupError")


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_run_ends_with_an_error_of_an_advisor_around_the_loop(
    mode: str, where: str, loop: Finalizing, telemetry: Telemetry
) -> None:
    with pytest.raises(LookupError, match=where):
        run(mode, client_of(["done"], loop, telemetry, Raising(where, 100)).prompt("?"))
    telemetry.check_each_ended_once()
    telemetry.check_run("error", "LookupError")
    assert loop.called == ([] if where == "before" else ["answered"])


@pytest.mark.parametrize("batch", [["broken"], ["broken", "work"], ["work", "broken"]])
def test_a_run_ends_with_an_error_of_a_tool(
    mode: str, batch: list[str], loop: Finalizing, telemetry: Telemetry
) -> None:
    spec = client_of([[ToolCall(name) for name in batch]], loop, telemetry).prompt(
        "?", tool_errors=ToolErrors(always_raise=True)
    )
    with pytest.raises(ToolExecutionError) as caught:
        run(mode, spec)
    assert isinstance(caught.value.original, ZeroDivisionError)
    check(loop, telemetry, "error", "traced_tools.errors.ToolExecutionError")
    assert len(telemetry.named("execute_tool")) == len(batch)


def test_a_run_ends_with_a_tool_that_does_not_exist(mode: str, loop: Finalizing, telemetry: Telemetry) -> None:
    spec = client_of([ToolCall("nowhere")], loop, telemetry).prompt("?", tool_errors=ToolErrors(unknown_tool="raise"))
    with pytest.raises(ToolNotFoundError):
        run(mode, spec)
    check(loop, telemetry, "error", "traced_tools.errors.ToolNotFoundError")


def test_a_run_ends_with_an_interrupt(loop: Finalizing, telemetry: Telemetry) -> None:
    with pytest.raises(KeyboardInterrupt):
        client_of([KeyboardInterrupt()], loop, telemetry).prompt("?").call()
    check(loop, telemetry, "error", "KeyboardInterrupt")


# Cancelled and abandoned.


def waiting_client(model: ChatModel, loop: Finalizing, telemetry: Telemetry) -> ChatClient:
    return ChatClient(model, tool_calling_advisor=loop, telemetry=telemetry.options)


def test_a_run_ends_because_its_task_is_cancelled(async_mode: str, loop: Finalizing, telemetry: Telemetry) -> None:
    async def main() -> None:
        model = StreamedModel(waits_after=0)
        task = asyncio.create_task(arun(async_mode, waiting_client(model, loop, telemetry).prompt("?")))
        await asyncio.to_thread(model.waiting.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(main()))
    check(loop, telemetry, "cancelled", "cancelled")


def test_a_run_ends_because_its_stream_is_closed(loop: Finalizing, telemetry: Telemetry) -> None:
    with waiting_client(StreamedModel(), loop, telemetry).prompt("?").stream() as stream:
        next(stream)
    check(loop, telemetry, "cancelled", "cancelled")


def test_a_run_ends_because_its_async_stream_is_closed(loop: Finalizing, telemetry: Telemetry) -> None:
    async def main() -> None:
        async with waiting_client(StreamedModel(), loop, telemetry).prompt("?").astream() as stream:
            await anext(stream)

    asyncio.run(patiently(main()))
    check(loop, telemetry, "cancelled", "cancelled")


def only_called(loop: Finalizing, telemetry: Telemetry) -> None:
    """`finalize` was called once, and what it awaited was not performed, since nothing could be any more."""
    telemetry.check_cancelled()
    assert loop.called == ["cancelled"]
    assert loop.performed == []


@pytest.mark.parametrize("kind", ["stream", "astream"])
def test_a_run_ends_because_its_stream_is_collected(kind: str, loop: Finalizing, telemetry: Telemetry) -> None:
    async def main(spec: ChatClientRequestSpec) -> None:
        stream: Any = getattr(spec, kind)()
        if kind == "stream":
            next(stream)
        else:
            await anext(stream)
        del stream
        gc.collect()

    asyncio.run(patiently(main(waiting_client(StreamedModel(), loop, telemetry).prompt("?"))))
    only_called(loop, telemetry)


def test_a_run_ends_at_the_end_of_an_async_with_block(telemetry: Telemetry) -> None:
    async def drive() -> None:
        async with ChatClient(ScriptedChatModel(["Hello."]), telemetry=telemetry.options).prompt("?").start() as run:
            assert run.next() is not None

    asyncio.run(drive())
    telemetry.check_each_ended_once()
    [ended] = [span.attributes for span in telemetry.spans if span.name.startswith("invoke_agent")]
    assert ended is not None
    assert ended[names.LOOP_STOP_REASON] == "cancelled"


def test_a_run_ends_because_its_driver_closes_it(loop: Finalizing, telemetry: Telemetry) -> None:
    with waiting_client(StreamedModel(), loop, telemetry).prompt("?").start() as run:
        assert run.next() is not None
    only_called(loop, telemetry)


def test_a_run_ends_because_its_driver_drops_the_last_reference(loop: Finalizing, telemetry: Telemetry) -> None:
    driven = waiting_client(StreamedModel(), loop, telemetry).prompt("?").start()
    driven.next()
    del driven
    gc.collect()
    only_called(loop, telemetry)


@pytest.mark.parametrize("kind", ["acall", "astream"])
def test_a_run_ends_because_its_coroutine_is_closed(kind: str, loop: Finalizing, telemetry: Telemetry) -> None:
    """Python closes a forgotten coroutine with GeneratorExit: it may not await anything any more."""

    async def main() -> None:
        spec = waiting_client(StreamedModel(waits_after=0), loop, telemetry).prompt("?")
        coroutine = spec.acall() if kind == "acall" else spec.astream().__anext__()
        coroutine.send(None)
        coroutine.close()

    asyncio.run(patiently(main()))
    only_called(loop, telemetry)


def test_many_runs_in_many_threads_end_each_span_once(telemetry: Telemetry) -> None:
    def one() -> None:
        calls = [ToolCall("work", {}, "c1"), ToolCall("broken", {}, "c2")]
        client_of([calls, "done"], Finalizing("async"), telemetry).prompt("?").call()

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    telemetry.check_each_ended_once()
    assert len(telemetry.named("invoke_agent")) == 8
