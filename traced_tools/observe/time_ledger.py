"""The ledger of a run's time: how long each kind of work took, so that the kinds add up to the run's duration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traced_tools.core.enums import TimeKind


class TimeLedger:
    """Books the time of one flow of control to kinds. Calls of one batch run in parallel, so each has its own ledger.

    A scope books the time that it spends itself, without the time of downstream code. So each nanosecond of the flow is
    booked once.

    Attributes:
        downstream_ns: nanoseconds that the innermost open scope has so far spent downstream.
        booked_ns: nanoseconds by kind.
    """

    __slots__ = ("booked_ns", "downstream_ns")

    def __init__(self) -> None:
        self.downstream_ns = 0
        self.booked_ns: defaultdict[TimeKind, int] = defaultdict(int)

    def book(self, kind: TimeKind, nanoseconds: int) -> None:
        """Add time to a kind."""
        self.booked_ns[kind] += nanoseconds

    def book_downstream(self, kind: TimeKind, nanoseconds: int) -> None:
        """Add time to a kind that the innermost open scope does not count as its own."""
        self.book(kind, nanoseconds)
        self.downstream_ns += nanoseconds

    def book_since(self, kind: TimeKind, began: int, downstream: int) -> None:
        """Add the time since `began` to a kind, except for what was booked downstream meanwhile.

        Args:
            kind: the kind.
            began: what `perf_counter_ns()` returned then.
            downstream: what `downstream_ns` was then.
        """
        elapsed = perf_counter_ns() - began
        self.book(kind, elapsed - (self.downstream_ns - downstream))
        self.downstream_ns = downstream + elapsed

    def book_parallel(self, nanoseconds: int, ledgers: Iterable[TimeLedger], otherwise: TimeKind) -> None:
        """Add the time that flows took together, in proportion to what their own ledgers have.

        Args:
            nanoseconds: how long the flows took together, by the clock on the wall.
            ledgers: the ledgers of the flows.
            otherwise: the kind of the time if the ledgers have none.
        """
        total: dict[TimeKind, int] = {}
        for ledger in ledgers:
            for kind, booked in ledger.booked_ns.items():
                total[kind] = total.get(kind, 0) + booked
        whole, remainder = sum(total.values()), nanoseconds
        for kind, booked in total.items() if whole > 0 else ():
            share = nanoseconds * booked // whole
            self.book(kind, share)
            remainder -= share
        self.book(otherwise, remainder)
        self.downstream_ns += nanoseconds

    def mark(self) -> tuple[int, defaultdict[TimeKind, int]]:
        """Set the time booked so far aside, and return it for `return_to`."""
        booked, self.booked_ns = self.booked_ns, defaultdict(int)
        return self.downstream_ns, booked

    def return_to(self, mark: tuple[int, defaultdict[TimeKind, int]]) -> None:
        """Forget what was booked since `mark`."""
        self.downstream_ns, self.booked_ns = mark

    def seconds(self) -> Mapping[TimeKind, float]:
        """Return the seconds of each kind that took any time."""
        return {kind: booked / 1_000_000_000 for kind, booked in self.booked_ns.items() if booked > 0}
