"""The steps any flow may await: a call of any function, and several flows side by side."""

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
from typing import Any, ParamSpec, TypeVar, overload

from traced_tools.errors import Abandoned
from traced_tools.flow.flow import Execution, Flow, Step, adrive, advance, drive, performed
from traced_tools.flow.workers import (
    cancel_group_on_error,
    cancelled_from_inside,
    in_thread,
    run_all,
    run_async,
    run_within,
)

GIVE_UP_WITHIN = 1.0
"""Seconds that an interrupted batch waits for its flows to end, such as for the clean-up of an advisor."""

T = TypeVar("T")
P = ParamSpec("P")


class Call(Step[T]):
    """Any input or output that is not a model call: a blocking or an async function and its arguments."""

    __slots__ = ("_arguments", "_function", "_keywords")

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self._function = function
        self._arguments = args
        self._keywords = kwargs

    @property
    def is_async(self) -> bool:
        """Whether the function belongs on the event loop and not in a thread."""
        return is_async(self._function)

    def begin(self) -> Any:
        """Call the function; an async one gives what is to be awaited."""
        return self._function(*self._arguments, **self._keywords)

    def run(self) -> T:
        try:
            result = self.begin()
            return run_async(lambda: result) if hasattr(result, "__await__") else result  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            pass
        raise cancelled_from_inside()

    async def arun(self) -> T:
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


class Pause(Step[None]):
    """Wait for some seconds."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def run(self) -> None:
        time.sleep(self._seconds)

    async def arun(self) -> None:
        await asyncio.sleep(self._seconds)


@overload
def perform(function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Step[T]: ...


@overload
def perform(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Step[T]: ...


def perform(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step[Any]:
    """Return a step that calls a function: what a flow awaits to do input and output.

    A blocking function runs in place in a blocking run and in a worker thread under asyncio; an async function runs on
    the event loop, in a blocking run on one in a background thread.
    """
    if not callable(function):
        raise TypeError(f"perform needs a function and its arguments, not {type(function).__name__}")
    return Call(function, *args, **kwargs)


class Batch(Step[list[T]]):
    """Several flows side by side, each in a copy of the context; their results come in order.

    A flow that raises does not disturb its siblings: all run to their end, then the first error in order is raised.

    Args:
        flows: what to run.
        limit: how many may run at once.
    """

    __slots__ = ("_flows", "_limit")

    def __init__(self, flows: Sequence[Flow[T]], limit: int = sys.maxsize) -> None:
        self._flows = flows
        self._limit = limit

    def waves(self) -> Sequence[Sequence[Flow[T]]]:
        """Return the flows in groups that run one after the other; asked once, when the step is performed."""
        return [self._flows]

    def cancel(self) -> None:
        """Tell the flows that nobody waits any more; called when a blocking run is interrupted."""

    def run(self) -> list[T]:
        waves = self.waves()
        if (only := _only(waves)) is not None:
            return [drive(Execution(only))]
        with cancel_group_on_error(self.cancel):  # around the making, too: an execution keeps the context it is made in
            executions = [[Execution(flow) for flow in wave] for wave in waves]
            beside = [[_Beside(each) for each in wave] for wave in executions]
            try:
                outcomes = [run_all([each.drive for each in wave], self._limit) for wave in beside]
            except BaseException:  # this thread was interrupted and no longer waits for the other flows
                _give_up(list(chain.from_iterable(beside)))
                raise
            finally:
                self._close_unbegun(executions)
        return _results(outcomes)

    async def arun(self) -> list[T]:
        waves = self.waves()
        if (only := _only(waves)) is not None:
            return [await adrive(Execution(only))]
        executions = [[Execution(flow) for flow in wave] for wave in waves]
        try:
            outcomes = [await self._side_by_side(wave) for wave in executions]
        finally:
            self._close_unbegun(executions)
        return _results(outcomes)

    def _close_unbegun(self, waves: Iterable[Iterable[Execution[Any]]]) -> None:
        for place, execution in enumerate(chain.from_iterable(waves)):
            if not execution.started:
                execution.discard()
                self.left_out(place)

    def left_out(self, place: int) -> None:
        """Take note that the flow at `place`, from 0 over all waves, was never begun: the batch ended before."""

    async def _side_by_side(self, wave: Sequence[Execution[T]]) -> Sequence[T | BaseException]:
        gate = asyncio.Semaphore(self._limit)

        async def one(execution: Execution[T]) -> T:
            async with gate:
                return await adrive(execution)

        tasks = [asyncio.ensure_future(one(execution)) for execution in wave]
        try:
            return await asyncio.gather(*tasks, return_exceptions=True)
        except GeneratorExit:  # closed and not cancelled, so that nobody has told them
            for task in tasks:
                task.cancel()
            raise


class _Beside:
    """Drives a flow beside others, blocking, until the thread that waits for all of them gives it up.

    A function that runs in another thread cannot be stopped. When its flow is given up, the flow ends in a third
    thread, and what the function returns or raises later is dropped.
    """

    __slots__ = ("_begun", "_execution", "_turn", "given_up")

    def __init__(self, execution: Execution[Any]) -> None:
        self._execution = execution
        self._begun = False
        self.given_up = False
        self._turn = threading.Lock()  # held while the flow itself runs, but not while its step is performed

    def drive(self) -> Any:
        """Run the flow and return its result; raises `Abandoned` when it has been given up."""
        execution = self._execution
        go_on: Callable[[], None] = execution.start
        self._begun = True  # set before `given_up` is read, so that this thread or the one that gives up ends the flow
        while True:
            with self._turn:
                if self.given_up:
                    self._end()
                    raise Abandoned
                go_on()
                if execution.finished:
                    return execution.result
                assert execution.step is not None
                step = partial(execution.context.run, execution.step.run)  # whoever ends the flow replaces both
            go_on = performed(execution, step)

    @property
    def is_open(self) -> bool:
        """Whether a thread drives the flow and has not finished it."""
        return self._begun and not self._execution.finished

    def end(self, deadline: float) -> None:
        """End the flow now. If it reaches no step before `deadline` (monotonic), its own thread ends it."""
        if self._turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                self._end()
            finally:
                self._turn.release()

    def _end(self) -> None:
        execution = self._execution
        if execution.started and not execution.finished:
            execution.context = execution.context.copy()  # a thread that performs a step is still inside the other one
            with suppress(Exception, Abandoned):  # the interrupt is the error to raise
                execution.fail(Abandoned())
                while not execution.finished:
                    advance(execution)


def _give_up(flows: Sequence[_Beside]) -> None:
    """End `flows` side by side, and wait at most `GIVE_UP_WITHIN` seconds for all of them together."""
    for each in flows:
        each.given_up = True
    deadline = time.monotonic() + GIVE_UP_WITHIN
    run_within([partial(each.end, deadline) for each in flows if each.is_open], GIVE_UP_WITHIN)


def _only(waves: Sequence[Sequence[Flow[T]]]) -> Flow[T] | None:
    """Return the flow of a batch that has one and no more, which needs none of the care for several."""
    return waves[0][0] if len(waves) == 1 and len(waves[0]) == 1 else None


def _results(outcomes: Iterable[Iterable[T | BaseException]]) -> list[T]:
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
