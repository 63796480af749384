"""The words of a query, a name or a description."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_MOST_CHARACTERS: Final = 4_000
"""How many characters of a query are read. A model writes the query, or copies it from a user."""
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of Chinese and Japanese, which are written without spaces: each counts as a word."""
_RUN: Final = re.compile(f"[{_UNSPACED}]|[^\\W\\d_{_UNSPACED}]+|\\d+")
_PARTS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])(?![A-Z]s\b)")
"""Where a name changes case: `getWeather`, `HTTPServer`, but not `IDs`."""

_STOP_WORDS: Final = """
    a about after all also am an and any are as at be been but by can could did do does for from had has have how i if
    in into is it its just me my need no not of on or our please should so some than that the their them then there
    these they this those to up us use used using want was we were what when where which who will with would you your
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in order: its runs of letters and of digits, split where the case changes, folded."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    for part in _PARTS.sub(" ", plain).split(" "):
        yield from _RUN.findall(part.casefold())


def query_words(query: str) -> list[str]:
    """Return the distinct words of a query in order, without stop words and single ASCII characters."""
    words = dict.fromkeys(words_of(query[:_MOST_CHARACTERS]))
    return [word for word in words if word not in STOP_WORDS and (len(word) > 1 or not word.isascii())]
