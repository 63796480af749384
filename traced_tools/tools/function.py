"""The step that calls a tool's function, reads the iterator that it may return, and converts the result.

All of this runs where the function runs. So the conversion does not block an event loop, and its time counts as the
tool's. A conversion that fails does not cause a retry of the function.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, NamedTuple

from traced_tools.core.result_conversion import ToolContent, acollect, collect
from traced_tools.flow.steps import Call, is_async

Convert = Callable[[Any], ToolContent]


class ConvertedValue(NamedTuple):
    """What a tool returned, and what the model reads of it, or the error of the conversion."""

    value: Any
    content: ToolContent
    failure: Exception | None = None

    @property
    def text(self) -> str:
        """The text that the model reads; raises the error of the conversion."""
        if self.failure is not None:
            raise self.failure
        return self.content.text


def convert_value(value: Any, convert: Convert) -> ConvertedValue:
    """Convert the value that a tool returned; an error is part of the result."""
    try:
        return ConvertedValue(value, convert(value))
    except Exception as error:
        return ConvertedValue(value, ToolContent(""), error)


class CallFunction(Call[ConvertedValue]):
    """Calls a tool's function and converts the result.

    Args:
        function: the function; an iterator that it returns is read.
        keywords: its arguments.
        convert: converts its value into what the model reads.
        is_async: whether the function runs on the event loop; see `runs_on_event_loop`.
    """

    __slots__ = ("_convert", "_is_async", "began")

    def __init__(
        self, function: Callable[..., Any], keywords: dict[str, Any], convert: Convert, is_async: bool
    ) -> None:
        self._function = function
        self._keywords = keywords
        self._convert = convert
        self._is_async = is_async

    @property
    def is_async(self) -> bool:
        """Whether the function runs on the event loop."""
        return self._is_async

    def begin(self) -> Any:
        """Call the function."""
        self.began = perf_counter()
        result = self._function(**self._keywords)
        if hasattr(result, "__await__"):
            return self._await_and_convert(result)
        if hasattr(result, "__anext__"):
            return self._await_and_convert(acollect(result))
        return convert_value(_read_iterator(result), self._convert)

    async def _await_and_convert(self, awaitable: Awaitable[Any]) -> ConvertedValue:
        result = await awaitable
        result = await acollect(result) if hasattr(result, "__anext__") else _read_iterator(result)
        return convert_value(result, self._convert)


def runs_on_event_loop(function: Callable[..., Any]) -> bool:
    """Whether a tool's function runs on the event loop: it is an async function or an async generator."""
    return is_async(function) or inspect.isasyncgenfunction(function)


def _read_iterator(result: Any) -> Any:
    return collect(result) if hasattr(result, "__next__") and not isinstance(result, io.IOBase) else result
