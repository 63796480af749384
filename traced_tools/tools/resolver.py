"""Resolvers, which find tools by name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from traced_tools.core.checks import expect, expect_each
from traced_tools.core.tool_definition import ToolCallback, ToolCallbackResolver
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.selection import tool_callbacks

GROUP = "traced_tools.tools"


class StaticToolCallbackResolver:
    """Finds tools among those passed to it.

    Args:
        tools: anything that `tools=` accepts; providers are called immediately.

    Raises:
        ToolDefinitionError: for an object without tools, and for two tools with the same name.
    """

    def __init__(self, tools: object) -> None:
        self._tools = {tool.definition.name: tool for tool in tool_callbacks(tools)}

    def resolve(self, name: str) -> ToolCallback | None:
        """Return the tool with this name, or None."""
        return self._tools.get(name)


class EntryPointToolCallbackResolver:
    """Finds tools that installed packages declare as entry points, each under its name.

        [project.entry-points."traced_tools.tools"]
        current_weather = "my_package.weather:current_weather"

    The object of an entry point is anything that `tools=` accepts and that has a tool with this name. It is imported
    once, when the name is first resolved.

    Args:
        group: the group of the entry points.
    """

    def __init__(self, group: str = GROUP) -> None:
        expect("group", group, str, "a str")
        self._group = group
        self._tools: dict[str, ToolCallback] = {}

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        return {entry_point.name: entry_point for entry_point in entry_points(group=self._group)}

    def resolve(self, name: str) -> ToolCallback | None:
        """Return the tool with this name, or None if no entry point declares it.

        Raises:
            ToolDefinitionError: if the object of the entry point has no tool with this name.
        """
        if name not in self._tools and name in self._entry_points:
            self._tools[name] = _load(self._entry_points[name])
        return self._tools.get(name)


class DelegatingToolCallbackResolver:
    """Calls several resolvers in turn until one finds the tool.

    Args:
        resolvers: the resolvers, in order.
    """

    def __init__(self, resolvers: Iterable[ToolCallbackResolver]) -> None:
        expect("resolvers", resolvers, Iterable, "a sequence of ToolCallbackResolver objects")
        self._resolvers = tuple(resolvers)
        expect_each("resolvers", self._resolvers, ToolCallbackResolver, "a ToolCallbackResolver")

    def resolve(self, name: str) -> ToolCallback | None:
        """Return the tool with this name, or None if no resolver finds it."""
        candidates = (resolver.resolve(name) for resolver in self._resolvers)
        return next((tool for tool in candidates if tool is not None), None)


def _load(entry_point: EntryPoint) -> ToolCallback:
    tools = {tool.definition.name: tool for tool in tool_callbacks(entry_point.load())}
    if entry_point.name not in tools:
        raise ToolDefinitionError(
            f"the entry point {entry_point.name!r} refers to {entry_point.value}, which has the tools "
            f"{', '.join(tools)}: rename it to one of them"
        )
    return tools[entry_point.name]
