"""The time that calls of models and tools take, which an application may make side by side."""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traced_tools.core.enums import TimeKind
    from traced_tools.observe.time_ledger import TimeLedger


class CallTimes:
    """Books the time of calls of models and tools, perhaps side by side, in the ledger of their run.

    Args:
        ledger: the ledger of the run.
    """

    def __init__(self, ledger: TimeLedger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._under_way = 0
        self._ledgers: list[TimeLedger] = []

    def begin(self) -> None:
        """Take note of a call that begins."""
        with self._lock:
            if not self._under_way:
                self._since = perf_counter_ns()
            self._under_way += 1

    def end(self, kind: TimeKind, ledgers: Sequence[TimeLedger]) -> None:
        """Book the time during which calls were under way, when the last of them ends.

        Args:
            kind: what the time goes to that no ledger has.
            ledgers: those of the call that ends.
        """
        with self._lock:
            self._under_way -= 1
            self._ledgers += ledgers
            if not self._under_way:
                self._ledger.book_parallel(perf_counter_ns() - self._since, self._ledgers, otherwise=kind)
                self._ledgers = []
