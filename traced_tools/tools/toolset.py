"""The tools of one request."""

from __future__ import annotations

from collections.abc import Iterable

from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.callback import ToolCallback
from traced_tools.tools.definition import ToolDefinition


class ToolSet(tuple[ToolCallback, ...]):
    """The tools of a request, in the order given, each name once; found by name without a search.

    Raises:
        ToolDefinitionError: for two tools of one name.
    """

    by_name: dict[str, ToolCallback]
    definitions: tuple[ToolDefinition, ...]

    def __new__(cls, tools: Iterable[ToolCallback] = ()) -> ToolSet:
        """Take the tools and find them by name."""
        self = super().__new__(cls, tools)
        self.definitions = tuple(tool.definition for tool in self)
        self.by_name = {tool.definition.name: tool for tool in self}
        if len(self.by_name) < len(self):
            names = [definition.name for definition in self.definitions]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ToolDefinitionError(f"each tool needs a name of its own; given more than once: {', '.join(twice)}")
        return self

    def __repr__(self) -> str:
        return f"ToolSet({', '.join(self.by_name)})"


NO_TOOLS = ToolSet()
