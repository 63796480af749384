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
    data = text[: most + 1].encode("utf-8", "replace")
    if len(text) <= most and len(data) <= most:
        return data.decode(), False
    return data[:most].decode("utf-8", "ignore"), True


def _newest(items: Sequence[object], most: int) -> BoundedJson:
    """Return `items` if they fit, else the last items that fit; older items are truncated more than newer ones."""
    newest = _fit_from_end(items, most, _whole)
    if len(newest) < len(items):
        newest = _fit_from_end(items, most, _share if len(items) > 1 else _part)
    cut = len(newest) < len(items) or any(item.cut for item in newest)
    return BoundedJson([item.value for item in newest], f"[{', '.join(item.text for item in newest)}]", cut)


def _fit_from_end(
    items: Sequence[object], most: int, fit: Callable[[object, int], BoundedJson | None]
) -> list[BoundedJson]:
    """Fit items from the end of the list and stop at the first that doesn't fit. Return the fitted items in order."""
    fitting: list[BoundedJson] = []
    room = most - 2
    for item in reversed(items):
        bounded = fit(item, room)
        if bounded is None or (room := room - _size(bounded.text) - 2) < -2:
            break
        fitting.append(bounded)
    fitting.reverse()
    return fitting


def _share(value: object, room: int) -> BoundedJson | None:
    """Return `value` in half of the bytes left, to leave room for older items; in all of them if half is too few."""
    return _shortened_texts(value, room // 2) or (_part(value, room) if room > 2 * _SHORTEST_TEXT else None)


def _part(value: object, most: int) -> BoundedJson:
    """Return `value` with truncated texts or, if it has too many items, as many of them as fit."""
    bounded = _shortened_texts(value, most)
    room = most
    while bounded is None:
        bounded = _truncate_items(value, max(_SHORTEST_TEXT, most // 8), room, most)
        room = room * 3 // 4
    return bounded


def _shortened_texts(value: object, most: int) -> BoundedJson | None:
    """Return `value` with all items and the longest texts that fit; None if its items don't fit at all."""
    if (whole := _whole(value, most)) is not None:
        return whole
    best, low, high = _with_texts(value, _SHORTEST_TEXT, most), _SHORTEST_TEXT, most
    while best is not None and high - low > _SHORTEST_TEXT:
        middle = (low + high) // 2
        bounded = _with_texts(value, middle, most)
        best, low, high = (best, low, middle) if bounded is None else (bounded, middle, high)
    return best


def _whole(value: object, most: int) -> BoundedJson | None:
    bounded = _with_texts(value, most, most)
    return None if bounded is None or bounded.cut else bounded


def _with_texts(value: object, longest: int, most: int) -> BoundedJson | None:
    """Return `value` with all items and texts of at most `longest` bytes; None if that exceeds `most` bytes."""
    plain = _Plain(longest, most)
    plain_value = plain.of(value)
    return None if plain.incomplete else _if_it_fits(plain_value, most, plain.cut)


def _truncate_items(value: object, longest: int, room: int, most: int) -> BoundedJson | None:
    """Return as many items of `value` as take about `room` bytes; None if the result exceeds `most` bytes."""
    plain = _Plain(longest, room)
    return _if_it_fits(plain.of(value), most, cut=True)


def _if_it_fits(plain_value: Any, most: int, cut: bool) -> BoundedJson | None:
    text = json.dumps(plain_value, ensure_ascii=False, allow_nan=False)
    return BoundedJson(plain_value, text, cut) if _size(text) <= most else None


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
        mapping: dict[str, Any] = {}
        for key, item in value.items():
            if not self._goes_on(depth):
                break
            name = self._text(str(key)) or "_"
            self._room -= _size(name) + 4
            self.cut = self.cut or name in mapping  # two truncated keys became the same
            mapping[name] = self.of(item, depth + 1)
        return mapping

    def _sequence(self, value: Sequence[object], depth: int) -> Any:
        items: list[Any] = []
        for item in value:
            if not self._goes_on(depth):
                break
            self._room -= 2
            items.append(self.of(item, depth + 1))
        return items

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
