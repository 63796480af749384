"""One model with many callers: connections for all of them, each returned however a call ends."""

from __future__ import annotations

import asyncio
import itertools
import threading
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing, closing, suppress
from typing import Any

import httpx
import pytest

from tests.modes import ASYNC_MODES
from tests.waiting import PATIENCE, patiently
from traced_tools import UserMessage
from traced_tools.models import ChatRequest, OpenAIChatModel
from traced_tools.models.http.clients import Clients
from traced_tools.models.http.options import Timeouts
from traced_tools.testing import Received, ReplayServer, Reply

REQUEST = ChatRequest((UserMessage("hi"),))
MORE_THAN_HTTPX_ALLOWS = 101


def answer(request: Received) -> Reply:
    if request.json().get("stream"):
        return Reply.sse([{"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}, "[DONE]"])
    return Reply.json({"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]})


def unfinished(gate: threading.Event) -> Reply:
    def events() -> Iterator[object]:
        yield {"choices": [{"delta": {"content": "fine"}}]}
        gate.wait(PATIENCE)

    return Reply.sse(events())


# As many as there are.


def test_a_call_does_not_wait_for_streams_that_are_being_read() -> None:
    gate = threading.Event()
    with ReplayServer(lambda _: unfinished(gate)) as server, ExitStack() as opened:
        model = opened.enter_context(OpenAIChatModel("m", base_url=server.url, timeout=PATIENCE, retries=0))
        for _ in range(MORE_THAN_HTTPX_ALLOWS):
            stream: Any = opened.enter_context(closing(model.stream(REQUEST)))  # type: ignore[type-var]
            assert next(stream).text == "fine"
        gate.set()


def test_a_call_does_not_wait_for_streams_that_are_being_read_on_asyncio() -> None:
    gate = threading.Event()

    async def read(url: str) -> None:
        async with AsyncExitStack() as opened:
            model = await opened.enter_async_context(OpenAIChatModel("m", base_url=url, timeout=PATIENCE, retries=0))
            for _ in range(MORE_THAN_HTTPX_ALLOWS):
                stream: Any = await opened.enter_async_context(aclosing(model.astream(REQUEST)))
                assert (await anext(stream)).text == "fine"
            gate.set()

    with ReplayServer(lambda _: unfinished(gate)) as server:
        asyncio.run(read(server.url))


# Event loops in threads.


class Watched(asyncio.SelectorEventLoop):
    """Lets something happen at the moment somebody asks whether it is closed."""

    happens: Callable[[], object] | None = None

    def is_closed(self) -> bool:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return super().is_closed()


def test_an_event_loop_may_be_added_while_another_thread_removes_closed_ones() -> None:
    clients = Clients({})
    first, second, third = Watched(), asyncio.new_event_loop(), asyncio.new_event_loop()

    def third_comes() -> None:
        thread = threading.Thread(target=lambda: third.run_until_complete(clients.get_async()))
        thread.start()
        thread.join(PATIENCE)

    first.run_until_complete(clients.get_async())
    first.happens = third_comes
    theirs = [loop.run_until_complete(clients.get_async()) for loop in (second, third)]
    for loop in (first, second, third):
        loop.run_until_complete(clients.aclose())
        loop.close()
    assert all(client.is_closed for client in theirs)
    assert theirs[0] is not theirs[1]


# Cancellation.


async def ask(model: OpenAIChatModel, mode: str) -> str:
    if mode == "acall":
        return (await model.acall(REQUEST)).message.text
    return "".join([chunk.text async for chunk in model.astream(REQUEST)])


@types.coroutine
def _cancelled_at(coroutine: Any, step: int) -> Generator[Any, Any, str]:
    """Drive `coroutine`, and cancel the task when it waits for the `step`th time."""
    resume, value = coroutine.send, None
    for number in itertools.count(1):
        try:
            waits_for = resume(value)
        except StopIteration as done:
            return str(done.value)
        task = asyncio.current_task()
        if number == step and task is not None:
            task.cancel()
        try:
            resume, value = coroutine.send, (yield waits_for)
        except BaseException as error:
            resume, value = coroutine.throw, error
    raise AssertionError


async def ask_until_cancelled(model: OpenAIChatModel, mode: str, step: int) -> str:
    return await _cancelled_at(ask(model, mode), step)


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_task_returns_its_connection_whenever_it_is_cancelled(mode: str) -> None:
    async def cancel_at_each_step(url: str) -> int:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1)) as client:
            model = OpenAIChatModel("m", base_url=url, async_client=client, timeout=Timeouts(connect=1), retries=0)
            for step in itertools.count(1):
                assert await ask(model, mode) == "fine"  # the one connection there may be is free
                with suppress(asyncio.CancelledError):
                    assert await asyncio.create_task(ask_until_cancelled(model, mode, step)) == "fine"
                    return step
        raise AssertionError

    with ReplayServer(answer) as server:
        assert asyncio.run(patiently(cancel_at_each_step(server.url))) > 3
