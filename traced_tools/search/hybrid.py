"""A tool index that combines the results of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from traced_tools.core.checks import expect_each
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.search.index import (
    ToolIndex,
    ToolMatch,
    best_matches,
    check_min_score,
    check_search,
    definitions_of,
    names_of,
)
from traced_tools.search.stems import Definitions

if TYPE_CHECKING:
    from traced_tools.run.context import RunContext

_CONSTANT: Final = 10
_MOST_RANKS: Final = 50
"""How many results of each index are combined, unless more are asked for."""


class HybridToolIndex(ToolIndex):
    """Combines several indexes by reciprocal rank fusion: a tool that several of them rank high is the best.

    The score of a tool is the sum of `1 / (10 + rank)` over the indexes that find it, as in Cormack et al., 2009
    (https://doi.org/10.1145/1571941.1572114). Their constant of 60 is for lists of 1,000 documents; with a few tools,
    the first ranks must differ more.

    Args:
        indexes: at least two indexes. The hybrid index adds tools to them and removes tools from them.
        min_score: the least score of a result. For example, `2 / 20` leaves out what only one of two indexes finds, and
            what both rank below the tenth place.

    Raises:
        TypeError: if an item is not a `ToolIndex`, or `min_score` is not a number.
        ValueError: if there are fewer than two indexes, or `min_score` is negative.
    """

    kind = "hybrid"

    def __init__(self, indexes: Sequence[ToolIndex], *, min_score: float = 0.0) -> None:
        check_min_score(min_score)
        self._min_score = min_score
        expect_each("indexes", indexes, ToolIndex, "a ToolIndex")
        self._indexes = tuple(indexes)
        if len(self._indexes) < 2:
            raise ValueError("indexes must be at least two indexes to combine")

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        """Add tools to all indexes; a tool replaces an earlier one with the same name."""
        definitions = Definitions(definitions_of(tools).values())
        for index in self._indexes:
            index.add(definitions)

    def remove(self, names: Iterable[str]) -> None:
        """Remove the tools with these names from all indexes; unknown names are ignored."""
        names = names_of(names)
        for index in self._indexes:
            index.remove(names)

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Return the tools that the indexes rank the highest together, the best first and equal scores by name."""
        check_search(query, max_results)
        ranks = max(max_results, _MOST_RANKS)
        return self._fuse([index.search(query, ranks) for index in self._indexes], max_results)

    async def search_in_run(self, run: RunContext, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Search each index as a part of `run`, as a flow."""
        check_search(query, max_results)
        ranks = max(max_results, _MOST_RANKS)
        return self._fuse([await index.search_in_run(run, query, ranks) for index in self._indexes], max_results)

    def _fuse(self, rankings: Iterable[Sequence[ToolMatch]], max_results: int) -> list[ToolMatch]:
        scores: dict[str, float] = {}
        for matches in rankings:
            for rank, match in enumerate(matches, 1):
                scores[match.name] = scores.get(match.name, 0.0) + 1 / (_CONSTANT + rank)
        fused = (ToolMatch(name, score) for name, score in scores.items() if score >= self._min_score)
        return best_matches(fused, max_results)

    def __repr__(self) -> str:
        return f"<HybridToolIndex of {', '.join(map(repr, self._indexes))}>"
