"""Validates arguments against a JSON Schema that was not generated here, and describes problems for the model.

The schema may come from an untrusted server: an invalid schema never raises, but arguments are then not validated.
Nothing is fetched, and no text quotes a value.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.bounded_keywords import begin_validation, bounded_keywords, matches
from traced_tools.tools.schema.drafts import to_current_draft

if TYPE_CHECKING:
    from jsonschema import ValidationError  # type: ignore[import-untyped]
    from referencing.jsonschema import SchemaResource

_LOG = logging.getLogger(__name__)

UNKNOWN_FIELD = "is not a known field"
_UNUSABLE = (
    "the input schema of %s is not a valid JSON Schema (%s); its arguments are only checked to be an object; logged "
    "once per schema"
)
_UNCHECKED = "arguments of %s could not be validated against its input schema (%s); logged once per schema"
_RUST = "pyo3_runtime"
"""The module of panics in the validator's Rust maps, raised at the end of Python's stack; not an `Exception`."""

_MAX_PROBLEMS = 10
_MAX_LISTED = 20


class ArgumentProblem(NamedTuple):
    """One problem with arguments: its path, a text for the model, and the value, which `repr` does not show."""

    path: tuple[str | int, ...]
    text: str
    value: Any

    def __repr__(self) -> str:
        return f"<ArgumentProblem: {self.text}>"


_UNCHECKABLE = ArgumentProblem((), "could not be checked; send simpler values", None)


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a schema that a developer wrote; None if it can be sent and validated.

    A pattern that only the regular expressions of JavaScript allow is valid: no argument is matched against it.
    """
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        current = to_current_draft(schema)
        Draft202012Validator.check_schema(current, format_checker=None)
        resource = DRAFT202012.create_resource(current)
        _look_up_references(resource, REGISTRY.resolver_with_root(resource))
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path)) or "the schema"
        return f"{where} is invalid under {error.validator} of JSON Schema's draft 2020-12"
    except (Unresolvable, ToolDefinitionError, ValueError, RecursionError):
        return "it has a reference without a target, or is nested too deeply"
    if current.get("type", "object") != "object":
        return "it must be of type object, because arguments are passed by name"
    return None


