"""A clock for durations: the time passes only if something takes time."""

from __future__ import annotations

import sys
from typing import Final

import pytest

SECOND: Final = 1_000_000_000


class Clock:
    """The time, which passes only if something takes time."""

    def __init__(self) -> None:
        self.now = SECOND

    def take(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * SECOND)

    def read(self) -> int:
        """Return the time in nanoseconds."""
        return self.now


def replaced_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock by which the package measures durations."""
    clock = Clock()
    for name, module in [*sys.modules.items()]:
        if name.startswith("traced_tools."):
            if hasattr(module, "perf_counter_ns"):
                monkeypatch.setattr(module, "perf_counter_ns", clock.read)
            if hasattr(module, "perf_counter"):
                monkeypatch.setattr(module, "perf_counter", lambda: clock.now / SECOND)
    return clock
