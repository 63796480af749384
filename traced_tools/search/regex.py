"""A tool index without dependencies, for small catalogues."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from traced_tools.core.fork import ForkSafeLock
from traced_tools.core.patterns import compile_filter
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.search.index import (
    ToolIndex,
    ToolMatch,
    best_matches,
    check_search,
    definitions_of,
    names_of,
)
from traced_tools.search.texts import ToolTexts, texts_of
from traced_tools.search.word_postings import WordPostings
from traced_tools.search.words import query_words

_MOST_WORDS: Final = 50
_MOST_CHARACTERS: Final = 1_000
"""How long a pattern may be."""
_OPERATOR: Final = re.compile(r"[\\^$*+()\[\]{}|]|[.?](?=[\w*+?{])")
"""What a pattern has and plain words don't, such as `.` within a word, but not at the end of a sentence."""

_GROUP: Final = 20
"""How many tools are searched together for a pattern, to find those that have to be searched one by one."""
_DEPENDS_ON_ENDS: Final = re.compile(r"[\^$]|\\[Az]|\(\?(?!:)")
"""What a pattern has, or a flag of it, that may match at the end of a text alone but not within a longer text."""


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
        self._tools: dict[str, ToolTexts] = {}
        self._groups: list[_Group] | None = None  # None if the tools have changed
        self._postings = WordPostings()
        self._new: dict[str, ToolTexts] = {}  # tools that `_postings` lacks: few searches need it
        self._lock = ForkSafeLock()

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        """Add tools; a tool replaces an earlier one with the same name."""
        texts = {name: texts_of(definition) for name, definition in definitions_of(tools).items()}
        with self._lock:
            self._tools |= texts
            self._new |= texts
            self._groups = None

    def remove(self, names: Iterable[str]) -> None:
        """Remove the tools with these names; unknown names are ignored."""
        with self._lock:
            for name in names_of(names):
                self._tools.pop(name, None)
                self._new.pop(name, None)
                self._postings.remove(name)
            self._groups = None

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Return the tools that fit the pattern or the words of `query`, the best first and equal scores by name."""
        check_search(query, max_results)
        is_pattern = _OPERATOR.search(query) is not None
        matches = self._with_pattern(query, max_results) if is_pattern else []
        if not matches and ((words := query_words(query)[:_MOST_WORDS]) or not is_pattern):
            matches = self._with_words(words, max_results)
        return matches

    def _with_pattern(self, query: str, max_results: int) -> list[ToolMatch]:
        """Return the best tools in which a pattern is found; none if it is invalid."""
        if len(query) > _MOST_CHARACTERS:
            return []
        try:
            search = compile_filter(f"(?i){query}")
        except ValueError:
            return []
        with self._lock:
            if self._groups is None:
                self._groups = _groups([*self._tools.values()])
            groups = self._groups
        if not _DEPENDS_ON_ENDS.search(query):
            found_groups = search([group.text for group in groups])
            groups = [group for group, is_found in zip(groups, found_groups, strict=True) if is_found]
        tools = [texts for group in groups for texts in group.tools]
        names = [texts.name for texts in tools]
        matches = enumerate(zip(search(names), search([texts.description for texts in tools]), strict=True))
        scores = {place: 2 * in_name + in_text for place, (in_name, in_text) in matches if in_name or in_text}
        return _best(names, scores, max_results)

    def _with_words(self, words: list[str], max_results: int) -> list[ToolMatch]:
        """Return the best tools that contain some of the words; without words, the first ones by name."""
        with self._lock:
            if not words:
                return [ToolMatch(name, 0.0) for name in heapq.nsmallest(max_results, self._tools)]
            if self._postings.is_worn:
                self._postings, self._new = WordPostings(), dict(self._tools)
            if self._new:
                self._postings.add(self._new.values())
                self._new = {}
            return _best(self._postings.names, self._postings.scores(words), max_results)

    def __repr__(self) -> str:
        return f"<RegexToolIndex of {len(self._tools)} tools>"


def _best(names: Sequence[str], scores: Mapping[int, int], max_results: int) -> list[ToolMatch]:
    """Return the best matches of tools with scores, by their places in `names`."""
    if not scores:
        return []
    least = heapq.nlargest(max_results, scores.values())[-1]
    matches = (ToolMatch(names[place], float(score)) for place, score in scores.items() if score >= least)
    return best_matches(matches, max_results)


class _Group(NamedTuple):
    """Some tools, and their names and descriptions in lines, which have a match if one of them does."""

    tools: Sequence[ToolTexts]
    text: str


def _groups(tools: Sequence[ToolTexts]) -> list[_Group]:
    """Return groups of the tools, so that a search looks at the texts by themselves in few of them."""
    groups = []
    for start in range(0, len(tools), _GROUP):
        group = tools[start : start + _GROUP]
        texts = (text for texts in group for text in (texts.name, texts.description))
        # no pattern matches a text with a lone surrogate
        encodable = (text for text in texts if text.isascii() or text.encode(errors="ignore").decode() == text)
        groups.append(_Group(group, "\n".join(encodable)))
    return groups
