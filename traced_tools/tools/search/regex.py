"""A tool index without dependencies, for small catalogues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import mul
from typing import Final

from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.tools.search.index import (
    ToolIndex,
    ToolMatch,
    best_matches,
    check_search,
    definitions_of,
    names_of,
)
from traced_tools.tools.search.texts import texts_of
from traced_tools.tools.search.words import fold, query_words

_MOST_WORDS: Final = 50
_WEIGHTS: Final = (4, 2, 1, 1)
"""How much a word counts in the name, the description, the parameters' names and their descriptions."""


class RegexToolIndex(ToolIndex):
    """Finds tools that contain words of the query, also inside other words, without regard to case.

    The score counts the different words that a tool contains, those in its name the most. A query without words, such
    as an empty one, finds every tool. The query is not a regular expression: its words are escaped.
    """

    kind = "regex"

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, ...]] = {}

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        """Add tools; a tool replaces an earlier one with the same name."""
        self._texts.update({name: _folded_texts(definition) for name, definition in definitions_of(tools).items()})

    def remove(self, names: Iterable[str]) -> None:
        """Remove the tools with these names; unknown names are ignored."""
        for name in names_of(names):
            self._texts.pop(name, None)

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Return the tools that contain words of `query`, the best first and equal scores by name."""
        check_search(query, max_results)
        words = query_words(query)[:_MOST_WORDS]
        return best_matches(self._matches(words), max_results)

    def _matches(self, words: list[str]) -> Iterator[ToolMatch]:
        tools = list(self._texts.items())  # a copy, which other threads don't change
        if not words:
            yield from (ToolMatch(name, 0.0) for name, _ in tools)
            return
        pattern = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))
        for name, texts in tools:
            counts = [len(set(pattern.findall(text))) for text in texts]
            if any(counts):
                yield ToolMatch(name, float(sum(map(mul, _WEIGHTS, counts))))

    def __repr__(self) -> str:
        return f"<RegexToolIndex of {len(self._texts)} tools>"


def _folded_texts(definition: ToolDefinition) -> tuple[str, ...]:
    texts = texts_of(definition)
    return tuple(map(fold, (texts.name, texts.description, texts.parameters, texts.parameter_descriptions)))
