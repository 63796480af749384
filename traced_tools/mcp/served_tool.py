"""A tool of this package as MCP clients see it: its description, and the results of its calls."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from mcp_types import CallToolResult, ContentBlock, ImageContent, ResourceLink, TextContent, Tool, ToolAnnotations

from traced_tools.core.messages import ImagePart
from traced_tools.core.result_conversion import ToolContent
from traced_tools.core.tool_definition import ToolCallback
from traced_tools.core.tool_naming import wire_name
from traced_tools.core.tool_result import ToolResult
from traced_tools.mcp.results import content_of_result
from traced_tools.tools.augmented_tool import AugmentedTool
from traced_tools.tools.callback import FunctionToolCallback, as_invocable
from traced_tools.tools.schema.returned import ReturnedSchema


class ServedTool:
    """A tool that is served.

    Args:
        tool: the tool.

    Attributes:
        name: the name for clients, which all providers of models accept.
        original: the name in this process.
    """

    def __init__(self, tool: ToolCallback) -> None:
        self.name = wire_name(tool.definition.name)
        self.original = tool.definition.name
        self._tool = tool

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return self._tool.definition.input_schema

    @property
    def _returned_schema(self) -> ReturnedSchema | None:
        invocable = as_invocable(self._tool.own if isinstance(self._tool, AugmentedTool) else self._tool)
        return invocable.returned if isinstance(invocable, FunctionToolCallback) else None

    def described(self) -> Tool:
        """Return the description of the tool."""
        returned = self._returned_schema
        return Tool(
            name=self.name,
            description=self._tool.definition.description or None,
            input_schema=self.input_schema,
            output_schema=None if returned is None else returned.schema,
            annotations=self._annotations(),
        )

    def _annotations(self) -> ToolAnnotations | None:
        hints = getattr(self._tool.metadata, "annotations", None)  # a custom metadata class may lack the field
        if hints is None or not any(value is not None for _, value in hints):
            return None
        return ToolAnnotations(
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        )

    def result(self, result: ToolResult, *, only_objects: bool) -> CallToolResult:
        """Return the result of a call.

        The texts, the images and the structured content are what a model would read in this process, after all
        advisors, so nothing goes out that an advisor has removed.

        Args:
            result: the result.
            only_objects: whether structured content must be an object, as the older revisions want it.
        """
        if result.outcome != "ok" and result.decision != "answered":
            return CallToolResult(content=[TextContent(text=result.content)], is_error=True)
        if (forwarded := _forwarded_result(result, only_objects=only_objects)) is not None:
            return forwarded
        content: list[ContentBlock] = [TextContent(text=result.content), *map(_image, result.images)]
        if (returned := self._returned_schema) is None:
            return CallToolResult(content=content)
        value = returned.value_of(result.content)
        # a client refuses a result without the value that the tool promises, unless it is an error
        return CallToolResult(content=content, is_error=True) if value is None else _structured_result(content, value)


def _forwarded_result(result: ToolResult, *, only_objects: bool) -> CallToolResult | None:
    """Return the result of a tool of another MCP server, unless an advisor has changed what a model would read."""
    mcp_result = result.value
    if not isinstance(mcp_result, CallToolResult) or content_of_result(mcp_result) != ToolContent(
        result.content, result.images
    ):
        return None
    has_structure = "structured_content" in mcp_result.model_fields_set
    if has_structure and (isinstance(mcp_result.structured_content, dict) or not only_objects):
        return _structured_result(mcp_result.content, mcp_result.structured_content)
    return CallToolResult(content=mcp_result.content)


def _structured_result(content: list[ContentBlock], value: Any) -> CallToolResult:
    return CallToolResult(content=content, structured_content=value)


def _image(image: ImagePart) -> ContentBlock:
    if image.data is None:
        return ResourceLink(name="image", uri=image.url or "")
    return ImageContent(data=b64encode(image.data).decode(), mime_type=image.media_type)
