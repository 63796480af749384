"""Converts a tool's input schema into the dialects of JSON Schema that providers accept.

The dialects are: no references, an object at the root, and OpenAI's strict mode. The input schema is not changed. If a
dialect cannot express it, a `ToolDefinitionError` names the path of fields (`order.lines[].price`), from the root or
from a definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.references import References, can_merge, without_keywords


def inline_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with each reference replaced by its target, for servers that do not resolve references.

    A recursive definition cannot be inlined: it stays under `$defs`, with the references to it.

    Raises:
        ToolDefinitionError: for a reference without a target in the schema, and for a schema that grows too large.
    """
    with _check_depth():
        return References(schema, inline=True).rewritten()


def to_object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with a root that OpenAI and Anthropic accept: an object with fields, not a union or a reference.

    A union becomes an object with the fields of all its branches. The description then contains the union, and the
    validation of the arguments enforces it.

    Raises:
        ToolDefinitionError: for a root that is an invalid reference, and for a schema that grows too large.
    """
    resolved = schema if _NOT_AT_ROOT.isdisjoint(schema) else inline_references(schema)
    root = {"type": "object", "properties": {}, **resolved}
    choices = {key: root[key] for key in sorted(_NOT_AT_ROOT & root.keys())}
    if not choices:
        return root
    branches = [branch for value in choices.values() if isinstance(value, list) for branch in value]
    fields = _merge_fields([root, *branches])
    return {**without_keywords(root, _NOT_AT_ROOT), "properties": fields, **_description(root, choices)}


def _merge_fields(schemas: Iterable[Any]) -> dict[str, Any]:
    forms_by_name: dict[str, list[Any]] = {}
    for schema in schemas:
        match schema:
            case {"properties": dict() as fields}:
                for name, field in fields.items():
                    forms = forms_by_name.setdefault(name, [])
                    forms += [] if field in forms else [field]
    return {name: forms[0] if len(forms) == 1 else {"anyOf": forms} for name, forms in forms_by_name.items()}


def to_strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` for OpenAI's strict mode: objects forbid extra fields, and each of their fields is required.

    Optional fields become nullable. Constraints that strict mode does not support move to the description, and the
    validation of the arguments enforces them.
    Rules: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas.

    Raises:
        ToolDefinitionError: for a schema that strict mode cannot express, such as a map with arbitrary keys or a value
            without a type.
    """
    with _check_depth():
        strict = _strict_root(References(schema, inline=False).rewritten())
        _check_size(strict)
    return strict


@contextmanager
def _check_depth() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ToolDefinitionError("the input schema is nested too deeply") from None


# Strict mode: conversion.

