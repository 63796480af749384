"""A cache for values derived from objects that have no hash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")

_MAX_ENTRIES = 4096


class IdentityCache(Generic[T, V]):
    """Memoizes a function by the identity of its argument, for objects without a hash, such as tool definitions.

    Args:
        make: the function; its exceptions are raised and not cached.
    """

    def __init__(self, make: Callable[[T], V]) -> None:
        self._make = make
        self._made: dict[int, tuple[T, V]] = {}

    def __call__(self, item: T) -> V:
        """Return `make(item)`, from the cache if it is there."""
        entry = self._made.get(id(item))
        if entry is None:
            if len(self._made) >= _MAX_ENTRIES:
                self._made.clear()
            # the entry keeps the item alive, so that no other object gets its id
            entry = self._made[id(item)] = (item, self._make(item))
        return entry[1]
