"""Which tools have a word in which of their texts, also inside other words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Final

from traced_tools.search.texts import ToolTexts
from traced_tools.search.words import fold

_RUN: Final = re.compile(r"[^\W\d_]+|\d+")
"""A longest run of letters or of digits. A word of a query never extends beyond it."""
_WEIGHTS: Final = (4, 2, 1, 1)
"""How much a word counts in the name, the description, the parameters' names and their descriptions."""


class WordPostings:
    """The places of the tools that have each run of letters or of digits, by the text that has it.

    A catalogue has many texts and few different runs, so a query is compared with each of the runs once.

    Attributes:
        names: the names of the tools by place, also of those that were replaced or removed.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._place_of: dict[str, int] = {}
        self._gone: set[int] = set()  # the places of tools that were replaced or removed
        self._places: tuple[defaultdict[str, list[int]], ...] = tuple(defaultdict(list) for _ in _WEIGHTS)
        self._vocabulary = ""  # all runs, in lines

    def add(self, tools: Iterable[ToolTexts]) -> None:
        """Add the texts of tools; a tool replaces an earlier one with the same name."""
        runs_of_piece = _RunsOfPieces().__getitem__
        for place, texts in enumerate(tools, len(self.names)):
            self.remove(texts.name)
            self.names.append(texts.name)
            self._place_of[texts.name] = place
            fields = (texts.name, texts.description, texts.parameters, texts.parameter_descriptions)
            for text, places in zip(fields, self._places, strict=True):
                for run in {*chain.from_iterable(map(runs_of_piece, text.split()))}:
                    places[run].append(place)
        self._vocabulary = "\n".join(dict.fromkeys(chain.from_iterable(self._places)))

    def remove(self, name: str) -> None:
        """Remove the tool with this name, if there is one."""
        place = self._place_of.pop(name, None)
        if place is not None:
            self._gone.add(place)

    @property
    def is_worn(self) -> bool:
        """Whether most of the tools were replaced or removed, so that it is time for new postings."""
        return len(self._gone) > len(self._place_of)

    def scores(self, words: Iterable[str]) -> Mapping[int, int]:
        """Return the sum of the weights of the words in the texts of each tool that has some, by place in `names`.

        Args:
            words: folded, each of letters or of digits. Where words overlap, the longest of the first ones counts.
        """
        scores: Counter[int] = Counter()
        for runs in self._runs_with(words):
            for places_of_run, weight in zip(self._places, _WEIGHTS, strict=True):
                places = [places_of_run[run] for run in runs if run in places_of_run]
                if places:
                    distinct = places[0] if len(places) == 1 else {*chain.from_iterable(places)}
                    for _ in repeat(None, weight):
                        scores.update(distinct)
        for place in self._gone & scores.keys():
            del scores[place]
        return scores

    def _runs_with(self, words: Iterable[str]) -> Iterable[Sequence[str]]:
        """Return the runs that contain each of the words."""
        pattern = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))
        text = self._vocabulary
        runs: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for match in pattern.finditer(text):
            start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
            runs[match[0]][text[start : end if end >= 0 else None]] = None
        return [[*runs_of_word] for runs_of_word in runs.values()]


class _RunsOfPieces(dict[str, list[str]]):
    """The folded runs of pieces of texts without spaces, by piece."""

    def __missing__(self, piece: str) -> list[str]:
        self[piece] = runs = _RUN.findall(fold(piece))
        return runs
