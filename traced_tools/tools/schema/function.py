"""The step that calls a tool's function, reads out what it yields, and converts it: all in the function's place.

What the function does belongs to the tool, its conversion as well: it must not hold up an event loop that the function
itself would not, and its time counts. But a conversion that fails is no reason to call the function again.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

from traced_tools.core.conversion import ToolContent, acollect, collect
from traced_tools.flow.steps import Call

Convert = Callable[[Any], ToolContent]


class ConvertedValue(NamedTuple):
    """What a tool returned, and what the model reads of it, or why that cannot be made."""

    value: Any
    content: ToolContent
    failure: Exception | None = None

    @property
    def text(self) -> str:
        """What the model reads; raises why it cannot."""
        if self.failure is not None:
            raise self.failure
        return self.content.text


def convert_value(value: Any, convert: Convert) -> ConvertedValue:
    """Convert what a tool returned."""
    try:
        return ConvertedValue(value, convert(value))
    except Exception as error:
        return ConvertedValue(value, ToolContent(""), error)


class CallFunction(Call[ConvertedValue]):
    """Call a tool's function.

    Args:
        function: the function; an iterator that it returns is read out.
        keywords: its arguments.
        convert: makes what the model reads of its value.
    """

    __slots__ = ("_convert", "began")

    def __init__(self, function: Callable[..., Any], keywords: Mapping[str, Any], convert: Convert) -> None:
        super().__init__(function, **keywords)
        self._convert = convert

    @property
    def is_async(self) -> bool:
        """Whether the function belongs on the event loop."""
        return super().is_async or inspect.isasyncgenfunction(self._function)

    def begin(self) -> Any:
        """Call the function."""
        self.began = perf_counter()
        result = super().begin()
        if hasattr(result, "__await__"):
            return self._awaited(result)
        if hasattr(result, "__anext__"):
            return self._awaited(acollect(result))
        return convert_value(_read_out(result), self._convert)

    async def _awaited(self, awaitable: Awaitable[Any]) -> ConvertedValue:
        result = await awaitable
        result = await acollect(result) if hasattr(result, "__anext__") else _read_out(result)
        return convert_value(result, self._convert)


def _read_out(result: Any) -> Any:
    return collect(result) if hasattr(result, "__next__") and not isinstance(result, io.IOBase) else result
