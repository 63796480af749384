"""A tool of the server behind the gateway, which runs by passing the client's message on."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from mcp_types import CallToolResult, Tool

from traced_tools.core.canonical import canonical_text
from traced_tools.core.result_conversion import ToolContent
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolDefinition, ToolMetadata
from traced_tools.errors import InvalidArguments, ToolDefinitionError
from traced_tools.mcp.results import content_of_result, describe_unreadable_blocks
from traced_tools.mcp.tool import convert_annotations
from traced_tools.tools.callback import FunctionToolCallback
from traced_tools.tools.function import CallFunction
from traced_tools.tools.schema.arguments import BoundArguments

Run = Callable[[str], Awaitable[dict[str, Any]]]
"""Passes a call on with the JSON text of its arguments, and returns the result."""
RUN: Final[ContextVar[Run]] = ContextVar("traced_tools_mcp_forwarded_call")
"""How the call that runs in this context is passed on."""


class _ArgumentTexts(NamedTuple):
    """Arguments as text, and as values."""

    text: str
    values: dict[str, Any]


class ForwardedTool(FunctionToolCallback):
    """A tool of the server behind the gateway.

    Its schema does not validate the arguments, because the server does: a call that the server would accept must reach
    it as it came. They must be a JSON object.

    Args:
        server: the configured name of the server.
        tool: the tool, as the server describes it.
        pin_changes: what differs from the pinned tool.
    """

    def __init__(self, server: str, tool: Tool, pin_changes: tuple[str, ...]) -> None:
        description = tool.description or tool.title or ""
        metadata = ToolMetadata(
            source=server, own_name=tool.name, annotations=convert_annotations(tool), pin_changes=pin_changes
        )
        try:
            definition = ToolDefinition(name=tool.name, description=description, input_schema=tool.input_schema)
            super().__init__(_run, definition=definition, metadata=metadata, result_converter=_content)
        except ToolDefinitionError:  # a schema that can't be used, which is the server's concern
            definition = ToolDefinition(name=tool.name, description=description)
            super().__init__(_run, definition=definition, metadata=metadata, result_converter=_content)

    def bind(self, arguments: str) -> BoundArguments:
        """Return the arguments as they came; raise `InvalidArguments` if they are not a JSON object."""
        try:
            values = json.loads(arguments)
            canonical_text(values)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise InvalidArguments("the arguments must be a JSON object")
        return BoundArguments(_ArgumentTexts(arguments, values), (), arguments)

    def as_json(self, bound: BoundArguments) -> dict[str, Any]:
        """Return the arguments as values."""
        values: dict[str, Any] = bound.value.values
        return values

    def step(self, arguments: Any, context: ToolContext) -> CallFunction:
        """Return the step that passes the call on."""
        return CallFunction(_run, {"arguments": arguments.text}, self.convert, True)


async def _run(**keywords: Any) -> dict[str, Any]:
    return await RUN.get()(keywords["arguments"])


def _content(result: dict[str, Any]) -> ToolContent:
    """Return what a model reads of a result: the JSON text of one that this release can't read, such as of a task."""
    readable = {**result}
    describe_unreadable_blocks(readable)
    try:
        return content_of_result(CallToolResult.model_validate(readable, by_name=False))
    except ValueError:
        return ToolContent(json.dumps(result, ensure_ascii=False))
