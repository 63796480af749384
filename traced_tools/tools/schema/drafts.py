"""Converts JSON Schemas of older drafts, and schemas with common mistakes, to valid schemas of draft 2020-12.

Providers expect draft 2020-12, and Anthropic refuses a whole request for one tool with another schema. Servers in
JavaScript send draft-07 with tuples, and hand-written schemas have types of other languages or `required` in a field.
What has the same meaning in draft 2020-12 is translated; a schema that is valid already stays the same object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import is_
from typing import Any, Final

from traced_tools.errors import ToolDefinitionError

CURRENT: Final = "https://json-schema.org/draft/2020-12/schema"

SCHEMAS_BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLE: Final = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"),
    *("propertyNames", "not", "if", "then", "else"),
)
_VALUES: Final = frozenset({"default", "const", "examples"})
"""Keywords whose value is data, which null can be."""
_COUNTS: Final = (
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"),
)
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_NUMBER: Final = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
_TYPES: Final = {
    **dict.fromkeys(("string", "str", "text", "char"), "string"),
    **dict.fromkeys(("integer", "int", "int32", "int64", "long", "short", "uint"), "integer"),
    **dict.fromkeys(("number", "float", "float32", "float64", "double", "decimal", "numeric"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "set"), "array"),
    **dict.fromkeys(("object", "dict", "map", "record", "struct"), "object"),
    **dict.fromkeys(("null", "none", "nil", "undefined"), "null"),
    **dict.fromkeys(("any", "mixed", "unknown"), None),
}
"""The types of draft 2020-12 by their names in other languages; None for a value of any type."""


def to_current_draft(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` in draft 2020-12. Forms that it cannot translate stay, so the result can be invalid.

    Raises:
        ToolDefinitionError: for a schema that is nested too deeply.
    """
    renames = "definitions" in schema and "$defs" not in schema
    converted: dict[str, Any] | None = None
    with suppress(RecursionError):
        converted = _convert(schema, renames)
    if converted is None:
        raise ToolDefinitionError("the input schema is nested too deeply")
    if not renames:
        return converted
    return {"$defs" if keyword == "definitions" else keyword: value for keyword, value in converted.items()}


def _convert(schema: Any, renames: bool) -> Any:
    """Return a schema without forms of older drafts; the same object if it has none.

    Args:
        schema: the schema.
        renames: whether the references to `definitions` of the root become references to `$defs`.
    """
    if not isinstance(schema, Mapping):
        return schema
    current = {keyword: value for keyword, value in schema.items() if value is not None or keyword in _VALUES}
    if str(current.get("$schema", CURRENT)).rstrip("#") != CURRENT:
        del current["$schema"]
    if renames and isinstance(ref := current.get("$ref"), str) and ref.startswith("#/definitions/"):
        current["$ref"] = f"#/$defs/{ref.removeprefix('#/definitions/')}"
    _split_dependencies(current)
    _split_tuple(current)
    _convert_inner(current, renames)
    _convert_bounds(current)
    _convert_type(current)
    _convert_required(current, schema)
    is_same = current.keys() == schema.keys() and all(current[key] is value for key, value in schema.items())
    return schema if is_same and isinstance(schema, dict) else current


def _convert_inner(current: dict[str, Any], renames: bool) -> None:
    """Convert the schemas that are directly in a schema; a list or an object of them without changes stays the same."""
    for keyword in SCHEMAS_BY_NAME:
        if isinstance(fields := current.get(keyword), Mapping):
            inner = {name: _convert(_field(field), renames) for name, field in fields.items()}
            current[keyword] = fields if all(inner[name] is field for name, field in fields.items()) else inner
    for keyword in LISTS:
        if isinstance(schemas := current.get(keyword), list):
            parts = [_convert(part, renames) for part in schemas]
            current[keyword] = schemas if all(map(is_, parts, schemas)) else parts
            if not schemas:
                del current[keyword]
    for keyword in SINGLE:
        if isinstance(inner_schema := current.get(keyword), Mapping):
            current[keyword] = _convert(inner_schema, renames)


def _field(schema: Any) -> Any:
    """Return the schema of a field; some write only its type, or null for any value."""
    if schema is None:
        return {}
    return {"type": schema} if isinstance(schema, str) and schema.lower() in _TYPES else schema


def _split_tuple(schema: dict[str, Any]) -> None:
    """Convert `items` with a list (up to draft 2019-09), after which `additionalItems` is for the other items."""
    if isinstance(items := schema.get("items"), list):
        del schema["items"]
        schema.setdefault("prefixItems", items)
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")


def _split_dependencies(schema: dict[str, Any]) -> None:
    """Split `dependencies` (up to draft-07) into the names and the schemas that a field needs."""
    if not isinstance(dependencies := schema.get("dependencies"), Mapping):
        return
    del schema["dependencies"]
    names = {name: [needs] if isinstance(needs, str) else needs for name, needs in dependencies.items()}
    required = {name: needs for name, needs in names.items() if isinstance(needs, list)}
    schemas = {name: needs for name, needs in dependencies.items() if isinstance(needs, Mapping | bool)}
    for keyword, needs_by_name in (("dependentRequired", required), ("dependentSchemas", schemas)):
        if needs_by_name:
            schema[keyword] = {**needs_by_name, **schema.get(keyword, {})}


def _convert_bounds(schema: dict[str, Any]) -> None:
    """Convert bounds that are texts, and exclusive bounds that are true or false (draft-04)."""
    for keyword in (*_COUNTS, *_BOUNDS):
        if isinstance(text := schema.get(keyword), str) and _NUMBER.fullmatch(text):
            schema[keyword] = float(text) if "." in text else int(text)
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(is_exclusive := schema.get(exclusive), bool):
            del schema[exclusive]
            if is_exclusive and bound in schema:
                schema[exclusive] = schema.pop(bound)


def _convert_type(schema: dict[str, Any]) -> None:
    """Convert the names of types in other languages; a type that is not known stays."""
    kinds = schema.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    elif not isinstance(kinds, list):
        return
    types = [_TYPES.get(kind.lower(), kind) if isinstance(kind, str) else kind for kind in kinds]
    unique = [kind for number, kind in enumerate(types) if kind not in types[:number]]
    if None in unique or not unique:
        del schema["type"]
    elif unique != kinds:
        schema["type"] = unique if len(unique) > 1 else unique[0]


def _convert_required(schema: dict[str, Any], original: Mapping[str, Any]) -> None:
    """Move `required` to where it belongs: from the field that it is about, or from among the fields, to the object."""
    names: Any = schema.get("required", [])
    names = [names] if isinstance(names, str) else [] if isinstance(names, bool) else names
    fields = original.get("properties")
    if isinstance(fields, Mapping) and isinstance(names, list):
        if isinstance(required_names := fields.get("required"), list):
            schema["properties"] = {name: field for name, field in schema["properties"].items() if name != "required"}
            names = [*names, *required_names]
        names = [
            *names,
            *(name for name, field in fields.items() if isinstance(field, Mapping) and field.get("required") is True),
        ]
    if not isinstance(names, list) or (names == schema.get("required") and len(set(_texts(names))) == len(names)):
        return
    schema.pop("required", None)
    if unique := list(dict.fromkeys(_texts(names))):
        schema["required"] = unique


def _texts(names: Iterable[Any]) -> list[str]:
    return [name for name in names if isinstance(name, str)]
