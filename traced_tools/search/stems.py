"""The stems of words, by which an index finds `reading` for `read`."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, Final

from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.search.extras import load_tantivy
from traced_tools.search.texts import texts_of
from traced_tools.search.words import STOP_WORDS, query_words, words_of

_NAME_COUNTS: Final = 3
"""How often a word of a name counts, compared with a word of another text."""


def stems_of(definition: ToolDefinition) -> Counter[str]:
    """Return the stems of a tool's words without stop words, and how often each of them counts."""
    texts = texts_of(definition)
    counts: Counter[str] = Counter()
    fields = (texts.name, texts.description, texts.parameters, texts.parameter_descriptions)
    for text, number in zip(fields, (_NAME_COUNTS, 1, 1, 1), strict=True):
        for word in words_of(text):
            if word not in STOP_WORDS:
                counts[_stem(word)] += number
    return counts


def query_stems(query: str) -> list[str]:
    """Return the distinct stems of a query's words, in order."""
    return [*dict.fromkeys(map(_stem, query_words(query)))]


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    stems = _stemmer().analyze(word)
    return stems[0] if stems else word


@lru_cache(maxsize=1)
def _stemmer() -> Any:
    tantivy = load_tantivy()
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw()).filter(tantivy.Filter.stemmer("english")).build()
