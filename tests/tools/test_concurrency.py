"""How many tools run at once, which run alone, and in which threads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import arun, run
from tests.tools.batches import attributes, client_of, function_tool, nothing_logged
from tests.waiting import PATIENCE, in_time, patiently
from traced_tools import ToolCall, ToolExecutionError, tool
from traced_tools.core import ToolErrors
from traced_tools.flow import WorkerPool
from traced_tools.tools import ToolCallingManager


class Meeting:
    """A tool of which `size` calls must run before any continues; `most` is the maximum that ran."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.inside = self.most = 0
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(size)
        self.abarrier: asyncio.Barrier | None = None

    def meet(self, place: int) -> int:
        """Wait for the others."""
        self._enter()
        self.barrier.wait(PATIENCE)
        self._leave()
        return place

    async def ameet(self, place: int) -> int:
        """Wait for the others."""
        self._enter()
        self.abarrier = self.abarrier or asyncio.Barrier(self.size)
        await patiently(self.abarrier.wait())
        self._leave()
        return place

    def _enter(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def _leave(self) -> None:
        with self.lock:
            self.inside -= 1


def calls_of(name: str, times: int) -> list[ToolCall]:
    return [ToolCall(name, {"place": place}) for place in range(times)]


# How many at once.


@pytest.mark.parametrize("colour", ["meet", "ameet"])
@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_the_number_of_tools_that_run_at_once_is_the_limit(
    mode: str, limit: int, colour: str, timeout: float | None, telemetry: Telemetry
) -> None:
    meeting = Meeting(limit)
    manager = ToolCallingManager(max_concurrency=limit)
    tools = [function_tool(getattr(meeting, colour), timeout=timeout)]
    response = in_time(lambda: run(mode, client_of(calls_of(colour, 6), tools, telemetry, manager).prompt("?")))
    assert meeting.most == limit
    assert [each.value for each in response.tool_results] == list(range(6))
    telemetry.check_each_ended_once()


def test_calls_that_wait_for_their_turn_record_the_waiting_time(mode: str, telemetry: Telemetry) -> None:
    manager = ToolCallingManager(max_concurrency=1)
    run(mode, client_of(calls_of("meet", 4), [Meeting(1).meet], telemetry, manager).prompt("?"))
    waits = [each["traced_tools.tool.queue_time"] for each in attributes(telemetry)]
    assert waits == sorted(waits)
    assert 0 <= waits[0] < waits[-1]
    telemetry.check_each_ended_once()


def test_two_hundred_calls_give_their_results_in_order(mode: str, telemetry: Telemetry) -> None:
    meeting = Meeting(1)
    calls = [ToolCall("ameet" if place % 3 else "meet", {"place": place}) for place in range(200)]
    client = client_of(calls, [meeting.meet, meeting.ameet], telemetry)
    response = in_time(lambda: run(mode, client.prompt("?")))
    assert [each.value for each in response.tool_results] == list(range(200))
    assert meeting.most <= 64
    spans = attributes(telemetry)
    assert [each["traced_tools.tool.batch_index"] for each in spans] == list(range(200))
    assert {each["traced_tools.tool.batch_size"] for each in spans} == {200}
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("inner", ["call", "acall"])
def test_a_run_inside_a_tool_has_a_limit_of_its_own(mode: str, inner: str, telemetry: Telemetry) -> None:
    meeting = Meeting(2)

    def outer() -> list[int]:
        nested = client_of(calls_of("meet", 4), [meeting.meet], telemetry, ToolCallingManager(max_concurrency=2))
        return [each.value for each in run(inner, nested.prompt("?")).tool_results]

    client = client_of(["outer"], [outer], telemetry, ToolCallingManager(max_concurrency=1))
    response = in_time(lambda: run(mode, client.prompt("?")))
    assert response.tool_results[0].value == [0, 1, 2, 3]
    assert meeting.most == 2
    telemetry.check_each_ended_once()


# Tools that run alone.


class Order:
    """Tools that record when they start and finish: `a` and `b` meet, `alone` is sequential."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.both = threading.Barrier(2)

    def a(self) -> None:
        """Meet `b`."""
        self._with(self.both.wait)

    def b(self) -> None:
        """Meet `a`."""
        self._with(self.both.wait)

    def c(self) -> None:
        """Do nothing."""
        self._with(lambda timeout: None)

    @tool(sequential=True)
    def alone(self) -> None:
        """Do nothing."""
        self._with(lambda timeout: None)

    @tool(sequential=True)
    def failing(self) -> None:
        """Fail."""
        self._with(lambda timeout: None)
        raise LookupError

    @tool(sequential=True, requires_approval=True)
    def dangerous(self) -> None:
        """Never run."""
        raise AssertionError("nobody approved")

    def _with(self, wait: Callable[[float], Any]) -> None:
        name = sys._getframe(1).f_code.co_name
        self.written.append(f"{name} begins")
        wait(PATIENCE)
        self.written.append(f"{name} ends")


def ordered(mode: str, calls: list[str], telemetry: Telemetry, **settings: Any) -> tuple[Order, Any]:
    order = Order()
    tools = [order.a, order.b, order.c, order.alone, order.failing, order.dangerous]
    return order, in_time(lambda: run(mode, client_of(calls, tools, telemetry, **settings).prompt("?")))


def test_a_sequential_tool_runs_alone_after_those_before_it_and_before_those_after(
    mode: str, telemetry: Telemetry
) -> None:
    order, response = ordered(mode, ["a", "b", "alone", "c"], telemetry)
    assert sorted(order.written[:2]) == ["a begins", "b begins"]
    assert sorted(order.written[2:4]) == ["a ends", "b ends"]
    assert order.written[4:] == ["alone begins", "alone ends", "c begins", "c ends"]
    assert [each.tool for each in response.tool_results] == ["a", "b", "alone", "c"]
    places = [each["traced_tools.tool.batch_index"] for each in attributes(telemetry)]
    assert places == [0, 1, 2, 3]
    assert {each["traced_tools.tool.batch_size"] for each in attributes(telemetry)} == {4}
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("calls", [["alone"], ["alone", "alone"], ["alone", "c", "alone"], ["c", "alone"]])
def test_sequential_tools_run_one_after_the_other(mode: str, calls: list[str], telemetry: Telemetry) -> None:
    order, _ = ordered(mode, calls, telemetry)
    assert order.written == [line for name in calls for line in (f"{name} begins", f"{name} ends")]
    telemetry.check_each_ended_once()


def test_a_sequential_tool_that_fails_the_run_lets_all_others_run(mode: str, telemetry: Telemetry) -> None:
    order, calls = Order(), ["failing", "alone", "c"]
    client = client_of(calls, [order.failing, order.alone, order.c], telemetry)
    with pytest.raises(ToolExecutionError):
        run(mode, client.prompt("?", tool_errors=ToolErrors(always_raise=True)))
    assert order.written == [line for name in calls for line in (f"{name} begins", f"{name} ends")]
    telemetry.check_each_ended_once()


def test_a_refused_call_delays_no_other_call(mode: str, telemetry: Telemetry) -> None:
    order = Order()
    client = client_of(["a", "alone", "b"], [order.a, order.b, order.alone], telemetry)
    driven = client.prompt("?").start()
    while step := driven.next():
        if hasattr(step, "refuse"):
            step.refuse(1, "denied", "no")
        if mode in ("acall", "astream"):
            asyncio.run(patiently(driven.aperform(step)))
        else:
            driven.perform(step)
    assert [each.decision for each in driven.response.tool_results] == ["allowed", "denied", "allowed"]
    assert sorted(order.written[:2]) == ["a begins", "b begins"]
    telemetry.check_each_ended_once()


def test_the_result_of_a_refused_call_is_in_call_order(mode: str, telemetry: Telemetry) -> None:
    _, response = ordered(mode, ["c", "nowhere", "alone", "dangerous", "c"], telemetry)
    decisions = [each.decision for each in response.tool_results]
    assert decisions == ["allowed", "unknown_tool", "allowed", "allowed"]
    assert [each.tool for each in response.pending] == ["dangerous"]
    telemetry.check_each_ended_once()


def test_a_run_cancelled_before_its_later_waves_never_begins_them(async_mode: str, telemetry: Telemetry) -> None:
    ran: list[str] = []

    async def main() -> None:
        under_way = asyncio.Semaphore(0)

        async def waits() -> None:
            under_way.release()
            await asyncio.Event().wait()

        @tool(sequential=True)
        def alone() -> None:
            ran.append("alone")

        client = client_of(["waits", "waits", "alone", "waits"], [waits, alone], telemetry)
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        for _ in range(2):
            await under_way.acquire()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with nothing_logged():
        asyncio.run(patiently(main()))
    assert ran == []
    assert len(telemetry.named("execute_tool")) == 2
    telemetry.check_cancelled()


# Whose threads.


class Threads:
    """A tool that waits for its other calls, and records the threads it ran in."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier = barrier
        self.seen: set[threading.Thread] = set()

    def meet(self, place: int) -> None:
        """Wait for the others."""
        self.seen.add(threading.current_thread())
        self.barrier.wait(PATIENCE)


def test_blocking_tools_run_in_the_managers_own_workers(async_mode: str, telemetry: Telemetry) -> None:
    pool, tool = WorkerPool(1), Threads(threading.Barrier(1))
    manager = ToolCallingManager(workers=pool)
    run(async_mode, client_of(calls_of("meet", 5), [tool.meet], telemetry, manager).prompt("?"))
    assert tool.seen == {pool.submit(threading.current_thread).result(PATIENCE)}
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_concurrent_runs_use_their_own_workers(async_mode: str, timeout: float | None, telemetry: Telemetry) -> None:
    barrier = threading.Barrier(4)
    tools = [Threads(barrier), Threads(barrier)]
    pools = [WorkerPool(2), WorkerPool(2)]

    async def one(tool: Threads, pool: WorkerPool) -> None:
        manager, tools = ToolCallingManager(workers=pool), [function_tool(tool.meet, timeout=timeout)]
        await arun(async_mode, client_of(calls_of("meet", 2), tools, telemetry, manager).prompt("?"))

    async def main() -> None:
        await asyncio.gather(*map(one, tools, pools))

    asyncio.run(patiently(main()))
    assert [len(each.seen) for each in tools] == [2, 2]
    assert not tools[0].seen & tools[1].seen
    telemetry.check_each_ended_once()


def test_a_blocking_run_executes_tools_itself_in_addition_to_its_workers(
    blocking_mode: str, telemetry: Telemetry
) -> None:
    tool = Threads(threading.Barrier(3))
    manager = ToolCallingManager(workers=WorkerPool(2))
    run(blocking_mode, client_of(calls_of("meet", 3), [tool.meet], telemetry, manager).prompt("?"))
    assert len(tool.seen) == 3
    assert threading.current_thread() in tool.seen
    telemetry.check_each_ended_once()


FORKED = """
import asyncio, gc, os, threading, warnings
from traced_tools import ChatClient, ToolCall, tool
from traced_tools.flow import WorkerPool
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
barrier = threading.Barrier(2)

def blocking() -> str:
    barrier.wait(5)
    return "blocking"

@tool(timeout=5)
def timed() -> str:
    return "timed"

@tool(timeout=5)
async def coroutine() -> str:
    return "async"

manager = ToolCallingManager(workers=WorkerPool(2))

def runs() -> None:
    calls = [ToolCall(name) for name in ("blocking", "blocking", "timed", "coroutine")]
    for how in ("call", "acall"):
        client = ChatClient(
            ScriptedChatModel([calls, "done"]),
            tools=[blocking, timed, coroutine],
            tool_calling_advisor=ToolCallingAdvisor(manager),
        )
        response = client.prompt("?").call() if how == "call" else asyncio.run(client.prompt("?").acall())
        assert [each.content for each in response.tool_results] == ["blocking", "blocking", "timed", "async"]
    gc.collect()

runs()
child = os.fork()
runs()
if child:
    assert os.waitpid(child, 0)[1] == 0
    runs()
    print("both went on")
else:
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_and_its_parent_continue_with_their_own_threads() -> None:
    command = [sys.executable, "-X", "dev", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE)
    assert (done.stdout, done.stderr, done.returncode) == ("both went on\n", "", 0)
