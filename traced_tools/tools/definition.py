"""What a tool is to the model, and what it is to the loop."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from traced_tools.messages import Value
from traced_tools.telemetry import names


class ToolDefinition(Value):
    """What the model is told of a tool.

    Args:
        name: how the model calls it.
        description: what it does and when to use it, in words for the model.
        input_schema: JSON Schema (draft 2020-12) of its arguments, an object.
    """

    name: str = Field(min_length=1)
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})


class ToolMetadata(Value):
    """What the loop knows of a tool and the model does not.

    Args:
        return_direct: the tool's result is the run's answer, without another word of the model.
        source: where the tool comes from; `local`, or the configured name of an MCP server.
    """

    return_direct: bool = False
    source: str = names.LOCAL
