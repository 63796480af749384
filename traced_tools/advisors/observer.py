"""Sends the events of runs on."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from traced_tools.advisors.base import TOOL_LOOP_ORDER, Advisor
from traced_tools.core.checks import expect, expect_each, expect_whole
from traced_tools.events import processor
from traced_tools.events.exporter import EventExporter
from traced_tools.events.processor import CAPACITY, PATIENCE, EventProcessor
from traced_tools.observe.run_telemetry import show_exports_here
from traced_tools.observe.typed_events.types import Event, RunStarted


class ObserverAdvisor(Advisor):
    """Hands the events of runs to exporters, and keeps no run waiting for them.

    Each exporter has a queue and a thread of its own: it is given batches of `max_batch` events, or what has waited for
    its `interval`. A batch that fails is tried again, after pauses that grow from half a second to thirty with chance
    in them, or as the receiver asks, for a minute; then it is given up. What is lost so, does not fit into a full
    queue, or is left when the time to close in is over, is counted in `traced_tools.export.dropped`, by exporter and
    reason, and logged once per outage. Exporters of one name are one there: their counts are added up. The metrics
    appear wherever those of the observed runs go.

    It may be shared by clients, threads and event loops. Close it, or use it in a `with` block; what is open when the
    process ends is closed then. A forked child goes on with an empty queue.

    Args:
        exporters: where events go; each is this observer's alone, and closed with it.
        deltas: whether pieces of streamed answers go there, too; a piece is lost first when a queue fills.
        name: names it in telemetry.
        order: inside the loop by default; outside it, it receives only the start and the end of runs.
        queue_size: how many events may wait for each exporter; the newest are lost when more do.

    Raises:
        TypeError, ValueError: for an argument that cannot be used; the text names it.
    """

    def __init__(
        self,
        exporters: Iterable[EventExporter],
        *,
        deltas: bool = False,
        name: str = "observer",
        order: int = TOOL_LOOP_ORDER + 100,
        queue_size: int = CAPACITY,
    ) -> None:
        expect("exporters", exporters, Iterable, "a sequence of EventExporter objects")
        chosen = [*exporters]
        expect_each("exporters", chosen, EventExporter, "an EventExporter")
        expect("deltas", deltas, bool, "True or False")
        expect_whole("queue_size", queue_size, 1)
        _check(chosen)
        self.name = name
        self.order = order
        self.watches_deltas = deltas
        self._processors = [EventProcessor(each, capacity=queue_size) for each in chosen]
        finalizer = weakref.finalize(self, processor.close_in_background, self._processors)
        finalizer.atexit = False  # open processors are closed at exit in any case

    def on_event(self, event: Event) -> None:
        """Queue an event for each exporter, in its exported form. Never waits; a failing exporter never raises here."""
        if isinstance(event, RunStarted):
            show_exports_here([each.stats for each in self._processors])
        exported = event.for_export()
        for each in self._processors:
            each.submit(exported)

    def flush(self, timeout: float = PATIENCE) -> bool:
        """Send what waits, and return whether it was all sent and nothing was lost over it.

        Args:
            timeout: seconds to wait, for all exporters together; what has not been sent by then goes on waiting.
        """
        return processor.flush(self._processors, timeout)

    def close(self, timeout: float = PATIENCE) -> None:
        """Send what waits and close the exporters; a second call does nothing, and events that come later are lost.

        Args:
            timeout: seconds to wait, for all exporters together; what has not been sent by then is lost and counted.
        """
        processor.close(self._processors, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(each.stats.name for each in self._processors)
        return f"<ObserverAdvisor {self.name!r}: {names or 'no exporters'}>"


def _check(exporters: list[EventExporter]) -> None:
    for index, each in enumerate(exporters):
        what = f"exporters[{index}]"
        if any(each is other for other in exporters[:index]):
            raise ValueError(f"{what} is there twice; an exporter has one queue")
        name = getattr(each, "name", None)
        expect(f"{what}.name", name, str, "a str: set it on your EventExporter")
        if not str(name).strip():
            raise ValueError(f"{what}.name must not be blank: it names the exporter in telemetry")
        expect_whole(f"{what}.max_batch", each.max_batch, 1)
        number = () if isinstance(each.interval, bool) else (int, float)
        expect(f"{what}.interval", each.interval, number, "a number of seconds")
        if not each.interval >= 0:
            raise ValueError(f"{what}.interval must be at least 0")
