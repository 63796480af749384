"""How well the indexes find the tools that queries need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.bench.search.plain_bm25 import PlainBm25
from tests.bench.search.sets import Query, QuerySet, query_sets
from traced_tools.search import HybridToolIndex, KeywordToolIndex, RegexToolIndex, ToolIndex, VectorToolIndex

INDEXES: dict[str, Callable[[], ToolIndex]] = {
    "plain BM25, for comparison": PlainBm25,
    "RegexToolIndex": RegexToolIndex,
    "KeywordToolIndex": KeywordToolIndex,
    "VectorToolIndex, latent": VectorToolIndex,
    "HybridToolIndex of both": lambda: HybridToolIndex([KeywordToolIndex(), VectorToolIndex()]),
}
_DEPTH = 10


@dataclass(frozen=True)
class Quality:
    """How well an index answers the queries of a set.

    Attributes:
        queries: the name of the set.
        index: the name of the index.
        recall_1, recall_5, recall_10: the share of the needed tools among the best 1, 5 and 10 results, on average.
        mrr: 1 divided by the rank of the first needed tool, on average; 0 if it is not among the best 10.
    """

    queries: str
    index: str
    recall_1: float
    recall_5: float
    recall_10: float
    mrr: float


def qualities(sets: Sequence[QuerySet] | None = None) -> Iterator[Quality]:
    """Measure each index on each set; skips without the fixtures."""
    for each in sets or query_sets():
        for name, make in INDEXES.items():
            index = make()
            index.add(each.tools)
            ranks = [_ranks(index, query) for query in each.queries]
            recalls = [_mean(_share(found, depth) for found in ranks) for depth in (1, 5, 10)]
            yield Quality(each.name, name, *recalls, _mean(1 / min(found) for found in ranks))


def _ranks(index: ToolIndex, query: Query) -> list[float]:
    """Return the rank of each needed tool, infinite for a tool that is not found."""
    found = {match.name: rank for rank, match in enumerate(index.search(query.text, _DEPTH), 1)}
    return [min(found.get(name, float("inf")) for name in names) for names in query.needed]


def _share(ranks: Sequence[float], depth: int) -> float:
    return sum(rank <= depth for rank in ranks) / len(ranks)


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
