"""Checks arguments against a JSON Schema that somebody else wrote, and says in our words what to change.

The schema may come from a stranger: a wrong one never raises, it is only not checked against. Nothing is ever fetched,
and no text quotes a value.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jsonschema import ValidationError  # type: ignore[import-untyped]
    from referencing.jsonschema import SchemaResource

_LOG = logging.getLogger(__name__)

UNKNOWN_FIELD = "is not a known field"
_UNUSABLE = (
    "the input schema of %s is no valid JSON Schema (%s); its arguments are only checked to be an object; this is said "
    "once per schema"
)
_UNCHECKED = "arguments of %s could not be checked against its input schema (%s); this is said once per schema"
_RUST = "pyo3_runtime"
"""Where the panics of the validator's maps come from, which are no `Exception`: Python's stack has ended inside one."""

_MOST_PROBLEMS = 10
_MOST_NAMED = 20


class ArgumentProblem(NamedTuple):
    """One thing that is wrong: where, what was expected (in words for the model), and the value, which is not shown."""

    path: tuple[str | int, ...]
    text: str
    value: Any

    def __repr__(self) -> str:
        return f"<ArgumentProblem: {self.text}>"


_UNCHECKABLE = ArgumentProblem((), "could not be checked; send simpler values", None)


class SchemaCheck:
    """Checks values against one JSON Schema of the draft that its `$schema` names, 2020-12 unless it names a known one.

    Formats are not checked, and references lead nowhere but into the schema itself and to the drafts' own schemas.

    Args:
        schema: the schema; it is looked at when the first value is checked.
        tool: whose it is, for the log.
    """

    def __init__(self, schema: Mapping[str, Any], tool: str = "a tool") -> None:
        self._schema = schema
        self._tool = tool
        self._complaints = count()

    @property
    def usable(self) -> bool:
        """Whether the schema is valid and its references lead somewhere; if not, nothing is checked against it."""
        return self._validator is not None

    def problems(self, value: Any) -> list[ArgumentProblem]:
        """Return what is wrong with `value`, as `json.loads` returns it: the first problems, ordered by path."""
        if self._validator is None:
            return []
        found = self._attempt(_UNCHECKED, _found, self._validator, value)
        return [_UNCHECKABLE] if found is None else found  # a value must not get by because it breaks the check

    @cached_property
    def _validator(self) -> Any:
        return self._attempt(_UNUSABLE, _built_validator, self._schema)

    def _attempt(self, complaint: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function` returns, or None if it fails: strangers break schemas in more ways than can be listed.

        That is logged once per schema; the counter is what makes it once, whichever threads come first.
        """
        try:
            return function(*args)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__module__ != _RUST:
                raise
            if next(self._complaints) == 0:
                _LOG.warning(complaint, self._tool, type(error).__name__)
            return None


def _found(validator: Any, value: Any) -> list[ArgumentProblem]:
    unique = {(each.path, each.text): each for error in validator.iter_errors(value) for each in _problems(error)}
    return sorted(unique.values(), key=_place)[:_MOST_PROBLEMS]


def _built_validator(schema: Any) -> Any:
    """Return a validator for `schema`; raises whatever is found to be wrong with it."""
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing import Registry
    from referencing.jsonschema import specification_with

    schema = dict(schema) if isinstance(schema, Mapping) else schema
    draft = validator_for(schema, default=Draft202012Validator)
    draft.check_schema(schema, format_checker=FormatChecker(["regex"]))
    resource = specification_with(draft.META_SCHEMA["$schema"]).create_resource(schema)
    _look_up_references(resource, REGISTRY.resolver_with_root(resource))
    validator = draft(schema, registry=Registry())  # an empty registry: the default one fetches what it does not know
    list(validator.iter_errors({}))  # raises for a schema that only leads back to itself
    return validator


def _look_up_references(resource: SchemaResource, resolver: Any) -> None:
    """Raise for a reference that leads nowhere now, and not when the arguments happen to lead there."""
    resolver = resolver.in_subresource(resource)
    if isinstance(resource.contents, Mapping) and "$ref" in resource.contents:
        resolver.lookup(resource.contents["$ref"])
    for each in resource.subresources():
        _look_up_references(each, resolver)


def _place(problem: ArgumentProblem) -> list[tuple[bool, str | int]]:
    return [(isinstance(step, str), step) for step in problem.path]


# From an error of the validator's to problems.


def _problems(error: ValidationError) -> list[ArgumentProblem]:
    """Say what is wrong in our words: the error's own quote the value."""
    found = _SEVERAL.get(error.validator, _one)(error)
    if not _is_about_a_name(error):
        return found
    return [
        ArgumentProblem((*path, value), f"is no allowed field name: it {text}", value) for path, text, value in found
    ]


def _one(error: ValidationError, text: str = "") -> list[ArgumentProblem]:
    return [ArgumentProblem(tuple(error.absolute_path), text or _text(error), error.instance)]


def _text(error: ValidationError) -> str:
    if error.validator is None:  # the schema `false`; for a field's or an item's, the error's path stops above it
        return "is not allowed, or holds what is not allowed"
    words = _TEXTS.get(_keyword(error))
    return f"does not fit the schema's {error.validator}" if words is None else words(error.validator_value)


def _keyword(error: ValidationError) -> str:
    """Return the keyword that failed; up to draft 4, a flag beside `minimum` made it exclusive."""
    keyword = str(error.validator)
    exclusive = f"exclusive{keyword.capitalize()}"
    return exclusive if error.schema.get(exclusive) is True else keyword


_FOLLOWED_BY_A_NAME = ("properties", "patternProperties", "dependentSchemas", "dependencies")


