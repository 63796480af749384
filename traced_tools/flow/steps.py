"""Steps for any flow: a call of a function, a pause, and several flows in parallel."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Final, ParamSpec, TypeVar, overload

from traced_tools.errors import Abandoned
from traced_tools.flow.flow import Execution, Flow, Step, adrive, drive, perform_step
from traced_tools.flow.workers import (
    cancel_group_on_error,
    cancelled_from_inside,
    in_thread,
    run_all,
    run_async,
    run_within,
)

GIVE_UP_WITHIN = 1.0
"""The seconds that interrupted `ParallelFlows` wait for their flows to end, for example for an advisor's clean-up."""

T = TypeVar("T")
P = ParamSpec("P")


class Call(Step[T]):
    """Calls a blocking or an async function; used for all I/O except model calls."""

    __slots__ = ("_arguments", "_function", "_keywords")

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self._function = function
        self._arguments = args
        self._keywords = kwargs

    @property
    def is_async(self) -> bool:
        """Whether the function runs on the event loop instead of in a thread."""
        return is_async(self._function)

    def begin(self) -> Any:
        """Call the function; an async function returns an awaitable."""
        return self._function(*self._arguments, **self._keywords)

    def run(self) -> T:
        """Perform the step, blocking."""
        try:
            result = self.begin()
            return run_async(lambda: result) if hasattr(result, "__await__") else result  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            pass
        raise cancelled_from_inside()

    async def arun(self) -> T:
        """Perform the step on asyncio."""
        try:
            result = self.begin() if self.is_async else await in_thread(self.begin)
            return await result if hasattr(result, "__await__") else result  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
        raise cancelled_from_inside()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self._function, '__qualname__', type(self._function).__name__)}>"


class InlineCall(Call[T]):
    """Calls a function that does not wait, or an async one: on asyncio, both run on the event loop."""

    __slots__ = ()
    is_async = True


