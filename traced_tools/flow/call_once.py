"""A step that calls a function once, for all flows that await it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from traced_tools.flow.steps import Call

T = TypeVar("T")


class CallFailedError(Exception):
    """Raised by a step whose function has raised an error.

    The error itself is not kept, because its traceback would keep the objects of the flow that was the first.

    Args:
        kind: the class of the error.
    """

    def __init__(self, kind: type[Exception]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


class CallOnce(Call[T]):
    """Calls a blocking or an async function at most once. Flows that await the step meanwhile wait for the result.

    Args:
        convert: returns the step's result for what the function returns; called once.
        function: the function.
        args: its arguments.

    Raises:
        CallFailedError: whenever the step is awaited, if the function or `convert` has raised an error.
    """

    __slots__ = ("_convert", "_failure", "_is_done", "_loop_lock", "_result", "_thread_lock")

    def __init__(self, convert: Callable[[Any], T], function: Callable[..., Any], /, *args: Any) -> None:
        super().__init__(function, *args)
        self._convert = convert
        self._failure: type[Exception] | None = None
        self._is_done = False
        self._thread_lock = threading.Lock()
        self._loop_lock = asyncio.Lock()  # the flows of an asynchronous run are on one event loop

    def run(self) -> T:
        """Perform the step, blocking."""
        with self._thread_lock:
            if not self._is_done:
                try:
                    self._result = self._convert(super().run())
                except Exception as error:
                    self._failure = type(error)
                self._is_done = True
        return self._outcome()

    async def arun(self) -> T:
        """Perform the step on asyncio."""
        async with self._loop_lock:
            if not self._is_done:
                try:
                    self._result = self._convert(await super().arun())
                except Exception as error:
                    self._failure = type(error)
                self._is_done = True
        return self._outcome()

    def _outcome(self) -> T:
        if self._failure is not None:
            raise CallFailedError(self._failure)
        return self._result
