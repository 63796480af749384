"""Conditions on arguments, and on attributes of the principal, as a policy file declares them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from operator import ge, gt, le, lt
from types import MappingProxyType
from typing import Any, Final

from traced_tools.core.canonical import canonical_text
from traced_tools.core.patterns import compile_pattern

Check = Callable[[Any], bool]

PRINCIPAL: Final = "principal"
"""The first name of keys that lead to attributes of the principal."""
_ABSENT: Final = object()
"""Stands for the value of an argument that a call does not have."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

_NAME: Final = r"(?:[^.\\]|\\[.\\])+"
_KEY: Final = re.compile(rf"{_NAME}(?:\.{_NAME})*", re.DOTALL)


class NoValueError(LookupError):
    """A call lacks a value that a condition is on."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on an argument or on an attribute of the principal, or on a member of an object in it.

    Attributes:
        path: the name of the argument, or `principal` and the name of the attribute, then the names of the members.
        operator: the name of the operator.
        operand: what the operator compares with, a JSON value.
        check: returns whether a value meets the condition; raises `NoValueError` if there is no value, and `TypeError`
            or `ValueError` if the operator cannot compare it.
    """

    path: tuple[str, ...]
    operator: str
    operand: Any = field(repr=False)
    check: Check = field(repr=False)

    @property
    def is_on_principal(self) -> bool:
        """Whether the condition is on an attribute of the principal.

        No argument can then meet it, whatever its name: the model writes the arguments.
        """
        return self.path[0] == PRINCIPAL and len(self.path) > 1

    def is_met(self, arguments: Mapping[str, Any], principal: Mapping[str, Any]) -> bool:
        """Return whether the arguments, or the attributes of the principal, meet it; raises what `check` raises."""
        value: Any = arguments
        names = self.path
        if self.is_on_principal:
            value, names = principal, names[1:]
        for name in names:
            if value is _ABSENT or value is None:
                value = _ABSENT
            elif isinstance(value, Mapping):
                value = value.get(name, _ABSENT)
            else:
                raise TypeError("only objects have members that a condition can be on")
        return self.check(value)

    def is_implied_by(self, other: Condition) -> bool:
        """Return whether each value that meets `other` certainly meets this condition.

        If so, this condition is never False for arguments for which `other` raises.
        """
        if self.path != other.path:
            return False
        if self.operator == other.operator and _are_equal(self.operand, other.operand):
            return True
        if "exists" in (self.operator, other.operator):
            return False
        if other.operator in ("eq", "in"):
            return all(map(self._accepts, [other.operand] if other.operator == "eq" else other.operand))
        is_inside = _BOUNDS_INSIDE.get((other.operator, self.operator))
        return is_inside is not None and is_inside(other.operand, self.operand)

    def _accepts(self, value: Any) -> bool:
        try:
            return self.check(value)
        except (NoValueError, TypeError, ValueError):
            return False


