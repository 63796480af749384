"""Makes the tools that the loop calls of the tools of an MCP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from mcp_types import CallToolResult, InputRequiredResult, Tool
from pydantic_core import to_jsonable_python

from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolAnnotations, ToolDefinition, ToolMetadata
from traced_tools.errors import McpRequestError, McpToolError
from traced_tools.mcp.answering import Answering
from traced_tools.mcp.connection import call_request
from traced_tools.mcp.questions import Questions
from traced_tools.mcp.results import content_of_result
from traced_tools.tools.callback import FunctionToolCallback
from traced_tools.tools.schema.json_schema import SchemaCheck

Send = Callable[..., Awaitable[CallToolResult | InputRequiredResult]]
"""Sends the call of a tool; see `Connection.call`."""


def make_tool(
    send: Send,
    server: str,
    answering: Answering,
    tool: Tool,
    name: str,
    *,
    timeout: float | None,
    context_keys: Collection[str],
    idempotent: Collection[str],
    pin_changes: tuple[str, ...] = (),
) -> FunctionToolCallback:
    """Return a tool of an MCP server, for the loop.

    Args:
        send: sends a call to its server, and takes the arguments of `Connection.call`.
        server: the configured name of the server.
        answering: answers the questions of the server.
        tool: the tool, as the server describes it.
        name: the name for the model.
        timeout: the seconds that a call may take.
        context_keys: the keys of the tool context that the server gets.
        idempotent: the server's names of tools that may be called again if a call was lost.
        pin_changes: what differs from the pinned tool.

    Raises:
        ToolDefinitionError: if its description is not one of a tool.
    """
    annotations = convert_annotations(tool)
    repeatable = annotations.idempotent is True or annotations.read_only is True or tool.name in idempotent
    output = None if tool.output_schema is None else SchemaCheck(tool.output_schema, name)

    async def call(traced_tools_context: ToolContext, **arguments: Any) -> CallToolResult:
        meta = {key: traced_tools_context[key] for key in context_keys if key in traced_tools_context}
        request_meta = to_jsonable_python(meta)
        context, questions = traced_tools_context, Questions(server, answering, traced_tools_context)
        on_progress = None if context.on_progress is None else context.report_progress
        try:
            responses, state = await questions.given()
            while True:
                request = call_request(tool.name, arguments, request_meta, responses, state)
                result = await send(request, repeatable=repeatable, ask=questions.requested, on_progress=on_progress)
                if not isinstance(result, InputRequiredResult):
                    break
                responses, state = await questions.answered(result)
        finally:
            await questions.close()
        if result.is_error:
            problem = f"reports that its tool {tool.name} failed"
            raise McpToolError(server, problem, content_of_result(result).text or problem)
        if output is not None and output.problems(result.structured_content):
            problem = f"returned another result than its tool {tool.name} promises"
            raise McpRequestError(server, problem)
        return result

    definition = ToolDefinition(
        name=name, description=tool.description or tool.title or "", input_schema=tool.input_schema
    )
    metadata = ToolMetadata(
        source=server,
        own_name=tool.name,
        timeout=timeout,
        annotations=annotations,
        pin_changes=pin_changes,
    )
    return FunctionToolCallback(call, definition=definition, metadata=metadata, result_converter=content_of_result)


def convert_annotations(tool: Tool) -> ToolAnnotations:
    """Return the hints of a tool of an MCP server."""
    hints = tool.annotations
    if hints is None:
        return ToolAnnotations()
    return ToolAnnotations(
        read_only=hints.read_only_hint,
        destructive=hints.destructive_hint,
        idempotent=hints.idempotent_hint,
        open_world=hints.open_world_hint,
    )
