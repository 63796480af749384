"""Controllable exporters, a clock that is set by hand, and sample events."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any

from tests.waiting import PATIENCE
from traced_tools.events import EventExporter
from traced_tools.events.processor import EventProcessor
from traced_tools.flow.background import Clock
from traced_tools.observe import Event, TextDelta, ToolStarted


def event(sequence: int = 1, run_id: str = "r") -> Event:
    common = {"id": f"{run_id}-{sequence}", "time": datetime(2026, 1, 2, tzinfo=UTC), "run_id": run_id, "agent": "a"}
    call = {"call_id": "c", "tool": "t", "source": "local", "batch_index": 0, "batch_size": 1, "iteration": 1}
    return ToolStarted(**common, **call, sequence=sequence)


def delta(index: int = 0) -> Event:
    common = {"id": f"d-{index}", "time": datetime(2026, 1, 2, tzinfo=UTC), "run_id": "r", "agent": "a"}
    return TextDelta(**common, iteration=1, sequence=1, delta_index=index, text="x")


class Exporter(EventExporter):
    """Keeps what it is given, and raises what `failures` has next; it waits while it is held.

    Attributes:
        batches: what was exported.
        tried: how often it was asked to.
        given_up: the events that the processor gave up.
        begun: is set when an export begins.
    """

    def __init__(
        self, name: str = "mine", *failures: BaseException | None, interval: float = 0, most: int = 512
    ) -> None:
        self.name, self.interval, self.max_batch = name, interval, most
        self.failures = [*failures]
        self.batches: list[list[Event]] = []
        self.tried = 0
        self.given_up: list[list[Event]] = []
        self.flushed = self.closed = 0
        self.begun = threading.Event()
        self._free = threading.Event()
        self._free.set()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def export(self, events: Sequence[Event]) -> None:
        self.tried += 1
        self.begun.set()
        assert self._free.wait(4 * PATIENCE)
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        self.batches.append([*events])

    def on_undeliverable(self, events: Sequence[Event]) -> None:
        self.given_up.append([*events])

    def flush(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        self.closed += 1

    @property
    def sent(self) -> list[Event]:
        return [each for batch in self.batches for each in batch]


class HandClock(Clock):
    """A clock on which a pause passes immediately or, if the clock is held, when the test releases it.

    Attributes:
        time: in seconds.
        pauses: how long was waited, each time that nothing came.
        asleep: gets the seconds of each wait when the wait begins.
    """

    def __init__(self, *, held: bool = False) -> None:
        self.time = 1000.0
        self.pauses: list[float] = []
        self.asleep: SimpleQueue[float] = SimpleQueue()
        self._held = held
        self._orders: SimpleQueue[Any] | None = None

    def now(self) -> float:
        return self.time

    def wait(self, orders: SimpleQueue[Any], timeout: float | None) -> Any:
        self._orders = orders
        if timeout is None:
            return orders.get()
        if self._held and timeout > 0:
            self.asleep.put(timeout)
            return orders.get()
        try:
            return orders.get_nowait()
        except Empty:
            self.time += timeout
            self.pauses += [timeout] if timeout else []
            raise

    def wait_until_asleep(self) -> float:
        """Wait until a thread sleeps, and return for how many seconds."""
        return self.asleep.get(timeout=PATIENCE)

    def pass_time(self, seconds: float) -> None:
        """Let time pass for the sleeping thread."""
        self.time += seconds
        assert self._orders is not None
        self._orders.put(None)


def accounts(sending: EventProcessor) -> tuple[int, int, int]:
    """How many events were sent, are lost, and wait."""
    return sending.stats.sent, sending.stats.lost_in_all, sending.stats.waiting