_SUPPORTED = frozenset(
    {"enum", "const", "pattern", "format", "minLength", "maxLength", "minItems", "maxItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
_DESCRIBED = ("uniqueItems", "minProperties", "maxProperties")
_CONSTRAINTS = _SUPPORTED.union(_DESCRIBED, ("type", "properties", "required", "items"))
_REFUSED = frozenset(
    {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"patternProperties", "unevaluatedProperties", "propertyNames"}
    | {"prefixItems", "additionalItems", "unevaluatedItems", "contains", "minContains", "maxContains"}
)
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_LOOKAROUND = re.compile(r"\(\?<?[=!]")
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_ALL_TYPES = (*_TYPES.values(), "object", "array")
_NULL = {"type": "null"}
_MAX_DEPTH = 10
_NOT_AT_ROOT = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const"})
"""Keywords that providers reject at the root of a tool's schema, strict or not."""


def _strict_root(root: dict[str, Any]) -> dict[str, Any]:
    strict = _schema(without_keywords(root, ("$defs",)), "", 1)
    if strict.get("type") != "object":
        raise _refusal("", "must be one object with fields; put anything else, such as a union, into a field of it")
    definitions = {name: _schema(definition, name, 1) for name, definition in root.get("$defs", {}).items()}
    return {**strict, "$defs": definitions} if definitions else strict


def _schema(schema: Any, where: str, level: int) -> dict[str, Any]:
    """Return one schema in strict mode.

    Args:
        schema: the schema.
        where: the path of fields to it; empty for the root.
        level: the number of objects around it, including itself.
    """
    if not isinstance(schema, dict):
        raise _refusal(where, "may be anything or nothing; give it a type")
    schema = _rewrite(schema, where)
    if refused := _REFUSED & schema.keys():
        raise _refusal(where, f"uses {', '.join(sorted(refused))}; put it in the description instead")
    if "$ref" in schema:
        return _reference(schema, where)
    return _union(schema, where, level) if "anyOf" in schema else _typed_schema(schema, where, level)


def _rewrite(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Return an equivalent schema with keywords that strict mode supports, if there are any."""
    match schema:
        case {"allOf": [entry], **rest}:
            if not isinstance(entry, dict) or not can_merge(entry, rest):
                raise _refusal(where, "is made of two schemas by allOf; write them as one")
            return _rewrite({**entry, **rest}, where)
        case {"oneOf": branches, **rest} if "anyOf" not in rest:
            return _rewrite({**rest, "anyOf": branches}, where)
        case {"anyOf": [*branches], "type": kind, **rest} if all(_may_have_type(branch, kind) for branch in branches):
            return _rewrite({**rest, "anyOf": [{**branch, "type": kind} for branch in branches]}, where)
        case {"unevaluatedProperties": False, **rest}:
            return _rewrite({**rest, "additionalProperties": False}, where)
    return schema


def _may_have_type(branch: Any, kind: Any) -> bool:
    """Return whether the type beside a union can move into this branch of it."""
    return isinstance(branch, dict) and "$ref" not in branch and branch.get("type", kind) == kind


def _reference(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a reference, in a union if it has a description: strict mode allows no keyword beside a reference."""
    _check_alone(schema, "$ref", where)
    ref, described = {"$ref": schema["$ref"]}, _description(schema)
    return {**described, "anyOf": [ref]} if described else ref


def _union(schema: dict[str, Any], where: str, level: int) -> dict[str, Any]:
    _check_alone(schema, "anyOf", where)
    branches = [_schema(branch, where, level) for branch in _part(schema, "anyOf", where)]
    return {**_description(schema), "anyOf": branches}


def _check_alone(schema: dict[str, Any], keyword: str, where: str) -> None:
    if keywords := _CONSTRAINTS & schema.keys():
        raise _refusal(where, f"has {', '.join(sorted(keywords))} beside {keyword}; write it into what {keyword} names")


def _typed_schema(schema: dict[str, Any], where: str, level: int) -> dict[str, Any]:
    types, described = _types(schema, where), _described_constraints(schema)
    constraints = {key: value for key, value in schema.items() if key in _SUPPORTED and key not in described}
    strict = {"type": types[0] if len(types) == 1 else types, **_description(schema, described), **constraints}
    _check_values(_part(schema, "enum", where), where)
    if "object" in types:
        strict |= _fields(schema, where, level)
    if "array" in types:
        strict["items"] = _schema(schema.get("items"), f"{where}[]", level)
    return strict


def _fields(schema: dict[str, Any], where: str, level: int) -> dict[str, Any]:
    fields, required = _part(schema, "properties", where), _part(schema, "required", where)
    # by default, an inner object without fields is a map, and a root without fields is a tool without arguments
    if schema.get("additionalProperties", bool(where) and not fields) is not False:
        raise _refusal(where, "takes fields of any name; name its fields, or make it a list of keys and values")
    if unknown := [str(name) for name in required if name not in list(fields)]:
        raise _refusal(where, f"requires {', '.join(unknown)}, which is not among its properties")
    if level > _MAX_DEPTH:
        raise _refusal(where, f"is nested deeper than the {_MAX_DEPTH} objects that are allowed; flatten it")
    properties = {
        name: _schema(field, f"{where}.{name}" if where else name, level + 1) for name, field in fields.items()
    }
    inner = {name: field if name in required else _nullable(field) for name, field in properties.items()}
    return {"properties": inner, "required": list(inner), "additionalProperties": False}


def _types(schema: dict[str, Any], where: str) -> list[str]:
    """Return the types of a value, stated or implied by other keywords; an empty root is an object."""
    kinds = schema.get("type") or _implied_types(schema)
    types = [kinds] if isinstance(kinds, str) else kinds
    if not types and where:
        raise _refusal(where, "may be anything; give it a type")
    if not isinstance(types, list) or not all(kind in _ALL_TYPES for kind in types):
        raise _refusal(where, f"has a type that is none of {', '.join(_ALL_TYPES)}")
    return types or ["object"]


def _implied_types(schema: dict[str, Any]) -> list[str]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return list(dict.fromkeys(_TYPES.get(type(value), "object") for value in values))
    return [kind for keyword, kind in (("properties", "object"), ("items", "array")) if keyword in schema]


_PARTS = {"properties": dict, "required": list, "enum": list, "anyOf": list}


def _part(schema: dict[str, Any], keyword: str, where: str) -> Any:
    """Return a keyword's value, or an empty value if the keyword is absent."""
    kind = _PARTS[keyword]
    value = schema.get(keyword, kind())
    if not isinstance(value, kind):
        raise _refusal(where, f"has a wrong value of {keyword}; it must be {'an object' if kind is dict else 'a list'}")
    return value


def _described_constraints(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the constraints to describe: strict mode does not support the keyword, or not this value of it."""
    described = {key: schema[key] for key in _DESCRIBED if schema.get(key)}
    if "format" in schema and schema["format"] not in _FORMATS:
        described["format"] = schema["format"]
    if _LOOKAROUND.search(str(schema.get("pattern"))):
        described["pattern"] = schema["pattern"]
    return described


def _description(schema: dict[str, Any], constraints: Mapping[str, Any] | None = None) -> dict[str, str]:
    extra = ", ".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in (constraints or {}).items())
    description = schema.get("description") or ""
    text = f"{description} ({extra})" if description and extra else description or extra
    return {"description": text} if text else {}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a strict-mode schema that also accepts null."""
    if _takes_null(schema):
        return schema
    match schema:
        case {"anyOf": branches}:
            return {**schema, "anyOf": [*branches, _NULL]}
        case {"$ref": _} | {"const": _}:
            return {"anyOf": [schema, _NULL]}
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": list(dict.fromkeys([*types, "null"])), **values}


def _takes_null(schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(_takes_null(branch) for branch in schema["anyOf"])
    return "null" in schema.get("type", ()) and None in schema.get("enum", [None]) and schema.get("const") is None


def _refusal(where: str, problem: str) -> ToolDefinitionError:
    return ToolDefinitionError(f"strict mode refuses {where or 'the input schema'}: it {problem}")


# Strict mode: limits.

_MAX_FIELDS = 5_000
_MAX_VALUES = 1_000
_MAX_CHARACTERS = 120_000
_MANY_VALUES = 250
_MAX_CHARACTERS_OF_MANY = 15_000


def _check_values(values: list[Any], where: str) -> None:
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) > _MANY_VALUES and sum(map(len, texts)) > _MAX_CHARACTERS_OF_MANY:
        raise _refusal(where, f"has {len(texts)} values that are too long together; shorten or describe them")


def _check_size(root: dict[str, Any]) -> None:
    schemas = list(_schemas(root))
    names = [name for schema in schemas for key in ("properties", "$defs") for name in schema.get(key, ())]
    values = [value for schema in schemas for value in schema.get("enum", ())]
    constants = [schema.get("const") for schema in schemas]
    texts = [text for text in [*names, *values, *constants] if isinstance(text, str)]
    sizes = (
        (sum(len(schema.get("properties", ())) for schema in schemas), _MAX_FIELDS, "fields"),
        (len(values), _MAX_VALUES, "values of enums"),
        (sum(map(len, texts)), _MAX_CHARACTERS, "characters in its names and values"),
    )
    for size, most, unit in sizes:
        if size > most:
            raise _refusal("", f"has {size} {unit}, more than {most}; split the tool into several")


def _schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    items = [schema["items"]] if "items" in schema else []
    fields, definitions = schema.get("properties", {}), schema.get("$defs", {})
    for part in (*fields.values(), *items, *schema.get("anyOf", ()), *definitions.values()):
        yield from _schemas(part)
