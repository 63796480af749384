"""The clock that separates an advisor's own time from the time of what it wraps."""

from __future__ import annotations


class SelfClock:
    """Separates an advisor's own time from the time downstream of it; one for each flow of control.

    Attributes:
        downstream_ns: nanoseconds that the innermost open scope has so far spent downstream.
    """

    __slots__ = ("downstream_ns",)

    def __init__(self) -> None:
        self.downstream_ns = 0
