"""Capture of the telemetry of clients, for tests."""

from __future__ import annotations

from typing import Self

from traced_tools.core.enums import CaptureMode
from traced_tools.observe.content import ContentCapture
from traced_tools.observe.metric_point import MetricPoint
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.observe.span_tree import SpanNode, build_trees
from traced_tools.otel.memory import FinishedEvent, FinishedSpans, InMemoryTelemetry


class CapturedTelemetry:
    """The spans, metrics and log-based events of clients created with `ChatClient(telemetry=captured.options)`.

    Args:
        capture: content capture, as in `TelemetryOptions`.

    Attributes:
        options: the options that send all telemetry here.
    """

    def __init__(self, capture: ContentCapture | CaptureMode | None = None) -> None:
        self._memory = InMemoryTelemetry()
        self.options = TelemetryOptions(
            tracer_provider=self._memory.tracer_provider,
            meter_provider=self._memory.meter_provider,
            logger_provider=self._memory.logger_provider,
            capture=capture,
        )

    @property
    def spans(self) -> FinishedSpans:
        """The ended spans, in the order in which they ended."""
        return self._memory.spans()

    @property
    def metrics(self) -> list[MetricPoint]:
        """The metric points: one for each metric and set of attributes, with the sum since the last `clear`."""
        return self._memory.metrics()

    @property
    def events(self) -> list[FinishedEvent]:
        """The log-based events, in the order in which they were emitted."""
        return self._memory.events()

    def tree(self) -> list[SpanNode]:
        """Return the ended spans as trees, in the order in which they started."""
        return build_trees(self.spans)

    def clear(self) -> None:
        """Remove the telemetry that was captured so far."""
        self._memory.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.shutdown()


def capture_telemetry(capture: ContentCapture | CaptureMode | None = None) -> CapturedTelemetry:
    """Return a new capture of telemetry. Its `with` block shuts its providers down; using one is optional.

    Args:
        capture: content capture, as in `TelemetryOptions`.
    """
    return CapturedTelemetry(capture)
