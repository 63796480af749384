"""Latent semantic analysis of a catalogue: vectors without an embedding model.

Words that occur in the same tools become similar, so a query can find a tool with which it shares no word. That needs a
catalogue of more than 100 tools; in a smaller one, the vectors compare words alone. A truncated singular value
decomposition of the matrix of tools and words has the directions in which tools differ the most (Deerwester et al.,
1990, https://doi.org/10.1002/(SICI)1097-4571(199009)41:6<391::AID-ASI1>3.0.CO;2-9). It is computed with a randomized
range finder (Halko et al., 2011, https://arxiv.org/abs/0909.4061), whose seed is fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, pairwise, repeat
from math import ceil, log
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class _Sparse:
    """A sparse matrix: the rows, the columns and the values of what is not zero, in the order of the rows.

    Three arrays have all rows, because an operation on a short array costs more than its elements.
    """

    rows: Any
    columns: Any
    values: Any
    height: int


class LatentSpace:
    """The space of a catalogue, and the vectors of texts in it. A text is its stems, each as often as it counts.

    Args:
        tools: the texts of the tools, in the order of the tools' names.
    """

    def __init__(self, tools: Sequence[Sequence[str]]) -> None:
        self._numpy = np = load_numpy()
        step = -(-len(tools) // _MOST_TOOLS) or 1
        analysed = tools[::step]
        holders = Counter(chain.from_iterable(map(set, analysed)))
        stems = sorted(holders)
        self._greatest_rarity = log(1 + len(analysed))
        self._columns = {stem: column for column, stem in enumerate(stems)}
        self._rarity = np.array([log(1 + len(analysed) / holders[stem]) for stem in stems], np.float32)
        directions = _directions(np, self._weights([text for text in analysed if text]), len(stems))
        self._basis = np.pad(directions, ((0, 0), (0, _OTHER_DIMENSIONS)))

    def extended(self, tools: Iterable[Sequence[str]]) -> LatentSpace:
        """Return the space with the stems of further tools, which are similar to no other stem."""
        np = self._numpy
        new = sorted({*chain.from_iterable(tools)} - self._columns.keys())
        if not new:
            return self
        space = copy(self)
        space._columns = {**self._columns, **{stem: place for place, stem in enumerate(new, len(self._columns))}}
        space._rarity = np.concatenate([self._rarity, np.full(len(new), self._greatest_rarity, np.float32)])
        digests = b"".join(blake2b(stem.encode(), digest_size=_OTHER_DIMENSIONS // 8).digest() for stem in new)
        signs = np.unpackbits(np.frombuffer(digests, np.uint8)).reshape(len(new), _OTHER_DIMENSIONS) * 2.0 - 1
        others = signs.astype(np.float32) / _OTHER_DIMENSIONS**0.5
        analysed = self._basis.shape[1] - _OTHER_DIMENSIONS
        space._basis = np.concatenate([self._basis, np.pad(others, ((0, 0), (analysed, 0)))])
        return space

    def vectors(self, texts: Collection[Sequence[str]]) -> Any:
        """Return a row for each text; unknown stems are ignored."""
        return _product(self._numpy, self._weights(texts), self._basis)

    def _weights(self, texts: Collection[Sequence[str]]) -> _Sparse:
        """Return the weights of the stems of texts that the space has: for each text, a row of length 1."""
        np = self._numpy
        width = max(len(self._columns), 1)
        stems = chain.from_iterable(texts)
        columns = np.fromiter(map(self._columns.get, stems, repeat(-1)), np.int64)
        rows = np.repeat(np.arange(len(texts)), [*map(len, texts)])
        is_known = columns >= 0
        places, counts = np.unique((rows * width + columns)[is_known], return_counts=True)
        rows, columns = np.divmod(places, width)
        values = (1 + np.log(counts)).astype(np.float32) * self._rarity[columns]
        lengths = np.sqrt(np.bincount(rows, values**2, len(texts)))
        values = (values / np.maximum(lengths, 1e-9)[rows]).astype(np.float32)
        return _Sparse(rows, columns, values, len(texts))


def _directions(np: Any, matrix: _Sparse, width: int) -> Any:
    """Return the first right singular vectors of a matrix, as columns; none for a matrix without rows."""
    height = matrix.height
    dimensions = min(max(_LEAST_DIMENSIONS, ceil(height * _DIMENSIONS_PER_TOOL)), _MOST_DIMENSIONS)
    rank = min(dimensions + _OVERSAMPLING, height, width)
    if not rank:
        return np.zeros((width, 0), np.float32)
    transposed = _transpose(np, matrix, width)
    if rank == height:
        sampled = np.eye(rank, dtype=np.float32)
    else:
        sampled = np.random.default_rng(0).standard_normal((height, rank), np.float32)
        for _ in range(_ITERATIONS):
            sampled = _orthonormal(np, _product(np, matrix, _product(np, transposed, sampled)))
    return _orthonormal(np, _product(np, transposed, sampled))[:, :dimensions]


def _orthonormal(np: Any, matrix: Any) -> Any:
    """Return the left singular vectors of a matrix with few columns, those with the greatest values first."""
    squares, right = np.linalg.eigh(matrix.T.astype(np.float64) @ matrix)  # in the order of rising values
    places = np.flatnonzero(squares > squares[-1] * _LEAST_VALUE)[::-1]
    return (matrix @ (right[:, places] / np.sqrt(squares[places]))).astype(np.float32)


def _transpose(np: Any, matrix: _Sparse, width: int) -> _Sparse:
    order = np.argsort(matrix.columns, kind="stable")
    return _Sparse(matrix.columns[order], matrix.rows[order], matrix.values[order], width)


def _product(np: Any, matrix: _Sparse, dense: Any) -> Any:
    """Return the product of a sparse matrix and a dense one."""
    product = np.empty((matrix.height, dense.shape[1]), np.float32)
    ends = np.searchsorted(matrix.rows, np.arange(matrix.height + 1)).tolist()
    for row, (start, end) in zip(product, pairwise(ends), strict=True):
        np.matmul(matrix.values[start:end], dense.take(matrix.columns[start:end], 0), row)
    return product
