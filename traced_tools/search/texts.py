"""The texts of a tool that an index searches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from traced_tools.core.tool_definition import ToolDefinition

_MOST_CHARACTERS: Final = 20_000
"""How many characters of each text are indexed. A description is rarely longer than 2,000."""
_MOST_NODES: Final = 5_000
"""How many objects of a schema are read. A schema may be nested without end, because a server writes it."""


@dataclass(frozen=True, slots=True, repr=False)
class ToolTexts:
    """The texts of one tool.

    Attributes:
        name: its name.
        description: its description.
        parameters: the names of its parameters and of the fields in them, separated by line breaks.
        parameter_descriptions: the descriptions of those, separated by line breaks.
    """

    name: str
    description: str
    parameters: str
    parameter_descriptions: str


def texts_of(definition: ToolDefinition) -> ToolTexts:
    """Return the texts of a tool; an invalid schema yields what can be read of it."""
    names, descriptions = [], []
    for name, schema in _properties(definition.input_schema):
        names.append(name)
        if isinstance(schema, dict) and isinstance(described := schema.get("description"), str):
            descriptions.append(described)
    return ToolTexts(
        definition.name,
        definition.description[:_MOST_CHARACTERS],
        "\n".join(names)[:_MOST_CHARACTERS],
        "\n".join(descriptions)[:_MOST_CHARACTERS],
    )


def _properties(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each property of a schema and of the schemas in it, the outer ones first."""
    waiting: deque[Any] = deque([schema])
    for _ in range(_MOST_NODES):
        if not waiting:
            return
        node = waiting.popleft()
        if isinstance(node, list):
            waiting += (item for item in node if isinstance(item, dict | list))
            continue
        properties = node.get("properties")
        if isinstance(properties, dict):
            yield from ((str(name), value) for name, value in properties.items())
        waiting += (value for key, value in node.items() if key != "properties" and isinstance(value, dict | list))
        if isinstance(properties, dict):
            waiting += (value for value in properties.values() if isinstance(value, dict))
