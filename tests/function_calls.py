"""Counts of function calls, which say how a cost grows and are the same on every machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def calls_of(function: Callable[[], object]) -> int:
    """Return how many functions are called, in all threads that begin meanwhile as well."""
    counts = [0]

    def count(frame: object, event: str, argument: object) -> None:
        counts[0] += event in ("call", "c_call")

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return counts[0]
