"""The interface of tool indexes."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar

from traced_tools.core.checks import expect, expect_each, expect_whole
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.flow.flow import Step
from traced_tools.flow.steps import perform

if TYPE_CHECKING:
    from traced_tools.run.context import RunContext


@dataclass(frozen=True, slots=True)
class ToolMatch:
    """A tool that fits a query.

    Attributes:
        name: the name of the tool.
        score: how well it fits; higher is better. Only scores of one search can be compared.
    """

    name: str
    score: float


class ToolIndex(ABC):
    """Finds tools by what they do. Subclasses set `kind` and implement `add`, `remove` and `search`.

    All methods must be safe to call from several threads at once.

    Attributes:
        kind: the kind of index in telemetry. It is a metric label, so use a fixed word.
        query_hint: what a query is, for the model that searches.
    """

    kind: ClassVar[str]
    query_hint: ClassVar[str] = "What the tool must do, in a few words."

    @abstractmethod
    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        """Add tools; a tool replaces an earlier one with the same name.

        Raises:
            TypeError: if an item is neither a `ToolDefinition` nor a `ToolCallback`.
        """

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove the tools with these names; unknown names are ignored."""

    @abstractmethod
    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Return the tools that fit `query`, the best first and equal scores by name; none if no tool fits.

        Args:
            query: what the tool must do, in words. It is content: it must not be in an error, a log or a span.
            max_results: the maximum number of tools to return.

        Raises:
            TypeError: if an argument has a wrong type.
            ValueError: if `max_results` is below 1.
        """

    async def search_in_run(self, run: RunContext, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Search as a part of `run`, as a flow; by default, perform `search`.

        An index that asks a chat model overrides this, so that the run observes and counts the call of the model.
        """
        step: Step[list[ToolMatch]] = perform(self.search, query, max_results)
        return await step


def definitions_of(tools: Iterable[ToolDefinition | ToolCallback]) -> dict[str, ToolDefinition]:
    """Return the definitions of tools by name, the last of each name; raise `TypeError` for anything else."""
    kinds = (ToolDefinition, ToolCallback)
    if isinstance(tools, Iterable) and not isinstance(tools, kinds):
        tools = list(tools)  # it may be an iterator
    expect_each("tools", tools, kinds, "a ToolDefinition or a ToolCallback")
    definitions = [tool if isinstance(tool, ToolDefinition) else tool.definition for tool in tools]
    return {definition.name: definition for definition in definitions}


def names_of(names: Iterable[str]) -> list[str]:
    """Return the names as a list; raise `TypeError` unless they are a sequence of str."""
    checked_names = [] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    expect_each("names", checked_names or names, str, "a str")
    return checked_names


def check_search(query: str, max_results: int) -> None:
    """Raise `TypeError` or `ValueError` unless the arguments of a search are valid."""
    expect("query", query, str, "a str")
    expect_whole("max_results", max_results, 1)


def check_min_score(min_score: float) -> None:
    """Raise `TypeError` or `ValueError` unless a score is a number that a match can have."""
    expect("min_score", min_score, (int, float), "a number")
    if not 0 <= min_score < inf:
        raise ValueError(f"min_score must be a finite number that is not negative; it is {min_score}")


def best_matches(matches: Iterable[ToolMatch], max_results: int) -> list[ToolMatch]:
    """Return the best matches, the best first and equal scores by name."""
    return heapq.nsmallest(max_results, matches, key=lambda match: (-match.score, match.name))
