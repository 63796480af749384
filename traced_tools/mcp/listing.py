"""Reads the tools that a server lists: the usable tools, and the problems of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types import Tool
from pydantic import ValidationError

_LONGEST_NAME: Final = 256
_SHOWN_NAME: Final = 64


@dataclass(frozen=True)
class OmittedTool:
    """A tool that a server lists and that cannot be used.

    Args:
        name: what the log calls it: its name, or its place in the list.
        problem: why it cannot be used.
    """

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name} ({self.problem})"


@dataclass(frozen=True)
class ToolPage:
    """A page of the list of a server's tools.

    Args:
        tools: the tools that can be used.
        omitted: the others.
        next_cursor: leads to the next page; None on the last one.
        lifetime: the seconds for which the server lets clients keep the page; None if it states no time.
        result_type: what the server calls the result.
    """

    tools: tuple[Tool, ...]
    omitted: tuple[OmittedTool, ...]
    next_cursor: str | None
    lifetime: float | None
    result_type: str


def read_page(result: dict[str, Any], *, is_modern: bool) -> ToolPage:
    """Return a page; raise `ValueError` if the result is not a list of tools with a cursor.

    Args:
        result: the result of `tools/list`.
        is_modern: whether the revision is one that has marks for headers, which must be valid, and times to live.
    """
    items, cursor, milliseconds = result.get("tools"), result.get("nextCursor"), result.get("ttlMs")
    if not isinstance(items, list) or not isinstance(cursor, str | None):
        raise ValueError("the result is not a list of tools")
    entries = [_read(item, place, is_modern=is_modern) for place, item in enumerate(items, 1)]
    lifetime = None
    if is_modern and isinstance(milliseconds, int | float) and milliseconds > 0:  # servers on the SDK send 0 for none
        lifetime = milliseconds / 1000
    return ToolPage(
        tools=tuple(entry for entry in entries if isinstance(entry, Tool)),
        omitted=tuple(entry for entry in entries if isinstance(entry, OmittedTool)),
        next_cursor=cursor,
        lifetime=lifetime,
        result_type=str(result.get("resultType", "complete")),
    )


def _read(item: Any, place: int, *, is_modern: bool) -> Tool | OmittedTool:
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        return OmittedTool(f"number {place}", "it has no usable name")
    shown_name = ascii(name[:_SHOWN_NAME])
    schema = _schema_of_object(item.get("inputSchema"))
    if schema is None:
        return OmittedTool(shown_name, "its inputSchema is not the schema of an object")
    try:
        tool = Tool.model_validate({**item, "inputSchema": schema}, by_name=False)
        if is_modern and find_invalid_x_mcp_header(schema) is not None:
            return OmittedTool(shown_name, "its x-mcp-header marks are invalid")
    except ValidationError as error:
        return OmittedTool(shown_name, f"its {error.errors()[0]['loc'][0]} is invalid")
    except RecursionError:
        return OmittedTool(shown_name, "its inputSchema is nested too deeply")
    return tool


def _schema_of_object(schema: Any) -> dict[str, Any] | None:
    """Return a schema of arguments in a form that models accept; None for one that is not of an object.

    Many servers leave out the type, which is always `object`, or write null for no properties.
    """
    if not isinstance(schema, dict):
        return None
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return None
    # without null for what may be omitted, and with the type that may be omitted, or be one of several
    members = {
        key: value for key, value in schema.items() if value is not None or key not in ("properties", "required")
    }
    properties, required = members.get("properties", {}), members.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(value, dict | bool) for value in properties.values()):
        return None
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return None
    return {**members, "type": "object"}
