"""`@tool`, and what may stand in `tools=`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from traced_tools._checks import expect, expect_callable
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.callback import FunctionToolCallback, ResultConverter, ToolCallback
from traced_tools.tools.definition import ToolMetadata
from traced_tools.tools.toolset import ToolSet

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__traced_tool__"


@dataclass(frozen=True)
class _ToolOptions:
    name: str | None
    description: str | None
    return_direct: bool
    result_converter: ResultConverter | None

    def callback(self, function: Callable[..., Any]) -> FunctionToolCallback:
        return FunctionToolCallback(
            function,
            name=self.name,
            description=self.description,
            metadata=ToolMetadata(return_direct=self.return_direct),
            result_converter=self.result_converter,
        )


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    return_direct: bool = False,
    result_converter: ResultConverter | None = None,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    return_direct: bool = False,
    result_converter: ResultConverter | None = None,
) -> F | Callable[[F], F]:
    """Mark a function or method as a tool; it stays callable as before.

    Args:
        function: the function, when used bare.
        name: how the model calls it; by default the function's name.
        description: what the model is told; by default the first paragraph of the docstring.
        return_direct: the result is the run's answer, without another word of the model.
        result_converter: makes the text the model reads of the function's value.
    """
    expect("name", name, (str, type(None)), "a str or None")
    expect("description", description, (str, type(None)), "a str or None")
    expect("return_direct", return_direct, bool, "True or False")
    expect_callable("result_converter", result_converter)
    options = _ToolOptions(name, description, return_direct, result_converter)

    def mark(marked: F) -> F:
        if not callable(marked) and not isinstance(marked, staticmethod | classmethod):
            raise TypeError(f"@tool marks functions and methods, not {type(marked).__name__}")
        setattr(getattr(marked, "__func__", marked), _MARK, options)
        return marked

    return mark if function is None else mark(function)


def tool_callbacks(*tools: Any) -> list[ToolCallback]:
    """Return the tools that `tools` stand for: functions, objects with `@tool` methods, `ToolCallback`s, nested.

    Raises:
        ToolDefinitionError: for an object that holds no tool, and for two tools of one name.
    """
    return list(ToolSet(_each(tools)))


def _each(tools: Iterable[Any]) -> Iterable[ToolCallback]:
    for item in tools:
        if isinstance(item, list | tuple | set | frozenset):
            yield from _each(item)
        elif not isinstance(item, type) and isinstance(item, ToolCallback):
            yield item
        elif inspect.isroutine(item):
            yield _callback(item)
        else:
            yield from _methods(item)


def _callback(function: Callable[..., Any]) -> FunctionToolCallback:
    options = getattr(function, _MARK, None) or _ToolOptions(None, None, False, None)
    return options.callback(function)


def _methods(item: Any) -> list[FunctionToolCallback]:
    kind = item if isinstance(item, type) else type(item)
    names = dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base))
    marked = [name for name in names if hasattr(getattr(kind, name, None), _MARK)]
    if isinstance(item, type) or not marked:
        raise ToolDefinitionError(
            f"{kind.__name__} holds no tool: pass a function, an object with methods marked @tool, or a ToolCallback"
            + ("; this is the class, pass an instance of it" if isinstance(item, type) and marked else "")
        )
    return [_callback(getattr(item, name)) for name in marked]
