"""The stems of words, by which an index finds `reading` for `read`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Final

from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.search.extras import load_tantivy
from traced_tools.search.index import definitions_of
from traced_tools.search.texts import texts_of
from traced_tools.search.words import STOP_WORDS, query_words, words_of

_NAME_COUNTS: Final = 3
"""How often a word of a name counts, compared with a word of another text."""
_LONGEST_PIECE: Final = 64
_MOST_PIECES: Final = 65_536
"""How long the pieces of texts are whose stems are remembered, and how many."""


class Definitions(tuple[ToolDefinition, ...]):
    """Definitions of tools with different names, whose stems are read once for several indexes."""

    @cached_property
    def stems(self) -> dict[str, list[str]]:
        """What `stems_of` returns for each tool, by its name."""
        return {definition.name: stems_of(definition) for definition in self}


def stems_of_tools(tools: Iterable[ToolDefinition | ToolCallback]) -> dict[str, list[str]]:
    """Return what `stems_of` returns for each tool, by its name; raise `TypeError` for anything but tools."""
    return (tools if isinstance(tools, Definitions) else Definitions(definitions_of(tools).values())).stems


def stems_of(definition: ToolDefinition) -> list[str]:
    """Return the stems of a tool's words without stop words, each as often as it counts."""
    texts = texts_of(definition)
    stems = [*_stems_in(texts.name)] * _NAME_COUNTS
    stems += _stems_in(f"{texts.description}\n{texts.parameters}\n{texts.parameter_descriptions}")
    return stems


def _stems_in(text: str) -> Iterator[str]:
    """Return the stems of a text, piece by piece: what is between spaces has the same words alone."""
    return chain.from_iterable(map(_PIECES.__getitem__, text.split()))


class _Pieces(dict[str, tuple[str, ...]]):
    """The stems of pieces of texts without spaces, by piece. Most tools share most of their pieces."""

    def __missing__(self, piece: str) -> tuple[str, ...]:
        stems = tuple(_stem(word) for word in words_of(piece) if word not in STOP_WORDS)
        if len(piece) <= _LONGEST_PIECE:
            if len(self) >= _MOST_PIECES:
                self.clear()
            self[piece] = stems
        return stems


_PIECES: Final = _Pieces()


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
