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
        self._entries: dict[int, tuple[T, V]] = {}

    def __call__(self, item: T) -> V:
        """Return `make(item)`, from the cache if it is there."""
        entry = self._entries.get(id(item))
        if entry is None:
            if len(self._entries) >= _MAX_ENTRIES:
                self._entries.clear()
            # the entry keeps the item alive, so that no other object gets its id
            entry = self._entries[id(item)] = (item, self._make(item))
        return entry[1]
