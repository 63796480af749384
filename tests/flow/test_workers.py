"""Parallel flows keep their order, worker pools keep their size, and nesting never deadlocks."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captured import Telemetry
from tests.modes import ALL_MODES, run
from tests.waiting import PATIENCE, in_time, patiently, until
from traced_tools import ChatClient, LoopLimits, ToolCall, ToolExecutionError
from traced_tools.core import ToolErrors
from traced_tools.flow import perform
from traced_tools.flow import workers as _workers
from traced_tools.flow.flow import acall, call
from traced_tools.flow.steps import ParallelFlows
from traced_tools.flow.workers import WorkerPool
from traced_tools.testing import ScriptedChatModel


class Contents(str):
    """A text that can be referred to weakly."""


WHO: ContextVar[str] = ContextVar("who", default="nobody")
DRIVERS = [call, lambda flow: asyncio.run(patiently(acall(flow)))]
COLOURS = pytest.mark.parametrize("drive", DRIVERS, ids=["blocking", "asyncio"])


@COLOURS
def test_a_batch_returns_its_results_in_order_whichever_flow_ends_first(drive: Callable[[Any], Any]) -> None:
    turns = [threading.Event() for _ in range(4)]
    turns[3].set()
    ended: list[int] = []

    def work(number: int) -> int:
        assert turns[number].wait(PATIENCE)
        ended.append(number)
        if number:
            turns[number - 1].set()
        return number

    async def one(number: int) -> int:
        return await perform(work, number)

    async def flow() -> list[int]:
        return await ParallelFlows([one(number) for number in range(4)])

    assert drive(flow()) == [0, 1, 2, 3]
    assert ended == [3, 2, 1, 0]


@COLOURS
@pytest.mark.parametrize("raising", [0, 1, 2])
def test_a_flow_that_raises_lets_its_siblings_finish(drive: Callable[[Any], Any], raising: int) -> None:
    failed = threading.Event()
    finished: list[int] = []

    def work(number: int) -> None:
        if number == raising:
            failed.set()
            raise LookupError(f"number {number}")
        assert failed.wait(PATIENCE)
        finished.append(number)

    async def one(number: int) -> None:
        await perform(work, number)

    async def flow() -> None:
        await ParallelFlows([one(number) for number in range(3)])

    with pytest.raises(LookupError, match=f"number {raising}"):
        drive(flow())
    assert sorted(finished) == [number for number in range(3) if number != raising]


@COLOURS
def test_a_batch_raises_the_first_of_several_errors_in_order(drive: Callable[[Any], Any]) -> None:
    last_failed = threading.Event()

    def work(number: int) -> None:
        if number == 1:
            assert last_failed.wait(PATIENCE)
        if number == 2:
            last_failed.set()
        if number:
            raise LookupError(f"number {number}")

    async def one(number: int) -> None:
        await perform(work, number)

    async def flow() -> None:
        await ParallelFlows([one(number) for number in range(3)])

    with pytest.raises(LookupError, match="number 1"):
        drive(flow())


@COLOURS
def test_an_empty_batch_gives_an_empty_list(drive: Callable[[Any], Any]) -> None:
    async def flow() -> list[int]:
        return await ParallelFlows([])

    assert drive(flow()) == []


@COLOURS
def test_each_flow_of_a_batch_has_a_separate_context(drive: Callable[[Any], Any]) -> None:
    async def one(number: int) -> tuple[str, str]:
        before = WHO.get()
        WHO.set(f"number {number}")
        await perform(lambda: None)
        return before, WHO.get()

    async def flow() -> list[tuple[str, str]]:
        WHO.set("the flow")
        results = await ParallelFlows([one(number) for number in range(3)])
        assert WHO.get() == "the flow"
        return results

    assert drive(flow()) == [("the flow", f"number {number}") for number in range(3)]
    assert WHO.get() == "nobody"


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_tool_that_fails_the_run_lets_the_other_tools_of_its_batch_finish(mode: str, telemetry: Telemetry) -> None:
    failed = threading.Event()
    finished: list[str] = []

    def fails() -> None:
        failed.set()
        raise ZeroDivisionError

    def works() -> None:
        assert failed.wait(PATIENCE)
        finished.append("works")

    model = ScriptedChatModel([[ToolCall("fails"), ToolCall("works")]])
    client = ChatClient(model, tools=[fails, works], telemetry=telemetry.options)
    with pytest.raises(ToolExecutionError):
        run(mode, client.prompt("?", tool_errors=ToolErrors(always_raise=True)))
    assert finished == ["works"]
    telemetry.check_each_ended_once()


class Crowd:
    """Counts the threads it is run in."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.release = threading.Event()
        self.arrived = threading.Semaphore(0)

    def __call__(self) -> None:
        self.threads.add(threading.current_thread())
        self.arrived.release()
        assert self.release.wait(PATIENCE)

    def wait_for(self, number: int) -> None:
        for _ in range(number):
            assert self.arrived.acquire(timeout=PATIENCE)


