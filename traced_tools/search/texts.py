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
_NODES: Final = (dict, list)


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
    names: list[str] = []
    descriptions: list[str] = []
    for properties in _properties(definition.input_schema):
        names += map(str, properties)
        schemas = (schema for schema in properties.values() if isinstance(schema, dict))
        descriptions += (text for schema in schemas if isinstance(text := schema.get("description"), str))
    return ToolTexts(
        definition.name,
        definition.description[:_MOST_CHARACTERS],
        "\n".join(names)[:_MOST_CHARACTERS],
        "\n".join(descriptions)[:_MOST_CHARACTERS],
    )


def _properties(schema: dict[str, Any]) -> Iterator[dict[Any, Any]]:
    """Yield the properties of a schema and of each schema in it, the outer ones first."""
    waiting: deque[Any] = deque([schema])
    for _ in range(_MOST_NODES):
        if not waiting:
            return
        node = waiting.popleft()
        if isinstance(node, list):
            waiting.extend([item for item in node if isinstance(item, _NODES)])
            continue
        properties = node.get("properties")
        has_properties = isinstance(properties, dict)
        if has_properties:
            yield properties
        for key, value in node.items():
            if isinstance(value, _NODES) and key != "properties":
                waiting.append(value)
        if has_properties:
            waiting.extend([value for value in properties.values() if isinstance(value, dict)])
