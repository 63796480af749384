"""The floor: BM25 over names and descriptions, without anything else."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.search.index import ToolIndex, ToolMatch, best_matches, definitions_of
from traced_tools.search.words import words_of

_SATURATION = 1.2
_LENGTH = 0.75


class PlainBm25(ToolIndex):
    """BM25 with its usual constants, of words as they are written: no stop words, no stems, no parameters."""

    kind = "plain"

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        """Add tools."""
        for name, tool in definitions_of(tools).items():
            self._counts[name] = Counter(words_of(f"{name} {tool.description}"))
        self._prepare()

    def remove(self, names: Iterable[str]) -> None:
        """Remove tools."""
        for name in names:
            self._counts.pop(name, None)
        self._prepare()

    def _prepare(self) -> None:
        lengths = {name: counts.total() for name, counts in self._counts.items()}
        average = sum(lengths.values()) / max(1, len(lengths))
        holders = defaultdict(list)
        for name, counts in self._counts.items():
            for word, count in counts.items():
                holders[word].append((name, count))
        self._scores: dict[str, list[tuple[str, float]]] = {}
        for word, found in holders.items():
            rarity = math.log(1 + (len(lengths) - len(found) + 0.5) / (len(found) + 0.5))
            self._scores[word] = [
                (name, rarity * count * (_SATURATION + 1) / (count + _saturation(lengths[name] / average)))
                for name, count in found
            ]

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Search."""
        scores: Counter[str] = Counter()
        for word in set(words_of(query)):
            for name, score in self._scores.get(word, ()):
                scores[name] += score  # type: ignore[assignment]
        return best_matches((ToolMatch(name, score) for name, score in scores.items()), max_results)


def _saturation(length: float) -> float:
    return _SATURATION * (1 - _LENGTH + _LENGTH * length)
