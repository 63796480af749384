"""A bounded store of values that expire."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

from traced_tools.core.checks import expect_positive, expect_whole
from traced_tools.core.fork import on_fork

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringStore(Generic[K, V]):
    """Values by key, each for the same time. Threads can share it; in a forked child it is empty.

    Args:
        seconds: how long a value is kept.
        most: the maximum number of values. If there are more, the value that was stored first is dropped.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if `seconds` is not above 0, or `most` is below 1.
    """

    def __init__(self, seconds: float, most: int) -> None:
        expect_positive("seconds", seconds)
        expect_whole("most", most, 1)
        self._seconds = seconds
        self._most = most
        self._reset()
        on_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[K, tuple[float, V]] = {}  # in the order of storing, which is the order of expiring

    def get(self, key: K) -> V | None:
        """Return the value of `key`; None if there is none or it has expired."""
        entry = self._entries.get(key)
        return None if entry is None or entry[0] <= time.monotonic() else entry[1]

    def put(self, key: K, value: V) -> None:
        """Store `value` from now on, instead of an earlier value of `key`."""
        with self._lock:
            now = time.monotonic()
            self._entries.pop(key, None)
            while self._entries:
                oldest, (expires, _) = next(iter(self._entries.items()))
                if expires > now and len(self._entries) < self._most:
                    break
                del self._entries[oldest]
            self._entries[key] = (now + self._seconds, value)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<ExpiringStore of {len(self)} values, each for {self._seconds:g} s>"
