"""Which event loop the connections of a toolset work on, and what happens when loops end, share a toolset or block."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.events.watching import Watching
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import ASKING, HttpServer, is_alive, raw_server, sdk_server
from tests.mcp.test_runs import calling
from tests.modes import ASYNC_MODES, arun, run
from tests.observe.test_forked_runs import status_of_child
from tests.waiting import PATIENCE, in_time, patiently, until
from traced_tools import ToolCall
from traced_tools.errors import McpUnavailable
from traced_tools.flow import workers
from traced_tools.mcp import McpToolset
from traced_tools.mcp.sdk_logs import OURS
from traced_tools.observe import ToolProgressed

PROCESS_ID = ToolCall("process_id")


async def process_of(toolset: McpToolset, mode: str = "acall") -> int:
    response = await arun(mode, calling(PROCESS_ID).prompt("?", tools=[toolset]))
    return int(response.tool_results[0].content)


def process_for_blocking_code(toolset: McpToolset, mode: str = "call") -> int:
    return int(run(mode, calling(PROCESS_ID).prompt("?", tools=[toolset])).tool_results[0].content)


async def tools_of(toolset: McpToolset) -> dict[str, Any]:
    return {tool.definition.name: tool for tool in await toolset.tool_callbacks()}


def other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


def on_new_loop(use: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(patiently(use()))


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is awaited on the event loop in the background."""
    begun: list[object] = []
    submit = workers.Portal._submit

    def counted(self: workers.Portal, begin: Any) -> Any:
        begun.append(begin)
        return submit(self, begin)

    monkeypatch.setattr(workers.Portal, "_submit", counted)
    return begun


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_run_in_an_async_block_does_not_leave_its_event_loop(
    mode: str, transport: str, era: str, http_server: HttpServer, crossings: list[object]
) -> None:
    async def use() -> None:
        async with sdk_server() if transport == "stdio" else http_server.tools() as toolset:
            for _ in range(3):
                spec = calling(ToolCall("add", {"a": 1, "b": 2})).prompt("?", tools=[toolset])
                assert (await arun(mode, spec)).tool_results[0].content == "3"
            assert other_tasks()
        assert not other_tasks()

    on_new_loop(use)
    assert crossings == []


def test_the_code_of_the_caller_is_not_taken_for_code_of_the_connection() -> None:
    async def use() -> None:
        async with raw_server() as toolset:
            tools = await tools_of(toolset)
            await tools["echo"].acall("{}")
            assert not OURS.get()

    on_new_loop(use)


