"""A tool index that compares vectors: of an embedding model, or of latent semantic analysis."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from traced_tools.core.checks import expect
from traced_tools.core.fork import ForkSafeLock
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.errors import ConfigurationError
from traced_tools.models.embedding import EmbeddingModel
from traced_tools.search.index import (
    ToolIndex,
    ToolMatch,
    check_min_score,
    check_search,
    definitions_of,
    names_of,
)
from traced_tools.search.latent import LatentSpace
from traced_tools.search.stems import query_stems, stems_of_tools
from traced_tools.search.texts import texts_of
from traced_tools.search.vector_store import InMemoryVectorStore, ToolVector, VectorStore
from traced_tools.search.words import words_of

_MOST_CHARACTERS: Final = 4_000
"""How many characters of a tool's text or of a query are embedded; many models read about 500 tokens."""
_CHANGED_SHARE: Final = 5
"""The catalogue is analysed again after a fifth of it has changed. Until then, the space of before is extended."""


class VectorToolIndex(ToolIndex):
    """Finds tools whose vectors are similar to the query's; needs the extra `search`.

    An embedding model makes a vector of the words of a tool's name, its description and its parameters. A tool whose
    text the store has is not embedded again. Without a model, the vectors come from latent semantic analysis of the
    catalogue: words are similar that occur in the same tools. It needs no weights and no server, but knows nothing
    beyond the catalogue, and compares words alone in a catalogue of up to 100 tools.

    Args:
        model: makes the vectors; None for latent semantic analysis.
        store: keeps the vectors of `model`; by default this process. Its vectors must all be of this model.
        min_score: the least cosine of a result, from 0 to 1. Which one is good depends on the model.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if `min_score` is not from 0 to 1.
        ConfigurationError: if the extra `search` is not installed, or there is a store without a model.

    `add` and `search` raise `ModelError` if the model doesn't answer, and what the store raises.
    """

    kind = "vector"

    def __init__(
        self, model: EmbeddingModel | None = None, store: VectorStore | None = None, *, min_score: float = 0.0
    ) -> None:
        check_min_score(min_score)
        if min_score > 1:
            raise ValueError(f"min_score must be from 0 to 1; it is {min_score}")
        self._min_score = min_score
        expect("model", model, (EmbeddingModel, type(None)), "an EmbeddingModel or None")
        if model is None and store is not None:
            raise ConfigurationError("a store of vectors needs an embedding model: pass model= as well")
        self._vectors: _EmbeddedVectors | _LatentVectors
        if model is None:
            self._vectors = _LatentVectors()
        else:
            self._vectors = _EmbeddedVectors(model, InMemoryVectorStore() if store is None else store)

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        """Add tools; a tool replaces an earlier one with the same name."""
        self._vectors.add(tools)

    def remove(self, names: Iterable[str]) -> None:
        """Remove the tools with these names; unknown names are ignored."""
        if gone := names_of(names):
            self._vectors.remove(gone)

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        """Return the tools that are similar to `query`, the best first and equal scores by name.

        The score is the cosine of the vectors.
        """
        check_search(query, max_results)
        return [
            match
            for match in self._vectors.search(query, max_results)
            if match.score > 0 and match.score >= self._min_score
        ]

    def __repr__(self) -> str:
        return f"<VectorToolIndex {self._vectors}>"


class _EmbeddedVectors:
    """Vectors of an embedding model."""

    def __init__(self, model: EmbeddingModel, store: VectorStore) -> None:
        self._model = model
        self._store = store

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        texts = {name: _embedded_text(definition) for name, definition in definitions_of(tools).items()}
        if not texts:
            return
        digests = {name: self._digest(text) for name, text in texts.items()}
        stored_digests = self._store.digests(digests)
        new = [name for name, digest in digests.items() if stored_digests.get(name) != digest]
        if new:
            vectors = self._model.embed([texts[name] for name in new]).embeddings
            self._store.put(
                [ToolVector(name, digests[name], vector) for name, vector in zip(new, vectors, strict=True)]
            )

    def _digest(self, text: str) -> str:
        model = f"{self._model.provider}\n{self._model.model}\n{self._model.dimensions}\n"
        return hashlib.sha256(f"{model}{text}".encode(errors="replace")).hexdigest()

    def remove(self, names: list[str]) -> None:
        self._store.remove(names)

    def search(self, query: str, max_results: int) -> list[ToolMatch]:
        if not query.strip():
            return []
        (vector,) = self._model.embed([query[:_MOST_CHARACTERS]]).embeddings
        return self._store.nearest(vector, max_results)

    def __str__(self) -> str:
        return f"with {self._model.model} in {self._store!r}"


def _embedded_text(definition: ToolDefinition) -> str:
    """Return the text that stands for a tool: the words of its name, its description, its parameters."""
    texts = texts_of(definition)
    parameters = [texts.parameters.replace("\n", ", "), texts.parameter_descriptions]
    parts = [" ".join(words_of(texts.name)) or texts.name, texts.description, *parameters]
    return "\n".join(part for part in parts if part.strip())[:_MOST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class _Analysed:
    """A space and the vectors of the tools in it."""

    space: LatentSpace
    store: InMemoryVectorStore


class _LatentVectors:
    """Vectors of latent semantic analysis."""

    def __init__(self) -> None:
        self._stems: dict[str, list[str]] = {}
        self._changes = 0  # since the catalogue was analysed
        self._analysed = _Analysed(LatentSpace(()), InMemoryVectorStore())
        self._lock = ForkSafeLock()  # held while the catalogue changes

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        stems = stems_of_tools(tools)
        if not stems:
            return
        with self._lock:
            self._stems |= stems
            if self._is_outdated(len(stems)):
                self._analyse()
            else:
                self._put(self._analysed.space, self._analysed.store, stems)

    def remove(self, names: list[str]) -> None:
        with self._lock:
            gone = [name for name in names if self._stems.pop(name, None) is not None]
            if self._is_outdated(len(gone)):
                self._analyse()
            else:
                self._analysed.store.remove(gone)

    def _is_outdated(self, changes: int) -> bool:
        self._changes += changes
        return self._changes * _CHANGED_SHARE > len(self._stems)

    def _analyse(self) -> None:
        ordered = dict(sorted(self._stems.items()))
        self._put(LatentSpace([*ordered.values()]), InMemoryVectorStore(), ordered)
        self._changes = 0

    def _put(self, space: LatentSpace, store: InMemoryVectorStore, stems: Mapping[str, list[str]]) -> None:
        space = space.extended(stems.values())
        vectors = space.vectors(stems.values())
        store.put([ToolVector(name, "", vector) for name, vector in zip(stems, vectors, strict=True)])
        self._analysed = _Analysed(space, store)

    def search(self, query: str, max_results: int) -> list[ToolMatch]:
        analysed = self._analysed
        (vector,) = analysed.space.vectors([query_stems(query)])
        return analysed.store.nearest(vector, max_results)

    def __str__(self) -> str:
        return f"of {len(self._stems)} tools by latent semantic analysis"
