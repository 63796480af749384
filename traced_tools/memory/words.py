"""The words of a message, by which a search finds it: in every repository, and in every index, the same."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from traced_tools.core.messages import AssistantMessage, Message, ToolMessage

Match = Literal["all", "any"]
MOST_WORDS: Final = 20
MOST_WORD: Final = 200
"""The number of characters by which words are compared; databases limit the length of a word in an index."""
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of Chinese and Japanese, which are written without spaces: each counts as a word."""
_WORD: Final = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")


@dataclass(frozen=True, slots=True)
class WordSearch:
    """Which messages to find.

    Attributes:
        words: what to find; each of them is the words that a message must all have. None of them is empty.
        match: whether a message must have all of them, or any.
        through: positions up to this number.
        branches: messages of these branches; None for all.
        limit: how many messages to find, from the end.
    """

    words: tuple[frozenset[str], ...] = field(repr=False)
    match: Match
    through: int
    branches: tuple[str, ...] | None
    limit: int

    def finds(self, message: Message) -> bool:
        """Return whether a message has the words."""
        words = words_of(message)
        matches = (words_of_item <= words for words_of_item in self.words)
        return all(matches) if self.match == "all" else any(matches)


def words_in(text: str) -> Set[str]:
    """Return the words of a text: its runs of letters and digits, without regard to case."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return {word[:MOST_WORD] for word in _WORD.findall(plain.casefold())}


def words_of(message: Message) -> Set[str]:
    """Return the words of all texts of a message."""
    return set().union(*map(words_in, _message_texts(message)))


def _message_texts(message: Message) -> Iterator[str]:
    if isinstance(message, ToolMessage):
        for result in message.results:
            yield from (result.name, result.content)
        return
    yield message.text
    if isinstance(message, AssistantMessage):
        yield message.reasoning
        for tool_call in message.tool_calls:
            yield tool_call.name
            yield from _json_texts(tool_call.arguments)


def _json_texts(arguments: str) -> Iterator[str]:
    """Return the names and values of JSON text, in which an escape such as that of a line break precedes a word."""
    try:
        values: list[Any] = [json.loads(arguments)]
    except (ValueError, RecursionError):
        values = [arguments]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            values += [*value, *value.values()]
        elif isinstance(value, list):
            values += value
        else:
            yield str(value)
