r"""From the JSON text that a model writes to the arguments that a tool takes, and the repairs on the way.

Models do not always send a JSON object that fits. What they send instead is repaired in this order, and each repair is
named on the span:

    blank             nothing, for a tool that is called without arguments      ""                  -> {}
    null              JSON's null, likewise                                     null                -> {}
    string            the object written as a JSON string                       "{\"a\": 1}"          -> {"a": 1}
    code_fence        the object in a Markdown fence                            ```json {"a": 1}``` -> {"a": 1}
    null_fields       null for a field that may be left out but not be null     {"a": 1, "b": null} -> {"a": 1}
    number_as_string  a number for a field that must be a string                {"a": 1.10}         -> {"a": "1.10"}
    json_string       an array or object, written as a JSON string              {"a": "[1]"}        -> {"a": [1]}
    dummy_argument    a placeholder for a tool that takes no arguments          {"dummy": ""}       -> {}

Nothing else is guessed: the model gets an error for each field that still does not fit. Policies and the audit digests
use the arguments that the tool is called with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isinf
from typing import Any, NamedTuple, NoReturn

from pydantic import ValidationError

from traced_tools.core.canonical import is_nested_deeply
from traced_tools.core.enums import Repair
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import InvalidArguments
from traced_tools.tools.schema.fields import field_names, is_optional, types_at
from traced_tools.tools.schema.json_schema import UNKNOWN_FIELD, ArgumentProblem, SchemaCheck
from traced_tools.tools.schema.problems import FieldPath, null_paths_of, problems_of
from traced_tools.tools.unwrapping import unwrap_arguments

_DUMMY_NAME = re.compile(r"_*(?:dummy\w*|no_?op|none|null|nothing|empty|placeholder|unused|random_string)?_*")
_MOST_PROBLEMS = 10
_MOST_PASSES = 10
_LONGEST_PATH = 200


class ArgumentValidationError(Exception):
    """Arguments that do not fit.

    Args:
        problems: what is told about it.
        nulls: the paths of what is null and must not be.
    """

    def __init__(self, problems: Sequence[ArgumentProblem], nulls: Sequence[FieldPath] = ()) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems
        self.nulls = nulls

    @classmethod
    def from_pydantic_error(cls, error: ValidationError, text: str) -> ArgumentValidationError:
        """Return what pydantic found wrong with the JSON `text`, field by field."""
        try:
            data = read_json(text)
        except cls as unreadable:
            return unreadable
        return cls(*problems_of(error, data))


class BoundArguments(NamedTuple):
    """Arguments that fit.

    Attributes:
        value: what a tool's step needs of them.
        repairs: what had to be repaired.
        text: the JSON text that fitted, after the repairs.
    """

    value: Any
    repairs: tuple[Repair, ...] = ()
    text: str = "{}"


def bind_arguments(check: Callable[[str], Any], arguments: str, schema: Mapping[str, Any]) -> BoundArguments:
    """Return what `check` makes of JSON text, repaired if need be.

    Args:
        check: returns what the text stands for; raises `ArgumentValidationError`.
        arguments: what the model wrote.
        schema: the JSON Schema that the model was sent.

    Raises:
        InvalidArguments: when the text does not fit, repaired or not.
    """
    repairs: tuple[Repair, ...] = ()
    text, found = arguments, _tried(check, arguments)
    if isinstance(found, ArgumentValidationError):
        text, repairs = unwrap_arguments(arguments)
        found = _tried(check, text) if repairs else found
    unrepaired = found
    for _ in range(_MOST_PASSES):  # a check may not report all problems at once
        if not isinstance(found, ArgumentValidationError):
            return BoundArguments(found, repairs, text)
        text, made = _with_fields_repaired(text, found, schema)
        if not made:
            break
        repairs += tuple(repair for repair in dict.fromkeys(made) if repair not in repairs)
        found = _tried(check, text)
    if isinstance(found, ArgumentValidationError):
        raise InvalidArguments(_told(unrepaired.problems))  # all that was wrong with what the model wrote
    return BoundArguments(found, repairs, text)


def _tried(check: Callable[[str], Any], text: str) -> Any:
    """Return what `check` makes of JSON text, or the `ArgumentValidationError` that it raises."""
    try:
        return check(text)
    except ArgumentValidationError as error:
        return error


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
        """Return the object that JSON text stands for; raises `ArgumentValidationError`."""
        value = read_json(text)
        if not isinstance(value, dict):
            raise ArgumentValidationError([ArgumentProblem((), "must be a JSON object", value)])
        if problems := self._schema.problems(value):
            raise ArgumentValidationError(problems, null_paths_of(problems))
        if taken := [name for name in self._reserved if name in value]:
            raise ArgumentValidationError([ArgumentProblem((name,), UNKNOWN_FIELD, value[name]) for name in taken])
        return value

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return `value`, which is JSON already."""
        return value


