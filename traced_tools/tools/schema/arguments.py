r"""Validates the JSON text that a model writes as a tool's arguments, and repairs common mistakes.

Models do not always send a valid JSON object. Mistakes are repaired in this order, and the span lists each repair:

    blank             no text, for a call without arguments                     ""                  -> {}
    null              null, for a call without arguments                        null                -> {}
    string            the object written as a JSON string                       "{\"a\": 1}"          -> {"a": 1}
    code_fence        the object in a Markdown fence                            ```json {"a": 1}``` -> {"a": 1}
    empty_object      an empty object before or after the object                {}{"a": 1}          -> {"a": 1}
    null_fields       null for a field that is optional but not nullable        {"a": 1, "b": null} -> {"a": 1}
    number_as_string  a number for a field that must be a string                {"a": 1.10}         -> {"a": "1.10"}
    json_string       an array or object, written as a JSON string              {"a": "[1]"}        -> {"a": [1]}
    dummy_argument    a placeholder for a tool that takes no arguments          {"dummy": ""}       -> {}

Nothing else is guessed: the model gets an error for each field that is still invalid. Policies and the audit digests
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
from traced_tools.core.unwrapping import unwrap_arguments
from traced_tools.errors import InvalidArguments
from traced_tools.tools.schema.fields import field_names, is_optional, types_at
from traced_tools.tools.schema.json_schema import UNKNOWN_FIELD, ArgumentProblem, SchemaCheck
from traced_tools.tools.schema.problems import FieldPath, null_paths_of, problems_of

_DUMMY_NAME = re.compile(r"_*(?:dummy\w*|no_?op|none|null|nothing|empty|placeholder|unused|random_string)?_*")
_MAX_PROBLEMS = 10
_MAX_REPAIR_ROUNDS = 10
_MAX_PATH_LENGTH = 200


class ArgumentValidationError(Exception):
    """Arguments are invalid; internal, callers get `InvalidArguments`.

    Args:
        problems: what is wrong, field by field.
        nulls: the paths of values that are null and must not be.
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
    """Validated arguments.

    Attributes:
        value: what the tool's step takes: keyword arguments, or JSON text for a custom tool.
        repairs: the repairs that were made.
        text: the valid JSON text, after the repairs.
    """

    value: Any
    repairs: tuple[Repair, ...] = ()
    text: str = "{}"


def bind_arguments(check: Callable[[str], Any], arguments: str, schema: Mapping[str, Any]) -> BoundArguments:
    """Validate arguments, and repair them if they are invalid.

    Args:
        check: converts JSON text into the arguments; raises `ArgumentValidationError`.
        arguments: the text that the model wrote.
        schema: the JSON Schema that was sent to the model.

    Raises:
        InvalidArguments: if the text is still invalid after the repairs.
    """
    try:
        return BoundArguments(check(arguments), (), arguments)
    except ArgumentValidationError as error:
        outcome: Any = error
    text, repairs = unwrap_arguments(arguments)
    outcome = _try_check(check, text) if repairs else outcome
    unrepaired = outcome
    for _ in range(_MAX_REPAIR_ROUNDS):  # a check may report only some problems at a time
        if not isinstance(outcome, ArgumentValidationError):
            return BoundArguments(outcome, repairs, text)
        text, fixes = _repair_fields(text, outcome, schema)
        if not fixes:
            break
        repairs += tuple(repair for repair in dict.fromkeys(fixes) if repair not in repairs)
        outcome = _try_check(check, text)
    if isinstance(outcome, ArgumentValidationError):
        raise InvalidArguments(_summarize(unrepaired.problems))  # the problems of what the model wrote
    return BoundArguments(outcome, repairs, text)


def _try_check(check: Callable[[str], Any], text: str) -> Any:
    """Return what `check` returns, or the `ArgumentValidationError` that it raises."""
    try:
        return check(text)
    except ArgumentValidationError as error:
        return error


