"""The `@tool` decorator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from traced_tools.core.checks import expect, expect_callable
from traced_tools.core.result_conversion import ResultConverter
from traced_tools.core.tool_definition import RequiresApproval, RetryPredicate, ToolAnnotations, ToolMetadata
from traced_tools.tools.tool_options import ToolOptions, set_tool_options

F = TypeVar("F", bound=Callable[..., Any])

_TRANSIENT = (ConnectionError, TimeoutError)
_NO_HINTS = ToolAnnotations()
RetryOn = type[Exception] | tuple[type[Exception], ...] | RetryPredicate


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
    inline: bool = False,
    requires_approval: bool | RequiresApproval = False,
    repeatable: bool = False,
    capture: bool = True,
    annotations: ToolAnnotations = _NO_HINTS,
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
    inline: bool = False,
    requires_approval: bool | RequiresApproval = False,
    repeatable: bool = False,
    capture: bool = True,
    annotations: ToolAnnotations = _NO_HINTS,
    input_schema: Mapping[str, Any] | None = None,
) -> F | Callable[[F], F]:
    """Mark a function or method as a tool; it stays callable as before.

    Args:
        function: the function, if the decorator is used without parentheses.
        name: the name that the model uses; by default the function's name.
        description: the description that the model reads; by default the docstring up to its first section, or else
            the words of the name.
        return_direct: the result is the run's answer, and the model is not asked again, if each tool that an answer
            calls is marked and each call succeeds. Several results are joined by line breaks, in call order.
        result_converter: converts the function's value into what the model reads.
        timeout: seconds that one attempt may take.
        retries: how many further attempts follow failures of the classes `retry_on`.
        retry_on: one or more exception classes that are worth another attempt, or a plain function that takes the
            exception and returns whether it is; a time-out is a `TimeoutError`. These failures are expected and not
            logged.
        sequential: the tool runs alone, after earlier calls and before later calls of the same answer.
        inline: on asyncio, the function runs in place on the event loop instead of in a worker thread; for a fast
            function that is not `async` and never waits. Not allowed with a `timeout`.
        requires_approval: whether the tool runs only if its call is approved, or a predicate over the validated
            arguments.
        repeatable: the tool may be called with the same arguments any number of times in a run.
        capture: False keeps arguments and results out of telemetry even if content is captured.
        annotations: what you say about the tool's effects, for the rules of a policy.
        input_schema: JSON Schema of the arguments, instead of the one from the annotations.

    Raises `TypeError` or `ValueError` for an invalid option. `ToolMetadata` describes the options in detail.
    """
    expect("name", name, (str, type(None)), "a str or None")
    expect("description", description, (str, type(None)), "a str or None")
    if not isinstance(requires_approval, bool) and not callable(requires_approval):
        kind = type(requires_approval).__name__
        raise TypeError(f"requires_approval must be True, False or a function of the arguments, not {kind}")
    expect("input_schema", input_schema, (Mapping, type(None)), "a mapping or None")
    expect_callable("result_converter", result_converter)
    metadata = ToolMetadata(
        return_direct=return_direct,
        timeout=timeout,
        retries=retries,
        retry_on=retry_on,  # type: ignore[arg-type]  # a single class becomes a tuple
        sequential=sequential,
        inline=inline,
        requires_approval=requires_approval,
        repeatable=repeatable,
        capture=capture,
        annotations=annotations,
    )
    options = ToolOptions(name, description, input_schema, metadata, result_converter)

    def marked(target: F) -> F:
        if isinstance(target, type):
            raise TypeError(f"@tool marks functions and methods: mark the methods of {target.__name__}, not the class")
        if not callable(target) and not isinstance(target, staticmethod | classmethod):
            raise TypeError(f"@tool marks functions and methods, not {type(target).__name__}")
        set_tool_options(target, options)
        return target

    return marked if function is None else marked(function)
