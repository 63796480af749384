"""The published queries, and the tools that they expect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fixtures import (
    bfcl_queries,
    bfcl_tools,
    livemcp_queries,
    livemcp_tools,
    metatool_queries,
    metatool_tools,
)
from traced_tools.core.tool_definition import ToolDefinition


@dataclass(frozen=True)
class Query:
    """A query, and for each tool that it needs the names of the tools that do."""

    text: str
    needed: tuple[frozenset[str], ...]


@dataclass(frozen=True)
class QuerySet:
    """A catalogue of tools and queries about them."""

    name: str
    tools: Sequence[ToolDefinition]
    queries: Sequence[Query]


def query_sets() -> list[QuerySet]:
    """Return the sets, without the queries that no tool fits; skips without the fixtures."""
    metatool = [ToolDefinition(name=each["name"], description=each["description"]) for each in metatool_tools()]
    return [
        QuerySet("BFCL", _bfcl_pool(), _queries_by_name(bfcl_queries(), bfcl_tools())),
        QuerySet("LiveMCP", livemcp_definitions(), [_livemcp_query(each) for each in livemcp_queries()]),
        *(
            QuerySet(f"MetaTool, {kind}", metatool, _queries_by_name(_of_category(category), metatool_tools()))
            for category, kind in (("single", "one tool"), ("multi", "two tools"))
        ),
    ]


def livemcp_definitions() -> list[ToolDefinition]:
    """Return the tools of LiveMCP, each named by its server and its own name, because servers share names."""
    return [
        ToolDefinition(name=each["id"], description=each["description"], input_schema=each["inputSchema"])
        for each in livemcp_tools()
    ]


def _bfcl_pool() -> list[ToolDefinition]:
    return [
        ToolDefinition(name=each["name"], description=each["description"], input_schema=each["parameters"])
        for each in bfcl_tools()
        if each.get("pool")
    ]


def _of_category(category: str) -> list[dict[str, Any]]:
    return [each for each in metatool_queries() if each["category"] == category]


def _queries_by_name(queries: Iterable[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]]) -> list[Query]:
    names = {tool["id"]: tool["name"] for tool in tools}
    return [
        Query(
            each["query"], tuple(frozenset([name]) for name in dict.fromkeys(map(names.__getitem__, each["expected"])))
        )
        for each in queries
        if each["expected"]
    ]


def _livemcp_query(query: Mapping[str, Any]) -> Query:
    return Query(query["query"], tuple(map(frozenset, query["expected"])))