def test_two_event_loops_at_once_have_a_process_each() -> None:
    both = threading.Barrier(2, timeout=PATIENCE)
    toolset = raw_server()
    processes: list[int] = []

    async def use() -> None:
        async with toolset:
            processes.append(await process_of(toolset))
            both.wait()
            assert all(map(is_alive, processes))
            both.wait()

    threads = [threading.Thread(target=on_new_loop, args=[use]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        in_time(thread.join)
    assert len(set(processes)) == 2
    assert not any(map(is_alive, processes))


def test_blocks_of_one_event_loop_share_a_process() -> None:
    toolset = raw_server()

    async def use() -> int:
        async with toolset:
            return await process_of(toolset)

    async def use_often() -> None:
        async with toolset:
            processes = await asyncio.gather(use(), use(), process_of(toolset))
            assert len(set(processes)) == 1 and is_alive(processes[0])
        assert not is_alive(processes[0])

    on_new_loop(use_often)


@pytest.mark.parametrize("mode", ["call", "stream"])
def test_blocking_runs_in_an_async_block_have_a_process_in_the_background(mode: str) -> None:
    async def use() -> None:
        async with raw_server() as toolset:
            own = await process_of(toolset)
            blocking = process_for_blocking_code(toolset, mode)  # which blocks this event loop
            in_thread = await asyncio.to_thread(process_for_blocking_code, toolset, mode)
            assert own != blocking == in_thread
            assert await process_of(toolset) == own
        assert not is_alive(own) and not is_alive(blocking)

    on_new_loop(use)
    assert tasks_left() == []


def test_a_tool_that_blocking_code_has_listed_is_called_on_the_event_loop_of_a_block() -> None:
    async def use() -> None:
        async with raw_server() as toolset:
            tools = await tools_of(toolset)
            blocking = {tool.definition.name: tool for tool in await asyncio.to_thread(_listed, toolset)}
            own, background = await tools["process_id"].acall("{}"), blocking["process_id"].call("{}")
            assert await blocking["process_id"].acall("{}") == own != background == tools["process_id"].call("{}")

    on_new_loop(use)


def _listed(toolset: McpToolset) -> list[Any]:
    return asyncio.run(toolset.tool_callbacks())


def test_runs_share_a_process_while_a_block_without_async_is_open() -> None:
    async def use() -> int:
        async with toolset:
            return await process_of(toolset)

    with raw_server() as toolset:
        first, second = on_new_loop(use), on_new_loop(use)
        assert first == second == process_for_blocking_code(toolset)
    assert not is_alive(first)


def test_a_toolset_is_used_blocking_after_asyncio_and_the_other_way_round() -> None:
    toolset = raw_server()

    async def use() -> int:
        async with toolset:
            return await process_of(toolset)

    processes = []
    for _ in range(2):
        processes.append(on_new_loop(use))
        with toolset:
            processes.append(process_for_blocking_code(toolset))
    assert len(set(processes)) == 4
    assert not any(map(is_alive, processes))


def test_a_tool_of_a_block_that_has_ended_starts_nothing() -> None:
    toolset = raw_server()

    async def use() -> Any:
        async with toolset:
            return (await tools_of(toolset))["echo"]

    echo = on_new_loop(use)

    async def use_late() -> None:
        for _ in range(2):
            with pytest.raises(McpUnavailable, match="its toolset is closed"):
                await echo.acall("{}")
            await toolset.__aenter__()  # another block does not bring the tools of the first one back
        await toolset.__aexit__(None, None, None)

    on_new_loop(use_late)


def test_a_block_that_is_left_on_another_event_loop_ends_with_the_event_loop_that_entered_it() -> None:
    toolset = raw_server()

    async def begin() -> int:
        await toolset.__aenter__()
        return await process_of(toolset)

    async def end() -> None:
        await toolset.__aexit__(None, None, None)

    entered = on_new_loop(begin)
    assert not is_alive(entered)
    later = on_new_loop(lambda: process_of(toolset))
    assert later != entered
    on_new_loop(end)
    assert not is_alive(later) and tasks_left() == []

    async def use() -> int:
        async with toolset:
            return await process_of(toolset)

    assert not is_alive(on_new_loop(use))


def test_a_block_that_another_event_loop_leaves_is_closed_where_it_was_entered() -> None:
    toolset = raw_server()

    async def leave() -> None:
        await toolset.__aexit__(None, None, None)

    async def use() -> None:
        await toolset.__aenter__()
        process_id = await process_of(toolset)
        await asyncio.to_thread(asyncio.run, leave())
        await asyncio.to_thread(until, lambda: not is_alive(process_id))

    on_new_loop(use)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_call_that_is_cancelled_is_cancelled_at_the_server_and_others_go_on(
    transport: str, era: str, http_server: HttpServer, tmp_path: Path
) -> None:
    path = tmp_path / "hanging"

    async def use() -> None:
        async with sdk_server() if transport == "stdio" else http_server.tools() as toolset:
            tools = await tools_of(toolset)
            task = asyncio.create_task(
                calling(ToolCall("hang", {"path": str(path)})).prompt("?", tools=[toolset]).acall()
            )
            other = asyncio.create_task(tools["hang"].acall(f'{{"path": "{path}2"}}'))
            for began in (path.with_suffix(".began"), Path(f"{path}2.began")):
                await asyncio.to_thread(until, began.exists)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await asyncio.to_thread(until, path.exists)
            assert await tools["echo"].acall('{"text": "x"}') == "x"
            assert not other.done()
            other.cancel()
            await asyncio.wait([other])

    on_new_loop(use)


def test_a_cancelled_connecting_does_not_wait_for_the_end_of_the_program() -> None:
    async def use() -> None:
        async with raw_server("silent") as toolset:
            began = asyncio.get_running_loop().time()
            with anyio.move_on_after(0.2):
                await toolset.tool_callbacks()
            assert asyncio.get_running_loop().time() - began < 1.5  # the SDK gives a program two seconds to end
        assert not other_tasks()

    on_new_loop(use)


def test_a_cancel_scope_around_a_block_ends_the_process() -> None:
    processes: list[int] = []

    async def use() -> None:
        with anyio.CancelScope() as scope:
            async with raw_server() as toolset:
                processes.append(await process_of(toolset))
                scope.cancel()
        assert scope.cancel_called
        await asyncio.wait(other_tasks())  # the end of a block that is cancelled goes on without it
        assert not is_alive(processes[0])

    on_new_loop(use)


def test_an_event_loop_that_ends_in_a_block_ends_the_process() -> None:
    processes: list[int] = []

    async def use() -> None:
        async with raw_server() as toolset:
            processes.append(await process_of(toolset))
            called.set()
            await asyncio.Event().wait()

    async def leave_behind() -> None:
        nonlocal called
        called = asyncio.Event()
        kept.append(asyncio.create_task(use()))
        await called.wait()

    called: asyncio.Event
    kept: list[asyncio.Task[None]] = []
    on_new_loop(leave_behind)
    assert not is_alive(processes[0])


def test_an_application_that_cancels_all_tasks_of_its_event_loop_is_connected_again() -> None:
    async def use() -> None:
        async with raw_server() as toolset:
            first = await process_of(toolset)
            tasks = other_tasks()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            second = await process_of(toolset)
            assert first != second
            assert not is_alive(first)

    on_new_loop(use)


@pytest.mark.parametrize("asks_as", ["modern", "handshake"])
def test_questions_and_progress_arrive_on_the_event_loop_of_the_block(
    asks_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[object] = []

    async def elicit(*_: Any) -> dict[str, int]:
        loops.append(asyncio.get_running_loop())
        return {"centimetres": 4}

    async def use() -> None:
        options: Any = {"era": "handshake"} if asks_as == "handshake" else {}
        async with McpToolset.stdio(sys.executable, ASKING, name="asking", elicit=elicit, **options) as toolset:
            client = calling(ToolCall("order", {"article": "lamp"}))
            response = await client.prompt("?", tools=[toolset]).acall()
            assert response.tool_results[0].content == "ordered lamp of 4 cm"
        assert loops == [asyncio.get_running_loop()]
        watching = Watching()
        async with sdk_server() as toolset:
            client = calling(ToolCall("count", {"to": 3}), advisors=[watching])
            await client.prompt("?", tools=[toolset]).acall()
        reports = [event.progress for event in watching.events if isinstance(event, ToolProgressed)]
        assert reports == [1, 2, 3]

    on_new_loop(use)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_forked_child_leaves_the_connection_of_an_event_loop_to_its_parent(
    transport: str, http_server: HttpServer
) -> None:
    def work() -> None:
        own = process_for_blocking_code(toolset)
        assert (own == of_parent) is (transport == "http")
        toolset.__exit__(None, None, None)
        assert transport == "http" or not is_alive(own)

    async def use() -> None:
        nonlocal toolset, of_parent
        async with raw_server() if transport == "stdio" else http_server.tools() as toolset:
            of_parent = await process_of(toolset)
            assert await asyncio.to_thread(status_of_child, work) == 0
            assert await process_of(toolset) == of_parent

    toolset: McpToolset
    of_parent: int
    on_new_loop(use)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_server_ends_with_its_block_although_a_child_of_the_event_loop_lives_on() -> None:
    async def use() -> None:
        nonlocal child
        async with raw_server() as toolset:
            process_id = await process_of(toolset)
            child = living_child()
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 1.5  # the SDK would wait 2 s while its input stays open
        assert not is_alive(process_id)

    def living_child() -> int:
        if process_id := os.fork():
            return process_id
        signal.pause()
        os._exit(0)

    child = 0
    try:
        on_new_loop(use)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
