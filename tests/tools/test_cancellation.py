"""However a run is cancelled, its tools are notified and nothing is left behind."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import nullcontext
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import arun, run
from tests.tools.batches import Stuck, attributes, client_of, ctrl_c, function_tool, nothing_logged, recorded
from tests.waiting import PATIENCE, in_time, patiently, turns, until
from traced_tools import Advisor, ToolContext, ToolResult
from traced_tools.errors import Abandoned
from traced_tools.flow import WorkerPool, perform
from traced_tools.flow import steps as _steps
from traced_tools.tools import ToolCallingManager, ToolInvocation, retries
from traced_tools.tools.invocation import CallNext

TIMEOUTS = pytest.mark.parametrize("timeout", [None, PATIENCE])


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.release.set()


class Waiting:
    """An async tool that waits forever; it records how it ended."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.left: list[str] = []

    async def waiting(self, context: ToolContext) -> None:
        """Wait."""
        self.begun.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left.append("cancelled")
            raise
        finally:
            self.left.append("cleaned up")


# A task that is cancelled.


@TIMEOUTS
def test_cancelling_a_run_reaches_every_tool_of_the_batch(
    async_mode: str, timeout: float | None, stuck: Stuck, telemetry: Telemetry
) -> None:
    waiting = Waiting()
    tools = [function_tool(stuck.stuck, timeout=timeout), function_tool(waiting.waiting, timeout=timeout)]
    client = client_of(["stuck", "waiting", "stuck", "waiting"], tools, telemetry)

    async def main() -> None:
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        for begun in (stuck.begun, waiting.begun) * 2:
            assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waiting.left == ["cancelled", "cleaned up"] * 2
        assert [each.cancelled for each in stuck.contexts] == [True, True]
        assert not stuck.release.is_set()

    with nothing_logged():
        asyncio.run(patiently(main()))
        stuck.ends()
    telemetry.check_cancelled()
    assert [each["traced_tools.tool.outcome"] for each in attributes(telemetry)] == ["cancelled"] * 4
    assert recorded(telemetry, "traced_tools.tool.active") == 0
    assert recorded(telemetry, "traced_tools.tool.late_results") == 0