def _is_about_a_name(error: ValidationError) -> bool:
    """Whether it is the name of a field that is wrong; the error's path is then that of the object."""
    steps = iter(error.schema_path)
    for step in steps:
        if step == "propertyNames":
            return True
        if step in _FOLLOWED_BY_A_NAME:
            next(steps, None)
    return False


# Keywords that name other places than the value they stand at.


def _missing(error: ValidationError) -> list[ArgumentProblem]:
    """Name every missing field: the validator reports each of them, but only in its text."""
    path, value = tuple(error.absolute_path), error.instance
    return [ArgumentProblem((*path, name), "is required", value) for name in error.validator_value if name not in value]


def _missing_beside(error: ValidationError) -> list[ArgumentProblem]:
    path, value = tuple(error.absolute_path), error.instance
    return [
        ArgumentProblem((*path, name), f"is required when {given} is given", value)
        for given, needed in error.validator_value.items()
        if given in value and isinstance(needed, list)
        for name in needed
        if name not in value
    ]


def _unknown(error: ValidationError) -> list[ArgumentProblem]:
    path, value = tuple(error.absolute_path), error.instance
    known = error.schema.get("properties", {})
    patterns = error.schema.get("patternProperties", {})
    text = f"{UNKNOWN_FIELD}; known fields: {_listed(known)}"
    return [
        ArgumentProblem((*path, name), text, value[name])
        for name in value
        if name not in known and not any(re.search(pattern, name) for pattern in patterns)
    ]


def _no_alternative(error: ValidationError) -> list[ArgumentProblem]:
    """Say what is wrong with the alternative that was most likely meant, or what all of them ask for."""
    if not error.context:
        return _one(error, "fits more than one of the allowed forms, and must fit exactly one")
    reasons = [each for each in error.context if each.schema_path]  # the alternative `false` gives none
    forms = [list(form) for _, form in groupby(reasons, key=lambda each: each.schema_path[0])]
    told = [[each for inner in form for each in _problems(inner)] for form in forms]
    if _ask_one_thing(told, tuple(error.absolute_path)):
        asked = dict.fromkeys(each[0].text.removeprefix("must be ") for each in told)
        return _one(error, f"must be {_listed(asked, ' or ')}")
    distances = [_distance(form) for form in forms]
    nearest = [each for each, distance in zip(told, distances, strict=True) if distance == min(distances)]
    return nearest[0] if len(nearest) == 1 else _one(error, "fits none of the allowed forms")


def _ask_one_thing(told: list[list[ArgumentProblem]], path: tuple[str | int, ...]) -> bool:
    """Whether each alternative asks one thing of the value itself, so that one sentence tells them all."""
    firsts = [each[0] for each in told if len(each) == 1]
    fit = [first.path == path and first.text.startswith("must be ") for first in firsts]
    return bool(told) and len(fit) == len(told) and all(fit)


def _distance(form: list[ValidationError]) -> tuple[bool, int, int]:
    """Rank an alternative by how far the value is from it: of another type, of another kind, or wrong in details."""
    other_type = any(error.validator == "type" and not error.path for error in form)
    return other_type, sum(error.validator in ("const", "enum") for error in form), len(form)


_SEVERAL: dict[str | None, Callable[[ValidationError], list[ArgumentProblem]]] = {
    "required": _missing,
    "dependentRequired": _missing_beside,
    "dependencies": _missing_beside,
    "additionalProperties": _unknown,
    "anyOf": _no_alternative,
    "oneOf": _no_alternative,
}


# What was expected, of the value of a keyword.


def _listed(words: Iterable[str], separator: str = ", ") -> str:
    words = list(words) or ["none"]
    return separator.join([*words[:_MOST_NAMED], *(["..."] if len(words) > _MOST_NAMED else [])])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(amount: float, noun: str) -> str:
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


_TYPES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "an array",
    "null": "null",
}


def _types(types: str | list[str]) -> str:
    return " or ".join(_TYPES[each] for each in ([types] if isinstance(types, str) else types))


_TEXTS: dict[str, Callable[[Any], str]] = {
    "type": lambda types: f"must be {_types(types)}",
    "enum": lambda values: f"must be one of: {_listed(map(_json, values))}",
    "const": lambda value: f"must be {_json(value)}",
    "minimum": lambda least: f"must be at least {least}",
    "maximum": lambda most: f"must be at most {most}",
    "exclusiveMinimum": lambda bound: f"must be more than {bound}",
    "exclusiveMaximum": lambda bound: f"must be less than {bound}",
    "multipleOf": lambda factor: f"must be a multiple of {factor}",
    "minLength": lambda least: f"must have at least {_number(least, 'character')}",
    "maxLength": lambda most: f"must have at most {_number(most, 'character')}",
    "pattern": lambda pattern: f"must match the pattern {pattern}",
    "minItems": lambda least: f"must have at least {_number(least, 'item')}",
    "maxItems": lambda most: f"must have at most {_number(most, 'item')}",
    "uniqueItems": lambda _: "must not have the same item twice",
    "items": lambda _: "has more items than are allowed",
    "additionalItems": lambda _: "has more items than are allowed",
    "unevaluatedItems": lambda _: "has items that are not allowed",
    "contains": lambda _: "lacks an item of the required form",
    "minContains": lambda least: f"must have at least {_number(least, 'item')} of the required form",
    "maxContains": lambda most: f"must have at most {_number(most, 'item')} of the required form",
    "minProperties": lambda least: f"must have at least {_number(least, 'field')}",
    "maxProperties": lambda most: f"must have at most {_number(most, 'field')}",
    "unevaluatedProperties": lambda _: "has fields that are not allowed",
    "not": lambda _: "is of a form that is not allowed",
}
