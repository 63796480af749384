"""Converts pydantic's errors into problems for the model: which field is invalid, and what is expected there.

Pydantic's own messages are about Python, and some quote the value. Messages of the developer's validators stay as they
are.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from pydantic import ValidationError

from traced_tools.tools.schema.json_schema import UNKNOWN_FIELD, ArgumentProblem

_MAX_ERRORS = 1_000
_MAX_ROUTES = 32
_MAX_LISTED = 20
_MAX_FORMS = 3

_DATE_TIME = "must be a date and time in ISO 8601, such as 2025-01-31T09:30:00Z"
_DATE = "must be a date in ISO 8601, such as 2025-01-31"
_TIME = "must be a time in ISO 8601, such as 09:30:00"
_DURATION = "must be a duration in ISO 8601, such as PT1H30M"
_URL = "must be a URL with a scheme, such as https://example.com"

_TEXTS = {
    **dict.fromkeys(("missing", "missing_argument", "missing_keyword_only_argument"), "is required"),
    **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), UNKNOWN_FIELD),
    **dict.fromkeys(("model_type", "model_attributes_type", "dataclass_type", "mapping_type"), "must be an object"),
    **dict.fromkeys(("dict_type", "frozen_dict_type", "ordered_dict_type", "counter_type"), "must be an object"),
    **dict.fromkeys(("named_tuple_type", "arguments_type"), "must be an array or an object"),
    **dict.fromkeys(("list_type", "tuple_type", "deque_type", "iterable_type"), "must be an array"),
    **dict.fromkeys(("set_type", "frozen_set_type"), "must be an array"),
    **dict.fromkeys(("string_type", "string_unicode", "bytes_type"), "must be a string"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be an integer"),
    "int_parsing_size": "must be an integer of fewer digits",
    **dict.fromkeys(("float_type", "float_parsing", "decimal_type", "decimal_parsing"), "must be a number"),
    "finite_number": "must be a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "none_required": "must be null",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    **dict.fromkeys(("string_too_short", "bytes_too_short"), "must not be shorter than {min_length}"),
    **dict.fromkeys(("string_too_long", "bytes_too_long"), "must not be longer than {max_length}"),
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "too_short": "must not have fewer items than {min_length}",
    "too_long": "must not have more items than {max_length}",
    "datetime_type": _DATE_TIME,
    **dict.fromkeys(
        ("datetime_parsing", "datetime_from_date_parsing", "datetime_object_invalid"), f"{_DATE_TIME} ({{error}})"
    ),
    "date_type": _DATE,
    **dict.fromkeys(("date_parsing", "date_from_datetime_parsing"), f"{_DATE} ({{error}})"),
    "date_from_datetime_inexact": "must be a date without a time",
    "time_type": _TIME,
    "time_parsing": f"{_TIME} ({{error}})",
    "time_delta_type": _DURATION,
    "time_delta_parsing": f"{_DURATION} ({{error}})",
    "timezone_naive": "must have no time zone",
    "timezone_aware": "must have a time zone",
    **dict.fromkeys(("uuid_type", "uuid_parsing"), "must be a UUID"),
    **dict.fromkeys(("url_type", "url_parsing", "url_syntax_violation"), _URL),
    **dict.fromkeys(("is_instance_of", "is_subclass_of", "callable_type"), "is of a form that is not allowed"),
    "recursion_loop": "is nested in itself",
    "json_type": "must be a string of JSON",
    "json_invalid": "not valid JSON: {error}",
}
"""What is expected, by the type of pydantic's error."""

_VALUE_TYPES = ("literal_error", "enum")
_DEVELOPER_PREFIXES = ("Value error, ", "Assertion failed, ")
_DEVELOPER_TYPES = ("value_error", "assertion_error")
_ABOUT_PYTHON = re.compile(r"<class|https?://|`|[Pp]ython")
_PYDANTIC_OPENING = re.compile(r"(?:Input|Decimal input|String|Bytes) should ")
_NO_MATCH = "matches none of the allowed forms"
_KEY_MARKER = "[key]"
"""Pydantic adds this to the location of a field whose name is invalid."""
_QUOTED = re.compile(r"'[^']+'")
_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,]+""")


FieldPath = tuple[str | int, ...]
_Route = tuple[tuple[str | int, bool], ...]
"""The keys of a pydantic location, and whether each is a key of the data; others are names of union forms."""


class _Detail(NamedTuple):
    """A problem, the type of pydantic's error, and the union forms on its path as (length of the path, form)."""

    problem: ArgumentProblem
    kind: str
    forms: tuple[tuple[int, str | int], ...] = ()


