r"""Text by which a person decides: what a model or a server wrote can neither hide nor disguise a part of it.

Characters that cannot be seen, move the cursor or turn the direction of a line are shown as what they are, such as
`\u202e`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

_UNSEEN: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Characters that are printable for Python, and leave no ink: fillers, joiners and variation selectors."""
_SELECTORS: Final = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
_LONGEST_STRING: Final = 200
_LONGEST_ARGUMENTS: Final = 2000


def is_seen(character: str) -> bool:
    """Return whether a character leaves ink or is a space, and changes nothing but its own place."""
    if character.isascii():
        return character.isprintable()
    is_selector = any(ord(character) in selectors for selectors in _SELECTORS)
    return character.isprintable() and character not in _UNSEEN and not is_selector


def readable_text(text: str, most: int) -> str:
    r"""Return a text on one line, with unseen characters as `\x1b` or `\u202e`, and backslashes doubled.

    Args:
        text: the text.
        most: the maximum number of characters before it is cut.
    """
    return _cut(text, most, _escape)


def readable_json(text: str, most: int) -> str:
    r"""Return JSON text on one line, with unseen characters as JSON escapes them (`\u001b`): its value is the same.

    Args:
        text: the JSON text.
        most: the maximum number of characters before it is cut.
    """
    return _cut(text, most, _escaped_in_json)


def readable_arguments(arguments: str) -> str:
    """Return the arguments of a call in a length that a person reads.

    Long strings are cut one by one, so that no value moves another one out of sight.

    Args:
        arguments: the arguments as a JSON object.
    """
    shortened = json.dumps(_shorten(json.loads(arguments)), ensure_ascii=False)
    readable = readable_json(shortened, len(shortened))
    if len(readable) <= _LONGEST_ARGUMENTS:
        return readable
    return f"{readable[:_LONGEST_ARGUMENTS]}… ({len(arguments):,} characters)"


def _shorten(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_STRING else f"{value[:_LONGEST_STRING]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: _shorten(item) for key, item in value.items()}
    return [_shorten(item) for item in value] if isinstance(value, list) else value


def _cut(text: str, most: int, escaped: Callable[[str], str]) -> str:
    prefix = "".join(escaped(character) for character in text[:most])
    return prefix if len(text) <= most else f"{prefix}… ({len(text):,} characters)"


def _escape(character: str) -> str:
    if is_seen(character) and character != "\\":
        return character
    return character.encode("unicode_escape").decode("ascii")


def _escaped_in_json(character: str) -> str:
    if character in "\t\r\n":
        return " "  # they stand between values alone
    return character if is_seen(character) else json.dumps(character)[1:-1]
