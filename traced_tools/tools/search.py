"""The former place of `traced_tools.search`. The next release removes it."""

from __future__ import annotations

from traced_tools._lazy import lazy_exports

_MOVED = (
    *("Composite", "DecisionToolIndex", "Eviction", "HybridToolIndex", "InMemoryVectorStore"),
    *("KeywordToolIndex", "Lru", "Never", "PgVectorStore", "RegexToolIndex", "ToolIndex", "ToolMatch", "ToolVector"),
    *("Ttl", "VectorStore", "VectorToolIndex"),
)

__getattr__, __dir__ = lazy_exports(__name__, {}, dict.fromkeys(_MOVED, "traced_tools.search"))
