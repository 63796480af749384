"""Which fields a JSON Schema names, and whether one may be left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BRANCHES = ("anyOf", "oneOf", "allOf")
_MOST_STEPS = 16
"""How many references and branches are followed in one place: a schema may lead in circles."""


def is_optional(root: Mapping[str, Any], path: Sequence[str | int]) -> bool:
    """Return whether `path` leads to a field that the schema names among an object's properties and does not require.

    Args:
        root: the schema of the whole.
        path: names of fields and places in arrays, the field's own name last.
    """
    return any(_has_optional(form, path[-1]) for form in _forms_at(root, path[:-1]))


def types_at(root: Mapping[str, Any], path: Sequence[str | int]) -> frozenset[str]:
    """Return the JSON types that a schema allows at `path`, in any of its branches.

    Args:
        root: the schema of the whole.
        path: names of fields and places in arrays.
    """
    found: set[str] = set()
    for form in _forms_at(root, path):
        types = form.get("type", ())
        found.update([types] if isinstance(types, str) else types)
    return frozenset(found)


def field_names(root: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the fields that a schema names for the object itself, through references and branches."""
    found = [form.get("properties") for form in _forms(root, root)]
    return frozenset(name for properties in found if isinstance(properties, dict) for name in properties)


def _forms_at(root: Mapping[str, Any], path: Sequence[str | int]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that hold at `path`, with what they refer to and their branches."""
    places: list[Any] = [root]
    for key in path:
        places = [below for place in places for form in _forms(place, root) for below in _below(form, key)]
    for place in places:
        yield from _forms(place, root)


def _has_optional(form: Mapping[str, Any], field: str | int) -> bool:
    properties, required = form.get("properties"), form.get("required", ())
    return isinstance(properties, dict) and field in properties and field not in required


def _forms(schema: Any, root: Mapping[str, Any], steps: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield a schema, what it refers to, and its branches."""
    if not isinstance(schema, dict) or steps > _MOST_STEPS:
        return
    yield schema
    others = [branch for keyword in _BRANCHES for branch in schema.get(keyword, ())]
    if "$ref" in schema:
        others.append(_target(schema["$ref"], root))
    for other in others:
        yield from _forms(other, root, steps + 1)


def _target(ref: Any, root: Any) -> Any:
    for part in str(ref).removeprefix("#").split("/")[1:]:
        root = root.get(part) if isinstance(root, dict) else None
    return root


def _below(form: Mapping[str, Any], key: str | int) -> list[Any]:
    """Return the schemas of what stands under `key`."""
    if isinstance(key, int):
        return [form.get("items"), *form.get("prefixItems", ())[key : key + 1]]
    properties = form.get("properties")
    named = properties.get(key) if isinstance(properties, dict) else None
    return [form.get("additionalProperties") if named is None else named]
