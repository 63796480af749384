"""`@tool`: what a function says of itself as a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from traced_tools._checks import expect, expect_callable
from traced_tools.tools.callback import FunctionToolCallback, ResultConverter
from traced_tools.tools.definition import ToolMetadata

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__traced_tool__"
_TRANSIENT = (ConnectionError, TimeoutError)
RetryOn = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True)
class _Mark:
    name: str | None = None
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None
    metadata: ToolMetadata | None = None
    result_converter: ResultConverter | None = None


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    return_direct: bool = False,
    result_converter: ResultConverter | None = None,
    timeout: float | None = None,
    retries: int = 0,
    retry_on: RetryOn = _TRANSIENT,
    sequential: bool = False,
    requires_approval: bool = False,
    capture: bool = True,
    input_schema: Mapping[str, Any] | None = None,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    return_direct: bool = False,
    result_converter: ResultConverter | None = None,
    timeout: float | None = None,
    retries: int = 0,
    retry_on: RetryOn = _TRANSIENT,
    sequential: bool = False,
    requires_approval: bool = False,
    capture: bool = True,
    input_schema: Mapping[str, Any] | None = None,
) -> F | Callable[[F], F]:
    """Mark a function or method as a tool; it stays callable as before.

    Args:
        function: the function, when used bare.
        name: how the model calls it; by default the function's name.
        description: what the model is told; by default the first paragraph of the docstring, else the name in words.
        return_direct: the result is the run's answer, without another word of the model.
        result_converter: makes what the model reads of the function's value.
        timeout: seconds one attempt may take.
        retries: further attempts after a failure of the classes `retry_on`.
        retry_on: the exception classes, or the one, worth another attempt; a time-out is a `TimeoutError`.
        sequential: the tool runs alone, after the calls asked for before it and before those asked for after it.
        requires_approval: the tool may not run until somebody approves of the call.
        capture: False keeps arguments and results out of telemetry even where content is captured.
        input_schema: JSON Schema of the arguments, instead of the one the annotations make.

    See `ToolMetadata` for what each of these means to the loop.

    Raises:
        TypeError, ValueError: for an argument that cannot be used; the text names it.
    """
    expect("name", name, (str, type(None)), "a str or None")
    expect("description", description, (str, type(None)), "a str or None")
    expect("input_schema", input_schema, (Mapping, type(None)), "a mapping or None")
    expect_callable("result_converter", result_converter)
    metadata = ToolMetadata(
        return_direct=return_direct,
        timeout=timeout,
        retries=retries,
        retry_on=retry_on,  # type: ignore[arg-type]  # a single class becomes a tuple
        sequential=sequential,
        requires_approval=requires_approval,
        capture=capture,
    )
    told = _Mark(name, description, input_schema, metadata, result_converter)

    def mark(marked: F) -> F:
        if not callable(marked) and not isinstance(marked, staticmethod | classmethod):
            raise TypeError(f"@tool marks functions and methods, not {type(marked).__name__}")
        try:
            setattr(getattr(marked, "__func__", marked), _MARK, told)
        except AttributeError:
            kind = type(marked).__name__
            raise TypeError(f"@tool cannot mark a {kind}: wrap it in a function or a FunctionToolCallback") from None
        return marked

    return mark if function is None else mark(function)


def is_marked(item: object) -> bool:
    """Whether `item`, as it stands in a class, is marked `@tool`."""
    return isinstance(getattr(getattr(item, "__func__", item), _MARK, None), _Mark)


def marked_callback(function: Callable[..., Any]) -> FunctionToolCallback:
    """Return the tool a function is: as its mark says, or by default."""
    mark = getattr(function, _MARK, None) or _Mark()
    return FunctionToolCallback(
        function,
        name=mark.name,
        description=mark.description,
        input_schema=mark.input_schema,
        metadata=mark.metadata,
        result_converter=mark.result_converter,
    )