@TIMEOUTS
def test_a_blocking_tool_of_a_cancelled_run_frees_its_place_in_the_pool(
    async_mode: str, timeout: float | None, stuck: Stuck, telemetry: Telemetry
) -> None:
    def quick() -> str:
        return "quick"

    manager = ToolCallingManager(workers=WorkerPool(1))
    client = client_of(["stuck"], [function_tool(stuck.stuck, timeout=timeout)], telemetry, manager)

    async def main() -> Any:
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        assert await asyncio.to_thread(stuck.begun.acquire, timeout=PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await arun(async_mode, client_of(["quick"], [quick], telemetry, manager).prompt("?"))

    assert asyncio.run(patiently(main())).tool_results[0].content == "quick"
    telemetry.check_each_ended_once()


@TIMEOUTS
def test_a_tool_whose_run_is_cancelled_while_it_waits_for_a_worker_never_starts(
    async_mode: str, timeout: float | None, stuck: Stuck, telemetry: Telemetry
) -> None:
    ran: list[str] = []

    def quick() -> None:
        ran.append("quick")

    pool = WorkerPool(1)
    holding = pool.submit(lambda: stuck.stuck(ToolContext()))
    manager = ToolCallingManager(workers=pool)

    async def main() -> None:
        client = client_of(["quick"], [function_tool(quick, timeout=timeout)], telemetry, manager)
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        await asyncio.to_thread(until, lambda: pool._waiting < 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with nothing_logged():
        asyncio.run(patiently(main()))
        stuck.release.set()
        holding.result(PATIENCE)
        pool.submit(lambda: None).result(PATIENCE)
    assert ran == []
    telemetry.check_cancelled()


@TIMEOUTS
def test_an_exception_of_a_tool_of_a_cancelled_run_is_not_logged(
    async_mode: str, timeout: float | None, telemetry: Telemetry
) -> None:
    stuck = Stuck(LookupError(MARKER))

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError(MARKER)

    async def main() -> None:
        tools = [function_tool(stuck.stuck, timeout=timeout), function_tool(fails, timeout=timeout)]
        task = asyncio.create_task(arun(async_mode, client_of(["stuck", "fails"], tools, telemetry).prompt("?")))
        assert await asyncio.to_thread(stuck.begun.acquire, timeout=PATIENCE)
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(stuck.ends)
        await turns()

    with nothing_logged():
        asyncio.run(patiently(main()))
    telemetry.check_each_ended_once()


@TIMEOUTS
def test_a_run_may_be_cancelled_at_any_moment(async_mode: str, timeout: float | None, telemetry: Telemetry) -> None:
    waiting = Waiting()
    tools = [function_tool(waiting.waiting, timeout=timeout), function_tool(asynchronous, timeout=timeout)]

    async def main(moment: int) -> None:
        spec = client_of(["asynchronous", "waiting", "asynchronous"], tools, telemetry).prompt("?")
        task = asyncio.create_task(arun(async_mode, spec))
        await turns(moment)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with nothing_logged():
        for moment in range(20):
            asyncio.run(patiently(main(moment)))
    telemetry.check_each_ended_once()
    assert recorded(telemetry, "traced_tools.tool.active") == 0


# A coroutine that is closed.


@TIMEOUTS
@pytest.mark.parametrize("batch", [["stuck"], ["waiting"], ["stuck", "waiting"]], ids=" ".join)
@pytest.mark.parametrize("loop", ["open", "closed"])
def test_a_run_whose_coroutine_is_closed_cancels_its_tools(
    batch: list[str], timeout: float | None, loop: str, telemetry: Telemetry
) -> None:
    """As Python does to an unreferenced task: it raises GeneratorExit, after which nothing can be awaited."""
    stuck, waiting = Stuck(LookupError(MARKER)), Waiting()
    tools = [function_tool(stuck.stuck, timeout=timeout), function_tool(waiting.waiting, timeout=timeout)]
    coroutine = client_of(batch, tools, telemetry).prompt("?").acall()

    async def main() -> None:
        coroutine.send(None)
        await turns()
        if "stuck" in batch:
            assert await asyncio.to_thread(stuck.begun.acquire, timeout=PATIENCE)
        if loop == "open":
            coroutine.close()
            await turns()

    with nothing_logged():
        asyncio.run(patiently(main()))
        coroutine.close()
        assert all(context.cancelled for context in stuck.contexts)
        assert waiting.left[-1:] == (["cleaned up"] if "waiting" in batch else [])
        stuck.ends()
    telemetry.check_cancelled()


# Ctrl-C in a blocking run.


class Interrupted(Stuck):
    """A tool that is interrupted in the main thread once the `others` have started."""

    def __init__(self, error: Exception | None = None, others: int = 1) -> None:
        super().__init__(error)
        self._others = others

    def interrupted(self, context: ToolContext) -> None:
        """Wait, or be interrupted."""
        if threading.current_thread() is threading.main_thread():
            for _ in range(self._others):
                assert self.begun.acquire(timeout=PATIENCE)
            raise KeyboardInterrupt
        self.stuck(context)


def check_interrupted(telemetry: Telemetry) -> None:
    """Assert that each span has ended, although tools may still run."""
    telemetry.check_each_ended_once()
    telemetry.check_run("error", "KeyboardInterrupt")


def test_an_interrupt_in_one_tool_ends_the_run_at_once_and_cancels_the_others(
    blocking_mode: str, telemetry: Telemetry
) -> None:
    tool = Interrupted()
    with nothing_logged():
        with pytest.raises(KeyboardInterrupt):
            run(blocking_mode, client_of(["interrupted"] * 2, [tool.interrupted], telemetry).prompt("?"))
        assert [each.cancelled for each in tool.contexts] == [True]
        assert not tool.release.is_set()
        check_interrupted(telemetry)
        tool.ends()
    check_interrupted(telemetry)


class Cleaning(Advisor):
    """Calls `clean` after each abandoned tool call, and counts the finished clean-ups."""

    name, order = "cleaning", 400

    def __init__(self, clean: Callable[[], object]) -> None:
        self.ended = threading.Semaphore(0)
        self._clean = clean

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        try:
            return await call_next(call)
        except Abandoned:
            await perform(self._clean)
            await perform(self.ended.release)
            raise


def test_advisors_of_tools_that_outlive_an_interrupt_clean_up_once_and_in_parallel(
    blocking_mode: str, monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry
) -> None:
    monkeypatch.setattr(_steps, "GIVE_UP_WITHIN", PATIENCE)
    tool, together = Interrupted(others=3), threading.Barrier(3, timeout=PATIENCE / 2)
    cleaning = Cleaning(together.wait)
    client = client_of(["interrupted"] * 4, [tool.interrupted], telemetry).replace(advisors=[cleaning])
    with pytest.raises(KeyboardInterrupt):
        run(blocking_mode, client.prompt("?"))
    check_interrupted(telemetry)
    assert cleaning.ended._value == 3
    tool.ends()
    assert cleaning.ended._value == 3


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signal to one thread")
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_an_interrupted_run_waits_for_clean_ups_until_a_deadline_or_the_next_interrupt(
    blocking_mode: str, again: bool, monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry
) -> None:
    monkeypatch.setattr(_steps, "GIVE_UP_WITHIN", PATIENCE if again else 0.01)
    tool, begun, release = Interrupted(others=2), threading.Semaphore(0), threading.Event()

    def clean() -> None:
        begun.release()
        assert release.wait(PATIENCE)

    cleaning = Cleaning(clean)
    client = client_of(["interrupted"] * 3, [tool.interrupted], telemetry).replace(advisors=[cleaning])
    with pytest.raises(KeyboardInterrupt), ctrl_c(lambda: begun._value == 2) if again else nullcontext():
        run(blocking_mode, client.prompt("?"))
    assert cleaning.ended._value == 0
    release.set()
    tool.ends()
    until(lambda: cleaning.ended._value == 2)
    until(lambda: len(telemetry.counting.begun) == len(telemetry.counting.ended))
    check_interrupted(telemetry)


def test_a_call_whose_advisor_is_running_when_interrupted_ends_with_the_advisor(
    blocking_mode: str, monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry
) -> None:
    monkeypatch.setattr(_steps, "GIVE_UP_WITHIN", 0.0)
    begun, release, ran = threading.Event(), threading.Event(), []

    class Holding(Advisor):
        name, order = "holding", 400

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            if threading.current_thread() is threading.main_thread():
                assert begun.wait(PATIENCE)
                raise KeyboardInterrupt
            begun.set()
            assert release.wait(PATIENCE)
            return await call_next(call)

    def look() -> None:
        """Look."""
        ran.append(True)

    client = client_of(["look"] * 2, [look], telemetry).replace(advisors=[Holding()])
    with pytest.raises(KeyboardInterrupt):
        run(blocking_mode, client.prompt("?"))
    release.set()
    until(lambda: len(telemetry.counting.begun) == len(telemetry.counting.ended))
    check_interrupted(telemetry)
    assert ran == []


def test_no_tool_starts_after_an_interrupt(blocking_mode: str, telemetry: Telemetry) -> None:
    tool = Interrupted()
    client = client_of(["interrupted"] * 5, [tool.interrupted], telemetry, ToolCallingManager(max_concurrency=2))
    with pytest.raises(KeyboardInterrupt):
        run(blocking_mode, client.prompt("?"))
    tool.ends()
    assert len(tool.contexts) == 1
    check_interrupted(telemetry)
    assert len(telemetry.named("execute_tool")) == 2


def test_no_tool_is_retried_after_an_interrupt(
    blocking_mode: str, monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry
) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.0)
    tool = Interrupted(ConnectionError())
    client = client_of(["interrupted"] * 2, [function_tool(tool.interrupted, retries=3)], telemetry)
    with pytest.raises(KeyboardInterrupt):
        run(blocking_mode, client.prompt("?"))
    tool.ends()
    check_interrupted(telemetry)
    assert len(tool.contexts) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signal to one thread")
@TIMEOUTS
@pytest.mark.parametrize(
    "batch",
    [["stuck"], ["waiting"], ["stuck", "stuck"], ["waiting", "waiting"], ["waiting", "stuck"]],
    ids=" ".join,
)
def test_ctrl_c_ends_a_run_whose_tools_are_stuck_and_sets_their_cancelled_flag(
    blocking_mode: str, batch: list[str], timeout: float | None, stuck: Stuck, telemetry: Telemetry
) -> None:
    waiting = Waiting()
    tools = [function_tool(stuck.stuck, timeout=timeout), function_tool(waiting.waiting, timeout=timeout)]
    spec = client_of(batch, tools, telemetry).prompt("?")

    def all_begun() -> bool:
        return stuck.begun._value + waiting.begun._value == len(batch)

    with nothing_logged():
        with pytest.raises(KeyboardInterrupt), ctrl_c(all_begun):
            run(blocking_mode, spec)
        assert [each.cancelled for each in stuck.contexts] == [True] * batch.count("stuck")
        until(lambda: len(waiting.left) == 2 * batch.count("waiting"))
        assert not stuck.release.is_set()
        check_interrupted(telemetry)
        stuck.release.set()
        check_interrupted(telemetry)
    outcomes = {each["traced_tools.tool.outcome"] for each in attributes(telemetry)}
    assert outcomes == {"cancelled"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signal to one thread")
def test_an_exception_of_an_async_tool_after_ctrl_c_is_not_logged(blocking_mode: str, telemetry: Telemetry) -> None:
    begun, left = threading.Event(), threading.Event()

    async def fails() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
            raise LookupError(MARKER)

    with nothing_logged():
        with pytest.raises(KeyboardInterrupt), ctrl_c(begun.is_set):
            run(blocking_mode, client_of(["fails"], [fails], telemetry).prompt("?"))
        assert left.wait(PATIENCE)
        check_interrupted(telemetry)
        run(blocking_mode, client_of(["asynchronous"], [asynchronous], telemetry).prompt("?"))


# A tool that ends what it is not asked to end.


async def asynchronous() -> str:
    """Answer on the event loop."""
    await asyncio.sleep(0)
    return "answer"


@TIMEOUTS
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_system_exit_in_a_tool_is_raised_and_the_next_run_works(
    mode: str, colour: str, timeout: float | None, telemetry: Telemetry
) -> None:
    def blocking() -> None:
        raise SystemExit

    async def coroutine() -> None:
        await asyncio.sleep(0)
        raise SystemExit

    leaving = function_tool(blocking if colour == "blocking" else coroutine, timeout=timeout)
    with pytest.raises(SystemExit):
        in_time(lambda: run(mode, client_of([leaving.definition.name], [leaving], telemetry).prompt("?")))
    client = client_of(["asynchronous"], [function_tool(asynchronous, timeout=timeout)], telemetry)
    assert in_time(lambda: run(mode, client.prompt("?"))).tool_results[0].content == "answer"
    telemetry.check_each_ended_once()


@TIMEOUTS
@pytest.mark.parametrize("colour", ["blocking", "async", "wrapper"])
def test_a_tool_that_cancels_itself_has_failed(
    mode: str, colour: str, timeout: float | None, telemetry: Telemetry
) -> None:
    def blocking() -> None:
        raise asyncio.CancelledError

    async def coroutine() -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    def wrapper() -> Any:
        return coroutine()

    tool = function_tool({"blocking": blocking, "async": coroutine, "wrapper": wrapper}[colour], timeout=timeout)
    for times in (1, 2):
        response = run(mode, client_of([tool.definition.name] * times, [tool], telemetry).prompt("?"))
        assert response.content == "done"
        assert [type(each.error) for each in response.tool_results] == [CancelledError] * times
    telemetry.check_each_ended_once()
