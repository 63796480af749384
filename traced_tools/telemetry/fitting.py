"""Cuts content to a size: plain JSON that is still JSON afterwards, and that every exporter can carry.

OTLP has integers of 64 bits and receivers that refuse deeply nested messages, and one value that cannot be encoded
loses everything it travels with. So what is larger becomes text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

DEEPEST = 16
"""Levels of nesting; a level of JSON takes three of protobuf, of which parsers accept 100."""
_SHORTEST_TEXT = 32
"""Bytes; shorter ones mean nothing, so then parts are left out."""
_INT64 = range(-(2**63), 2**63)


class Fitted(NamedTuple):
    """Content that fits.

    Args:
        value: plain JSON: None, bool, int, float, str, list, dict.
        text: the same as JSON text.
        cut: whether something was left out.
    """

    value: Any
    text: str
    cut: bool


def fitted(value: object, most: int) -> Fitted:
    """Return `value` in at most `most` bytes of JSON: first its texts are shortened, then a list loses what is oldest.

    Raises:
        TypeError: for what is no JSON.
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return _newest(value, most)
    return _shrunk(value, most) or _as_text(value, most)


def shortened(text: str, most: int) -> tuple[str, bool]:
    """Return the beginning of `text` that fits in `most` bytes of UTF-8, and whether it was cut."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= most:
        return encoded.decode(), False
    return encoded[:most].decode("utf-8", "ignore"), True


def _newest(items: Sequence[object], most: int) -> Fitted:
    """Return `items` if they fit, else the last of them that do, the older ones the shorter."""
    kept = _kept(items, most, _whole)
    if len(kept) < len(items):
        kept = _kept(items, most, _share if len(items) > 1 else _shrunk) or [_as_text(items[-1], most - 2)]
    cut = len(kept) < len(items) or any(each.cut for each in kept)
    return Fitted([each.value for each in kept], f"[{', '.join(each.text for each in kept)}]", cut)


def _kept(items: Sequence[object], most: int, fit: Callable[[object, int], Fitted | None]) -> list[Fitted]:
    """Return those of `items` that `fit` makes fit, from the last one on, until one does not."""
    kept: list[Fitted] = []
    left = most - 2
    for item in reversed(items):
        made = fit(item, left)
        if made is None or (left := left - _size(made.text) - 2) < -2:
            break
        kept.append(made)
    kept.reverse()
    return kept


def _whole(value: object, most: int) -> Fitted | None:
    made = _with_texts(value, most, most)
    return None if made is None or made.cut else made


def _share(value: object, left: int) -> Fitted | None:
    """Return `value` in half of what is left, so that older ones have a place too; in all of it if it must be."""
    return _shrunk(value, left // 2) or _shrunk(value, left)


def _shrunk(value: object, most: int) -> Fitted | None:
    """Return `value` with texts short enough for it to fit; None if it has too many parts for that."""
    longest = most
    while longest >= _SHORTEST_TEXT:
        if (made := _with_texts(value, longest, most)) is not None:
            return made
        longest = longest * 3 // 4
    return None


def _with_texts(value: object, longest: int, most: int) -> Fitted | None:
    """Return `value` with texts of `longest` bytes at most; None if it does not fit."""
    plain = _Plain(longest)
    made = plain.of(value)
    text = _json(made)
    return Fitted(made, text, plain.cut) if _size(text) <= most else None


def _as_text(value: object, most: int) -> Fitted:
    """Return the beginning of the JSON of `value`, as a text."""
    text = _json(_Plain(most).of(value))
    most_characters = max(0, most - 2)
    while _size(_json(start := shortened(text, most_characters)[0])) > most and most_characters:
        most_characters //= 2
    return Fitted(start, _json(start), True)


class _Plain:
    """Makes plain JSON of a value, with texts of so many bytes at most."""

    def __init__(self, longest: int) -> None:
        self.cut = False
        self._longest = longest

    def of(self, value: object, depth: int = 0) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int):
            return int(value) if value in _INT64 else self._text(str(value))
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(value)
        if depth == DEEPEST:
            self.cut = True
            return "..."
        if isinstance(value, Mapping):
            return {self._text(str(key)) or "_": self.of(item, depth + 1) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return [self.of(item, depth + 1) for item in value]
        raise TypeError(f"content must be JSON, not {type(value).__name__}")

    def _text(self, text: str) -> str:
        short, cut = shortened(text, self._longest)
        self.cut = self.cut or cut
        return short


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _size(text: str) -> int:
    return len(text.encode())
