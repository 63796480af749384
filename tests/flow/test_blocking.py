"""Promise 5, first half: blocking runs need no event loop."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import run
from tests.waiting import PATIENCE, in_time, patiently
from traced_tools import Advisor, ChatClient, ChatClientRequest, ChatClientResponse, ToolCall, ToolResult, tool
from traced_tools.errors import NeedsEventLoop
from traced_tools.flow import perform
from traced_tools.loop.advisor import AdviseNext
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext


def has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def client_of(*tools: Callable[..., Any], times: int = 1, **settings: Any) -> ChatClient:
    """A client whose model calls each of `tools` at once, `times` times, and then says done."""
    calls = [ToolCall(each.__name__) for each in tools]
    return ChatClient(ScriptedChatModel([*([calls] * times), "done"]), tools=list(tools), **settings)


def test_no_event_loop_is_created_and_none_runs(blocking_mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise AssertionError("an event loop is created")

    monkeypatch.setattr(asyncio, "new_event_loop", refuse)
    monkeypatch.setattr(asyncio.events, "new_event_loop", refuse)
    loops: list[bool] = []

    def look() -> None:
        loops.append(has_running_loop())

    class Looking(Advisor):
        name, order = "looking", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            look()
            await perform(look)
            return await call_next(request)

    client = client_of(look, advisors=[Looking()])
    assert run(blocking_mode, client.prompt("?")).content == "done"
    assert loops == [False] * 5


def test_a_single_blocking_tool_runs_in_the_calling_thread_and_no_thread_is_started(blocking_mode: str) -> None:
    before = set(threading.enumerate())  # some of which may end meanwhile, those of other tests
    threads: list[tuple[threading.Thread, set[threading.Thread]]] = []

    def look() -> None:
        threads.append((threading.current_thread(), set(threading.enumerate()) - before))

    run(blocking_mode, client_of(look).prompt("?"))

    assert threads == [(threading.current_thread(), set())]
    assert set(threading.enumerate()) <= before


def test_a_single_blocking_tool_with_a_time_out_runs_in_a_worker_thread(blocking_mode: str) -> None:
    threads: list[threading.Thread] = []

    @tool(timeout=PATIENCE)
    def look() -> None:
        threads.append(threading.current_thread())

    run(blocking_mode, client_of(look).prompt("?"))

    assert [thread.name for thread in threads] == ["traced_tools-worker"]


def test_a_single_blocking_tool_can_use_a_connection_that_only_its_thread_may_use(blocking_mode: str) -> None:
    with closing(sqlite3.connect(":memory:")) as database:

        def count() -> int:
            (found,) = database.execute("SELECT 41 + 1").fetchone()
            return int(found)

        response = run(blocking_mode, client_of(count, times=2).prompt("?"))

    assert [each.value for each in response.tool_results] == [42, 42]


def test_a_single_blocking_tool_can_run_an_event_loop(blocking_mode: str) -> None:
    async def twice() -> str:
        await asyncio.sleep(0)
        return "ran"

    def look() -> str:
        return asyncio.run(twice())

    response = run(blocking_mode, client_of(look, times=2).prompt("?"))

    assert [each.content for each in response.tool_results] == ["ran", "ran"]


def test_a_run_in_a_single_blocking_tool_stays_in_the_calling_thread(blocking_mode: str) -> None:
    threads: list[threading.Thread] = []

    def inner() -> None:
        threads.append(threading.current_thread())

    def outer() -> str:
        return run(blocking_mode, client_of(inner, times=2).prompt("?")).content

    response = run(blocking_mode, client_of(outer).prompt("?"))

    assert [each.content for each in response.tool_results] == ["done"]
    assert threads == [threading.current_thread()] * 2


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_single_blocking_tool_reaches_the_caller(
    blocking_mode: str, interrupt: type[BaseException], telemetry: Telemetry
) -> None:
    def leave() -> None:
        raise interrupt

    with pytest.raises(interrupt):
        run(blocking_mode, client_of(leave, telemetry=telemetry.options).prompt("?"))

    telemetry.check_each_ended_once()


def test_a_blocking_run_works_inside_a_running_event_loop(blocking_mode: str) -> None:
    def blocking() -> str:
        return "blocking"

    async def coroutine() -> str:
        await asyncio.sleep(0)
        return "async"

    async def main() -> ChatClientResponse:
        return run(blocking_mode, client_of(blocking, coroutine).prompt("?"))

    response = in_time(lambda: asyncio.run(main()))
    assert [each.content for each in response.tool_results] == ["blocking", "async"]


# A foreign awaitable in a blocking run.


class Guilty(Advisor):
    """Awaits something of asyncio, and notes what comes out of it."""

    name, order = "guilty", 400

    def __init__(self, wait: Callable[[], Any]) -> None:
        self.wait = wait
        self.caught: list[BaseException] = []

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        try:
            await self.wait()
        except NeedsEventLoop as error:
            self.caught.append(error)
        return await call_next(request)


async def of_a_future() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("wait", [lambda: asyncio.sleep(0), of_a_future, lambda: asyncio.sleep(0.01)])
def test_needs_event_loop_is_raised_at_the_await_inside_a_running_loop(
    blocking_mode: str, wait: Callable[[], Any]
) -> None:
    advisor = Guilty(wait)

    async def main() -> str:
        return run(blocking_mode, ChatClient(ScriptedChatModel(["done"]), advisors=[advisor]).prompt("?")).content

    assert asyncio.run(patiently(main())) == "done"
    (error,) = advisor.caught
    assert "acall" in str(error)
    assert "perform" in str(error)


def test_needs_event_loop_is_raised_at_the_await_without_any_loop(blocking_mode: str) -> None:
    advisor = Guilty(lambda: asyncio.sleep(0))
    assert run(blocking_mode, ChatClient(ScriptedChatModel(["done"]), advisors=[advisor]).prompt("?")).content == "done"
    assert len(advisor.caught) == 1


class Sleepy(Advisor):
    name, order = "sleepy", 400

    def __init__(self, seconds: float, around_tools: bool = False) -> None:
        self.seconds = seconds
        self.around_tools = around_tools

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        if not self.around_tools:
            await asyncio.sleep(self.seconds)  # the guilty line of advise
        return await call_next(request)

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        await asyncio.sleep(self.seconds)  # the guilty line of advise_tool
        return await call_next(call)


@pytest.mark.parametrize("seconds", [0, 0.01])
@pytest.mark.parametrize("around_tools", [False, True])
def test_the_error_of_a_blocking_run_names_the_awaiting_line_and_the_alternatives(
    blocking_mode: str, seconds: float, around_tools: bool, telemetry: Telemetry
) -> None:
    def nothing() -> None:
        pass

    client = client_of(nothing, advisors=[Sleepy(seconds, around_tools)], telemetry=telemetry.options)
    with pytest.raises(NeedsEventLoop, match=r"acall.*perform") as caught:
        run(blocking_mode, client.prompt("?"))

    lines = []
    error: BaseException | None = caught.value
    while error is not None:
        lines += [entry.statement.lines[0] for entry in pytest.ExceptionInfo.from_exception(error).traceback]
        error = error.__cause__
    where = "advise_tool" if around_tools else "advise"
    assert any(line.strip().endswith(f"# the guilty line of {where}") for line in lines)
    telemetry.check_each_ended_once()


# Async tools of a blocking run.


def test_async_tools_of_blocking_runs_share_one_event_loop_in_one_thread(blocking_mode: str) -> None:
    seen: list[tuple[int | None, int]] = []

    async def look() -> None:
        await asyncio.sleep(0)
        seen.append((threading.get_ident(), id(asyncio.get_running_loop())))

    run(blocking_mode, client_of(look, times=2).prompt("?"))
    run(blocking_mode, client_of(look).prompt("?"))

    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert seen[0][0] != threading.get_ident()


def test_async_tools_of_a_batch_in_a_blocking_run_run_concurrently(blocking_mode: str) -> None:
    met: list[asyncio.Barrier] = []

    async def meet() -> str:
        if not met:
            met.append(asyncio.Barrier(3))
        await patiently(met[0].wait())
        return "met"

    calls = [ToolCall("meet", {}, f"c{index}") for index in range(3)]
    response = run(blocking_mode, ChatClient(ScriptedChatModel([calls, "done"]), tools=[meet]).prompt("?"))
    assert [each.content for each in response.tool_results] == ["met"] * 3


def nested(depth: int, width: int) -> ChatClient:
    """A client whose async tools, `width` at once, each ask a blocking client of the same kind, `depth` levels down."""

    async def deeper() -> str:
        await asyncio.sleep(0)
        return "bottom" if depth == 1 else nested(depth - 1, width).prompt("?").call().tool_results[-1].content

    calls = [ToolCall("deeper", {}, f"c{index}") for index in range(width)]
    return ChatClient(ScriptedChatModel([calls, "done"]), tools=[deeper])


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("depth", [2, 3])
def test_an_async_tool_may_call_a_blocking_client_that_has_async_tools(
    depth: int, width: int, own_workers: None
) -> None:
    response = in_time(lambda: nested(depth, width).prompt("?").call())
    assert [each.content for each in response.tool_results] == ["bottom"] * width


# Ctrl-C.

INTERRUPTED = """
import asyncio, signal, threading
from traced_tools import ChatClient, ToolCall
from traced_tools.testing import ScriptedChatModel

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
started = threading.Semaphore(0)

