"""A tool that a framework runs, as an execution of this package sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from traced_tools.core.tool_definition import (
    ArgumentReader,
    ToolAnnotations,
    ToolDefinition,
    ToolMetadata,
    remember_reader,
)

if TYPE_CHECKING:
    from traced_tools.core.tool_context import ToolContext
    from traced_tools.core.tool_result import ToolResult


_HINTS: Final = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open_world": "openWorldHint",
}


def annotations_of(hints: Mapping[str, Any]) -> ToolAnnotations:
    """Return the hints of a tool of an MCP server, under their names in MCP."""
    values = {field: hints.get(name) for field, name in _HINTS.items()}
    return ToolAnnotations(**{field: value for field, value in values.items() if isinstance(value, bool)})


async def never_run(arguments: str) -> Any:
    """Raise `RuntimeError`: the tool of a refused call, or of an offer to a model, does not run."""
    raise RuntimeError("the tool of a refused call does not run")


class FrameworkTool:
    """The tool of one call, whose value and whose exception the framework gets unchanged.

    Args:
        definition: the tool as the model sees it.
        run: calls the framework's tool with the arguments as JSON text.
        read: returns what the model reads of the tool's value.
        metadata: the settings for the execution.
        reader: validates the arguments; None for the schema of the definition.
    """

    def __init__(
        self,
        definition: ToolDefinition,
        run: Callable[[str], Awaitable[Any]],
        read: Callable[[Any], str],
        metadata: ToolMetadata,
        *,
        reader: ArgumentReader | None = None,
    ) -> None:
        self.definition = definition
        self.metadata = metadata
        self._run = run
        self._read = read
        self._value: Any = None
        self._text: str | None = None
        self._failure: Exception | None = None
        if reader is not None:
            remember_reader(definition, reader)

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Call the framework's tool, and return what the model reads of its value."""
        self._text = self._failure = None
        try:
            self._value = await self._run(tool_input)
        except Exception as failure:
            self._failure = failure
            raise
        self._text = self._read(self._value)
        return self._text

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Raise `RuntimeError`: the tools of the framework run on asyncio."""
        raise RuntimeError(f"the tool {self.definition.name} runs on asyncio: use acall")

    def outcome(self, result: ToolResult) -> Any:
        """Return what the framework gets for a call: the tool's own value, or the text that replaces it.

        Raises:
            Exception: what the tool raised, if the call has failed.
        """
        if self._failure is not None and result.outcome != "ok":
            raise self._failure
        is_own = result.outcome == "ok" and result.edited is None and (result.cut or result.content == self._text)
        return self._value if is_own else result.part().content

    def __repr__(self) -> str:
        return f"<FrameworkTool {self.definition.name}>"
