"""How long a search and the indexing of a large catalogue take, in time of the processors.

Other processes of the machine disturb such times less than those of a clock. The time of all threads counts, so numpy
must use one thread: the threads of OpenBLAS spin while they wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from statistics import median

from numpy.random import default_rng

from tests.bench.search.quality import INDEXES
from tests.bench.search.sets import livemcp_definitions, query_sets
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.models import EmbeddingModel, EmbeddingResponse
from traced_tools.search import ToolIndex, VectorToolIndex

TOOLS = 10_000
_SEARCHES = 200
_ADDED = 5
DIMENSIONS = 384


@dataclass(frozen=True)
class Speed:
    """How long an index takes with a catalogue.

    Attributes:
        index: the name of the index.
        tools: how many tools the catalogue has.
        indexing: the seconds to add them.
        search: the milliseconds of a search, the median of 200.
        one_more: the milliseconds to add one more tool and search it, the median of 5.
    """

    index: str
    tools: int
    indexing: float
    search: float
    one_more: float


def variants(number: int) -> list[ToolDefinition]:
    """Return variants of LiveMCP's tools with different names; skips without the fixtures."""
    tools = livemcp_definitions()
    return [
        tool.replace(name=f"{tool.name}_{place // len(tools)}")
        for place, tool in enumerate(islice(cycle(tools), number))
    ]


class RandomEmbeddings(EmbeddingModel):
    """Random vectors, which cost nothing to speak of."""

    model, provider, dimensions = "random", "bench", DIMENSIONS

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Return a vector for each text."""
        return EmbeddingResponse(default_rng(len(texts)).standard_normal((len(texts), DIMENSIONS)).tolist())


def speeds(tools: int = TOOLS) -> Iterator[Speed]:
    """Time each index but the one to compare with; skips without the fixtures."""
    indexes = dict(islice(INDEXES.items(), 1, None))
    indexes[f"VectorToolIndex, {DIMENSIONS} dimensions"] = lambda: VectorToolIndex(RandomEmbeddings())
    for name, make in indexes.items():
        yield speed(name, make, tools)


def speed(name: str, make: Callable[[], ToolIndex], tools: int) -> Speed:
    """Time an index."""
    catalogue = variants(tools)
    queries = [query.text for each in query_sets() if each.name == "LiveMCP" for query in each.queries]
    index = make()
    indexing = _seconds(lambda: index.add(catalogue))
    index.search(queries[0])
    times = [_seconds(partial(index.search, query)) for query in islice(cycle(queries), _SEARCHES)]

    def add_one(number: int) -> None:
        index.add([ToolDefinition(name=f"one_more_{number}", description="Return the phase of the moon.")])
        index.search("phase of the moon")

    added = [_seconds(partial(add_one, number)) for number in range(_ADDED)]
    return Speed(name, tools, indexing, 1_000 * median(times), 1_000 * median(added))


def _seconds(function: Callable[[], object]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began
