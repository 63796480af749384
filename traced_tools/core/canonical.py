"""Canonical JSON: one text for one value, as RFC 8785 writes it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Final

_DEEPEST: Final = 128
_DIGITS: Final = 15
"""An integer of at most this many digits fits a double."""
_LEAST, _MOST = 1e-4, 1e15
"""Between these, Python and RFC 8785 write a number with a fraction alike: without an exponent."""
_WIDE: Final = re.compile("[\ud800-\U0010ffff]")


class CanonicalJson(str):
    """JSON text that is in canonical form (RFC 8785), and stays the same when it is parsed and written again.

    The canonical form of 2.0**53 does not: it is parsed as an integer that has no canonical form.
    """

    __slots__ = ()


def canonical_json(text: str) -> bytes | None:
    """Return RFC 8785 of the value that a JSON text stands for.

    None for invalid JSON, and for JSON without a canonical form or with more than one meaning: numbers beyond a double,
    integers beyond 2**53, a key twice, lone surrogates, more than 128 levels.
    """
    if isinstance(text, CanonicalJson):
        return text.encode()

    import rfc8785  # imported here: most runs never need it

    try:
        if _may_be_simple(text):
            with suppress(_NotSimpleError):
                return _SIMPLE.encode(_ONLY_SIMPLE.decode(text)).encode()
        value = _ANY.decode(text)
        if is_nested_deeply(text, value):
            return None
        return rfc8785.dumps(value)
    except (ValueError, RecursionError):
        return None


def canonical_text(value: Any) -> str:
    """Return the canonical JSON text of a JSON value; almost always as a `CanonicalJson`.

    A value that RFC 8785 has no form for, such as an integer beyond 2**53, is written with sorted keys and no blanks.
    """
    import rfc8785

    try:
        if _is_simple(value):
            return CanonicalJson(_SIMPLE.encode(value))
        return rfc8785.dumps(value).decode()
    except (ValueError, RecursionError):
        return _SORTED.encode(value)


def is_nested_deeply(text: str, value: object) -> bool:
    """Whether a JSON value has more than 128 levels, which can exhaust the stack of a reader."""
    return _many_openings(text) and _is_deeper(value, _DEEPEST)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse a repeated key, which readers resolve differently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _no_number(_: str) -> Any:
    raise ValueError("no number of JSON")


def _may_be_simple(text: str) -> bool:
    """Whether Python sorts the keys as RFC 8785 does: by UTF-16, where what is beyond 16 bits comes before U+E000."""
    return "\\u" not in text and (text.isascii() or not _WIDE.search(text)) and not _many_openings(text)


def _is_simple(value: object) -> bool:
    """Whether Python surely writes a value as RFC 8785 does."""
    if type(value) is str:
        return value.isascii() or not _WIDE.search(value)
    if type(value) is int:
        return -_MOST < value < _MOST
    if type(value) is float:
        return _LEAST <= abs(value) < _MOST and not value.is_integer()
    if type(value) is dict:
        return all(map(_is_simple, value)) and all(map(_is_simple, value.values()))
    return value is None or type(value) is bool or (type(value) is list and all(map(_is_simple, value)))


class _NotSimpleError(Exception):
    """A number that RFC 8785 and Python may write differently."""


def _small(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise _NotSimpleError
    return int(digits)


def _plain(digits: str) -> float:
    number = float(digits)
    if not _is_simple(number):
        raise _NotSimpleError
    return number


_SORTED: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_SIMPLE: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
"""Writes as RFC 8785 does, and five times as fast, where keys are of 16 bits and numbers of a usual size."""
_ONLY_SIMPLE: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_number, parse_int=_small, parse_float=_plain
)
_ANY: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)


def _many_openings(text: str) -> bool:
    """Whether a text could be nested deeply; almost none could, and counting costs next to nothing."""
    return text.count("[") + text.count("{") > _DEEPEST


def _is_deeper(value: object, levels: int) -> bool:
    """Whether a value has more than `levels` levels. A fixed limit keeps the digest's form independent of the stack."""
    if not isinstance(value, dict | list):
        return False
    children = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in children)
