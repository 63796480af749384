"""The advisor that sends the events of runs to exporters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Self

from traced_tools.core.checks import expect, expect_each, expect_whole
from traced_tools.events import processor
from traced_tools.events.exporter import EventExporter
from traced_tools.events.processor import CAPACITY, PATIENCE, EventProcessor
from traced_tools.loop.advisor import TOOL_LOOP_ORDER, Advisor
from traced_tools.observe.run_telemetry import show_exports_here
from traced_tools.observe.typed_events.types import Event, RunStarted


class ObserverAdvisor(Advisor):
    """Sends the events of runs to exporters in the background; runs do not wait for exporters.

    Each exporter has its own queue and thread. The thread exports a batch when `max_batch` events are queued, or when
    events have waited for the exporter's `interval`. It retries a failed batch for a minute, after randomized pauses
    that grow from 0.5 to 30 seconds or after the pause that the receiver requests. Then it drops the batch. Events are
    also dropped if the queue is full or if `close` times out. Dropped events are counted in the metric
    `traced_tools.export.dropped`, by exporter name and reason, and logged once per outage. The metric goes to the same
    meter provider as the metrics of the observed runs.

    Clients, threads and event loops may share an observer. Close it, or use it in a `with` block. Open observers are
    closed when the process ends. A forked child continues with empty queues.

    Args:
        exporters: the exporters to send events to. No other observer may use them; `close` closes them.
        deltas: whether to send pieces of streamed answers as well; a filling queue drops these first.
        name: the advisor's name in telemetry.
        order: the position in the chain, by default inside the tool loop. Outside the loop, the observer receives only
            the start and the end of runs.
        queue_size: how many events may wait for each exporter. If a queue is full, new events are dropped.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument.
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
        exporter_list = [*exporters]
        expect_each("exporters", exporter_list, EventExporter, "an EventExporter")
        expect("deltas", deltas, bool, "True or False")
        expect_whole("queue_size", queue_size, 1)
        _check(exporter_list)
        self.name = name
        self.order = order
        self.watches_deltas = deltas
        self._processors = [EventProcessor(exporter, capacity=queue_size) for exporter in exporter_list]
        finalizer = weakref.finalize(self, processor.close_in_background, self._processors)
        finalizer.atexit = False  # open processors are closed at exit in any case

    def on_event(self, event: Event) -> None:
        """Queue the exported form of an event for each exporter. Never waits; exporter errors are not raised here."""
        if isinstance(event, RunStarted):
            show_exports_here([event_processor.stats for event_processor in self._processors])
        exported = event.for_export()
        for event_processor in self._processors:
            event_processor.submit(exported)

    def flush(self, timeout: float = PATIENCE) -> bool:
        """Send all queued events, and return whether all were sent and none was dropped.

        Args:
            timeout: seconds to wait, for all exporters together. Events that are not sent by then stay queued.
        """
        return processor.flush(self._processors, timeout)

    def close(self, timeout: float = PATIENCE) -> None:
        """Send all queued events and close the exporters. A second call does nothing; later events are dropped.

        Args:
            timeout: seconds to wait, for all exporters together. Events not sent by then are dropped and counted.
        """
        processor.close(self._processors, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(event_processor.stats.name for event_processor in self._processors)
        return f"<ObserverAdvisor {self.name!r}: {names or 'no exporters'}>"


def _check(exporters: list[EventExporter]) -> None:
    for index, exporter in enumerate(exporters):
        place = f"exporters[{index}]"
        if any(exporter is earlier for earlier in exporters[:index]):
            raise ValueError(f"{place} is a duplicate: pass each exporter once")
        name = getattr(exporter, "name", None)
        expect(f"{place}.name", name, str, "a str: set it on your EventExporter")
        if not str(name).strip():
            raise ValueError(f"{place}.name must not be blank: it names the exporter in telemetry")
        expect_whole(f"{place}.max_batch", exporter.max_batch, 1)
        number = () if isinstance(exporter.interval, bool) else (int, float)
        expect(f"{place}.interval", exporter.interval, number, "a number of seconds")
        if not exporter.interval >= 0:
            raise ValueError(f"{place}.interval must be at least 0")
