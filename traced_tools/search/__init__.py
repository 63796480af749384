"""Tool indexes, which find the tools of a large catalogue that fit a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.core.eviction import Composite as Composite
    from traced_tools.core.eviction import Eviction as Eviction
    from traced_tools.core.eviction import Lru as Lru
    from traced_tools.core.eviction import Never as Never
    from traced_tools.core.eviction import Ttl as Ttl
    from traced_tools.search.decision import DecisionToolIndex as DecisionToolIndex
    from traced_tools.search.hybrid import HybridToolIndex as HybridToolIndex
    from traced_tools.search.index import ToolIndex as ToolIndex
    from traced_tools.search.index import ToolMatch as ToolMatch
    from traced_tools.search.keyword import KeywordToolIndex as KeywordToolIndex
    from traced_tools.search.pgvector import PgVectorStore as PgVectorStore
    from traced_tools.search.regex import RegexToolIndex as RegexToolIndex
    from traced_tools.search.vector import VectorToolIndex as VectorToolIndex
    from traced_tools.search.vector_store import InMemoryVectorStore as InMemoryVectorStore
    from traced_tools.search.vector_store import ToolVector as ToolVector
    from traced_tools.search.vector_store import VectorStore as VectorStore

_EXPORTS = {
    "Composite": "traced_tools.core.eviction",
    "DecisionToolIndex": "traced_tools.search.decision",
    "Eviction": "traced_tools.core.eviction",
    "HybridToolIndex": "traced_tools.search.hybrid",
    "InMemoryVectorStore": "traced_tools.search.vector_store",
    "KeywordToolIndex": "traced_tools.search.keyword",
    "Lru": "traced_tools.core.eviction",
    "Never": "traced_tools.core.eviction",
    "PgVectorStore": "traced_tools.search.pgvector",
    "RegexToolIndex": "traced_tools.search.regex",
    "ToolIndex": "traced_tools.search.index",
    "ToolMatch": "traced_tools.search.index",
    "ToolVector": "traced_tools.search.vector_store",
    "Ttl": "traced_tools.core.eviction",
    "VectorStore": "traced_tools.search.vector_store",
    "VectorToolIndex": "traced_tools.search.vector",
}

__all__ = [
    "Composite",
    "DecisionToolIndex",
    "Eviction",
    "HybridToolIndex",
    "InMemoryVectorStore",
    "KeywordToolIndex",
    "Lru",
    "Never",
    "PgVectorStore",
    "RegexToolIndex",
    "ToolIndex",
    "ToolMatch",
    "ToolVector",
    "Ttl",
    "VectorStore",
    "VectorToolIndex",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
