"""Conditions on arguments as a policy file declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

from traced_tools.core.canonical import canonical_text

Check = Callable[[Any], bool]


class ArgumentConditions:
    """The predicate that a call's arguments meet every condition.

    A condition on an argument that the call does not have is not met; neither is one on null, except by `equals` and
    `in`. A number is never compared with text: the predicate raises `TypeError` instead, so that the call is denied.

    Args:
        conditions: for each argument, the operators with their operands.

    Raises:
        ValueError: if an operator is unknown or an operand is invalid; the text has the argument and what is accepted.
    """

    def __init__(self, conditions: Mapping[str, Mapping[str, Any]]) -> None:
        self._checks: Final = tuple(
            (argument, operator in _OF_NULL, make_check(operator, operand))
            for argument, operators in conditions.items()
            for operator, operand in operators.items()
        )

    def __call__(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the arguments meet every condition."""
        for argument, takes_null, check in self._checks:
            if argument not in arguments:
                return False
            value = arguments[argument]
            if (value is None and not takes_null) or not check(value):
                return False
        return True

    def __repr__(self) -> str:
        return f"<ArgumentConditions: {len(self._checks)}>"


def make_check(operator: str, operand: Any) -> Check:
    """Return the check of an operator with its operand; raise `ValueError` if one of them is invalid."""
    if operator not in _OPERATORS:
        raise ValueError(f"unknown operator {operator[:64]!a}: use one of {', '.join(_OPERATORS)}")
    return _OPERATORS[operator](operand)


def _equals(operand: Any) -> Check:
    expected = _text_of(operand)
    return lambda value: _text_of(value) == expected


def _in(operand: Any) -> Check:
    if not isinstance(operand, list) or not operand:
        raise ValueError("in must have a list of at least one value")
    accepted = frozenset(map(_text_of, operand))
    return lambda value: _text_of(value) in accepted


def _matches(operand: Any) -> Check:
    """Return a check of a whole text against a pattern, in a time that is linear in the text's length."""
    if not isinstance(operand, str):
        raise ValueError("matches must have a regular expression as text")
    try:
        for pattern in (operand, rf"\A(?:{operand})\z"):  # alone first, because `a)|(b` is valid only in the group
            validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        raise ValueError(
            "matches has a pattern that is not a valid regular expression: use the syntax of Rust's regex crate, "
            "which has no look-around and no back-references"
        ) from None

    def check(value: Any) -> bool:
        if not isinstance(value, str):
            raise TypeError("matches needs text")
        value.encode()  # raises for a lone surrogate, which no pattern can read
        return validator.isinstance_python(value, strict=True)

    return check


def _comparing(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Check]:
    def make(operand: Any) -> Check:
        if not _is_number(operand) or not isfinite(operand):
            raise ValueError("a comparison must have a finite number")

        def check(value: Any) -> bool:
            if not _is_number(value):
                raise TypeError("a comparison needs a number")
            return compare(value, operand)

        return check

    return make


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text_of(value: Any) -> str:
    """Return the text that equal JSON values have in common: `1` and `1.0` are equal, `1`, `"1"` and `true` are not."""
    try:
        return str(canonical_text(value))
    except (TypeError, ValueError):
        raise ValueError("a value must be text, a number, true, false, null, or a list or object of these") from None


_OPERATORS: Final[Mapping[str, Callable[[Any], Check]]] = {
    "equals": _equals,
    "in": _in,
    "matches": _matches,
    "less_than": _comparing(lambda value, bound: value < bound),
    "at_most": _comparing(lambda value, bound: value <= bound),
    "more_than": _comparing(lambda value, bound: value > bound),
    "at_least": _comparing(lambda value, bound: value >= bound),
}
_OF_NULL: Final = ("equals", "in")
