"""Stores of vectors: their interface, and the one in this process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from traced_tools.core.fork import ForkSafeLock
from traced_tools.search.extras import load_numpy
from traced_tools.search.index import ToolMatch, best_matches

DIGITS = 6
"""Digits after the point by which similarities are compared. Sums of 32-bit floats differ beyond them."""


@dataclass(frozen=True, slots=True)
class ToolVector:
    """The vector of a tool.

    Attributes:
        name: the name of the tool.
        digest: identifies the text that was embedded, and the model.
        vector: the vector, of any length but that of the others in its store.
    """

    name: str
    digest: str
    vector: Sequence[float] = field(repr=False)


class VectorStore(Protocol):
    """Keeps the vectors of tools. All methods must be safe to call from several threads at once."""

    def digests(self, names: Collection[str]) -> Mapping[str, str]:
        """Return the digests of the tools that the store has of these, by name."""

    def put(self, vectors: Sequence[ToolVector]) -> None:
        """Add vectors; a vector replaces an earlier one of the same tool."""

    def remove(self, names: Collection[str]) -> None:
        """Remove the vectors of these tools; unknown names are ignored."""

    def nearest(self, vector: Sequence[float], max_results: int) -> list[ToolMatch]:
        """Return the tools with the most similar vectors by cosine, the best first and equal ones by name."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The vectors at one moment: names, their digests, and a matrix with a row of length 1 for each."""

    digests: Mapping[str, str]
    matrix: Any


class InMemoryVectorStore:
    """Vectors in this process, which are all compared with a query's. Needs the extra `search`.

    A change makes a new matrix, so that searches never wait.

    Raises:
        ConfigurationError: if the extra `search` is not installed.
    """

    def __init__(self) -> None:
        self._numpy = load_numpy()
        self._rows = _Rows({}, None)
        self._lock = ForkSafeLock()  # held while the rows change

    def digests(self, names: Collection[str]) -> Mapping[str, str]:
        """Return the digests of the tools that the store has of these, by name."""
        digests = self._rows.digests
        return {name: digests[name] for name in names if name in digests}

    def put(self, vectors: Sequence[ToolVector]) -> None:
        """Add vectors; a vector replaces an earlier one of the same tool.

        Raises:
            ValueError: if a vector is of another length than the others.
        """
        new_vectors = {vector.name: vector for vector in vectors}
        if not new_vectors:
            return
        new_rows = self._normalize([vector.vector for vector in new_vectors.values()])
        with self._lock:
            remaining = self._without(new_vectors)
            if remaining.digests and remaining.matrix.shape[1] != new_rows.shape[1]:
                raise ValueError(
                    f"the vectors have {new_rows.shape[1]} dimensions, and the store has vectors with "
                    f"{remaining.matrix.shape[1]}: use another store for each embedding model"
                )
            matrix = self._numpy.concatenate([remaining.matrix, new_rows]) if remaining.digests else new_rows
            self._rows = _Rows(
                {**remaining.digests, **{vector.name: vector.digest for vector in new_vectors.values()}}, matrix
            )

    def remove(self, names: Collection[str]) -> None:
        """Remove the vectors of these tools; unknown names are ignored."""
        with self._lock:
            self._rows = self._without(names)

    def _without(self, names: Collection[str]) -> _Rows:
        rows, removed_names = self._rows, {*names}
        if removed_names.isdisjoint(rows.digests):
            return rows
        places = [place for place, name in enumerate(rows.digests) if name not in removed_names]
        digests = {name: digest for name, digest in rows.digests.items() if name not in removed_names}
        return _Rows(digests, rows.matrix[places])

    def nearest(self, vector: Sequence[float], max_results: int) -> list[ToolMatch]:
        """Return the tools with the most similar vectors by cosine, the best first and equal ones by name."""
        rows = self._rows
        if not rows.digests:
            return []
        (target,) = self._normalize([vector])
        similarities = (rows.matrix @ target).round(DIGITS)
        names = [*rows.digests]
        least = similarities.min()
        if max_results < len(names):
            least = self._numpy.partition(similarities, -max_results)[-max_results]
        places = self._numpy.flatnonzero(similarities >= least)
        return best_matches((ToolMatch(names[place], float(similarities[place])) for place in places), max_results)

    def _normalize(self, vectors: Sequence[Sequence[float]]) -> Any:
        """Return vectors as rows of length 1; a vector of zeros stays as it is."""
        matrix = self._numpy.asarray(vectors, dtype=self._numpy.float32)
        lengths = self._numpy.linalg.norm(matrix, axis=1, keepdims=True)
        return matrix / self._numpy.where(lengths == 0, 1, lengths)

    def __len__(self) -> int:
        return len(self._rows.digests)

    def __repr__(self) -> str:
        return f"<InMemoryVectorStore of {len(self)} vectors>"