def _arguments_of(definition: ToolDefinition) -> SchemaArguments:
    return SchemaArguments(definition.input_schema, definition.name)


schema_arguments = IdentityCache(_arguments_of)
"""Returns the arguments of a tool with a given definition: a provider gives the same tool for each run."""


def _with_fields_repaired(
    text: str, error: ArgumentValidationError, schema: Mapping[str, Any]
) -> tuple[str, list[Repair]]:
    """Return JSON text with the fields repaired that `error` names, and the repairs, none if no field can be."""
    try:
        data = _LITERAL.decode(text)
    except (ValueError, RecursionError):
        return text, []
    repairs: list[Repair] = []
    for path in error.nulls:
        if is_optional(schema, path) and _drop_null(data, path):
            repairs.append("null_fields")
    for problem in error.problems:
        if (repair := _repaired_field(data, problem.path, schema)) is not None:
            repairs.append(repair)
    if _is_dummy(data) and not field_names(schema):
        data.clear()
        repairs.append("dummy_argument")
    return json.dumps(data, ensure_ascii=False) if repairs else text, repairs


def _drop_null(data: Any, path: FieldPath) -> bool:
    holder = _holder(data, path)
    if not isinstance(holder, dict) or holder.get(path[-1], False) is not None:
        return False
    del holder[path[-1]]
    return True


def _repaired_field(data: Any, path: FieldPath, schema: Mapping[str, Any]) -> Repair | None:
    """Write the field at `path` as the schema wants it, if it is a number for a string or JSON in a string."""
    holder = _holder(data, path)
    try:
        value = holder[path[-1]]
    except (TypeError, LookupError):
        return None
    expected = types_at(schema, path)
    if type(value) in (int, _Fraction) and "string" in expected and expected.isdisjoint(("number", "integer")):
        holder[path[-1]] = str(value)
        return "number_as_string"
    if type(value) is str and "string" not in expected:
        inner = _structure(value)
        if inner is not None and ("array" if isinstance(inner, list) else "object") in expected:
            holder[path[-1]] = inner
            return "json_string"
    return None


def _holder(data: Any, path: FieldPath) -> Any:
    """Return the object or array that holds the field at `path`; None if there is none, as for the whole."""
    if not path:
        return None
    for key in path[:-1]:
        try:
            data = data[key]
        except (TypeError, LookupError):
            return None
    return data


def _structure(text: str) -> Any:
    """Return the array or object that JSON text stands for, else None."""
    try:
        value = _LITERAL.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _is_dummy(data: Any) -> bool:
    """Whether arguments are one placeholder, as models send that cannot call a tool without arguments.

    Any other argument is not a placeholder: the model intends it, and must get the error that the tool has no such
    field.
    """
    if not isinstance(data, dict) or len(data) != 1:
        return False
    ((name, value),) = data.items()
    return value in (None, "", {}, []) or _DUMMY_NAME.fullmatch(name) is not None


class _Fraction(float):
    """A number with a fraction or an exponent, as the model wrote it: `1.10` is a version and not `1.1`."""

    def __new__(cls, written: str) -> _Fraction:
        """Keep how the number is written."""
        self = super().__new__(cls, written)
        self._written = written
        return self

    _written: str

    def __str__(self) -> str:
        return self._written


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(written: str) -> float:
    number = float(written)
    if isinf(number):
        raise ValueError("beyond a double")
    return number


_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_LITERAL = json.JSONDecoder(parse_constant=_refuse, parse_float=_Fraction)


def read_json(text: str) -> Any:
    """Return the value that JSON text stands for; raises `ArgumentValidationError`."""
    try:
        value = _JSON.decode(text)
        if not is_nested_deeply(text, value):
            return value
        words = "is nested too deeply"
    except json.JSONDecodeError as error:
        words = f"not valid JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except RecursionError:
        words = "is nested too deeply"
    except ValueError:
        words = "not valid JSON: a number in it is not finite, or too long"
    raise ArgumentValidationError([ArgumentProblem((), words, text)])


def deduplicate_keys(text: str) -> str:
    """Return JSON text unchanged, or rewritten with the last value of each repeated key.

    Parsers differ in which of the two they read, so a tool might read another one than was checked.
    """
    repeated = False

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        found = dict(pairs)
        repeated = repeated or len(found) < len(pairs)
        return found

    value = json.loads(text, object_pairs_hook=read_object)
    return json.dumps(value) if repeated else text


def _told(problems: Sequence[ArgumentProblem]) -> str:
    told = [f"{_place(path)}: {text}" for path, text, _ in problems[:_MOST_PROBLEMS]]
    return "; ".join(dict.fromkeys(told))


def _place(path: FieldPath) -> str:
    return ".".join(map(str, path))[:_LONGEST_PATH] or "arguments"