class Pause(Step[None]):
    """Waits for a number of seconds."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def run(self) -> None:
        """Perform the step, blocking."""
        time.sleep(self._seconds)

    async def arun(self) -> None:
        """Perform the step on asyncio."""
        await asyncio.sleep(self._seconds)


@overload
def perform(function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Step[T]: ...


@overload
def perform(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Step[T]: ...


def perform(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step[Any]:
    """Return a step that calls `function`, with which a flow does input and output.

    In a blocking run, a blocking function runs in the calling thread, and an async function on an event loop in a
    background thread. On asyncio, a blocking function runs in a worker thread, and an async function on the event loop.

    Args:
        function: a blocking or an async function. The step returns what it returns, and raises what it raises.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        TypeError: if `function` can't be called, such as a coroutine that was made too early.
    """
    if not callable(function):
        raise TypeError(f"perform needs a function and its arguments, not {type(function).__name__}")
    return Call(function, *args, **kwargs)


class AwaitOthers(Step[None]):
    """Waits until each other flow of the same `ParallelFlows` has ended or waits as well; at once in any other flow.

    A flow waits once. A further step of this kind does not wait.
    """

    __slots__ = ()

    def run(self) -> None:
        """Go on: the others have ended, or wait as well."""

    async def arun(self) -> None:
        """Go on: the others have ended, or wait as well."""


_WAITS: Final[Any] = object()
"""Stands for the result of a flow that waits for the others."""


class ParallelFlows(Step[list[T]]):
    """Runs several flows in parallel, each in a copy of the context, and returns their results in order.

    If a flow raises an error, the others still run to their end. Then the first error in order is raised. Flows that
    await `AwaitOthers` go on together, in the same groups.

    Args:
        flows: the flows to run.
        limit: the maximum number of flows that run at once.
    """

    __slots__ = ("_flows", "_limit")

    def __init__(self, flows: Sequence[Flow[T]], limit: int = sys.maxsize) -> None:
        self._flows = flows
        self._limit = limit

    def waves(self) -> Sequence[Sequence[Flow[T]]]:
        """Return the flows in groups that run one after the other. Called once, when the step is performed."""
        return [self._flows]

    def cancel(self) -> None:
        """Called when a blocking run is interrupted, so that the flows can stop early."""

    def run(self) -> list[T]:
        """Perform the step, blocking."""
        waves = self.waves()
        if (single_flow := _single_flow(waves)) is not None:
            return [drive(Execution(single_flow))]
        with cancel_group_on_error(self.cancel):  # also around the creation: an execution copies the context
            executions = [[Execution(flow) for flow in wave] for wave in waves]
            parallel = [[_ParallelFlow(execution) for execution in wave] for wave in executions]
            try:
                outcomes = [run_all([flow.drive for flow in wave], self._limit) for wave in parallel]
                for wave, results in zip(parallel, outcomes, strict=True):
                    waiting = [index for index, result in enumerate(results) if result is _WAITS]
                    later = run_all([wave[index].drive for index in waiting], self._limit) if waiting else ()
                    for index, result in zip(waiting, later, strict=True):
                        results[index] = result
            except BaseException:  # this thread was interrupted and stops waiting for the other flows
                _abandon(list(chain.from_iterable(parallel)))
                raise
            finally:
                self._discard_unstarted(executions)
        return _collect_results(outcomes)

    async def arun(self) -> list[T]:
        """Perform the step on asyncio."""
        waves = self.waves()
        if (single_flow := _single_flow(waves)) is not None:
            return [await adrive(Execution(single_flow))]
        executions = [[Execution(flow) for flow in wave] for wave in waves]
        try:
            outcomes = [await self._run_wave(wave, _adrive_until_waiting) for wave in executions]
            for wave, results in zip(executions, outcomes, strict=True):
                waiting = [index for index, result in enumerate(results) if result is _WAITS]
                later = await self._run_wave([wave[index] for index in waiting], adrive) if waiting else ()
                for index, result in zip(waiting, later, strict=True):
                    results[index] = result
        finally:
            self._discard_unstarted(executions)
            for execution in chain.from_iterable(executions):
                if not execution.finished:  # the step ended early while it waited for the others
                    execution.discard()
        return _collect_results(outcomes)

    def _discard_unstarted(self, waves: Iterable[Iterable[Execution[Any]]]) -> None:
        for place, execution in enumerate(chain.from_iterable(waves)):
            if not execution.started:
                execution.discard()
                self.on_flow_skipped(place)

    def on_flow_skipped(self, place: int) -> None:
        """Called for each flow that never started because the step ended early.

        `place` is the flow's index, from 0 across all waves.
        """

    async def _run_wave(
        self, wave: Sequence[Execution[T]], drive_one: Callable[[Execution[T]], Awaitable[T]]
    ) -> list[T | BaseException]:
        gate = asyncio.Semaphore(self._limit)

        async def one(execution: Execution[T]) -> T:
            async with gate:
                return await drive_one(execution)

        tasks = [asyncio.ensure_future(one(execution)) for execution in wave]
        try:
            return await asyncio.gather(*tasks, return_exceptions=True)
        except GeneratorExit:  # this coroutine was closed, not cancelled, so `gather` has not cancelled the tasks
            for task in tasks:
                task.cancel()
            raise


async def _adrive_until_waiting(execution: Execution[Any]) -> Any:
    """Run a flow on asyncio until it ends or awaits the other flows; return its result, or `_WAITS`."""
    waits = False
    try:
        execution.start()
        await execution.arun_steps(AwaitOthers)
        waits = not execution.finished
        return _WAITS if waits else execution.result
    finally:
        if not execution.finished and not waits:
            execution.discard()


class _ParallelFlow:
    """Drives one of several parallel flows, blocking, until the waiting thread abandons them.

    A function that runs in another thread can't be stopped. If its flow is abandoned, the flow ends in a third thread,
    and the result or error of the function is dropped.
    """

    __slots__ = ("_execution", "_has_waited", "_lock", "_started", "abandoned")

    def __init__(self, execution: Execution[Any]) -> None:
        self._execution = execution
        self._started = self._has_waited = False
        self.abandoned = False
        self._lock = threading.Lock()  # held while the flow runs, but not while a step is performed

    def drive(self) -> Any:
        """Run the flow until it ends or awaits the other flows; return its result, or `_WAITS`.

        Raises:
            Abandoned: if the flow has been abandoned.
        """
        execution = self._execution
        resume: Callable[[], None] = execution.start
        self._started = True  # before `abandoned` is read, so that this thread or the abandoning one ends the flow
        while True:
            with self._lock:
                if self.abandoned:
                    self._end()
                    raise Abandoned
                resume()
                if execution.finished:
                    return execution.result
                assert execution.step is not None
                if isinstance(execution.step, AwaitOthers) and not self._has_waited:
                    self._has_waited = True
                    return _WAITS
                step = partial(execution.context.run, execution.step.run)  # `_end` replaces both
            resume = perform_step(execution, step)

    @property
    def is_open(self) -> bool:
        """Whether a thread has started to drive the flow and the flow has not finished."""
        return self._started and not self._execution.finished

    def end(self, deadline: float) -> None:
        """End the flow. If it doesn't reach a step before `deadline` (by `time.monotonic`), its own thread ends it."""
        if self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                self._end()
            finally:
                self._lock.release()

    def _end(self) -> None:
        execution = self._execution
        if execution.started and not execution.finished:
            execution.context = execution.context.copy()  # a thread that performs a step still uses the original
            with suppress(Exception, Abandoned):  # the interrupt is the error that is raised
                execution.fail(Abandoned())
                execution.run_steps()


def _abandon(flows: Sequence[_ParallelFlow]) -> None:
    """End `flows` in parallel, and wait at most `GIVE_UP_WITHIN` seconds for all of them together."""
    for flow in flows:
        flow.abandoned = True
    deadline = time.monotonic() + GIVE_UP_WITHIN
    run_within([partial(flow.end, deadline) for flow in flows if flow.is_open], GIVE_UP_WITHIN)


def _single_flow(waves: Sequence[Sequence[Flow[T]]]) -> Flow[T] | None:
    """Return the flow if there is only one, which runs without threads or tasks; else None."""
    return waves[0][0] if len(waves) == 1 and len(waves[0]) == 1 else None


def _collect_results(outcomes: Iterable[Iterable[T | BaseException]]) -> list[T]:
    """Return the results, or raise the first error among them."""
    results = []
    for outcome in chain.from_iterable(outcomes):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def is_async(function: Callable[..., Any]) -> bool:
    """Whether `function` is an async function, method or partial, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
