"""Names of fields on the wire: replaces names of properties that providers refuse, and restores them in arguments.

Anthropic refuses a whole request if a property has a name of other characters than ASCII letters, digits, `_`, `.` and
`-`, or of more than 64. OpenAPI and OData servers have parameters such as `$filter` and `filter[id]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.drafts import LISTS, SCHEMAS_BY_NAME, SINGLE, to_current_draft
from traced_tools.tools.schema.fields import children_of, forms_of
from traced_tools.tools.schema.references import References

_MAX_LENGTH: Final = 64
_DIGITS: Final = 8
_ACCEPTED: Final = re.compile(rf"[a-zA-Z0-9_.-]{{1,{_MAX_LENGTH}}}")
_REFUSED: Final = re.compile(r"[^a-zA-Z0-9_.-]")


class WireFields:
    """The fields of one tool under the names that are sent to providers.

    Attributes:
        schema: the input schema with names that all providers accept. The title of a renamed field is its own name.
    """

    def __init__(self, schema: Mapping[str, Any], names: Iterable[str]) -> None:
        names_in_use = set(names)
        self._sent: dict[str, str] = {}
        for name in sorted(names_in_use):
            if not _ACCEPTED.fullmatch(name):
                self._sent[name] = wire_name = _accepted_name(name, names_in_use)
                names_in_use.add(wire_name)
        self._own = {wire_name: name for name, wire_name in self._sent.items()}
        self.schema: dict[str, Any] = self._rename(schema)
        self._own_schema = schema

    def to_wire(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments under the names that are sent."""
        return _rename_keys(arguments, [self._own_schema], self._own_schema, self._sent)  # type: ignore[no-any-return]

    def to_own(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments under the fields' own names."""
        return _rename_keys(arguments, [self.schema], self.schema, self._own)  # type: ignore[no-any-return]

    def _rename(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        renamed = _map_inner(schema, self._rename)
        wire_names = self._sent
        if isinstance(fields := renamed.get("properties"), Mapping):
            properties = {wire_names.get(name, name): self._add_title(name, field) for name, field in fields.items()}
            renamed["properties"] = properties
        if isinstance(required := renamed.get("required"), list):
            renamed["required"] = [wire_names.get(name, name) for name in required]
        if isinstance(needed := renamed.get("dependentRequired"), Mapping):
            renamed["dependentRequired"] = {
                wire_names.get(name, name): [wire_names.get(dependent, dependent) for dependent in dependents]
                for name, dependents in needed.items()
            }
        if isinstance(schemas := renamed.get("dependentSchemas"), Mapping):
            renamed["dependentSchemas"] = {wire_names.get(name, name): inner for name, inner in schemas.items()}
        return renamed

    def _add_title(self, name: str, schema: Any) -> Any:
        return {"title": name, **schema} if name in self._sent and isinstance(schema, dict) else schema


def wire_fields(schema: Mapping[str, Any]) -> WireFields | None:
    """Return the fields of an input schema on the wire; None if providers accept all names."""
    try:
        names = set(_names(schema))
        if all(map(_ACCEPTED.fullmatch, names)):
            return None
        current = to_current_draft(schema)
        with suppress(ToolDefinitionError):  # a reference without a target is reported when the schema is sent
            if any("/properties/" in ref for ref in _references(current)):
                current = References(current, inline=False).rewritten()
        return WireFields(current, _names(current))
    except (RecursionError, ToolDefinitionError):  # reported when the schema is sent
        return None


def _accepted_name(name: str, names_in_use: set[str]) -> str:
    plain = _REFUSED.sub("_", name)
    if name.isascii() and len(plain) <= _MAX_LENGTH and plain.strip("_") and plain not in names_in_use:
        return plain
    digits = sha256(name.encode("utf-8", "replace")).hexdigest()[:_DIGITS]
    return f"{plain[: _MAX_LENGTH - _DIGITS - 1]}_{digits}"


def _inner_schemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for keyword in (*SCHEMAS_BY_NAME, *LISTS, *SINGLE):
        value = schema.get(keyword)
        if keyword in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            yield from [inner for inner in value.values() if isinstance(inner, Mapping)]
        elif isinstance(value, list):
            yield from [inner for inner in value if isinstance(inner, Mapping)]
        elif isinstance(value, Mapping):
            yield value


def _map_inner(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of a schema with `change` applied to the schemas in it."""
    copy = dict(schema)
    for keyword, value in schema.items():
        if keyword in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            copy[keyword] = {name: change(inner) for name, inner in value.items()}
        elif keyword in LISTS and isinstance(value, list):
            copy[keyword] = [change(inner) for inner in value]
        elif keyword in SINGLE:
            copy[keyword] = change(value)
    return copy


def _names(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all properties in a schema, at any depth."""
    if isinstance(fields := schema.get("properties"), Mapping):
        yield from [str(name) for name in fields]
    for inner in _inner_schemas(schema):
        yield from _names(inner)


def _references(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(ref := schema.get("$ref"), str):
        yield ref
    for inner in _inner_schemas(schema):
        yield from _references(inner)


def _rename_keys(value: Any, schemas: list[Any], root: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    """Return a value whose keys are replaced by `names` where the schema declares fields.

    The keys of a map, whose schema declares no fields, are content and stay as they are.
    """
    forms = [form for schema in schemas for form in forms_of(schema, root)]
    if isinstance(value, list):
        return [
            _rename_keys(item, [child for form in forms for child in children_of(form, index)], root, names)
            for index, item in enumerate(value)
        ]
    if not isinstance(value, Mapping):
        return value
    fields = [form["properties"] for form in forms if isinstance(form.get("properties"), dict)]
    renamed: dict[str, Any] = {}
    for key, item in value.items():
        inner = _rename_keys(item, [child for form in forms for child in children_of(form, key)], root, names)
        renamed[names.get(key, key) if any(fields) else key] = inner
    return renamed
