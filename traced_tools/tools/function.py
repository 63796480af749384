"""The step that calls a tool's function, and reads out what it yields."""

from __future__ import annotations

import inspect
import io
from collections.abc import Awaitable
from time import perf_counter
from typing import Any

from traced_tools._steps import Call
from traced_tools.tools.conversion import acollect, collect


class CallFunction(Call[Any]):
    """Call a tool's function. An iterator it returns is read out in its place: in its thread or on its event loop."""

    __slots__ = ("began",)

    @property
    def is_async(self) -> bool:
        """Whether the function belongs on the event loop."""
        return super().is_async or inspect.isasyncgenfunction(self._function)

    def begin(self) -> Any:
        """Call the function."""
        self.began = perf_counter()
        result = super().begin()
        if hasattr(result, "__await__"):
            return _awaited(result)
        return acollect(result) if hasattr(result, "__anext__") else _read_out(result)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    result = await awaitable
    return await acollect(result) if hasattr(result, "__anext__") else _read_out(result)


def _read_out(result: Any) -> Any:
    return collect(result) if hasattr(result, "__next__") and not isinstance(result, io.IOBase) else result
