"""Where tools that are given by name are looked up."""

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
    """Knows the tools it was given.

    Args:
        tools: what may stand in `tools=`; providers are asked at once.

    Raises:
        ToolDefinitionError: for an object that holds no tool, and for two tools of one name.
    """

    def __init__(self, tools: object) -> None:
        self._tools = {tool.definition.name: tool for tool in tool_callbacks(tools)}

    def resolve(self, name: str) -> ToolCallback | None:
        """Return the tool of that name, None if there is none."""
        return self._tools.get(name)


class EntryPointToolCallbackResolver:
    """Knows the tools that installed packages announce as entry points, each under its own name.

        [project.entry-points."traced_tools.tools"]
        current_weather = "my_package.weather:current_weather"

    What the entry point leads to may be anything that may stand in `tools=` and that holds a tool of that name. It is
    imported when the name is asked for, and once.

    Args:
        group: the entry points' group.
    """

    def __init__(self, group: str = GROUP) -> None:
        expect("group", group, str, "a str")
        self._group = group
        self._found: dict[str, ToolCallback] = {}

    @cached_property
    def _announced(self) -> dict[str, EntryPoint]:
        return {each.name: each for each in entry_points(group=self._group)}

    def resolve(self, name: str) -> ToolCallback | None:
        """Return the tool announced under that name, None if there is none.

        Raises:
            ToolDefinitionError: when what is announced holds no tool of that name.
        """
        if name not in self._found and name in self._announced:
            self._found[name] = _loaded(self._announced[name])
        return self._found.get(name)


class DelegatingToolCallbackResolver:
    """Asks several resolvers in turn; the first that knows the name has it.

    Args:
        resolvers: whom to ask, in this order.
    """

    def __init__(self, resolvers: Iterable[ToolCallbackResolver]) -> None:
        expect("resolvers", resolvers, Iterable, "a sequence of ToolCallbackResolver objects")
        self._resolvers = tuple(resolvers)
        expect_each("resolvers", self._resolvers, ToolCallbackResolver, "a ToolCallbackResolver")

    def resolve(self, name: str) -> ToolCallback | None:
        """Return the tool of that name, None if nobody knows it."""
        found = (resolver.resolve(name) for resolver in self._resolvers)
        return next((tool for tool in found if tool is not None), None)


def _loaded(announced: EntryPoint) -> ToolCallback:
    tools = {tool.definition.name: tool for tool in tool_callbacks(announced.load())}
    if announced.name not in tools:
        held = ", ".join(tools)
        raise ToolDefinitionError(
            f"the entry point {announced.name!r} leads to {announced.value}, which holds {held}: name it after a tool"
        )
    return tools[announced.name]
