"""The steps any flow may await: a call of any function, and several flows side by side."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from traced_tools._flow import Execution, Flow, Step, adrive, drive
from traced_tools._workers import in_thread, run_all, run_coroutine

T = TypeVar("T")
P = ParamSpec("P")


class Call(Step[T]):
    """Any input or output that is not a model call or a tool: a blocking or an async function and its arguments."""

    __slots__ = ("_arguments", "_function", "_keywords")

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self._function = function
        self._arguments = args
        self._keywords = kwargs

    def run(self) -> T:
        result = self._function(*self._arguments, **self._keywords)
        return run_coroutine(_awaiting(result)) if hasattr(result, "__await__") else result  # type: ignore[no-any-return]

    async def arun(self) -> T:
        function = partial(self._function, *self._arguments, **self._keywords)
        try:
            result = function() if is_async(self._function) else await in_thread(function)
            return await result if hasattr(result, "__await__") else result  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
        raise CancelledError("the function was cancelled from inside")  # an ordinary error, as in a blocking run

    def __repr__(self) -> str:
        return f"<Call {getattr(self._function, '__qualname__', type(self._function).__name__)}>"


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
    """

    __slots__ = ("_flows",)

    def __init__(self, flows: Sequence[Flow[T]]) -> None:
        self._flows = flows

    def flows(self) -> Sequence[Flow[T]]:
        """Return the flows to run; asked once, when the step is performed."""
        return self._flows

    def run(self) -> list[T]:
        executions = [Execution(flow) for flow in self.flows()]
        try:
            if not executions:
                return []
            if len(executions) == 1:
                return [drive(executions[0])]
            return run_all([partial(drive, execution) for execution in executions])
        finally:
            for execution in executions:
                if not execution.started:
                    execution.discard()

    async def arun(self) -> list[T]:
        executions = [Execution(flow) for flow in self.flows()]
        if len(executions) == 1:
            return [await adrive(executions[0])]
        results = await asyncio.gather(*map(adrive, executions), return_exceptions=True)
        return [_result_or_raise(result) for result in results]


def is_async(function: Callable[..., Any]) -> bool:
    """Whether `function` is an async function, method or partial, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def _awaiting(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _result_or_raise(result: T | BaseException) -> T:
    if isinstance(result, BaseException):
        raise result
    return result
