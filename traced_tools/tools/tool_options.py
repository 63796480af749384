"""The options of `@tool`, stored on the function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getattr_static
from typing import Any

from traced_tools.core.frozen import frozen
from traced_tools.core.result_conversion import ResultConverter
from traced_tools.core.tool_definition import ToolMetadata

_ATTRIBUTE = "__traced_tool__"


@frozen
class ToolOptions:
    """The options of `@tool`; None for an option that defaults to the function's own name, docstring or schema."""

    name: str | None = None
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None
    metadata: ToolMetadata | None = None
    result_converter: ResultConverter | None = None


_NO_OPTIONS = ToolOptions()


def set_tool_options(function: Callable[..., Any], options: ToolOptions) -> None:
    """Store the options on `function`, which stays callable as before.

    Raises:
        TypeError: for an object that cannot have attributes, or already has options.
    """
    target: Any = _underlying(function)
    if _ATTRIBUTE in getattr(target, "__dict__", ()) and not hasattr(target, "__wrapped__"):
        raise TypeError(
            f"{getattr(target, '__name__', type(target).__name__)} is already marked @tool; for two tools from one "
            "function, or for another name, use FunctionToolCallback(function, name=...)"
        )
    try:
        setattr(target, _ATTRIBUTE, options)
    except AttributeError:
        kind = type(function).__name__
        raise TypeError(f"@tool cannot mark a {kind}: wrap it in a function or a FunctionToolCallback") from None


def tool_options_of(function: object) -> ToolOptions:
    """Return the options of `function` or, if it is a method, of the method that it overrides."""
    return _own_options(function) or _inherited_options(function) or _NO_OPTIONS


def tool_methods_of(kind: type) -> dict[str, ToolOptions]:
    """Return the names and options of the methods of a class that are tools.

    A method that overrides a tool is a tool with the same options, unless it has its own. A subclass removes a tool by
    setting its name to None.
    """
    options_by_name: dict[str, ToolOptions] = {}
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        members |= vars(base)
        options_by_name |= {name: options for name, member in vars(base).items() if (options := _own_options(member))}
    return {name: options for name, options in options_by_name.items() if members[name] is not None}


def _inherited_options(method: object) -> ToolOptions | None:
    function, owner = getattr(method, "__func__", None), getattr(method, "__self__", None)
    kind = owner if isinstance(owner, type) else type(owner)
    if function is None:
        return None
    methods = tool_methods_of(kind).items()
    return next((options for name, options in methods if _underlying(getattr_static(kind, name)) is function), None)


def _underlying(member: object) -> object:
    return getattr(member, "__func__", member)


def _own_options(member: object) -> ToolOptions | None:
    options = getattr(_underlying(member), _ATTRIBUTE, None)
    return options if isinstance(options, ToolOptions) else None