class SchemaArguments:
    """Reads the arguments of a tool that has only a JSON Schema, which validates them strictly.

    Args:
        schema: the JSON Schema.
        tool: the tool's name, for the log.
        reserved: names of fields that the model must not pass, even if the schema allows them.
    """

    def __init__(self, schema: Mapping[str, Any], tool: str, reserved: Collection[str] = ()) -> None:
        self._schema = SchemaCheck(schema, tool)
        self._reserved = reserved

    def check(self, text: str) -> dict[str, Any]:
        """Return the object in JSON text; raise `ArgumentValidationError` if it is invalid."""
        value = read_json(text)
        if not isinstance(value, dict):
            raise ArgumentValidationError([ArgumentProblem((), "must be a JSON object", value)])
        if problems := self._schema.problems(value):
            raise ArgumentValidationError(problems, null_paths_of(problems))
        if names := [name for name in self._reserved if name in value]:
            raise ArgumentValidationError([ArgumentProblem((name,), UNKNOWN_FIELD, value[name]) for name in names])
        return value

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return `value`, which is already JSON."""
        return value


def _schema_arguments(definition: ToolDefinition) -> SchemaArguments:
    return SchemaArguments(definition.input_schema, definition.name)


schema_arguments = IdentityCache(_schema_arguments)
"""Returns the `SchemaArguments` of a definition, cached because providers return the same tool for each run."""


def _repair_fields(text: str, error: ArgumentValidationError, schema: Mapping[str, Any]) -> tuple[str, list[Repair]]:
    """Repair the fields that `error` names; return the JSON text and the repairs, which may be none."""
    try:
        data = _LITERAL.decode(text)
    except (ValueError, RecursionError):
        return text, []
    repairs: list[Repair] = []
    for path in error.nulls:
        if is_optional(schema, path) and _drop_null(data, path):
            repairs.append("null_fields")
    for problem in error.problems:
        if (repair := _repair_field(data, problem.path, schema)) is not None:
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


def _repair_field(data: Any, path: FieldPath, schema: Mapping[str, Any]) -> Repair | None:
    """Repair the field at `path` if it is a number that must be a string, or JSON in a string."""
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
        inner = _decode_structure(value)
        if inner is not None and ("array" if isinstance(inner, list) else "object") in expected:
            holder[path[-1]] = inner
            return "json_string"
    return None


def _holder(data: Any, path: FieldPath) -> Any:
    """Return the object or array that contains the field at `path`; None if there is none or the path is empty."""
    if not path:
        return None
    for key in path[:-1]:
        try:
            data = data[key]
        except (TypeError, LookupError):
            return None
    return data


def _decode_structure(text: str) -> Any:
    """Return the array or object in JSON text, or None."""
    try:
        value = _LITERAL.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _is_dummy(data: Any) -> bool:
    """Return whether arguments are one placeholder, which some models send because they cannot omit all arguments.

    Any other argument is intended, so the model must get the error that the tool has no such field.
    """
    if not isinstance(data, dict) or len(data) != 1:
        return False
    ((name, value),) = data.items()
    return value in (None, "", {}, []) or _DUMMY_NAME.fullmatch(name) is not None


class _Fraction(float):
    """A number with a fraction or an exponent whose `str` is what the model wrote: the version `1.10` is not `1.1`."""

    def __new__(cls, literal: str) -> _Fraction:
        """Store the text of the number."""
        self = super().__new__(cls, literal)
        self._literal = literal
        return self

    _literal: str

    def __str__(self) -> str:
        return self._literal


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(literal: str) -> float:
    number = float(literal)
    if isinf(number):
        raise ValueError("number too large for a double")
    return number


_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_LITERAL = json.JSONDecoder(parse_constant=_refuse, parse_float=_Fraction)


def read_json(text: str) -> Any:
    """Return the value of JSON text; raise `ArgumentValidationError` if it is invalid or nested too deeply."""
    try:
        value = _JSON.decode(text)
        if not is_nested_deeply(text, value):
            return value
        problem = "is nested too deeply"
    except json.JSONDecodeError as error:
        problem = f"not valid JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except RecursionError:
        problem = "is nested too deeply"
    except ValueError:
        problem = "not valid JSON: a number in it is not finite, or too long"
    raise ArgumentValidationError([ArgumentProblem((), problem, text)])


def deduplicate_keys(text: str) -> str:
    """Return JSON text unchanged, or rewritten with only the last value of each repeated key.

    Parsers differ in which value they use, so a tool might otherwise get a value that was not validated.
    """
    repeated = False

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        members = dict(pairs)
        repeated = repeated or len(members) < len(pairs)
        return members

    value = json.loads(text, object_pairs_hook=read_object)
    return json.dumps(value) if repeated else text


def _summarize(problems: Sequence[ArgumentProblem]) -> str:
    lines = [
        f"{'.'.join(map(str, path))[:_MAX_PATH_LENGTH] or 'arguments'}: {text}"
        for path, text, _ in problems[:_MAX_PROBLEMS]
    ]
    return "; ".join(dict.fromkeys(lines))
