"""Converts a JSON Schema to the subset that Anthropic's structured outputs accept.

Rules: https://docs.anthropic.com/en/docs/build-with-claude/structured-outputs#json-schema-limitations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traced_tools.errors import ConfigurationError
from traced_tools.models.parsing import to_json

_SUPPORTED = frozenset(
    {"type", "enum", "const", "anyOf", "allOf", "oneOf", "$ref", "$defs", "definitions"}
    | {"properties", "required", "additionalProperties", "items", "title", "description", "default"}
)
_NAMES = {"oneOf": "anyOf"}
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")


def to_structured_output_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` in the subset, in which objects allow no additional properties.

    Constraints that the API refuses are written into the description: the model sees them, but the API doesn't enforce
    them.

    Raises:
        ConfigurationError: for an object with additional properties, which the subset doesn't support.
    """
    supported = {name: value for name, value in schema.items() if _is_supported(name, value)}
    converted = {_NAMES.get(name, name): _convert_keyword(name, value) for name, value in supported.items()}
    if converted.get("type") == "object" or "properties" in converted:
        converted["additionalProperties"] = False
    unsupported = {name: value for name, value in schema.items() if name not in supported and not name.startswith("$")}
    if unsupported:
        converted["description"] = f"{converted.get('description', '')} {to_json(unsupported)}".strip()
    return converted


def _is_supported(keyword: str, value: Any) -> bool:
    if keyword == "format":
        return value in _FORMATS
    if keyword == "minItems":
        return value in (0, 1)
    return keyword in _SUPPORTED


def _convert_keyword(keyword: str, value: Any) -> Any:
    match keyword:
        case "properties" | "$defs" | "definitions":
            return {name: _convert_value(inner) for name, inner in value.items()}
        case "anyOf" | "allOf" | "oneOf":
            return [_convert_value(inner) for inner in value]
        case "items":
            return _convert_value(value)
        case "additionalProperties" if value is not False:
            raise ConfigurationError("anthropic: output_schema allows additional properties: name all fields instead")
    return value


def _convert_value(schema: Any) -> Any:
    return to_structured_output_schema(schema) if isinstance(schema, Mapping) else schema