def problems_of(error: ValidationError, data: Any) -> tuple[list[ArgumentProblem], list[FieldPath]]:
    """Return what is wrong with `data`, and the paths of values that are null and must not be.

    The paths include those in every form of a union, not only in the form that the problems describe. There are no
    paths if pydantic reports more than 1,000 errors.
    """
    errors = error.errors(include_url=False)
    details = [_locate(entry, data) for entry in errors[:_MAX_ERRORS]]
    nulls = null_paths_of(detail.problem for detail in details) if len(errors) == len(details) else []
    return _merge_problems(details), nulls


def null_paths_of(problems: Iterable[ArgumentProblem]) -> list[FieldPath]:
    """Return the paths of values that are null and must not be."""
    return [problem.path for problem in problems if problem.value is None and problem.path]


def _locate(error: Mapping[str, Any], data: Any) -> _Detail:
    kind, location, value = error["type"], error["loc"], error["input"]
    missing = location[-1:] if _TEXTS.get(kind) == "is required" else ()
    path: FieldPath = ()
    forms = []
    for key, is_in_data in _route(location[: len(location) - len(missing)], data, value):
        if is_in_data:
            path = (*path, key)
        else:
            forms.append((len(path), key))
    field, text = _field_and_text(error)
    return _Detail(ArgumentProblem((*path, *missing, *field), text, value), kind, tuple(forms))


# The route to a field: pydantic's locations also contain names that are not in the data, such as forms of a union.


def _route(location: Sequence[str | int], data: Any, value: Any) -> _Route:
    """Return the route that a pydantic location of `value` stands for."""
    if _KEY_MARKER in location:
        return next(_routes(location[: location.index(_KEY_MARKER)], data))[0]
    for route, end in islice(_routes(location, data), _MAX_ROUTES):
        if type(end) is type(value) and end == value:
            return route
    # a validator of the developer changed the data: treat the keys as keys of the data
    return tuple((key, True) for key in location if "[" not in str(key))


def _routes(location: Sequence[str | int], data: Any) -> Iterator[tuple[_Route, Any]]:
    """Yield the routes that a location may stand for, and the values at their ends."""
    if not location:
        yield (), data
        return
    key, rest = location[0], location[1:]
    if _has_key(data, key):
        for route, end in _routes(rest, data[key]):
            yield ((key, True), *route), end
    for route, end in _routes(rest, data):
        yield ((key, False), *route), end


