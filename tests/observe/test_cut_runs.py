"""Runs that are cancelled at any point: each span ends once, in one tree, as cancelled, and nothing is logged."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.modes import ASYNC_MODES, BLOCKING_MODES, arun, run
from tests.observe.cutting import CUT, CutAt, CutRun, Silence
from tests.waiting import PATIENCE, in_time
from traced_tools import ChatClient, ContentCapture
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel

FINE = ("answered", None)
MOST_POINTS = 300


@pytest.fixture(autouse=True)
def silence() -> Iterator[Silence]:
    """Fails a test in which OpenTelemetry, asyncio or the package itself logs anything."""
    with Silence() as silence:
        yield silence
        gc.collect()
    assert silence.said == []


async def settle() -> None:
    """Let the tasks that a run left behind come to their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=PATIENCE)
    assert not [task for task in others if not task.done()]


async def cut(mode: str, *points: int, closes: bool = False) -> tuple[str, int]:
    """Cut a run at some points; returns how it ended and how many points there were."""
    cut_run = CutRun(waits=True, tidies=not closes)  # what is closed cannot wait any more
    cutting = CutAt(arun(mode, cut_run.spec), points, closes=closes)
    task = asyncio.ensure_future(cutting)
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([task])
    finally:
        if task.done() and not task.cancelled() and task.exception() is not None:
            raise AssertionError(f"cut at {points}: raised") from task.exception()
    await settle()
    began = bool(cut_run.counting.begun)
    assert began or points == (1,)
    was_cut = task.cancelled() or (closes and cutting.seen >= points[0])
    return cut_run.check(CUT if was_cut else FINE) if began else "not begun", cutting.seen


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_run_that_is_cancelled_at_any_point_where_it_waits_leaves_a_whole_tree(mode: str) -> None:
    async def main() -> list[str]:
        endings = []
        for point in range(1, MOST_POINTS):
            ending, seen = await cut(mode, point)
            if seen < point:
                return endings
            endings.append(ending)
        raise AssertionError("there is no end to it")

    endings = asyncio.run(main())
    assert len(endings) > 8
    assert set(endings[:-1]) == {"cancelled"}


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_run_that_is_cancelled_after_any_number_of_turns_of_the_event_loop_leaves_a_whole_tree(mode: str) -> None:
    async def main() -> list[str]:
        endings = ["cancelled"]
        while endings[-1] == "cancelled":
            cut_run = CutRun(waits=True)
            task = asyncio.create_task(arun(mode, cut_run.spec))
            for _ in endings:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=PATIENCE)
            await settle()
            ending = CUT if task.cancelled() else FINE
            endings.append(cut_run.check(ending) if cut_run.counting.begun else "cancelled")
        return endings

    assert len(asyncio.run(main())) > 15


@pytest.mark.parametrize("again", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_run_that_is_cancelled_while_it_is_being_cancelled_leaves_a_whole_tree(mode: str, again: int) -> None:
    async def main() -> None:
        for point in range(1, MOST_POINTS):
            _, seen = await cut(mode, point, point + again)
            if seen < point:
                return

    asyncio.run(main())


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_run_whose_coroutine_is_closed_at_any_point_leaves_a_whole_tree(mode: str, silence: Silence) -> None:
    # Python says so of any async generator inside another one that waits when its consumer is closed
    silence.but_for = "aclose(): asynchronous generator is already running"

    async def main() -> None:
        for point in range(1, MOST_POINTS):
            _, seen = await cut(mode, point, closes=True)
            if seen < point:
                return

    asyncio.run(main())


# Streams that are left.


def leave(stream: Any, way: str) -> None:
    if way == "close":
        stream.close()
    elif way == "block":
        with pytest.raises(LookupError), stream:
            raise LookupError
    # else nobody refers to it any more when this returns


@pytest.mark.parametrize("way", ["close", "block", "collect"])
def test_a_stream_that_is_left_after_any_chunk_leaves_a_whole_tree(way: str) -> None:
    for chunks in count():
        cut_run = CutRun(waits=False)
        stream: Any = cut_run.spec.stream()
        taken = sum(1 for _ in zip(range(chunks), stream, strict=False))
        leave(stream, way)
        del stream
        if way == "collect":
            gc.collect()
        if chunks:
            cut_run.check(FINE if taken < chunks else CUT)
        else:
            assert not cut_run.counting.begun, "nothing was asked for"
        if taken < chunks:
            assert chunks > 5
            return


async def aleave(stream: Any, way: str) -> None:
    if way == "close":
        await stream.aclose()
    elif way == "block":
        with pytest.raises(LookupError):
            async with stream:
                raise LookupError


@pytest.mark.parametrize("way", ["close", "block", "collect"])
def test_an_async_stream_that_is_left_after_any_chunk_leaves_a_whole_tree(way: str) -> None:
    async def main() -> None:
        for chunks in count():
            cut_run = CutRun(waits=True)
            stream: Any = cut_run.spec.astream()
            taken = 0
            while taken < chunks and await anext(stream, None) is not None:
                taken += 1
            await aleave(stream, way)
            del stream
            if way == "collect":
                gc.collect()
            await settle()
            if chunks:
                cut_run.check(FINE if taken < chunks else CUT)
            else:
                assert not cut_run.counting.begun, "nothing was asked for"
            if taken < chunks:
                assert chunks > 5
                return

    asyncio.run(main())


# Blocking runs that are interrupted.


class Tripwire:
    """Raises when it has been touched so often, as Ctrl-C would in the code of the application."""

    def __init__(self, touches: int, error: type[BaseException]) -> None:
        self.left = touches
        self._error = error
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.left -= 1
            if self.left:
                return
        raise self._error


@pytest.mark.parametrize("mode", BLOCKING_MODES)
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt, *(pytest.param(each, marks=pytest.mark.slow) for each in (SystemExit, MemoryError))],
)
def test_a_blocking_run_that_is_interrupted_anywhere_leaves_a_whole_tree(mode: str, error: type[BaseException]) -> None:
    interrupted = 0
    for touches in range(1, MOST_POINTS):
        tripwire = Tripwire(touches, error)
        cut_run = CutRun(waits=False, trip=tripwire)
        try:
            in_time(partial(run, mode, cut_run.spec))
            cut_run.check(FINE)
        except error:
            interrupted += 1
            cut_run.workers.settle()
            cut_run.check(("error", error.__name__))
        if tripwire.left > 0:
            assert interrupted > 5  # the model gets the error of a tool, unless it ends the program
            return
    raise AssertionError("there is no end to it")


def test_a_run_whose_end_is_interrupted_is_no_longer_active() -> None:
    def interrupt(name: str, value: Any) -> Any:
        raise KeyboardInterrupt

    telemetry = Telemetry(capture=ContentCapture("SPAN_ONLY", redact=interrupt))
    with pytest.raises(KeyboardInterrupt):
        ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?").call()
    assert [total(point) for point in telemetry.metric(names.RUN_ACTIVE.name)] == [0]
