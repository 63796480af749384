"""A tool index that ranks by the words of tools (BM25), with tantivy."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any, Final

from traced_tools.core.fork import ForkSafeLock
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.search.extras import load_tantivy
from traced_tools.search.index import (
    ToolIndex,
    ToolMatch,
    best_matches,
    check_min_score,
    check_search,
    names_of,
)
from traced_tools.search.stems import query_stems, stems_of_tools

_HEAP: Final = 15_000_000
"""Bytes of memory of a writer, the least that tantivy accepts."""
_DIGITS: Final = 3
"""Digits after the point by which scores are compared. The sums of tantivy differ beyond them for equal tools."""


class KeywordToolIndex(ToolIndex):
    """Finds tools by the words of their names, descriptions and parameters, ranked by BM25; needs the extra `search`.

    Names are split at case, underscores and digits, and words are compared by their English stems.

    Args:
        min_score: the least score of a result. Scores grow with the number and the rarity of the words that a tool and
            a query share, so they depend on the catalogue.

    Raises:
        TypeError, ValueError: if `min_score` is not a number, or negative.
        ConfigurationError: if the extra `search` is not installed.
    """

    kind = "keyword"

    def __init__(self, *, min_score: float = 0.0) -> None:
        check_min_score(min_score)
        self._min_score = min_score
        self._tantivy = load_tantivy()
        schema = self._tantivy.SchemaBuilder()
        schema.add_unsigned_field("key", indexed=True, fast=True)
        schema.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
        self._schema = schema.build()
        self._index = self._tantivy.Index(self._schema)
        self._index.config_reader(reload_policy="manual")  # without a thread that waits for changes
        self._keys: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._next_key = count()
        self._lock = ForkSafeLock()  # tantivy has one writer at a time

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        """Add tools; a tool replaces an earlier one with the same name."""
        words = {name: " ".join(stems) for name, stems in stems_of_tools(tools).items()}
        self._change(words, words)

    def remove(self, names: Iterable[str]) -> None:
        """Remove the tools with these names; unknown names are ignored."""
        self._change(names_of(names), {})

    def _change(self, old_names: Iterable[str], new_words: dict[str, str]) -> None:
        with self._lock:
            old_keys = {name: self._keys[name] for name in old_names if name in self._keys}
            new_keys = {name: next(self._next_key) for name in new_words}
            if not old_keys and not new_keys:
                return
            writer = self._index.writer(_HEAP, 1)
            for key in old_keys.values():
                writer.delete_documents_by_term("key", key)
            for name, words in new_words.items():
                document = self._tantivy.Document(words=words)
                document.add_unsigned("key", new_keys[name])
                writer.add_document(document)
            writer.commit()
            writer.wait_merging_threads()  # it ends the writer, so that an idle index has no threads
            for name, key in old_keys.items():
                del self._keys[name], self._names[key]
            self._keys |= new_keys
            self._names |= {key: name for name, key in new_keys.items()}
            self._index.reload()

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Return the tools that have words of `query`, the best first and equal scores by name."""
        check_search(query, max_results)
        stems = query_stems(query)
        if not stems:
            return []
        terms = [self._tantivy.Query.term_query(self._schema, "words", stem, "freq") for stem in stems]
        each_may_match = [(self._tantivy.Occur.Should, term) for term in terms]
        matches = self._find(self._tantivy.Query.boolean_query(each_may_match), max_results)
        return [match for match in matches if match.score >= self._min_score]

    def _find(self, query: Any, max_results: int) -> list[ToolMatch]:
        searcher = self._index.searcher()
        limit = max_results
        while True:  # until all tools are found that score like the last one, which are ordered by name
            limit = min(limit + 8, searcher.num_docs)
            hits = searcher.search(query, limit, count=False).hits if limit else []
            scores = [round(score, _DIGITS) for score, _ in hits]
            if len(hits) < limit or limit == searcher.num_docs or scores[-1] < scores[max_results - 1]:
                break
            limit *= 2
        keys = searcher.fast_field_values("key", [address for _, address in hits]) if hits else []
        scored_names = [(self._names.get(key), score) for key, score in zip(keys, scores, strict=True)]
        return best_matches((ToolMatch(name, score) for name, score in scored_names if name is not None), max_results)

    def __repr__(self) -> str:
        return f"<KeywordToolIndex of {len(self._keys)} tools>"