def test_a_pool_never_grows_beyond_its_size() -> None:
    pool, crowd = WorkerPool(size=3), Crowd()
    futures = [pool.submit(crowd) for _ in range(10)]
    crowd.wait_for(3)
    assert len(crowd.threads) == 3
    assert not any(future.done() for future in futures)

    crowd.release.set()
    for future in futures:
        future.result(PATIENCE)
    assert len(crowd.threads) == 3


def test_a_pool_starts_no_thread_while_one_is_idle() -> None:
    pool, threads, deadline = WorkerPool(), set(), time.monotonic() + PATIENCE
    for _ in range(20):
        threads.add(pool.submit(threading.current_thread).result(PATIENCE))
        while pool._waiting < len(threads):  # a worker reports itself idle just after it gave its result
            assert time.monotonic() < deadline
    assert len(threads) == 1


@pytest.mark.parametrize("task_class", [asyncio.Task, asyncio.tasks._PyTask])  # type: ignore[attr-defined]
def test_jobs_that_tasks_await_one_after_another_run_in_one_thread(
    task_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_workers, "_pool", WorkerPool())

    async def main() -> set[threading.Thread]:
        return {await _workers.in_thread(threading.current_thread) for _ in range(50)}

    with asyncio.Runner() as runner:
        runner.get_loop().set_task_factory(lambda loop, coroutine, **named: task_class(coroutine, loop=loop, **named))
        assert len(runner.run(patiently(main()))) == 1


@pytest.mark.parametrize("task_class", [asyncio.Task, asyncio.tasks._PyTask])  # type: ignore[attr-defined]
def test_a_cancelled_task_keeps_its_message_and_does_not_wait_for_the_thread(task_class: Any) -> None:
    crowd = Crowd()

    async def main() -> None:
        task = task_class(_workers.in_thread(crowd), loop=asyncio.get_running_loop())
        await asyncio.to_thread(crowd.wait_for, 1)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        assert not crowd.release.is_set()

    try:
        asyncio.run(patiently(main()))
    finally:
        crowd.release.set()


def test_an_error_that_a_job_raised_is_freed_with_its_task() -> None:
    class Failure(Exception):
        pass

    def fails() -> None:
        raise Failure

    async def main() -> weakref.ref[Failure]:
        try:
            await _workers.in_thread(fails)
        except Failure as error:
            return weakref.ref(error)
        raise AssertionError("it raises")

    gc.disable()
    try:
        failure = asyncio.run(main())
        until(lambda: failure() is None)
    finally:
        gc.enable()


def test_an_idle_thread_keeps_neither_its_first_job_nor_a_later_one() -> None:
    pool = WorkerPool()
    for _ in range(2):
        job = partial(len, Contents("of a conversation"))
        contents = weakref.ref(job.args[0])
        assert pool.submit(job).result(PATIENCE) == len("of a conversation")
        del job
        until(lambda contents=contents: contents() is None)


def test_a_pool_reuses_its_threads_after_a_job_that_raised_and_one_that_was_cancelled() -> None:
    pool, crowd = WorkerPool(size=1), Crowd()

    def fail() -> None:
        raise LookupError

    first = pool.submit(crowd)
    crowd.wait_for(1)
    failing, cancelled, last = pool.submit(fail), pool.submit(fail), pool.submit(threading.current_thread)
    assert cancelled.cancel()
    crowd.release.set()

    first.result(PATIENCE)
    with pytest.raises(LookupError):
        failing.result(PATIENCE)
    assert {last.result(PATIENCE)} == crowd.threads


def test_an_abandoned_job_frees_its_place_for_waiting_jobs() -> None:
    pool, crowd = WorkerPool(size=1), Crowd()
    stuck = pool.submit(crowd)
    crowd.wait_for(1)
    waiting = pool.submit(threading.current_thread)
    assert pool.give_up(stuck)
    assert waiting.result(PATIENCE) not in crowd.threads

    crowd.release.set()
    for thread in crowd.threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert pool.submit(threading.current_thread).result(PATIENCE) == waiting.result()


def test_a_job_abandoned_before_it_begins_never_runs_and_abandoning_a_finished_job_has_no_effect() -> None:
    pool, crowd = WorkerPool(size=1), Crowd()
    stuck, waiting = pool.submit(crowd), pool.submit(Crowd())
    crowd.wait_for(1)
    assert pool.give_up(waiting)
    crowd.release.set()
    stuck.result(PATIENCE)
    assert waiting.cancelled()
    assert not pool.give_up(stuck)
    assert pool.submit(threading.current_thread).result(PATIENCE) in crowd.threads


