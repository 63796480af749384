"""Tool indexes, which find the tools of a large catalogue that fit a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.tools.search.decision import DecisionToolIndex as DecisionToolIndex
    from traced_tools.tools.search.hybrid import HybridToolIndex as HybridToolIndex
    from traced_tools.tools.search.index import ToolIndex as ToolIndex
    from traced_tools.tools.search.index import ToolMatch as ToolMatch
    from traced_tools.tools.search.keyword import KeywordToolIndex as KeywordToolIndex
    from traced_tools.tools.search.pgvector import PgVectorStore as PgVectorStore
    from traced_tools.tools.search.regex import RegexToolIndex as RegexToolIndex
    from traced_tools.tools.search.vector import VectorToolIndex as VectorToolIndex
    from traced_tools.tools.search.vector_store import InMemoryVectorStore as InMemoryVectorStore
    from traced_tools.tools.search.vector_store import ToolVector as ToolVector
    from traced_tools.tools.search.vector_store import VectorStore as VectorStore

_EXPORTS = {
    "DecisionToolIndex": "traced_tools.tools.search.decision",
    "HybridToolIndex": "traced_tools.tools.search.hybrid",
    "InMemoryVectorStore": "traced_tools.tools.search.vector_store",
    "KeywordToolIndex": "traced_tools.tools.search.keyword",
    "PgVectorStore": "traced_tools.tools.search.pgvector",
    "RegexToolIndex": "traced_tools.tools.search.regex",
    "ToolIndex": "traced_tools.tools.search.index",
    "ToolMatch": "traced_tools.tools.search.index",
    "ToolVector": "traced_tools.tools.search.vector_store",
    "VectorStore": "traced_tools.tools.search.vector_store",
    "VectorToolIndex": "traced_tools.tools.search.vector",
}

__all__ = [
    "DecisionToolIndex",
    "HybridToolIndex",
    "InMemoryVectorStore",
    "KeywordToolIndex",
    "PgVectorStore",
    "RegexToolIndex",
    "ToolIndex",
    "ToolMatch",
    "ToolVector",
    "VectorStore",
    "VectorToolIndex",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
