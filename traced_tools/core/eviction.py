"""Stores whose entries are evicted, and the rules by which they are."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from traced_tools.core.checks import expect_each, expect_positive, expect_whole
from traced_tools.core.fork import ForkSafeLock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Eviction(ABC):
    """Decides which entries of a store are evicted. Subclasses implement `evicted` and keep no state of a store."""

    @abstractmethod
    def evicted(self, last_used: Mapping[Any, float], key: Hashable) -> Iterable[Any]:
        """Return the keys of the entries to evict, just before an entry is used.

        Args:
            last_used: when each entry was last used, on the clock of `time.monotonic()`, the least recently used first.
                The last one is `key`, which is used now.
            key: the key of the entry that is used. If it is evicted, the store makes a new entry.
        """


class Lru(Eviction):
    """Evicts the least recently used entries of a store that has more than `most`."""

    def __init__(self, most: int = 1000) -> None:
        expect_whole("most", most, 1)
        self._most = most

    def evicted(self, last_used: Mapping[Any, float], key: Hashable) -> Iterable[Any]:
        """Return the least recently used keys beyond the maximum."""
        return islice(last_used, max(0, len(last_used) - self._most))

    def __repr__(self) -> str:
        return f"Lru({self._most})"


class Ttl(Eviction):
    """Evicts entries that have not been used for `seconds`, when another entry is used."""

    def __init__(self, seconds: float) -> None:
        if seconds is None:
            raise TypeError("seconds must be a number, not None: pass Never() to evict nothing")
        expect_positive("seconds", seconds)
        self._seconds = seconds

    def evicted(self, last_used: Mapping[Any, float], key: Hashable) -> Iterable[Any]:
        """Return the keys of idle entries."""
        expired = last_used[key] - self._seconds
        return takewhile(lambda entry: last_used[entry] <= expired, last_used)

    def __repr__(self) -> str:
        return f"Ttl({self._seconds:g})"


class Composite(Eviction):
    """Evicts what any of several rules evicts, such as `Composite(Lru(1000), Ttl(3600))`."""

    def __init__(self, *rules: Eviction) -> None:
        expect_each("rules", rules, Eviction, "an Eviction, such as Lru(1000)")
        if not rules:
            raise ValueError("a Composite needs at least one rule; pass Never() to evict nothing")
        self._rules = rules

    def evicted(self, last_used: Mapping[Any, float], key: Hashable) -> Iterable[Any]:
        """Return the keys that any rule returns."""
        return {entry for rule in self._rules for entry in rule.evicted(last_used, key)}

    def __repr__(self) -> str:
        return f"Composite({', '.join(map(repr, self._rules))})"


class Never(Eviction):
    """Evicts nothing."""

    def evicted(self, last_used: Mapping[Any, float], key: Hashable) -> Iterable[Any]:
        """Return no key."""
        return ()

    def __repr__(self) -> str:
        return "Never()"


class EvictingStore(Generic[K, V]):
    """Entries by key, which a rule evicts. Threads can share it; in a forked child it has the entries of its parent.

    Args:
        eviction: the rule.
    """

    def __init__(self, eviction: Eviction) -> None:
        self._eviction = eviction
        self._values: dict[K, V] = {}
        self._last_used: dict[K, float] = {}  # in the order of use
        self._lock = ForkSafeLock()

    def use(self, key: K, make: Callable[[], V]) -> tuple[V, list[V]]:
        """Return the entry of `key`, made by `make` if there is none, and the entries that are evicted."""
        with self._lock:
            self._last_used.pop(key, None)
            self._last_used[key] = time.monotonic()
            dropped = self._drop([*self._eviction.evicted(MappingProxyType(self._last_used), key)])
            self._last_used.setdefault(key, time.monotonic())
            if key not in self._values:
                self._values[key] = make()
            return self._values[key], dropped

    def evict(self, keys: Iterable[K] | None = None) -> list[V]:
        """Evict the entries of `keys`, or all entries, and return them; unknown keys are ignored."""
        with self._lock:
            return self._drop([*self._values] if keys is None else keys)

    def _drop(self, keys: Iterable[K]) -> list[V]:
        dropped = []
        for key in keys:
            self._last_used.pop(key, None)
            if key in self._values:
                dropped.append(self._values.pop(key))
        return dropped

    def values(self) -> list[V]:
        """Return the entries."""
        with self._lock:
            return [*self._values.values()]

    def __len__(self) -> int:
        return len(self._values)
