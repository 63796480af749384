"""Truncation of content to a size in bytes. The result is plain JSON that every exporter can encode.

OTLP integers have 64 bits, and receivers refuse deeply nested messages. A single value that cannot be encoded loses the
whole export batch, so larger integers become text and deeper levels are removed. The work is bounded by the size limit,
not by the size of the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

MAX_DEPTH = 16
"""Levels of nesting. A JSON level takes three protobuf levels, and parsers accept 100."""
_SHORTEST_TEXT = 32
"""Bytes. Texts are not truncated further; items are removed instead."""
_INT64 = range(-(2**63), 2**63)


class BoundedJson(NamedTuple):
    """A JSON value within a size limit.

    Args:
        value: plain JSON: None, bool, int, float, str, list, dict.
        text: the value as JSON text.
        cut: whether a text was truncated or an item removed.
    """

    value: Any
    text: str
    cut: bool


def truncate_json(value: object, most: int) -> BoundedJson:
    """Return `value` in at most `most` bytes of JSON: first its texts are truncated, then items are removed.

    If items must be removed, a top-level list keeps its last items, and a mapping or nested list its first.

    Raises:
        TypeError: the value contains something that JSON cannot represent.
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return _newest(value, most)
    return _part(value, most)


def truncate_utf8(text: str, most: int) -> tuple[str, bool]:
    """Return the longest beginning of `text` that fits in `most` bytes of UTF-8, and whether it was truncated."""
    encoded = text[: most + 1].encode("utf-8", "replace")
    if len(text) <= most and len(encoded) <= most:
        return encoded.decode(), False
    return encoded[:most].decode("utf-8", "ignore"), True


def _newest(items: Sequence[object], most: int) -> BoundedJson:
    """Return `items` if they fit, else the last items that fit; older items are truncated more than newer ones."""
    kept = _kept(items, most, _whole)
    if len(kept) < len(items):
        kept = _kept(items, most, _share if len(items) > 1 else _part)
    cut = len(kept) < len(items) or any(each.cut for each in kept)
    return BoundedJson([each.value for each in kept], f"[{', '.join(each.text for each in kept)}]", cut)


def _kept(items: Sequence[object], most: int, fit: Callable[[object, int], BoundedJson | None]) -> list[BoundedJson]:
    """Fit items from the end of the list and stop at the first that doesn't fit. Return the fitted items in order."""
    kept: list[BoundedJson] = []
    left = most - 2
    for item in reversed(items):
        made = fit(item, left)
        if made is None or (left := left - _size(made.text) - 2) < -2:
            break
        kept.append(made)
    kept.reverse()
    return kept


def _share(value: object, left: int) -> BoundedJson | None:
    """Return `value` in half of the bytes left, to leave room for older items; in all of them if half is too few."""
    return _shortened_texts(value, left // 2) or (_part(value, left) if left > 2 * _SHORTEST_TEXT else None)


def _part(value: object, most: int) -> BoundedJson:
    """Return `value` with truncated texts or, if it has too many items, as many of them as fit."""
    found = _shortened_texts(value, most)
    room = most
    while found is None:
        found = _made(value, max(_SHORTEST_TEXT, most // 8), room, most)
        room = room * 3 // 4
    return found


def _shortened_texts(value: object, most: int) -> BoundedJson | None:
    """Return `value` with all items and the longest texts that fit; None if its items don't fit at all."""
    if (whole := _whole(value, most)) is not None:
        return whole
    best, low, high = _with_texts(value, _SHORTEST_TEXT, most), _SHORTEST_TEXT, most
    while best is not None and high - low > _SHORTEST_TEXT:
        middle = (low + high) // 2
        made = _with_texts(value, middle, most)
        best, low, high = (best, low, middle) if made is None else (made, middle, high)
    return best


def _whole(value: object, most: int) -> BoundedJson | None:
    made = _with_texts(value, most, most)
    return None if made is None or made.cut else made


def _with_texts(value: object, longest: int, most: int) -> BoundedJson | None:
    """Return `value` with all items and texts of at most `longest` bytes; None if that exceeds `most` bytes."""
    plain = _Plain(longest, most)
    made = plain.of(value)
    return None if plain.incomplete else _if_it_fits(made, most, plain.cut)


def _made(value: object, longest: int, room: int, most: int) -> BoundedJson | None:
    """Return as many items of `value` as take about `room` bytes; None if the result exceeds `most` bytes."""
    plain = _Plain(longest, room)
    return _if_it_fits(plain.of(value), most, cut=True)


def _if_it_fits(made: Any, most: int, cut: bool) -> BoundedJson | None:
    text = json.dumps(made, ensure_ascii=False, allow_nan=False)
    return BoundedJson(made, text, cut) if _size(text) <= most else None


class _Plain:
    """Converts a value to plain JSON within an estimated size.

    Args:
        longest: the maximum size of a text in bytes.
        room: the estimated size in bytes after which items are removed.

    Attributes:
        cut: whether a text was truncated or an item removed.
        incomplete: whether an item was removed because the size was used up.
    """

    def __init__(self, longest: int, room: int) -> None:
        self.cut = False
        self.incomplete = False
        self._longest = longest
        self._room = room

    def of(self, value: object, depth: int = 0) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
            return self._sequence(value, depth)
        plain = self._scalar(value)
        self._room -= _size(plain) if isinstance(plain, str) else 4
        return plain

    def _scalar(self, value: object) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int):
            return int(value) if value in _INT64 else self._text(_digits(value))
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(value)
        raise TypeError(f"content must be JSON, not {type(value).__name__}")

    def _mapping(self, value: Mapping[Any, object], depth: int) -> Any:
        found: dict[str, Any] = {}
        for key, item in value.items():
            if not self._goes_on(depth):
                break
            name = self._text(str(key)) or "_"
            self._room -= _size(name) + 4
            self.cut = self.cut or name in found  # two truncated keys became the same
            found[name] = self.of(item, depth + 1)
        return found

    def _sequence(self, value: Sequence[object], depth: int) -> Any:
        found: list[Any] = []
        for item in value:
            if not self._goes_on(depth):
                break
            self._room -= 2
            found.append(self.of(item, depth + 1))
        return found

    def _goes_on(self, depth: int) -> bool:
        if self._room > 0 and depth < MAX_DEPTH:
            return True
        self.cut = True
        self.incomplete = self.incomplete or self._room <= 0
        return False

    def _text(self, text: str) -> str:
        short, cut = truncate_utf8(text, self._longest)
        self.cut = self.cut or cut
        return short


def _digits(number: int) -> str:
    try:
        return str(number)
    except ValueError:  # Python limits the number of decimal digits
        return hex(number)


def _size(text: str) -> int:
    return len(text.encode())
