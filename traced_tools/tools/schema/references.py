"""Rewrites the references of a JSON Schema: inlines their targets, or moves them to `$defs`.

A reference may point to a definition, to any other part of the schema, to the whole schema, or to an `$id` or `$anchor`
in it. Nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from traced_tools.errors import ToolDefinitionError

if TYPE_CHECKING:
    from referencing import Specification
    from referencing._core import Resolver

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
)
"""Keywords that describe a value and do not constrain it."""

_MAX_SCHEMAS = 10_000
_DEFINED = "#/$defs/"
_PLACES = ("$defs", "definitions", "$id", "$anchor", "$dynamicAnchor")
_DYNAMIC = ("$dynamicRef", "$recursiveRef")

_ONE_SCHEMA = frozenset(
    {"additionalProperties", "unevaluatedProperties", "propertyNames"}
    | {"items", "additionalItems", "unevaluatedItems", "contains", "contentSchema"}
    | {"not", "if", "then", "else"}
)
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})

_ENTANGLED = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties"}
    | {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "minContains", "maxContains"}
    | {"if", "then", "else"}
)
"""Keywords whose meaning changes if another of them is added."""


class References:
    """Rewrites the references of one schema.

    Args:
        root: the schema; it is not changed.
        inline: whether to replace each reference by its target. Only references to a schema that contains them then
            remain. Otherwise, references point to `$defs` of the root.
    """

    def __init__(self, root: Mapping[str, Any], *, inline: bool) -> None:
        self._root = dict(root)
        self._draft = _draft(self._root)
        self._inline = inline
        self._count = 0
        # targets are compared by identity, because one schema has many possible references
        self._open = {id(self._root)}
        self._recursive: set[int] = set()
        self._addresses = {id(self._root): "#"}
        self._definitions: dict[int, Any] = {}

    def rewritten(self) -> dict[str, Any]:
        """Return the rewritten schema; a root that is a reference is always inlined.

        Raises:
            ToolDefinitionError: for a reference without a target, and for a schema that grows too large.
        """
        root = self._schema(self._root, _resolver(self._root, self._draft))
        if isinstance(root, dict) and "$ref" in root:
            root = merge_schemas(self._definition_bodies().get(root["$ref"], {}), without_keywords(root, ("$ref",)))
        if not isinstance(root, dict):
            raise ToolDefinitionError("the input schema must be an object, not true or false")
        definitions = {address.removeprefix(_DEFINED): body for address, body in self._definition_bodies().items()}
        return {**root, "$defs": definitions} if definitions else root

    def _definition_bodies(self) -> dict[str, Any]:
        return {self._addresses[key]: body for key, body in self._definitions.items()}

    def _schema(self, schema: Any, resolver: Resolver[Any]) -> Any:
        if not isinstance(schema, dict):
            return schema
        self._check(schema)
        own = without_keywords(schema, ("$ref", *_PLACES))
        rewrite = partial(self._below, resolver=resolver)
        inner = {key: _change_schemas(key, value, rewrite) for key, value in own.items()}
        if "$ref" not in schema:
            return inner
        inline = self._inline or schema is self._root or not own.keys() <= ANNOTATIONS
        return merge_schemas(self._definition(schema["$ref"], resolver, inline=inline), inner)

    def _below(self, schema: Any, resolver: Resolver[Any]) -> Any:
        if isinstance(schema, dict) and isinstance(schema.get("$id"), str):
            resolver = resolver.in_subresource(self._draft.create_resource(schema))
        return self._schema(schema, resolver)

    def _definition(self, ref: Any, resolver: Resolver[Any], *, inline: bool) -> Any:
        """Return the target of a reference, or a reference to its place under `$defs`."""
        target, resolver = _target(ref, resolver)
        key = id(target)
        if key in self._open:
            self._recursive.add(key)
        elif key not in self._definitions or (inline and key not in self._recursive):
            self._open.add(key)
            body = self._schema(target, resolver)
            self._open.remove(key)
            # rewriting the target shows whether it refers to itself: then it stays a definition
            if inline and key not in self._recursive:
                return body
            self._definitions[key] = body
        return {"$ref": self._address(key, ref)}

    def _address(self, key: int, ref: str) -> str:
        if key not in self._addresses:
            name = re.sub(r"[^\w.-]", "_", unquote(re.split(r"[/#]", ref)[-1]), flags=re.ASCII) or "definition"
            while f"{_DEFINED}{name}" in self._addresses.values():
                name += "_"
            self._addresses[key] = f"{_DEFINED}{name}"
        return self._addresses[key]

    def _check(self, schema: dict[str, Any]) -> None:
        self._count += 1
        if self._count > _MAX_SCHEMAS:
            raise ToolDefinitionError(
                f"the input schema has more than {_MAX_SCHEMAS} parts when its references are inlined; reduce the "
                "references between its definitions"
            )
        for keyword in _DYNAMIC:
            if keyword in schema:
                raise ToolDefinitionError(f"the input schema uses {keyword}; use $ref to a definition under $defs")


def _draft(root: dict[str, Any]) -> Specification[Any]:
    from referencing.jsonschema import DRAFT202012, specification_with

    return specification_with(str(root.get("$schema", "")), default=DRAFT202012)


def _resolver(root: dict[str, Any], draft: Specification[Any]) -> Resolver[Any]:
    from referencing import Registry

    address = str(root.get("$id", ""))
    resolver: Resolver[Any] = Registry().with_resource(address, draft.create_resource(root)).resolver(address)
    return resolver


def _target(ref: Any, resolver: Resolver[Any]) -> tuple[Any, Resolver[Any]]:
    try:
        match = resolver.lookup(ref)
    except Exception:  # an invalid reference can raise anything
        match = None
    if match is None or not isinstance(match.contents, dict | bool):
        raise ToolDefinitionError(f"the reference {ref} in the input schema points to no schema within it")
    return match.contents, match.resolver


def _change_schemas(keyword: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a keyword's value with `change` applied to the schemas in it; values such as `default` contain none."""
    if keyword in _ONE_SCHEMA and isinstance(value, dict):
        return change(value)
    if keyword in _SCHEMA_LISTS and isinstance(value, list):
        return [change(part) for part in value]
    if keyword in _SCHEMAS_BY_NAME and isinstance(value, dict):
        return {name: change(part) for name, part in value.items()}
    return value


def without_keywords(schema: Mapping[str, Any], keywords: Iterable[str]) -> dict[str, Any]:
    """Return a schema without some of its keywords."""
    return {key: value for key, value in schema.items() if key not in keywords}


def can_merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether one schema with the keywords of both means the same as both schemas together."""
    contradicting = [key for key in one.keys() & other.keys() - ANNOTATIONS if one[key] != other[key]]
    return not contradicting and not (one.keys() & _ENTANGLED and other.keys() & _ENTANGLED)


def merge_schemas(definition: Any, siblings: dict[str, Any]) -> Any:
    """Return one schema for a definition and the keywords beside the reference to it."""
    if not siblings:
        return definition
    if not isinstance(definition, dict):
        return siblings if definition else False
    if can_merge(definition, siblings):
        return {**definition, **siblings}
    also = siblings.get("allOf")
    return {**siblings, "allOf": [*(also if isinstance(also, list) else ()), definition]}
