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
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from pydantic import ValidationError

from traced_tools._made_once import MadeOnce
from traced_tools.errors import InvalidArguments
from traced_tools.telemetry.words import Repair
from traced_tools.tools.definition import ToolDefinition
from traced_tools.tools.fields import is_optional
from traced_tools.tools.json_schema import UNKNOWN_FIELD, Problem, SchemaCheck
from traced_tools.tools.problems import FieldPath, nulls_of, problems_of

_FENCE = "```"
_FENCE_OPENING = re.compile(r"``` *[\w-]*")
_MOST_PROBLEMS = 10
_MOST_WRAPPINGS = 3
_MOST_NULL_PASSES = 10
_LONGEST_PATH = 200


class Misfit(Exception):
    """Arguments that do not fit.

    Args:
        problems: what is told about it.
        nulls: the paths of what is null and must not be.
    """

    def __init__(self, problems: Sequence[Problem], nulls: Sequence[FieldPath] = ()) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems
        self.nulls = nulls


class Bound(NamedTuple):
    """Arguments that fit: what a tool's step needs of them, and what had to be mended."""

    value: Any
    repairs: tuple[Repair, ...] = ()


def bound(check: Callable[[str], Any], arguments: str, schema: Mapping[str, Any]) -> Bound:
    """Return what `check` makes of JSON text, mended if need be.

    Args:
        check: returns what the text stands for; raises `Misfit`.
        arguments: what the model wrote.
        schema: what the model was told of them.

    Raises:
        InvalidArguments: when the text does not fit, mended or not.
    """
    repairs: tuple[Repair, ...] = ()
    text, found = arguments, _tried(check, arguments)
    if isinstance(found, Misfit):
        text, repairs = unwrapped(arguments)
        found = _tried(check, text) if repairs else found
    if not isinstance(found, Misfit):
        return Bound(found, repairs)
    mended = _without_nulls(check, text, found, schema)
    if isinstance(mended, Misfit):
        raise InvalidArguments(_told(found.problems))
    return Bound(mended, (*repairs, "null_fields"))


def _tried(check: Callable[[str], Any], text: str) -> Any:
    """Return what `check` makes of JSON text, or the `Misfit` that it raises."""
    try:
        return check(text)
    except Misfit as misfit:
        return misfit


class SchemaArguments:
    """Arguments of a tool that has only a JSON Schema; they are checked strictly by it.

    Args:
        schema: the JSON Schema.
        tool: the tool's name, for the log.
        reserved: names of fields that are not the model's to give, whatever the schema says.
    """

    def __init__(self, schema: Mapping[str, Any], tool: str, reserved: Collection[str] = ()) -> None:
        self._schema = SchemaCheck(schema, tool)
        self._reserved = reserved

    def check(self, text: str) -> dict[str, Any]:
        """Return the object that JSON text stands for; raises `Misfit`."""
        value = read_json(text)
        if not isinstance(value, dict):
            raise Misfit([Problem((), "must be a JSON object", value)])
        if problems := self._schema.problems(value):
            raise Misfit(problems, nulls_of(problems))
        if taken := [name for name in self._reserved if name in value]:
            raise Misfit([Problem((name,), UNKNOWN_FIELD, value[name]) for name in taken])
        return value


def _arguments_of(definition: ToolDefinition) -> SchemaArguments:
    return SchemaArguments(definition.input_schema, definition.name)


schema_arguments = MadeOnce(_arguments_of)
"""Returns the arguments of a tool with a given definition: a provider gives the same tool for each run."""


def misfit(error: ValidationError, text: str) -> Misfit:
    """Return what pydantic found wrong with JSON `text`, field by field."""
    try:
        data = read_json(text)
    except Misfit as unreadable:
        return unreadable
    return Misfit(*problems_of(error, data))


def unwrapped(text: str) -> tuple[str, tuple[Repair, ...]]:
    """Return arguments taken out of whatever they are wrapped in, and the repairs that this takes."""
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
        inner = _string(text)
        return (text, None) if inner is None else (inner, "string")
    opening = _FENCE_OPENING.match(text)
    if opening and text.endswith(_FENCE, opening.end()):
        return text[opening.end() : -len(_FENCE)], "code_fence"
    return text, None


def _string(text: str) -> str | None:
    try:
        inner = read_json(text)
    except Misfit:
        return None
    return inner if isinstance(inner, str) else None


def _without_nulls(check: Callable[[str], Any], text: str, misfit: Misfit, schema: Mapping[str, Any]) -> Any:
    """Return what `check` makes of JSON text without the optional fields that are null and must not be, or a `Misfit`.

    A check may not tell of all of them at once.
    """
    found: Any = misfit
    for _ in range(_MOST_NULL_PASSES):
        nulls = [path for path in found.nulls if is_optional(schema, path)]
        data = read_json(text) if nulls else None
        if not sum(_drop_null(data, path) for path in nulls):
            break
        text = json.dumps(data, ensure_ascii=False)
        found = _tried(check, text)
        if not isinstance(found, Misfit):
            break
    return found


def _drop_null(data: Any, path: FieldPath) -> bool:
    for key in path[:-1]:
        try:
            data = data[key]
        except (TypeError, LookupError):
            return False
    if not isinstance(data, dict) or data.get(path[-1], False) is not None:
        return False
    del data[path[-1]]
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse)


def read_json(text: str) -> Any:
    """Return the value that JSON text stands for; raises `Misfit`."""
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError as error:
        words = f"not valid JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except RecursionError:
        words = "is nested too deeply"
    except ValueError:
        words = "not valid JSON: a number in it is not finite, or too long"
    raise Misfit([Problem((), words, text)])


def _told(problems: Sequence[Problem]) -> str:
    told = [f"{_place(path)}: {text}" for path, text, _ in problems[:_MOST_PROBLEMS]]
    return "; ".join(dict.fromkeys(told))


def _place(path: FieldPath) -> str:
    return ".".join(map(str, path))[:_LONGEST_PATH] or "arguments"
