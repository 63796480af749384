"""Truncation of content to a size in bytes. The result is plain JSON that every exporter can encode.

OTLP integers have 64 bits, and receivers refuse deeply nested messages. A single value that cannot be encoded loses the
whole export batch, so larger integers become text and deeper levels are removed. The work is bounded by the size limit,
not by the size of the value.
"""

from __future__ import annotations

import json
import marshal
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

MAX_DEPTH = 16
"""Levels of nesting. A JSON level takes three protobuf levels, and parsers accept 100."""
_SHORTEST_TEXT = 32
"""Bytes. Texts are not truncated further; items are removed instead."""
_INT64 = range(-(2**63), 2**63)
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


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


class Item:
    """An item of a list, encoded once, however often lists that have it are truncated.

    Args:
        value: the item.
        most: the maximum bytes of the lists.

    Attributes:
        whole: the item as it is; None if it has to be truncated whatever is beside it.
        size: the bytes of `whole`; more than a list may have if it is None.
        least: the smallest limit in bytes within which the item is left whole.

    Raises:
        TypeError: the value contains something that JSON cannot represent.
    """

    __slots__ = ("least", "size", "value", "whole")

    def __init__(self, value: object, most: int) -> None:
        self.value = value
        self.whole: BoundedJson | None = None
        self.size = self.least = most + 1
        plain = _Plain(most, most)
        plain_value = plain.of(value)
        if not plain.cut and (whole := _if_it_fits(plain_value, most, cut=False)) is not None:
            self.whole = whole
            self.size = _size(whole.text)
            self.least = max(self.size, most - plain.room_at_last_item + 1)


class LongList(ABC):
    """A list whose last items are made first, because truncation may leave no others."""

    @abstractmethod
    def __iter__(self) -> Iterator[object]:
        """Yield the items in order."""

    @abstractmethod
    def newest_first(self, most: int) -> Iterator[Item]:
        """Yield the items, to be truncated to at most `most` bytes, the last one first."""


def truncate_json(value: object, most: int) -> BoundedJson:
    """Return `value` in at most `most` bytes of JSON: first its texts are truncated, then items are removed.

    If items must be removed, a top-level list keeps its last items, and a mapping or nested list its first.

    Raises:
        TypeError: the value contains something that JSON cannot represent.
    """
    if isinstance(value, LongList):
        return _newest(value.newest_first(most), most)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return _newest((Item(item, most) for item in reversed(value)), most)
    return _part(Item(value, most), most)


def packed(value: Any) -> bytes | None:
    """Return plain JSON as bytes of `marshal`, other bytes for another value; None if it is not plain, or too deep."""
    try:
        return marshal.dumps(value, 2)  # later versions depend on which objects the value repeats
    except ValueError:
        return None


def truncate_utf8(text: str, most: int) -> tuple[str, bool]:
    """Return the longest beginning of `text` that fits in `most` bytes of UTF-8, and whether it was truncated."""
    if type(text) is str and len(text) <= most and text.isascii():
        return text, False
    data = text[: most + 1].encode("utf-8", "replace")
    if len(text) <= most and len(data) <= most:
        return data.decode(), False
    return data[:most].decode("utf-8", "ignore"), True


def _newest(newest_first: Iterator[Item], most: int) -> BoundedJson:
    """Return a list if it fits, else the last items that fit; older items are truncated more than newer ones."""
    whole: list[Item] = []
    room = room_of_others = most - 2
    untouched = 0  # the items that leave half of the bytes to the items before them: they are not truncated
    for item in newest_first:
        if item.size > room:
            break
        if untouched == len(whole) and item.size <= room // 2:
            untouched, room_of_others = untouched + 1, room - item.size - 2
        whole.append(item)
        room -= item.size + 2
    else:
        return _list((item.whole for item in whole), cut=False)
    others = [*whole[untouched:], item, *islice(newest_first, 1)]
    if untouched == 0 and len(others) == 1:
        return _list([_part(item, room_of_others)], cut=True)
    fitting = _fit(chain(others, newest_first), room_of_others)
    return _list(chain((item.whole for item in whole[:untouched]), fitting), cut=True)


def _list(newest_first: Iterable[BoundedJson | None], *, cut: bool) -> BoundedJson:
    items = [item for item in newest_first if item is not None]
    items.reverse()
    return BoundedJson([item.value for item in items], f"[{', '.join([item.text for item in items])}]", cut)


def _fit(items: Iterator[Item], room: int) -> Iterator[BoundedJson | None]:
    """Yield items, each in its share of the bytes that are left, until the first that doesn't fit."""
    for item in items:
        if item.least <= room // 2:
            yield item.whole
            room -= item.size + 2
            continue
        bounded = _share(item, room)
        if bounded is None or (size := _size(bounded.text)) > room:
            return
        yield bounded
        room -= size + 2


def _share(item: Item, room: int) -> BoundedJson | None:
    """Return `item` in half of the bytes left, to leave room for older items; in all of them if half is too few."""
    return _shortened_texts(item, room // 2) or (_part(item, room) if room > 2 * _SHORTEST_TEXT else None)


def _part(item: Item, most: int) -> BoundedJson:
    """Return `item` with truncated texts or, if it has too many items, as many of them as fit."""
    bounded = _shortened_texts(item, most)
    room = most
    while bounded is None:
        bounded = _truncate_items(item.value, max(_SHORTEST_TEXT, most // 8), room, most)
        room = room * 3 // 4
    return bounded


def _shortened_texts(item: Item, most: int) -> BoundedJson | None:
    """Return `item` with all its items and the longest texts that fit; None if its items don't fit at all."""
    if item.least <= most:
        return item.whole
    best, low, high = _with_texts(item.value, _SHORTEST_TEXT, most), _SHORTEST_TEXT, most
    while best is not None and high - low > _SHORTEST_TEXT:
        middle = (low + high) // 2
        bounded = _with_texts(item.value, middle, most)
        best, low, high = (best, low, middle) if bounded is None else (bounded, middle, high)
    return best


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
    text = _encode(plain_value)
    return BoundedJson(plain_value, text, cut) if _size(text) <= most else None


class _Plain:
    """Converts a value to plain JSON within an estimated size.

    Args:
        longest: the maximum size of a text in bytes.
        room: the estimated size in bytes after which items are removed.

    Attributes:
        cut: whether a text was truncated or an item removed.
        incomplete: whether an item was removed because the size was used up.
        room_at_last_item: the estimated size that was left before the last item.
    """

    def __init__(self, longest: int, room: int) -> None:
        self.cut = False
        self.incomplete = False
        self._longest = longest
        self._room = self.room_at_last_item = room

    def of(self, value: object, depth: int = 0) -> Any:
        if not isinstance(value, str):  # the first question, because asking for abstract classes takes long
            if isinstance(value, Mapping):
                return self._mapping(value, depth)
            if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
                return self._sequence(value, depth)
        plain = self._scalar(value)
        self._room -= _size(plain) if isinstance(plain, str) else 4
        return plain

    def _scalar(self, value: object) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, bool):
            return value
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
            self.room_at_last_item = self._room
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
    return len(text) if text.isascii() else len(text.encode())
