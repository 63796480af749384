"""The dialect of JSON Schema in which Claude is told what an answer must fit.

Rules: https://docs.anthropic.com/en/docs/build-with-claude/structured-outputs#json-schema-limitations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traced_tools.errors import ConfigurationError
from traced_tools.models.wire import to_json

_KEPT = frozenset(
    {"type", "enum", "const", "anyOf", "allOf", "oneOf", "$ref", "$defs", "definitions"}
    | {"properties", "required", "additionalProperties", "items", "title", "description", "default"}
)
_NAMES = {"oneOf": "anyOf"}
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` as structured outputs take it: objects are closed to fields they do not name.

    Constraints that the API refuses are told in the description, and left to who reads the answer.

    Raises:
        ConfigurationError: for an object with free keys, which cannot be said.
    """
    made = {_NAMES.get(name, name): _closed_in(name, value) for name, value in schema.items() if _is_kept(name, value)}
    if made.get("type") == "object" or "properties" in made:
        made["additionalProperties"] = False
    told = {name: value for name, value in schema.items() if not _is_kept(name, value) and not name.startswith("$")}
    if told:
        made["description"] = f"{made.get('description', '')} {to_json(told)}".strip()
    return made


def _is_kept(keyword: str, value: Any) -> bool:
    if keyword == "format":
        return value in _FORMATS
    if keyword == "minItems":
        return value in (0, 1)
    return keyword in _KEPT


def _closed_in(keyword: str, value: Any) -> Any:
    match keyword:
        case "properties" | "$defs" | "definitions":
            return {name: _closed(inner) for name, inner in value.items()}
        case "anyOf" | "allOf" | "oneOf":
            return [_closed(inner) for inner in value]
        case "items":
            return _closed(value)
        case "additionalProperties" if value is not False:
            raise ConfigurationError("anthropic: output_schema has an object with free keys; name its fields")
    return value


def _closed(schema: Any) -> Any:
    return closed(schema) if isinstance(schema, Mapping) else schema
