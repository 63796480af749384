"""The observation of a search for tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from traced_tools.observe.stages.observation import Observation

if TYPE_CHECKING:
    from traced_tools.core.tool_definition import ToolCallback


class ToolSearchObservation(Observation):
    """One search for tools.

    Args:
        kind: the kind of the index, which is set in code.
        query: what the search looks for; content.
        max_results: the maximum number of results.
        iteration: the iteration of the loop, from 1; 0 outside a loop.
        search_tool: the tool whose call is the search.

    Attributes:
        kind, query, max_results, iteration, search_tool: as above.
        matches: the name and the score of each tool that was found, the best first; None if the search failed.
        discovered: the names of those that the session had not discovered before.
    """

    __slots__ = ("discovered", "iteration", "kind", "matches", "max_results", "query", "search_tool")

    def __init__(self, kind: str, query: str, max_results: int, iteration: int, search_tool: ToolCallback) -> None:
        self.kind = kind
        self.query = query
        self.max_results = max_results
        self.iteration = iteration
        self.search_tool = search_tool
        self.matches: Sequence[tuple[str, float]] | None = None
        self.discovered: Sequence[str] = ()

    def found(self, matches: Sequence[tuple[str, float]], discovered: Sequence[str]) -> None:
        """Record what was found, and which of it is new."""
        self.matches = matches
        self.discovered = discovered
        self._events.found()
