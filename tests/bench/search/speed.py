"""How long a search and the indexing of a large catalogue take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median

from tests.bench.search.quality import INDEXES
from tests.bench.search.sets import livemcp_definitions, query_sets
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.tools.search import ToolIndex

TOOLS = 10_000
_SEARCHES = 200


@dataclass(frozen=True)
class Speed:
    """How long an index takes with a catalogue.

    Attributes:
        index: the name of the index.
        tools: how many tools the catalogue has.
        indexing: the seconds to add them.
        search: the milliseconds of a search, the median of 200.
        one_more: the milliseconds to add one more tool and search it.
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


def speeds(tools: int = TOOLS) -> Iterator[Speed]:
    """Time each index but the one to compare with; skips without the fixtures."""
    for name, make in islice(INDEXES.items(), 1, None):
        yield speed(name, make, tools)


def speed(name: str, make: Callable[[], ToolIndex], tools: int) -> Speed:
    """Time an index."""
    catalogue = variants(tools)
    queries = [query.text for each in query_sets() if each.name == "LiveMCP" for query in each.queries]
    index = make()
    indexing = _seconds(lambda: index.add(catalogue))
    index.search(queries[0])
    times = [_seconds(lambda query=query: index.search(query)) for query in islice(cycle(queries), _SEARCHES)]  # type: ignore[misc]

    def add_one() -> None:
        index.add([ToolDefinition(name="one_more", description="Return the phase of the moon.")])
        index.search("phase of the moon")

    return Speed(name, tools, indexing, 1_000 * median(times), 1_000 * _seconds(add_one))


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
