"""Latent semantic analysis of a catalogue: vectors without an embedding model.

Words that occur in the same tools become similar, so a query can find a tool with which it shares no word. That needs a
catalogue of more than 100 tools; in a smaller one, the vectors compare words alone. A truncated singular value
decomposition of the matrix of tools and words has the directions in which tools differ the most (Deerwester et al.,
1990, https://doi.org/10.1002/(SICI)1097-4571(199009)41:6<391::AID-ASI1>3.0.CO;2-9). It is computed with a randomized
range finder (Halko et al., 2011, https://arxiv.org/abs/0909.4061), whose seed is fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import chain, pairwise
from math import ceil, log
from typing import Any, Final
from zlib import crc32

from traced_tools.search.extras import load_numpy

_MOST_TOOLS: Final = 2_000
"""How many tools are analysed. Of a larger catalogue, they are chosen at even distances in the order of names."""
_MOST_DIMENSIONS: Final = 256
_DIMENSIONS_PER_TOOL: Final = 2 / 3
"""With as many dimensions as tools, all directions would be kept, and no words would become similar."""
_LEAST_DIMENSIONS: Final = 100
"""Of few tools, all directions are kept: otherwise, a word that only one of them has could be lost."""
_OVERSAMPLING: Final = 16
_ITERATIONS: Final = 2
_OTHER_DIMENSIONS: Final = 128
"""Further dimensions, in which each stem that was not analysed has a random direction of its own."""
_LEAST_VALUE: Final = 1e-6
"""The least square of a singular value, relative to the greatest, whose direction is more than a rounding error."""

_Sparse = Sequence[tuple[Any, Any]]
"""The rows of a sparse matrix: for each, the columns that are not zero, and their values."""


class LatentSpace:
    """The space of a catalogue, and the vectors of texts in it.

    Args:
        tools: how often each stem counts in each tool, in the order of the tools' names.
    """

    def __init__(self, tools: Sequence[Mapping[str, int]]) -> None:
        self._numpy = np = load_numpy()
        step = -(-len(tools) // _MOST_TOOLS) or 1
        analysed = tools[::step]
        holders = Counter(chain.from_iterable(analysed))
        stems = sorted(holders)
        self._greatest_rarity = log(1 + len(analysed))
        self._columns = {stem: column for column, stem in enumerate(stems)}
        self._rarity = np.array([log(1 + len(analysed) / holders[stem]) for stem in stems], np.float32)
        rows = self._rows(analysed)
        directions = _directions(np, [row for row in rows if len(row[0])], len(stems))
        self._basis = np.pad(directions, ((0, 0), (0, _OTHER_DIMENSIONS)))

    def extended(self, tools: Iterable[Mapping[str, int]]) -> LatentSpace:
        """Return the space with the stems of further tools, which are similar to no other stem."""
        np = self._numpy
        new = sorted({stem for counts in tools for stem in counts} - self._columns.keys())
        if not new:
            return self
        space = copy(self)
        space._columns = {**self._columns, **{stem: place for place, stem in enumerate(new, len(self._columns))}}
        space._rarity = np.concatenate([self._rarity, np.full(len(new), self._greatest_rarity, np.float32)])
        random = [np.random.default_rng(crc32(stem.encode())).standard_normal(_OTHER_DIMENSIONS) for stem in new]
        others = np.array(random, np.float32) / _OTHER_DIMENSIONS**0.5
        analysed = self._basis.shape[1] - _OTHER_DIMENSIONS
        space._basis = np.concatenate([self._basis, np.pad(others, ((0, 0), (analysed, 0)))])
        return space

    def vectors(self, texts: Iterable[Mapping[str, int]]) -> Any:
        """Return a row for each text, given how often each stem counts in it; unknown stems are ignored."""
        return _product(self._numpy, self._rows(texts), self._basis)

    def _rows(self, texts: Iterable[Mapping[str, int]]) -> _Sparse:
        """Return the columns of the stems in each text that the space has, and their weights, as a vector of length 1.

        One array has the columns of all texts, because an operation on a short array costs more than its elements.
        """
        np = self._numpy
        columns: list[int] = []
        stem_counts: list[int] = []
        ends: list[int] = []
        for counts in texts:
            for stem, count in counts.items():
                if (column := self._columns.get(stem)) is not None:
                    columns.append(column)
                    stem_counts.append(count)
            ends.append(len(columns))
        logarithms = {count: 1 + log(count) for count in {*stem_counts}}
        places = np.array(columns, int)
        weights = np.array([logarithms[count] for count in stem_counts], np.float32) * self._rarity[places]
        rows = []
        for start, end in pairwise([0, *ends]):
            row = weights[start:end]
            rows.append((places[start:end], row / max(float(np.sqrt(row.dot(row))), 1e-9)))
        return rows


def _directions(np: Any, rows: _Sparse, width: int) -> Any:
    """Return the first right singular vectors of a sparse matrix, as columns; none for a matrix without rows."""
    dimensions = min(max(_LEAST_DIMENSIONS, ceil(len(rows) * _DIMENSIONS_PER_TOOL)), _MOST_DIMENSIONS)
    rank = min(dimensions + _OVERSAMPLING, len(rows), width)
    if not rank:
        return np.zeros((width, 0), np.float32)
    columns = _transpose(np, rows, width)
    if rank == len(rows):
        sampled = np.eye(rank, dtype=np.float32)
    else:
        sampled = np.random.default_rng(0).standard_normal((len(rows), rank), np.float32)
        for _ in range(_ITERATIONS):
            sampled = _orthonormal(np, _product(np, rows, _product(np, columns, sampled)))
    return _orthonormal(np, _product(np, columns, sampled))[:, :dimensions]


def _orthonormal(np: Any, matrix: Any) -> Any:
    """Return the left singular vectors of a matrix with few columns, those with the greatest values first."""
    squares, right = np.linalg.eigh(matrix.T.astype(np.float64) @ matrix)  # in the order of rising values
    places = np.flatnonzero(squares > squares[-1] * _LEAST_VALUE)[::-1]
    return (matrix @ (right[:, places] / np.sqrt(squares[places]))).astype(np.float32)


def _transpose(np: Any, rows: _Sparse, width: int) -> _Sparse:
    places = np.concatenate([np.full(len(columns), row) for row, (columns, _) in enumerate(rows)])
    columns, values = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
    order = np.argsort(columns, kind="stable")
    ends = np.searchsorted(columns[order], np.arange(1, width))
    return [*zip(np.split(places[order], ends), np.split(values[order], ends), strict=True)]


def _product(np: Any, rows: _Sparse, dense: Any) -> Any:
    """Return the product of a sparse matrix and a dense one."""
    product = np.empty((len(rows), dense.shape[1]), np.float32)
    for place, (columns, values) in enumerate(rows):
        np.matmul(values, dense.take(columns, 0), product[place])
    return product
