"""What the tools of a request cost in tokens, with and without a search."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from tests.bench.search.sets import Query, livemcp_definitions, query_sets
from traced_tools import UserMessage, tool
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.models import ChatRequest
from traced_tools.models.openai.chat import OpenAIChatCodec
from traced_tools.models.openai.servers import resolve_server
from traced_tools.search import KeywordToolIndex
from traced_tools.tools.selection import tool_callbacks

SIZES = (10, 50, 200, 500)
_FOUND = 5
_CODEC = OpenAIChatCodec("gpt-5", resolve_server("https://api.openai.com", None))
_ENCODING = "o200k_base"


@dataclass(frozen=True)
class Tokens:
    """The tokens of a request, on average.

    Attributes:
        tools: how many tools the catalogue has.
        without: with all tools.
        before: with the search tool alone.
        after: with the search tool and the 5 tools that a search found.
    """

    tools: int
    without: float
    before: float
    after: float

    @property
    def saved(self) -> float:
        """The share of the tokens that a request saves after a search."""
        return 1 - self.after / self.without


def token_counts(queries: Sequence[Query] | None = None) -> Iterator[Tokens]:
    """Count the tokens of requests with tools of LiveMCP, in the format of OpenAI's API; skips without the fixtures."""
    queries = queries or next(each.queries for each in query_sets() if each.name == "LiveMCP")
    catalogue = livemcp_definitions()
    random.Random(0).shuffle(catalogue)
    search_tool = _search_tool()
    for size in SIZES:
        tools = {each.name: each for each in catalogue[:size]}
        index = KeywordToolIndex()
        index.add(tools.values())
        found = [[tools[match.name] for match in index.search(query.text, _FOUND)] for query in queries]
        yield Tokens(
            size,
            mean(_tokens(query, tools.values()) for query in queries),
            mean(_tokens(query, [search_tool]) for query in queries),
            mean(_tokens(query, [search_tool, *each]) for query, each in zip(queries, found, strict=True)),
        )


def _search_tool() -> ToolDefinition:
    @tool
    def search_tools(query: str, max_results: int = _FOUND) -> list[str]:
        """Search for tools that can help with a task. The tools that are found can be called afterwards.

        Args:
            query: what the tool must do, in a few words.
            max_results: the maximum number of tools to return, from 1 to 10.
        """
        return []

    (callback,) = tool_callbacks(search_tools)
    return callback.definition


def _tokens(query: Query, tools: Collection[ToolDefinition]) -> int:
    from bpe_openai import get_encoding  # on first use: the import reads all encodings, which takes most of a second

    body = _CODEC.encode(ChatRequest((UserMessage(query.text),), tuple(tools)), stream=False)
    return len(get_encoding(_ENCODING).encode(json.dumps(body, ensure_ascii=False)))
