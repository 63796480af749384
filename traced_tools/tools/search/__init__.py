"""Tool indexes, which find the tools of a large catalogue that fit a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.tools.search.index import ToolIndex as ToolIndex
    from traced_tools.tools.search.index import ToolMatch as ToolMatch
    from traced_tools.tools.search.keyword import KeywordToolIndex as KeywordToolIndex
    from traced_tools.tools.search.regex import RegexToolIndex as RegexToolIndex

_EXPORTS = {
    "KeywordToolIndex": "traced_tools.tools.search.keyword",
    "RegexToolIndex": "traced_tools.tools.search.regex",
    "ToolIndex": "traced_tools.tools.search.index",
    "ToolMatch": "traced_tools.tools.search.index",
}

__all__ = ["KeywordToolIndex", "RegexToolIndex", "ToolIndex", "ToolMatch"]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
