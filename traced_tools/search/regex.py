"""A tool index without dependencies, for small catalogues."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from operator import mul
from typing import Final

from traced_tools.core.patterns import compile_pattern
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.search.index import (
    ToolIndex,
    ToolMatch,
    best_matches,
    check_search,
    definitions_of,
    names_of,
)
from traced_tools.search.texts import texts_of
from traced_tools.search.words import fold, query_words

_MOST_WORDS: Final = 50
_MOST_CHARACTERS: Final = 1_000
"""How long a pattern may be."""
_OPERATOR: Final = re.compile(r"[\\^$*+()\[\]{}|]|[.?](?=[\w*+?{])")
"""What a pattern has and plain words don't, such as `.` within a word, but not at the end of a sentence."""
_WEIGHTS: Final = (4, 2, 1, 1)
"""How much a word counts in the name, the description, the parameters' names and their descriptions."""


class RegexToolIndex(ToolIndex):
    """Finds tools by a regular expression, or by words of the query, also inside other words, without regard to case.

    A query with an operator of regular expressions, such as `get_.*|list_.*`, finds the tools in whose name or
    description the pattern is found, those with it in the name first. It has the syntax of Rust's regex crate, which
    takes a time that is linear in the length of the texts. For an invalid pattern, or without a match, its words count.

    The score of words counts the different words that a tool contains, those in its name the most. A query without
    words and operators, such as an empty one, finds every tool.
    """

    kind = "regex"
    query_hint = (
        "What the tool must do, in a few words, or a regular expression that is searched in the names and the "
        "descriptions of tools, without regard to case."
    )

    def __init__(self) -> None:
        self._tools: dict[str, _SearchedTool] = {}

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        """Add tools; a tool replaces an earlier one with the same name."""
        self._tools.update({name: _SearchedTool.of(definition) for name, definition in definitions_of(tools).items()})

    def remove(self, names: Iterable[str]) -> None:
        """Remove the tools with these names; unknown names are ignored."""
        for name in names_of(names):
            self._tools.pop(name, None)

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Return the tools that fit the pattern or the words of `query`, the best first and equal scores by name."""
        check_search(query, max_results)
        tools = list(self._tools.items())  # a copy, which other threads don't change
        is_pattern = _OPERATOR.search(query) is not None
        matches = _with_pattern(tools, query) if is_pattern else []
        if not matches and ((words := query_words(query)[:_MOST_WORDS]) or not is_pattern):
            matches = _with_words(tools, words)
        return best_matches(matches, max_results)

    def __repr__(self) -> str:
        return f"<RegexToolIndex of {len(self._tools)} tools>"


@dataclass(frozen=True, slots=True, repr=False)
class _SearchedTool:
    """The texts of a tool.

    Attributes:
        name, description: as they are, for patterns.
        folded: the name, the description, the parameters' names and their descriptions, for words.
    """

    name: str
    description: str
    folded: tuple[str, ...]

    @classmethod
    def of(cls, definition: ToolDefinition) -> _SearchedTool:
        texts = texts_of(definition)
        folded = map(fold, (texts.name, texts.description, texts.parameters, texts.parameter_descriptions))
        return cls(texts.name, texts.description, tuple(folded))


def _with_pattern(tools: Iterable[tuple[str, _SearchedTool]], query: str) -> list[ToolMatch]:
    """Return the tools in which a pattern is found; none if it is invalid."""
    if len(query) > _MOST_CHARACTERS:
        return []
    try:
        is_found = compile_pattern(f"(?i){query}")
    except ValueError:
        return []
    scores = ((name, 2 * is_found(tool.name) + is_found(tool.description)) for name, tool in tools)
    return [ToolMatch(name, float(score)) for name, score in scores if score]


def _with_words(tools: Iterable[tuple[str, _SearchedTool]], words: list[str]) -> list[ToolMatch]:
    """Return the tools that contain some of the words; all of them if there are no words."""
    if not words:
        return [ToolMatch(name, 0.0) for name, _ in tools]
    pattern = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))
    counts = ((name, [len(set(pattern.findall(text))) for text in tool.folded]) for name, tool in tools)
    return [ToolMatch(name, float(sum(map(mul, _WEIGHTS, hits)))) for name, hits in counts if any(hits)]
