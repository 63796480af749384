r"""From the JSON text a model wrote to the arguments a tool takes, and what is mended on the way.

Models do not always send a JSON object. When what they sent does not fit as it is, this is tried, in this order, and
noted as a *repair*:

    blank        nothing, for a tool that is called without arguments     ""                  -> {}
    null         JSON's null, likewise                                    null                -> {}
    string       the object written as a JSON string                      "{\"a\": 1}"          -> {"a": 1}
    code_fence   the object in a Markdown fence                           ```json {"a": 1}``` -> {"a": 1}
    null_fields  null for a field that may be left out but not be null    {"a": 1, "b": null} -> {"a": 1}

Nothing else is guessed: what still does not fit is told to the model, field by field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic import ValidationError

from traced_tools.errors import InvalidArguments
from traced_tools.telemetry.names import Repair
from traced_tools.tools.json_schema import Problem, SchemaCheck

_FENCE = re.compile(r"```[\w-]*\s*(.*?)\s*```", re.DOTALL)
_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
_MOST_PROBLEMS = 10
_MOST_WRAPPINGS = 3
_NO_JSON = object()


class Misfit(Exception):
    """Arguments that do not fit, and where."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems


class Bound(NamedTuple):
    """Arguments that fit: what a tool's step needs of them, and what had to be mended."""

    value: Any
    repairs: tuple[Repair, ...] = ()


def bound(check: Callable[[str], Any], arguments: str) -> Bound:
    """Return what `check` makes of JSON text, mended if need be.

    Args:
        check: returns what the text stands for; raises `Misfit`.
        arguments: what the model wrote.

    Raises:
        InvalidArguments: when the text does not fit, mended or not.
    """
    try:
        return Bound(check(arguments))
    except Misfit as misfit:
        problems = misfit.problems
    text, repairs = _unwrapped(arguments)
    if repairs:
        try:
            return Bound(check(text), repairs)
        except Misfit as misfit:
            problems = misfit.problems
    without_nulls = _without_nulls(text, problems)
    if without_nulls is not None:
        with suppress(Misfit):
            return Bound(check(without_nulls), (*repairs, "null_fields"))
    raise InvalidArguments(_told(problems))


class SchemaArguments:
    """Arguments of a tool that has only a JSON Schema; they are checked strictly by it.

    Args:
        schema: the JSON Schema.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = SchemaCheck(schema)

    def check(self, text: str) -> dict[str, Any]:
        """Return the object that JSON text stands for; raises `Misfit`."""
        value = _parsed(text)
        if not isinstance(value, dict):
            words = "not valid JSON" if value is _NO_JSON else "must be a JSON object"
            raise Misfit([Problem((), words, value)])
        if problems := self._schema.problems(value):
            raise Misfit(problems)
        return value


def misfit(error: ValidationError, text: str) -> Misfit:
    """Return what pydantic found wrong with JSON `text`, field by field."""
    data = _parsed(text)
    if data is _NO_JSON:
        return Misfit([Problem((), "not valid JSON", _NO_JSON)])
    found = error.errors(include_url=False, include_context=False)
    return Misfit([Problem(_path(each["loc"], data), _words(each), each["input"]) for each in found])


def _words(found: Mapping[str, Any]) -> str:
    return "is not a known field" if found["type"] in _UNKNOWN_FIELD else found["msg"]


def _path(location: Iterable[str | int], data: Any) -> tuple[str | int, ...]:
    """Return the way to a field through the data, without pydantic's names for the kinds of a union."""
    path: list[str | int] = []
    missing: tuple[str | int, ...] = ()
    for key in location:
        try:
            data = data[key]
        except (TypeError, LookupError):
            missing = (key,) if isinstance(data, dict) else ()
        else:
            path.append(key)
            missing = ()
    return (*path, *missing)


def _unwrapped(text: str) -> tuple[str, tuple[Repair, ...]]:
    repairs: list[Repair] = []
    for _ in range(_MOST_WRAPPINGS):
        text, repair = _unwrapped_once(text.strip())
        if repair is None:
            break
        repairs.append(repair)
    return text, tuple(repairs)


def _unwrapped_once(text: str) -> tuple[str, Repair | None]:
    if not text:
        return "{}", "blank"
    if text == "null":
        return "{}", "null"
    if text.startswith('"'):
        inner = _parsed(text)
        return (inner, "string") if isinstance(inner, str) else (text, None)
    fenced = _FENCE.fullmatch(text)
    return (fenced[1], "code_fence") if fenced else (text, None)


def _without_nulls(text: str, problems: Iterable[Problem]) -> str | None:
    """Return the arguments without the fields that are null and must not be; None when there are none."""
    data = _parsed(text)
    dropped = [problem.path for problem in problems if problem.value is None and _drop_null(data, problem.path)]
    return json.dumps(data, ensure_ascii=False) if dropped else None


def _drop_null(data: Any, path: Sequence[str | int]) -> bool:
    if not path:
        return False
    for key in path[:-1]:
        try:
            data = data[key]
        except (TypeError, LookupError):
            return False
    if not isinstance(data, dict) or data.get(path[-1], False) is not None:
        return False
    del data[path[-1]]
    return True


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON


def _told(problems: Sequence[Problem]) -> str:
    told = [f"{'.'.join(map(str, path)) or 'arguments'}: {text}" for path, text, _ in problems[:_MOST_PROBLEMS]]
    return "; ".join(dict.fromkeys(told))