class SchemaCheck:
    """Validates values against one JSON Schema, of the draft in its `$schema` or, by default, of draft 2020-12.

    A schema that is invalid under its draft counts in the form that providers are sent; see `to_current_draft`. Formats
    are not checked. References are resolved within the schema and to the drafts' own schemas only.

    Args:
        schema: the schema; it is compiled when the first value is validated.
        tool: the name of the tool, for the log.
    """

    def __init__(self, schema: Mapping[str, Any], tool: str = "a tool") -> None:
        self._schema = schema
        self._tool = tool
        self._failures = count()

    @property
    def usable(self) -> bool:
        """Whether the schema is valid and its references can be resolved; if not, no value is validated."""
        return self._validator is not None

    def problems(self, value: Any) -> list[ArgumentProblem]:
        """Return the first 10 problems with `value`, a value from `json.loads`, ordered by path."""
        if self._validator is None:
            return []
        problems = self._try(_UNCHECKED, _find_problems, self._validator, value)
        return [_UNCHECKABLE] if problems is None else problems  # a value that breaks the validator must not pass

    def failed_keywords(self, value: Any) -> list[str]:
        """Return the keywords of the schema that a value does not meet, such as `enum`, in alphabetical order.

        They are the vocabulary of JSON Schema. So unlike the texts of problems, they quote nothing of the schema.
        """
        if self._validator is None:
            return []
        keywords = self._try(_UNCHECKED, _failed_keywords, self._validator, value)
        return ["a value that cannot be checked"] if keywords is None else keywords

    @cached_property
    def _validator(self) -> Any:
        return self._try(_UNUSABLE, _build_validator, self._schema)

    def _try(self, complaint: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function` returns, or None if it fails, as it may in many ways for a schema from elsewhere.

        The first failure is logged; `next` of a counter is atomic, so that concurrent threads log once.
        """
        try:
            return function(*args)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__module__ != _RUST:
                raise
            if next(self._failures) == 0:
                _LOG.warning(complaint, self._tool, type(error).__name__)
            return None


def _find_problems(validator: Any, value: Any) -> list[ArgumentProblem]:
    begin_validation()
    problems = [problem for error in validator.iter_errors(value) for problem in _problems(error)]
    unique = {(problem.path, problem.text): problem for problem in problems}
    return sorted(unique.values(), key=_sort_key)[:_MAX_PROBLEMS]


def _failed_keywords(validator: Any, value: Any) -> list[str]:
    begin_validation()
    return sorted({error.validator or "false" for error in validator.iter_errors(value)})


def _build_validator(schema: Any) -> Any:
    """Return a validator for `schema`; raise any exception if the schema is invalid."""
    from jsonschema import Draft202012Validator, FormatChecker, SchemaError
    from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]
    from jsonschema_specifications import REGISTRY
    from referencing import Registry
    from referencing.jsonschema import specification_with

    schema = dict(schema) if isinstance(schema, Mapping) else schema
    draft, formats = validator_for(schema, default=Draft202012Validator), FormatChecker(["regex"])
    try:
        draft.check_schema(schema, format_checker=formats)
    except SchemaError:
        draft, schema = Draft202012Validator, to_current_draft(schema)
        draft.check_schema(schema, format_checker=formats)
    resource = specification_with(draft.META_SCHEMA["$schema"]).create_resource(schema)
    _look_up_references(resource, REGISTRY.resolver_with_root(resource))
    bounded = extend(draft, bounded_keywords(draft.VALIDATORS))
    validator = bounded(schema, registry=Registry())  # an empty registry: the default one fetches unknown schemas
    begin_validation()
    list(validator.iter_errors({}))  # raises for a schema that only refers to itself
    return validator


def _look_up_references(resource: SchemaResource, resolver: Any) -> None:
    """Raise for an unresolvable reference now, and not when certain arguments need it."""
    resolver = resolver.in_subresource(resource)
    if isinstance(resource.contents, Mapping) and "$ref" in resource.contents:
        resolver.lookup(resource.contents["$ref"])
    for subresource in resource.subresources():
        _look_up_references(subresource, resolver)


def _sort_key(problem: ArgumentProblem) -> list[tuple[bool, str | int]]:
    return [(isinstance(step, str), step) for step in problem.path]


# Converts errors of the validator into problems.


def _problems(error: ValidationError) -> list[ArgumentProblem]:
    """Return the problems of an error. Their texts are written here, because the error's message quotes the value."""
    problems = _SPECIAL.get(error.validator, _single_problem)(error)
    if not _is_about_a_name(error):
        return problems
    return [
        ArgumentProblem((*path, value), f"is not an allowed field name: it {text}", value)
        for path, text, value in problems
    ]


def _single_problem(error: ValidationError, text: str = "") -> list[ArgumentProblem]:
    return [ArgumentProblem(tuple(error.absolute_path), text or _text(error), error.instance)]


def _text(error: ValidationError) -> str:
    if error.validator is None:  # the schema `false`; for a field or an item, the path is that of its parent
        return "is not allowed, or contains a value that is not allowed"
    describe = _TEXTS.get(_keyword(error))
    return f"does not match the schema's {error.validator}" if describe is None else describe(error.validator_value)


def _keyword(error: ValidationError) -> str:
    """Return the keyword that failed; up to draft 4, a flag made `minimum` or `maximum` exclusive."""
    keyword = str(error.validator)
    exclusive = f"exclusive{keyword.capitalize()}"
    return exclusive if error.schema.get(exclusive) is True else keyword


_FOLLOWED_BY_A_NAME = ("properties", "patternProperties", "dependentSchemas", "dependencies")


def _is_about_a_name(error: ValidationError) -> bool:
    """Return whether the name of a field is invalid; the error's path is then that of the object."""
    steps = iter(error.schema_path)
    for step in steps:
        if step == "propertyNames":
            return True
        if step in _FOLLOWED_BY_A_NAME:
            next(steps, None)
    return False


# Keywords whose problems are elsewhere than the value they apply to.


def _missing(error: ValidationError) -> list[ArgumentProblem]:
    """Return a problem for each missing field; the validator names the field only in its message."""
    path, value = tuple(error.absolute_path), error.instance
    return [ArgumentProblem((*path, name), "is required", value) for name in error.validator_value if name not in value]


def _missing_dependent(error: ValidationError) -> list[ArgumentProblem]:
    path, value = tuple(error.absolute_path), error.instance
    return [
        ArgumentProblem((*path, name), f"is required when {field} is given", value)
        for field, needed in error.validator_value.items()
        if field in value and isinstance(needed, list)
        for name in needed
        if name not in value
    ]


def _unknown(error: ValidationError) -> list[ArgumentProblem]:
    path, value = tuple(error.absolute_path), error.instance
    properties = error.schema.get("properties", {})
    patterns = error.schema.get("patternProperties", {})
    text = f"{UNKNOWN_FIELD}; known fields: {_list_words(properties)}"
    return [
        ArgumentProblem((*path, name), text, value[name])
        for name in value
        if name not in properties and not any(matches(pattern, name) for pattern in patterns)
    ]


def _no_alternative(error: ValidationError) -> list[ArgumentProblem]:
    """Return the problems of the alternative that was most likely intended, or what all alternatives require."""
    if not error.context:
        return _single_problem(error, "matches more than one of the allowed forms, and must match exactly one")
    reasons = [reason for reason in error.context if reason.schema_path]  # the alternative `false` has no reason
    forms = [list(form) for _, form in groupby(reasons, key=lambda reason: reason.schema_path[0])]
    problems = [[problem for inner in form for problem in _problems(inner)] for form in forms]
    if _are_one_requirement(problems, tuple(error.absolute_path)):
        required = dict.fromkeys(alternative[0].text.removeprefix("must be ") for alternative in problems)
        return _single_problem(error, f"must be {_list_words(required, ' or ')}")
    distances = [_distance(form) for form in forms]
    nearest = [form for form, distance in zip(problems, distances, strict=True) if distance == min(distances)]
    return nearest[0] if len(nearest) == 1 else _single_problem(error, "matches none of the allowed forms")


def _are_one_requirement(alternatives: list[list[ArgumentProblem]], path: tuple[str | int, ...]) -> bool:
    """Return whether each alternative has one requirement of the value itself, so that one sentence lists them all."""
    return bool(alternatives) and all(
        len(problems) == 1 and problems[0].path == path and problems[0].text.startswith("must be ")
        for problems in alternatives
    )


def _distance(form: list[ValidationError]) -> tuple[bool, int, int]:
    """Rank an alternative by its distance from the value: another type, another constant, invalid details."""
    other_type = any(error.validator == "type" and not error.path for error in form)
    return other_type, sum(error.validator in ("const", "enum") for error in form), len(form)


_SPECIAL: dict[str | None, Callable[[ValidationError], list[ArgumentProblem]]] = {
    "required": _missing,
    "dependentRequired": _missing_dependent,
    "dependencies": _missing_dependent,
    "additionalProperties": _unknown,
    "anyOf": _no_alternative,
    "oneOf": _no_alternative,
}


# Texts for the value of a keyword.


def _list_words(words: Iterable[str], separator: str = ", ") -> str:
    words = list(words) or ["none"]
    return separator.join([*words[:_MAX_LISTED], *(["..."] if len(words) > _MAX_LISTED else [])])


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
    return " or ".join(_TYPES[kind] for kind in ([types] if isinstance(types, str) else types))


_TEXTS: dict[str, Callable[[Any], str]] = {
    "type": lambda types: f"must be {_types(types)}",
    "enum": lambda values: f"must be one of: {_list_words(map(_json, values))}",
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
