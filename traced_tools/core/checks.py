"""Checks of arguments that users pass; each error names the argument and the accepted values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def expect(argument: str, value: object, types: type | tuple[type, ...], accepted: str) -> None:
    """Raise `TypeError` unless `value` is an instance of `types`; the text never contains the value."""
    if not isinstance(value, types) or isinstance(value, type):  # a class passes the check of a protocol
        raise TypeError(f"{argument} must be {accepted}, not {_kind(value)}")


def expect_each(argument: str, values: Iterable[object], types: type | tuple[type, ...], accepted: str) -> None:
    """Raise `TypeError` for the first item of `values` that is not an instance of `types`."""
    if isinstance(values, types) or not isinstance(values, Iterable) or isinstance(values, type):
        raise TypeError(f"{argument} must be a sequence of {accepted}, not {_kind(values)}")
    for index, value in enumerate(values):
        expect(f"{argument}[{index}]", value, types, accepted)


def expect_callable(argument: str, value: Callable[..., Any] | None) -> None:
    """Raise `TypeError` unless `value` is None or callable."""
    if value is not None and not callable(value):
        raise TypeError(f"{argument} must be callable, not {_kind(value)}")


def expect_whole(argument: str, value: object, least: int) -> None:
    """Raise `TypeError` unless `value` is an int and not a bool, `ValueError` if it is below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an int, not {_kind(value)}")
    if value < least:
        raise ValueError(f"{argument} must be at least {least}; it is {value}")


def expect_positive(argument: str, value: float | None) -> None:
    """Raise `TypeError` unless `value` is None or a number, `ValueError` unless it is above zero."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{argument} must be a number or None, not {_kind(value)}")
    if not value > 0:
        raise ValueError(f"{argument} must be above 0, or None for no limit; it is {value}")


def checked_mapping(argument: str, values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a copy of `values`, empty for None; raise `TypeError` or `ValueError` for a wrong type or a blank name."""
    if values is None:
        return {}
    expect(argument, values, Mapping, "a mapping of names to values")
    for key in values:
        if not isinstance(key, str) or not key.strip():
            raise ValueError(f"{argument} must have names (non-blank str) as keys")
    return dict(values)


def _kind(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}; pass an instance of it"
    return "None" if value is None else type(value).__name__


def check_by(by: object) -> None:
    """Raise `TypeError` or `ValueError` unless `by` is None or can name a person or service."""
    expect("by", by, (str, type(None)), "a str or None")
    if isinstance(by, str) and not by.strip():
        raise ValueError("by must not be blank: it names the person or service that decided; pass None if unknown")


def check_json_object(what: str, value: Mapping[str, Any] | None) -> None:
    """Raise `ValueError` unless `value` is None or a JSON object; the text never contains the value."""
    try:
        json.dumps(None if value is None else dict(value), allow_nan=False)
        return
    except (TypeError, ValueError, RecursionError):
        pass  # their texts may quote the arguments
    raise ValueError(
        f"{what} must be a JSON object: pass text, finite numbers, True, False, None, and lists and mappings of these"
    )
