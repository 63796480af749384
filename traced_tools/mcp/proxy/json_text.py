"""JSON text that is read and changed in place, so that all of it that isn't changed stays as it was written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import decoder
from typing import Any, Final, NamedTuple

_BLANKS: Final = re.compile(r"[ \t\n\r]*")

_read_string: Callable[[str, int], tuple[str, int]] = decoder.scanstring  # type: ignore[attr-defined]  # it is there


class AmbiguousObject(dict[str, Any]):
    """A JSON object that has a key twice: readers take the first value or the last one."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else AmbiguousObject(members)


def _no_number(_: str) -> Any:
    raise ValueError("not a JSON number")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)
_SKIPPER: Final = json.JSONDecoder(parse_int=str, parse_float=str)
"""Finds the end of a value."""


def read_json(data: bytes) -> tuple[str, Any]:
    """Return the text and the value of JSON in UTF-8.

    Raises:
        ValueError: if it is not JSON as RFC 8259 defines it, or nested too deeply.
    """
    text = data.decode()
    try:
        return text, _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_ambiguous(value: Any) -> bool:
    """Return whether a value that `read_json` has read contains an object that has a key twice."""
    values = [value]
    while values:
        item = values.pop()
        if isinstance(item, AmbiguousObject):
            return True
        if isinstance(item, dict):
            values += item.values()
        elif isinstance(item, list):
            values += item
    return False


class _Member(NamedTuple):
    """Where a member of an object is in a text: its key, its value, and the end of the value."""

    key: str
    start: int
    value: int
    end: int


def _skip(text: str, place: int) -> int:
    return _BLANKS.match(text, place).end()  # type: ignore[union-attr]  # it matches the empty text


def _members(text: str, opening: int) -> Iterator[_Member]:
    """Yield the members of the object whose opening brace is at a place."""
    start = _skip(text, opening + 1)
    while text[start] == '"':
        key, key_end = _read_string(text, start + 1)
        value = _skip(text, _skip(text, key_end) + 1)
        _, end = _SKIPPER.raw_decode(text, value)
        yield _Member(key, start, value, end)
        comma = _skip(text, end)
        if text[comma] != ",":
            return
        start = _skip(text, comma + 1)


def _find(text: str, path: Sequence[str]) -> _Member | None:
    """Return the member at a path of objects from the outermost one."""
    opening = _skip(text, 0)
    member = None
    for key in path:
        if text[opening] != "{":
            return None
        member = next((candidate for candidate in _members(text, opening) if candidate.key == key), None)
        if member is None:
            return None
        opening = member.value
    return member


def text_at(text: str, path: Sequence[str]) -> str | None:
    """Return the text of the value at a path of valid JSON text; None if there is none."""
    member = _find(text, path)
    return None if member is None else text[member.value : member.end]


def with_member(text: str, path: Sequence[str], value: str) -> str:
    """Return JSON text in which the member at a path has another value; all other text stays.

    Args:
        text: the text of an object.
        path: the keys. The objects before the last key are made if they are missing.
        value: the JSON text of the value.
    """
    depth = len(path)
    while depth and _find(text, path[:depth]) is None:
        depth -= 1
    if depth == len(path):
        member = _find(text, path)
        assert member is not None
        return f"{text[: member.value]}{value}{text[member.end :]}"
    for key in reversed(path[depth + 1 :]):
        value = f"{{{json.dumps(key)}:{value}}}"
    parent = _find(text, path[:depth])
    opening = _skip(text, 0) if parent is None else parent.value
    comma = "" if text[_skip(text, opening + 1)] == "}" else ","
    return f"{text[: opening + 1]}{json.dumps(path[depth])}:{value}{comma}{text[opening + 1 :]}"


def without_member(text: str, path: Sequence[str]) -> str:
    """Return JSON text without the member at a path; all other text stays."""
    parent = _find(text, path[:-1])
    opening = _skip(text, 0) if parent is None else parent.value
    previous_end = None
    for member in _members(text, opening):
        if member.key == path[-1]:
            if previous_end is not None:
                return f"{text[:previous_end]}{text[member.end :]}"
            after = _skip(text, member.end)
            rest = after + 1 if text[after] == "," else after
            return f"{text[: opening + 1]}{text[rest:]}"
        previous_end = member.end
    return text


def with_members(text: str, path: Sequence[str], values: Mapping[str, str | None]) -> str:
    """Return JSON text in which members of the object at a path have other values; None removes a member."""
    for key, value in values.items():
        place = (*path, key)
        text = without_member(text, place) if value is None else with_member(text, place, value)
    return text
