"""A tool that takes too long gets a time-out result, and its later result is dropped."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import arun, run
from tests.tools.batches import (
    KINDS,
    Stubborn,
    Stuck,
    attributes,
    client_of,
    function_tool,
    nothing_logged,
    recorded,
    stuck_tool,
)
from tests.waiting import PATIENCE, in_time, patiently, turns, until
from traced_tools import LoopLimits, ToolContext, ToolExecutionError
from traced_tools.core import ToolErrors
from traced_tools.errors import ToolTimeout
from traced_tools.flow import WorkerPool
from traced_tools.flow import attempt as _attempt
from traced_tools.tools import ToolCallingManager

SOON = 0.01
LATE = "traced_tools.tool.late_results"


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.release.set()


def quick() -> str:
    """Answer at once."""
    return "quick"


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_of_any_kind_that_takes_too_long_is_answered_for(
    mode: str, kind: str, stuck: Stuck, telemetry: Telemetry
) -> None:
    tools = [stuck_tool(kind, stuck, timeout=SOON), quick]
    response = in_time(lambda: run(mode, client_of(["stuck", "quick"], tools, telemetry).prompt("?")))
    late, sibling = response.tool_results

    assert response.content == "done"
    assert (late.outcome, late.error_type, late.value) == ("timeout", "timeout", None)
    assert isinstance(late.error, ToolTimeout)
    assert late.error.seconds == SOON
    assert late.part().is_error
    assert (sibling.outcome, sibling.content) == ("ok", "quick")
    telemetry.check_each_ended_once()
    span, _ = attributes(telemetry)
    assert (span["traced_tools.tool.outcome"], span["error.type"]) == ("timeout", "timeout")
    assert recorded(telemetry, "traced_tools.tool.active") == 0


@pytest.mark.parametrize("colour", ["blocking", "async"])
@pytest.mark.parametrize("seconds", [PATIENCE, 1e12])
def test_a_tool_that_finishes_in_time_is_not_affected(
    mode: str, colour: str, seconds: float, stuck: Stuck, telemetry: Telemetry
) -> None:
    async def coroutine() -> str:
        await asyncio.sleep(SOON)
        return "in time"

    def blocking() -> str:
        stuck.release.wait(SOON)
        return "in time"

    tool = function_tool(blocking if colour == "blocking" else coroutine, timeout=seconds)
    response = run(mode, client_of([tool.definition.name], [tool], telemetry).prompt("?"))
    assert response.tool_results[0].content == "in time"
    assert recorded(telemetry, LATE) == 0
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("seconds", [None, PATIENCE])
def test_an_awaitable_returned_by_a_plain_function_is_awaited_on_the_callers_loop(
    async_mode: str, seconds: float | None, telemetry: Telemetry
) -> None:
    async def coroutine() -> int:
        return id(asyncio.get_running_loop())

    def wrapper() -> Any:
        return coroutine()

    async def main() -> None:
        client = client_of(["wrapper"], [function_tool(wrapper, timeout=seconds)], telemetry)
        response = await arun(async_mode, client.prompt("?"))
        assert response.tool_results[0].value == id(asyncio.get_running_loop())

    asyncio.run(patiently(main()))
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("error", [TimeoutError("mine"), ToolTimeout(1)])
@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_a_tool_that_raises_a_timeout_error_has_failed(
    mode: str, error: Exception, timeout: float | None, telemetry: Telemetry
) -> None:
    def impatient() -> None:
        raise error

    tools = [function_tool(impatient, timeout=timeout)]
    (result,) = run(mode, client_of(["impatient"], tools, telemetry).prompt("?")).tool_results
    assert result.outcome == "error"
    assert result.error is error
    assert (result.error_type or "").endswith(type(error).__name__)
    telemetry.check_each_ended_once()


def test_the_wait_for_a_free_worker_does_not_count(async_mode: str, stuck: Stuck, telemetry: Telemetry) -> None:
    deadlines: list[float] = []

    def waits(context: ToolContext) -> None:
        assert context.deadline is not None
        deadlines.append(context.deadline)

    async def main() -> tuple[Any, float]:
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        await asyncio.to_thread(until, lambda: pool._waiting < 0)
        freed = time.monotonic()
        stuck.release.set()
        return (await task).tool_results, freed

    pool = WorkerPool(1)
    tools = [stuck.stuck, function_tool(waits, timeout=PATIENCE)]
    client = client_of(["stuck", "waits"], tools, telemetry, ToolCallingManager(workers=pool))
    results, freed = asyncio.run(patiently(main()))
    assert [each.outcome for each in results] == ["ok", "ok"]
    assert deadlines[0] >= freed + PATIENCE
    assert attributes(telemetry)[1]["traced_tools.tool.queue_time"] > 0
    telemetry.check_each_ended_once()


def test_a_blocking_run_waits_for_no_worker(blocking_mode: str, stuck: Stuck, telemetry: Telemetry) -> None:
    pool = WorkerPool(1)
    pool.submit(lambda: stuck.stuck(ToolContext()))
    client = client_of(["quick"], [function_tool(quick, timeout=PATIENCE)], telemetry, ToolCallingManager(workers=pool))
    assert in_time(lambda: run(blocking_mode, client.prompt("?"))).tool_results[0].ok
    telemetry.check_each_ended_once()


def test_a_tool_that_timed_out_frees_its_place_in_the_pool(mode: str, stuck: Stuck, telemetry: Telemetry) -> None:
    manager = ToolCallingManager(workers=WorkerPool(1))
    tools = [function_tool(stuck.stuck, timeout=SOON), quick]
    client = client_of(["stuck", "stuck", "quick", "stuck", "quick"], tools, telemetry, manager)
    results = in_time(lambda: run(mode, client.prompt("?"))).tool_results
    assert [each.outcome for each in results] == ["timeout", "timeout", "ok", "timeout", "ok"]
    telemetry.check_each_ended_once()


# What comes late.


@pytest.mark.parametrize("error", [None, ValueError(MARKER)])
def test_a_late_result_or_exception_of_a_blocking_tool_is_dropped_and_counted(
    mode: str, error: Exception | None, telemetry: Telemetry
) -> None:
    stuck = Stuck(error)
    with nothing_logged():
        client = client_of(["stuck"], [function_tool(stuck.stuck, timeout=SOON)], telemetry)
        (result,) = run(mode, client.prompt("?")).tool_results
        telemetry.check_each_ended_once()
        assert recorded(telemetry, LATE) == 0
        stuck.ends()
    assert recorded(telemetry, LATE) == 1
    assert result.outcome == "timeout"
    telemetry.check_each_ended_once()


def test_a_late_exception_of_a_blocking_tool_on_a_running_loop_is_not_logged(
    async_mode: str, telemetry: Telemetry
) -> None:
    stuck = Stuck(ValueError(MARKER))

    async def main() -> None:
        client = client_of(["stuck"], [function_tool(stuck.stuck, timeout=SOON)], telemetry)
        await arun(async_mode, client.prompt("?"))
        await asyncio.to_thread(stuck.ends)
        await turns()

    with nothing_logged():
        asyncio.run(patiently(main()))
    assert recorded(telemetry, LATE) == 1
    telemetry.check_each_ended_once()


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_attempt, "GRACE", SOON)


def test_an_async_tool_that_resists_cancellation_is_abandoned_after_a_grace_period(
    mode: str, no_grace: None, telemetry: Telemetry
) -> None:
    tool = Stubborn()
    client = client_of(["stubborn"], [function_tool(tool.stubborn, timeout=SOON)], telemetry)

    def left() -> None:
        assert tool.cancelled == 1
        assert recorded(telemetry, LATE) == 0
        tool.ends()
        assert recorded(telemetry, LATE) == 1

    async def main() -> Any:
        response = await arun(mode, client.prompt("?"))
        await asyncio.to_thread(left)
        return response

    with nothing_logged():
        if mode in ("acall", "astream"):
            response = asyncio.run(patiently(main()))
        else:
            response = run(mode, client.prompt("?"))
            left()
    assert response.tool_results[0].outcome == "timeout"
    assert response.content == "done"
    telemetry.check_each_ended_once()


def test_a_tool_that_its_loop_ends_long_after_its_time_out_logs_nothing(
    async_mode: str, no_grace: None, telemetry: Telemetry
) -> None:
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        raise LookupError(MARKER)

    with nothing_logged():
        client = client_of(["stubborn"], [function_tool(stubborn, timeout=SOON)], telemetry)
        assert run(async_mode, client.prompt("?")).tool_results[0].outcome == "timeout"
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("ending", ["returns", "raises", "is cancelled"])
def test_an_async_tool_may_clean_up_before_the_run_goes_on(mode: str, ending: str, telemetry: Telemetry) -> None:
    cleaned_up: list[bool] = []

    async def careful(context: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await turns()
            cleaned_up.append(context.cancelled)
            if ending == "is cancelled":
                raise
            if ending == "raises":
                raise LookupError(MARKER) from None
        return "too late"

    with nothing_logged():
        client = client_of(["careful"], [function_tool(careful, timeout=SOON)], telemetry)
        (result,) = run(mode, client.prompt("?")).tool_results
    assert cleaned_up == [True]
    assert (result.outcome, type(result.error)) == ("timeout", ToolTimeout)
    assert recorded(telemetry, LATE) == (0 if ending == "is cancelled" else 1)
    telemetry.check_each_ended_once()


# What the tool may know.


def test_a_blocking_tool_sees_that_it_was_timed_out(mode: str, telemetry: Telemetry) -> None:
    seen: list[bool] = []
    done = threading.Event()

    def patient(context: ToolContext) -> None:
        while not context.cancelled and len(seen) < 10_000:
            seen.append(context.cancelled)
            done.wait(0.001)
        seen.append(context.cancelled)
        done.set()

    client = client_of(["patient"], [function_tool(patient, timeout=SOON)], telemetry)
    assert run(mode, client.prompt("?")).tool_results[0].outcome == "timeout"
    assert done.wait(PATIENCE)
    assert seen[-1]
    telemetry.check_each_ended_once()


@pytest.mark.parametrize(("run_seconds", "tool_seconds"), [(None, None), (None, 50), (100, None), (100, 50), (50, 100)])
def test_the_deadline_of_a_tool_is_the_earlier_of_its_own_and_the_runs(
    mode: str, run_seconds: float | None, tool_seconds: float | None, telemetry: Telemetry
) -> None:
    deadlines: list[float | None] = []

    def looks(context: ToolContext) -> None:
        deadlines.append(context.deadline)

    began = time.monotonic()
    client = client_of(["looks"], [function_tool(looks, timeout=tool_seconds)], telemetry)
    run(mode, client.prompt("?", limits=LoopLimits(max_seconds=run_seconds)))
    ended = time.monotonic()

    seconds = min((each for each in (run_seconds, tool_seconds) if each is not None), default=None)
    if seconds is None:
        assert deadlines == [None]
    else:
        assert deadlines[0] is not None
        assert began + seconds <= deadlines[0] <= ended + seconds
    telemetry.check_each_ended_once()


# A time-out that fails the run.


@pytest.mark.parametrize("raise_on", [TimeoutError, ToolTimeout])
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_time_out_fails_the_run_where_the_policy_says_so(
    mode: str, kind: str, raise_on: type[Exception], stuck: Stuck, telemetry: Telemetry
) -> None:
    client = client_of(["stuck"], [stuck_tool(kind, stuck, timeout=SOON)], telemetry)
    with pytest.raises(ToolExecutionError) as caught:
        run(mode, client.prompt("?", tool_errors=ToolErrors(raise_on=(raise_on,))))
    assert isinstance(caught.value.original, ToolTimeout)
    assert caught.value.error_type == "timeout"
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_an_error_that_fails_the_run_carries_no_text_of_the_tool(
    mode: str, colour: str, timeout: float | None, telemetry: Telemetry
) -> None:
    def fails() -> None:
        raise TimeoutError(MARKER)

    async def afails() -> None:
        raise TimeoutError(MARKER)

    tool = function_tool(fails if colour == "blocking" else afails, timeout=timeout)
    client = client_of([tool.definition.name, "quick"], [tool, quick], telemetry)
    with pytest.raises(ToolExecutionError) as caught:
        run(mode, client.prompt("?", tool_errors=ToolErrors(raise_on=(TimeoutError,))))
    assert MARKER not in "".join(traceback.format_exception(caught.value))
    assert (caught.value.__context__, caught.value.__cause__) == (None, None)
    assert str(caught.value.original) == MARKER
    telemetry.check_each_ended_once()


# A tiny pool.


@pytest.mark.parametrize("inner", ["call", "acall", "posted"])
def test_a_run_inside_a_tool_times_out_its_tools_in_a_pool_of_one(
    mode: str, inner: str, stuck: Stuck, telemetry: Telemetry
) -> None:
    """For a tool that blocks, has its own event loop, or posts the run to the loop it was called from."""
    loops: list[asyncio.AbstractEventLoop] = []
    nested = client_of(["stuck", "quick"], [function_tool(stuck.stuck, timeout=SOON), quick], telemetry)

    def outer() -> list[str | None]:
        spec = nested.prompt("?")
        if inner == "posted" and loops:
            response = asyncio.run_coroutine_threadsafe(spec.acall(), loops[0]).result(PATIENCE)
        else:
            response = spec.call() if inner == "call" else asyncio.run(spec.acall())
        return [each.outcome for each in response.tool_results]

    client = client_of(["outer"], [outer], telemetry, ToolCallingManager(workers=WorkerPool(1)))

    async def main() -> Any:
        loops.append(asyncio.get_running_loop())
        return await patiently(arun(mode, client.prompt("?")))

    response = in_time(lambda: asyncio.run(main()) if mode.startswith("a") else run(mode, client.prompt("?")))
    assert response.tool_results[0].value == ["timeout", "ok"]
    telemetry.check_each_ended_once()
