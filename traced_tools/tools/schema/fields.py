"""Looks up fields in a JSON Schema: their names, their types, whether they are optional."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BRANCHES = ("anyOf", "oneOf", "allOf")
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_MAX_STEPS = 16
"""How many references and branches are followed at one path, because a schema may be recursive."""


def is_optional(root: Mapping[str, Any], path: Sequence[str | int]) -> bool:
    """Return whether the field at `path` is a property in the schema and not required.

    Args:
        root: the schema of the arguments.
        path: names of fields and indexes of array items; the name of the field is last.
    """
    for form in _forms_at(root, path[:-1]):
        properties, required = form.get("properties"), form.get("required", ())
        if isinstance(properties, dict) and path[-1] in properties and path[-1] not in required:
            return True
    return False


def types_at(root: Mapping[str, Any], path: Sequence[str | int]) -> frozenset[str]:
    """Return the JSON types that the schema allows at `path`, in any of its branches.

    Args:
        root: the schema of the arguments.
        path: names of fields and indexes of array items.
    """
    allowed: set[str] = set()
    for form in _forms_at(root, path):
        types = form.get("type", ())
        allowed.update([types] if isinstance(types, str) else types)
    return frozenset(allowed)


def known_path(root: Mapping[str, Any], path: Sequence[str | int]) -> str:
    """Return the path of a value as text, such as `lines[0].price`, with `*` for each name that is not in the schema.

    A model can invent names, for example the keys of a map, so they may be content.
    """
    text = ""
    for place, key in enumerate(path):
        if isinstance(key, int):
            text += f"[{key}]"
            continue
        declared = [form.get("properties") for form in _forms_at(root, path[:place])]
        name = key if any(isinstance(properties, dict) and key in properties for properties in declared) else "*"
        text += f".{name}" if text else name
    return text


def field_names(root: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the top-level fields, including those in references and branches."""
    fields = [form.get("properties") for form in forms_of(root, root)]
    return frozenset(name for properties in fields if isinstance(properties, dict) for name in properties)


def forbids_others(root: Mapping[str, Any]) -> bool:
    """Return whether the schema of the arguments, or a branch of it, constrains arguments that it does not name."""
    return any(_constrains_others(form) for form in forms_of(root, root))


def has_closed_branch(root: Mapping[str, Any]) -> bool:
    """Return whether a branch of the schema forbids arguments that only the root names."""
    return any(_constrains_others(form) for form in forms_of(root, root) if form is not root)


def _constrains_others(form: Mapping[str, Any]) -> bool:
    return any(form.get(keyword, True) not in (True, {}) for keyword in _OTHERS)


def _forms_at(root: Mapping[str, Any], path: Sequence[str | int]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of the value at `path`, with their references and branches."""
    schemas: list[Any] = [root]
    for key in path:
        schemas = [child for schema in schemas for form in forms_of(schema, root) for child in children_of(form, key)]
    for schema in schemas:
        yield from forms_of(schema, root)


def forms_of(schema: Any, root: Mapping[str, Any], steps: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield a schema, the schema that it refers to, and its branches."""
    if not isinstance(schema, dict) or steps > _MAX_STEPS:
        return
    yield schema
    branches = [branch for keyword in _BRANCHES for branch in schema.get(keyword, ())]
    if "$ref" in schema:
        branches.append(_target(schema["$ref"], root))
    for branch in branches:
        yield from forms_of(branch, root, steps + 1)


def _target(ref: Any, root: Any) -> Any:
    for part in str(ref).removeprefix("#").split("/")[1:]:
        root = root.get(part) if isinstance(root, dict) else None
    return root


def children_of(form: Mapping[str, Any], key: str | int) -> list[Any]:
    """Return the schemas of the field or item `key`."""
    if isinstance(key, int):
        return [form.get("items"), *form.get("prefixItems", ())[key : key + 1]]
    properties = form.get("properties")
    declared = properties.get(key) if isinstance(properties, dict) else None
    return [form.get("additionalProperties") if declared is None else declared]
