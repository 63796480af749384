"""A store that fails when a test wants it to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tests.audit.trails import SECRET
from traced_tools.audit.store import Row, _Sqlite


def no_thread(thread: threading.Thread) -> None:
    """Stands for `Thread.start` in a process that has too many, or that ends."""
    raise RuntimeError("can't start new thread")


class Outage:
    """Lets a store fail before, while or after it commits, as often as a test wants."""

    def __init__(self) -> None:
        self.failing = False
        self.failures: list[str] = []
        self.attempts = 0
        self.failed = threading.Event()
        self.append = _Sqlite.append

    def __call__(self, store: Any, rows: Sequence[Row]) -> None:
        self.attempts += 1
        kind = self.failures.pop(0) if self.failures else "before" if self.failing else None
        if kind != "before":
            self.append(store, rows)
        if kind is not None:
            self.failed.set()
            raise ConnectionError(SECRET)