def test_threads_beyond_the_size_of_a_pool_leave_it_when_they_are_idle() -> None:
    pool, crowd = WorkerPool(size=2), Crowd()
    futures = [pool.submit(crowd, beyond=True) for _ in range(5)]
    crowd.wait_for(5)
    assert len(crowd.threads) == 5
    crowd.release.set()
    for future in futures:
        future.result(PATIENCE)
    until(lambda: sum(thread.is_alive() for thread in crowd.threads) == 2)
    assert pool.submit(threading.current_thread).result(PATIENCE) in crowd.threads


@given(
    st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["stuck", "quick", "give up"]), st.booleans()), max_size=20)
)
def test_a_pool_keeps_its_size_and_serves_other_jobs_whichever_jobs_are_abandoned(
    size: int, steps: list[tuple[str, bool]]
) -> None:
    pool, release = WorkerPool(size), threading.Event()
    futures: list[Any] = []
    given_up: set[Any] = set()
    for kind, beyond in steps:
        if kind == "give up":
            if futures and futures[0] not in given_up and pool.give_up(futures[0]):
                given_up.add(futures[0])
            futures = futures[1:] + futures[:1]
        else:
            job = partial(release.wait, PATIENCE) if kind == "stuck" else bool
            futures.append(pool.submit(job, beyond=beyond))
    release.set()

    for future in futures:
        if future not in given_up:
            future.result(PATIENCE)
    until(lambda: pool._waiting == pool._threads <= size and not pool._unfinished)
    assert pool._jobs.empty()


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_error_of_a_blocking_function_reaches_an_async_caller_as_it_is(mode: str) -> None:
    error = TimeoutError("mine")
    error.add_note("a note")

    def fails() -> None:
        raise error

    client = ChatClient(ScriptedChatModel([ToolCall("fails"), "done"]), tools=[fails])
    assert run(mode, client.prompt("?")).tool_results[0].error is error


def test_the_calling_thread_runs_jobs_that_no_worker_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, crowd = WorkerPool(size=1), Crowd()
    monkeypatch.setattr(_workers, "_pool", pool)
    stuck = pool.submit(crowd)
    crowd.wait_for(1)
    try:
        threads = in_time(lambda: _workers.run_all([threading.current_thread] * 3))
        assert len(set(threads)) == 1
        assert not crowd.threads & set(threads)
    finally:
        crowd.release.set()
    stuck.result(PATIENCE)


def test_workers_are_daemons_so_that_a_stuck_tool_does_not_keep_the_program() -> None:
    assert WorkerPool().submit(threading.current_thread).result(PATIENCE).daemon


# Nested runs that need more workers than there are.


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workers, "_pool", WorkerPool(size=2))
    monkeypatch.setattr(_workers, "_portal", _workers.Portal())


WIDTH = 4


def family(inner: Callable[[ChatClient], Any], leaf: Callable[[], Any], tool: str) -> ChatClient:
    """A client whose `WIDTH` tools at once each run, by `inner`, a client whose `WIDTH` tools at once are `leaf`."""

    def batch(tools: list[Any]) -> ChatClient:
        turn = [ToolCall(tools[0].__name__, {}, f"c{index}") for index in range(WIDTH)]
        limits = LoopLimits(max_repeated_calls=None)
        return ChatClient(ScriptedChatModel([turn, "done"]), tools=tools, limits=limits)

    def blocking() -> str:
        return str(inner(batch([leaf])).content)

    async def coroutine() -> str:
        return str((await inner(batch([leaf]))).content)

    return batch([blocking if tool == "blocking" else coroutine])


def blocking_leaf() -> str:
    return "leaf"


async def async_leaf() -> str:
    await asyncio.sleep(0)
    return "leaf"


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("leaf", [blocking_leaf, async_leaf])
@pytest.mark.parametrize(
    ("inner", "tool"),
    [
        (lambda client: client.prompt("?").call(), "blocking"),
        (lambda client: asyncio.run(client.prompt("?").acall()), "blocking"),
        (lambda client: client.prompt("?").acall(), "coroutine"),
    ],
    ids=["blocking in blocking", "asyncio in blocking", "asyncio in async"],
)
def test_nested_runs_with_more_tools_than_workers_do_not_deadlock(
    mode: str, inner: Callable[[ChatClient], Any], tool: str, leaf: Callable[[], Any], two_workers: None
) -> None:
    client = family(inner, leaf, tool)
    response = in_time(lambda: run(mode, client.prompt("?")))
    assert [each.content for each in response.tool_results] == ["done"] * WIDTH


def test_an_interrupt_while_the_portals_thread_starts_leaves_a_portal_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    async def answer() -> int:
        return 42

    portal, loop = _workers.Portal(), asyncio.new_event_loop()
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: loop)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        portal._open()
    loop.close()
    assert in_time(lambda: portal.run(answer)) == 42