def stuck() -> None:
    started.release()
    threading.Event().wait()

async def astuck() -> None:
    started.release()
    await asyncio.Event().wait()

def announce(tools: int) -> None:
    for _ in range(tools):
        started.acquire()
    print("waiting", flush=True)

calls = {calls}
threading.Thread(target=announce, args=(len(calls),), daemon=True).start()
spec = ChatClient(ScriptedChatModel([calls, "done"]), tools=[stuck, astuck]).prompt("?")
try:
    {run}
except KeyboardInterrupt:
    print("KeyboardInterrupt in", threading.current_thread().name, flush=True)
"""


def wait_until_asleep(pid: int) -> None:
    """Return when the main thread of `pid` waits in the kernel: CPython loses an interrupt that comes just before."""
    stat = Path(f"/proc/{pid}/task/{pid}/stat")
    deadline = time.monotonic() + PATIENCE
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline, "the main thread never waits"


ONE = '[ToolCall("stuck")]'
TWO = '[ToolCall("stuck", {}, "c1"), ToolCall("stuck", {}, "c2")]'
ASYNC = '[ToolCall("astuck")]'
MIXED = '[ToolCall("astuck", {}, "c1"), ToolCall("stuck", {}, "c2")]'


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to one process")
@pytest.mark.parametrize("statement", ["spec.call()", "list(spec.stream())", "asyncio.run(spec.acall())"])
@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(ONE, id="one", marks=pytest.mark.slow),
        pytest.param(TWO, id="two", marks=pytest.mark.slow),
        pytest.param(ASYNC, id="async", marks=pytest.mark.slow),
        pytest.param(MIXED, id="mixed"),
    ],
)
def test_ctrl_c_ends_a_run_whose_tools_are_stuck(calls: str, statement: str) -> None:
    program = INTERRUPTED.format(calls=calls, run=statement)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "waiting\n"
            wait_until_asleep(child.pid)
            began = time.monotonic()
            child.send_signal(signal.SIGINT)
            output, errors = child.communicate(timeout=PATIENCE)
        finally:
            child.kill()
    assert time.monotonic() - began < PATIENCE
    assert output == "KeyboardInterrupt in MainThread\n", errors
    assert child.returncode == 0
    assert errors == ""