class ArgumentConditions:
    """The predicate that a call's arguments, and the attributes of its principal, meet every condition.

    It is False if one of the conditions is not met. Otherwise it raises if one cannot be checked: `TypeError` or
    `ValueError` if an operator cannot compare the value, such as text with a number; else `NoValueError` if there is no
    value to compare. A missing argument is no value, nor is null, except for `eq`, `in` and their negations.

    Args:
        conditions: for each argument, the operators with their operands. A dot in a key leads to a member of an object,
            as in `recipient.country`; a backslash makes a dot or a backslash a part of a name. A key that begins with
            `principal.` leads to an attribute of the principal, and never to an argument.

    Raises:
        ValueError: if a key or an operand is invalid or an operator is unknown; the text has what is accepted.

    Attributes:
        reads_arguments: whether there is a condition on an argument.
        reads_principal: whether there is a condition on an attribute of the principal.
    """

    def __init__(self, conditions: Mapping[str, Mapping[str, Any]]) -> None:
        self.conditions: Final = tuple(
            Condition(path_of(key), operator, operand, make_check(operator, operand))
            for key, operators in conditions.items()
            for operator, operand in operators.items()
        )
        self.reads_principal: Final = any(condition.is_on_principal for condition in self.conditions)
        self.reads_arguments: Final = not all(condition.is_on_principal for condition in self.conditions)

    def exclude(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the arguments do not meet a condition on them, so that the principal does not matter."""
        for condition in self.conditions:
            if not condition.is_on_principal:
                with suppress(NoValueError, TypeError, ValueError):
                    if not condition.is_met(arguments, _NOTHING):
                        return True
        return False

    def __call__(self, arguments: Mapping[str, Any], principal: Mapping[str, Any] = _NOTHING) -> bool:
        """Return whether the arguments, and the principal's attributes, meet every condition.

        Raise if that cannot be checked.
        """
        no_value: NoValueError | None = None
        failure: Exception | None = None
        for condition in self.conditions:
            try:
                if not condition.is_met(arguments, principal):
                    return False
            except NoValueError as error:
                no_value = error
            except (TypeError, ValueError) as error:
                failure = error
        if (failure := failure or no_value) is not None:
            raise failure
        return True

    def are_implied_by(self, others: ArgumentConditions) -> bool:
        """Return whether arguments that meet all of `others` certainly meet all of these conditions."""
        return all(any(own.is_implied_by(other) for other in others.conditions) for own in self.conditions)

    def require_values_of(self, others: ArgumentConditions) -> bool:
        """Return whether arguments without a value that `others` compare certainly do not meet these conditions."""
        required = {
            condition.path for condition in self.conditions if condition.operator == "exists" and condition.operand
        }
        return all(condition.path in required for condition in others.conditions)

    def __repr__(self) -> str:
        return f"<ArgumentConditions: {len(self.conditions)}>"


def path_of(key: str) -> tuple[str, ...]:
    """Return the name of an argument and of the members in it that a key addresses; raise `ValueError` if invalid."""
    if not _KEY.fullmatch(key):
        raise ValueError(
            rf"invalid argument {key[:64]!a}: put one dot between two names, and \. or \\ for a dot or a backslash "
            "in a name"
        )
    first, *rest = (re.sub(r"\\(.)", r"\1", name) for name in re.findall(_NAME, key))
    if rest and first != PRINCIPAL and first.strip().casefold() == PRINCIPAL:
        raise ValueError(
            f"invalid key {key[:64]!a}: it would be met by an argument, which the model writes; write "
            f"'{PRINCIPAL}.' for an attribute of the principal"
        )
    return (first, *rest)


def make_check(operator: str, operand: Any) -> Check:
    """Return the check of an operator with its operand; raise `ValueError` if one of them is invalid."""
    if operator not in _OPERATORS:
        raise ValueError(f"unknown operator {operator[:64]!a}: use one of {', '.join(_OPERATORS)}")
    try:
        compare = _OPERATORS[operator](operand)
    except ValueError as error:
        raise ValueError(f"{operator!r} {error}") from None

    def check(value: Any) -> bool:
        if value is _ABSENT or (value is None and operator not in _OF_NULL):
            raise NoValueError("the call has no value to compare")
        return compare(value)

    return compare if operator == "exists" else check


def _exists(operand: Any) -> Check:
    if not isinstance(operand, bool):
        raise ValueError("must have true or false")
    return lambda value: (value is not _ABSENT and value is not None) is operand


def _eq(operand: Any) -> Check:
    _check_json(operand)
    return lambda value: _are_equal(value, operand)


def _in(operand: Any) -> Check:
    if not isinstance(operand, list) or not operand:
        raise ValueError("must have a list of at least one value")
    _check_json(operand)
    texts = frozenset(value for value in operand if isinstance(value, str))  # a list of texts may be long
    others = [value for value in operand if not isinstance(value, str)]
    return lambda value: value in texts if isinstance(value, str) else any(_are_equal(value, other) for other in others)


def _matches(operand: Any) -> Check:
    """Return a check of a whole text against a pattern, in a time that is linear in the text's length."""
    if not isinstance(operand, str):
        raise ValueError("must have a regular expression as text")
    try:
        for pattern in (operand, rf"\A(?:{operand})\z"):  # alone first, because `a)|(b` is valid only in the group
            matches = compile_pattern(pattern)
    except ValueError:
        raise ValueError(
            "has a pattern that is not a valid regular expression: use the syntax of Rust's regex crate, "
            "which has no look-around and no back-references"
        ) from None

    def check(value: Any) -> bool:
        if not isinstance(value, str):
            raise TypeError("a pattern needs text")
        value.encode()  # raises for a lone surrogate, which no pattern can read
        return matches(value)

    return check


def _negate(make: Callable[[Any], Check]) -> Callable[[Any], Check]:
    def make_negated(operand: Any) -> Check:
        check = make(operand)
        return lambda value: not check(value)

    return make_negated


def _comparing(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Check]:
    def make(operand: Any) -> Check:
        if not _is_number(operand) or (isinstance(operand, float) and not isfinite(operand)):
            raise ValueError("must have a finite number")

        def check(value: Any) -> bool:
            if not _is_number(value):
                raise TypeError("a comparison needs a number")
            return compare(value, operand)

        return check

    return make


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_json(operand: Any) -> None:
    try:
        is_json = _are_equal(json.loads(canonical_text(operand)), operand)  # a tuple is not, and would equal no list
    except (TypeError, ValueError):
        is_json = False
    if not is_json:
        raise ValueError("must have text, a number, true, false, null, or a list or object of these")


def _are_equal(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: `1` and `1.0` are, `1`, `"1"` and `true` are not."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(_are_equal(member, other[name]) for name, member in value.items())
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_are_equal, value, other))
    if _is_number(value) and _is_number(other):
        # a float beyond 2**53 may be read as the integer that its shortest decimal form denotes
        return value == other or canonical_text(value) == canonical_text(other)
    return type(value) is type(other) and bool(value == other)


_OPERATORS: Final[Mapping[str, Callable[[Any], Check]]] = {
    "eq": _eq,
    "ne": _negate(_eq),
    "gt": _comparing(gt),
    "ge": _comparing(ge),
    "lt": _comparing(lt),
    "le": _comparing(le),
    "in": _in,
    "not_in": _negate(_in),
    "matches": _matches,
    "not_matches": _negate(_matches),
    "exists": _exists,
}
_OF_NULL: Final = ("eq", "ne", "in", "not_in")
"""The operators that compare null like any other value."""
_BOUNDS_INSIDE: Final[Mapping[tuple[str, str], Callable[[Any, Any], bool]]] = {
    ("lt", "lt"): le,
    ("lt", "le"): le,
    ("le", "le"): le,
    ("le", "lt"): lt,
    ("gt", "gt"): ge,
    ("gt", "ge"): ge,
    ("ge", "ge"): ge,
    ("ge", "gt"): gt,
}
"""For two operators, the comparison of their bounds that holds if each number that meets the first meets the second."""
