"""What a function marked `@tool` says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any

from traced_tools.core.conversion import ResultConverter
from traced_tools.core.tool_definition import ToolMetadata

_ATTRIBUTE = "__traced_tool__"


@dataclass(frozen=True)
class ToolOptions:
    """The options of `@tool`; None for what it leaves to the function."""

    name: str | None = None
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None
    metadata: ToolMetadata | None = None
    result_converter: ResultConverter | None = None


_NO_OPTIONS = ToolOptions()


def set_tool_options(function: Callable[..., Any], said: ToolOptions) -> None:
    """Mark `function`, which stays callable as before.

    Raises:
        TypeError: for what cannot be marked, or is marked already.
    """
    target: Any = _underlying(function)
    if _ATTRIBUTE in getattr(target, "__dict__", ()) and not hasattr(target, "__wrapped__"):
        raise TypeError(
            f"{getattr(target, '__name__', type(target).__name__)} is marked @tool already; for two tools of one "
            "function, or another name for one, use FunctionToolCallback(function, name=...)"
        )
    try:
        setattr(target, _ATTRIBUTE, said)
    except AttributeError:
        kind = type(function).__name__
        raise TypeError(f"@tool cannot mark a {kind}: wrap it in a function or a FunctionToolCallback") from None


def tool_options_of(function: object) -> ToolOptions:
    """Return what `function` says of itself or, as a method, what the one says that it overrides."""
    return _found(function) or _inherited(function) or _NO_OPTIONS


def tool_methods_of(kind: type) -> dict[str, ToolOptions]:
    """Return the methods of a class that are tools, and what they say of themselves.

    A method that overrides a tool is one, too, with the same options unless it is marked itself; None in its place
    takes the tool away.
    """
    found: dict[str, ToolOptions] = {}
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        members |= vars(base)
        found |= {name: said for name, member in vars(base).items() if (said := _found(member))}
    return {name: said for name, said in found.items() if members[name] is not None}


def _inherited(method: object) -> ToolOptions | None:
    function, owner = getattr(method, "__func__", None), getattr(method, "__self__", None)
    kind = owner if isinstance(owner, type) else type(owner)
    of_kind = {} if function is None else tool_methods_of(kind)
    return next((said for name, said in of_kind.items() if _underlying(getattr_static(kind, name)) is function), None)


def _underlying(member: object) -> object:
    return getattr(member, "__func__", member)


def _found(member: object) -> ToolOptions | None:
    said = getattr(_underlying(member), _ATTRIBUTE, None)
    return said if isinstance(said, ToolOptions) else None
