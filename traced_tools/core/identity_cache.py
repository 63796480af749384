"""A memory for what is made of objects that have no hash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")

_MOST_KEPT = 4096


class IdentityCache(Generic[T, V]):
    """Makes something of each object once and keeps it, for objects that have no hash, such as tool definitions.

    Args:
        make: makes it; what it raises is raised and not kept.
    """

    def __init__(self, make: Callable[[T], V]) -> None:
        self._make = make
        self._made: dict[int, tuple[T, V]] = {}

    def __call__(self, item: T) -> V:
        """Return what is made of `item`."""
        made = self._made.get(id(item))
        if made is None:
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            # the item is kept with it: as long as it lives, its id is no other object's
            made = self._made[id(item)] = (item, self._make(item))
        return made[1]
