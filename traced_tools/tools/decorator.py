"""`@tool`: what a function says of itself as a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from traced_tools.core.checks import expect, expect_callable
from traced_tools.core.conversion import ResultConverter
from traced_tools.core.tool_definition import ToolMetadata
from traced_tools.tools.tool_options import ToolOptions, set_tool_options

F = TypeVar("F", bound=Callable[..., Any])

_TRANSIENT = (ConnectionError, TimeoutError)
RetryOn = type[Exception] | tuple[type[Exception], ...]


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
    repeatable: bool = False,
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
    repeatable: bool = False,
    capture: bool = True,
    input_schema: Mapping[str, Any] | None = None,
) -> F | Callable[[F], F]:
    """Mark a function or method as a tool; it stays callable as before.

    Args:
        function: the function, when used bare.
        name: how the model calls it; by default the function's name.
        description: what the model is told; by default the docstring up to its first section, else the name in words.
        return_direct: the result is the run's answer, without another word of the model.
        result_converter: makes what the model reads of the function's value.
        timeout: seconds one attempt may take.
        retries: further attempts after a failure of the classes `retry_on`.
        retry_on: the exception classes, or the one, worth another attempt; a time-out is a `TimeoutError`. As expected
            failures, they are not logged.
        sequential: the tool runs alone, after the calls asked for before it and before those asked for after it.
        requires_approval: the tool may not run until somebody approves of the call.
        repeatable: the tool may be called with the same arguments any number of times in a run.
        capture: False keeps arguments and results out of telemetry even where content is captured.
        input_schema: JSON Schema of the arguments, instead of the one the annotations make.

    `ToolMetadata` says more of them. Raises `TypeError` or `ValueError` for one that cannot be used, and names it.
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
        repeatable=repeatable,
        capture=capture,
    )
    said = ToolOptions(name, description, input_schema, metadata, result_converter)

    def marked(target: F) -> F:
        if isinstance(target, type):
            raise TypeError(f"@tool marks functions and methods: mark the methods of {target.__name__}, not the class")
        if not callable(target) and not isinstance(target, staticmethod | classmethod):
            raise TypeError(f"@tool marks functions and methods, not {type(target).__name__}")
        set_tool_options(target, said)
        return target

    return marked if function is None else marked(function)