def _has_key(data: Any, key: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(key, int) and 0 <= key < len(data)
    return isinstance(data, dict) and key in data


# Unions: pydantic reports for each form why the value does not match it.


def _merge_problems(details: Sequence[_Detail]) -> list[ArgumentProblem]:
    groups: dict[Any, list[_Detail]] = {}
    for index, detail in enumerate(details):
        groups.setdefault(detail.problem.path[: detail.forms[0][0]] if detail.forms else index, []).append(detail)
    return [problem for group in groups.values() for problem in _merge_group(group)]


def _merge_group(details: Sequence[_Detail]) -> list[ArgumentProblem]:
    if not details[0].forms:
        return [details[0].problem]
    forms: dict[str | int, list[_Detail]] = {}
    for detail in details:
        forms.setdefault(detail.forms[0][1], []).append(detail._replace(forms=detail.forms[1:]))
    return _merge_union(details[0].problem.path[: details[0].forms[0][0]], list(forms.values()))


def _merge_union(path: FieldPath, forms: Sequence[Sequence[_Detail]]) -> list[ArgumentProblem]:
    """Return what all forms require, or the problems of the form that was most likely intended."""
    if all(len(form) == 1 and form[0].problem.path == path for form in forms):
        candidates = forms
    else:
        candidates = [form for form in forms if not _is_of_another_type(path, form)] or forms
    problems = [_merge_problems(form) for form in candidates]
    if shared := _shared_problems(problems):
        return shared
    distances = [_distance(form) for form in candidates]
    nearest = [form for form, distance in zip(problems, distances, strict=True) if distance == min(distances)]
    return (
        nearest[0]
        if len(nearest) == 1
        else [ArgumentProblem(path, f"{_NO_MATCH}: {_alternatives(path, nearest)}", None)]
    )


def _is_of_another_type(path: FieldPath, form: Sequence[_Detail]) -> bool:
    return any(detail.problem.path == path and detail.kind.endswith("_type") for detail in form)


def _distance(form: Sequence[_Detail]) -> tuple[int, int]:
    """Rank a form by its distance from the value: another constant, then invalid details."""
    return sum(detail.kind in _VALUE_TYPES for detail in form), len(form)


def _shared_problems(forms: Sequence[Sequence[ArgumentProblem]]) -> list[ArgumentProblem]:
    """Return one problem for each field that is invalid in every form, if one sentence covers all forms."""
    by_path = [{problem.path: problem for problem in problems} for problems in forms]
    problems_by_path = [[form.get(path) for form in by_path] for path in by_path[0]]
    combinations = map(_combine, problems_by_path)
    return [problem for problem in combinations if problem is not None]


def _combine(problems: Sequence[ArgumentProblem | None]) -> ArgumentProblem | None:
    reported = [problem for problem in problems if problem is not None]
    texts = list(dict.fromkeys(problem.text for problem in reported))
    if len(reported) < len(problems):
        return None
    if len(texts) > 1 and not all(text.startswith("must be ") for text in texts):
        return None
    expectations = [text.removeprefix("must be ") for text in texts[1:]]
    return reported[0]._replace(text=" or ".join([texts[0], *expectations]))


def _alternatives(path: FieldPath, forms: Sequence[Sequence[ArgumentProblem]]) -> str:
    texts = [
        " and ".join(f"{'.'.join(map(str, place[len(path) :])) or 'it'} {text}" for place, text, _ in form[:_MAX_FORMS])
        for form in forms[:_MAX_FORMS]
    ]
    return ", or else ".join(texts)


# The texts.


def _field_and_text(error: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the text of a problem, and before it the field within the value that it is about, if any."""
    kind, context = error["type"], error.get("ctx", {})
    if not kind.startswith("union_tag_"):
        text = _text(kind, context, error["msg"])
        return (), f"is not an allowed field name: it {text}" if _KEY_MARKER in error["loc"] else text
    name = context.get("discriminator", "")
    if not _QUOTED.fullmatch(name):
        return (), _NO_MATCH
    return (name[1:-1],), "is required" if kind == "union_tag_not_found" else _list_allowed(context["expected_tags"])


def _text(kind: str, context: Mapping[str, Any], message: str) -> str:
    with suppress(KeyError):  # a developer's custom error may have the type of one of pydantic's
        return _list_allowed(context["expected"]) if kind in _VALUE_TYPES else _TEXTS[kind].format_map(context)
    if kind not in _DEVELOPER_TYPES and _ABOUT_PYTHON.search(message):
        return "is not valid"
    for prefix in _DEVELOPER_PREFIXES:
        message = message.removeprefix(prefix)
    return _PYDANTIC_OPENING.sub("must ", message, count=1).strip() or "is not valid"


def _list_allowed(expected: str) -> str:
    """Return the allowed values as JSON; pydantic lists them as Python: `'a', 'b' or None`."""
    values = []
    for literal in _LITERAL.findall(expected):
        with suppress(ValueError, SyntaxError, TypeError):
            values.append(json.dumps(ast.literal_eval(literal), ensure_ascii=False))
    if len(values) == 1:
        return f"must be {values[0]}"
    alternatives = [*values[:_MAX_LISTED], *(["..."] if len(values) > _MAX_LISTED else [])]
    return f"must be one of: {', '.join(alternatives)}" if alternatives else "is none of the allowed values"
