"""Capture a client's telemetry and look at it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from traced_tools.core.enums import CaptureMode
from traced_tools.observe.content import ContentCapture
from traced_tools.observe.metric_point import MetricPoint
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.observe.span_tree import SpanNode, build_trees
from traced_tools.otel.memory import FinishedEvent, FinishedSpans, InMemoryTelemetry


class CapturedTelemetry:
    """What clients emit that are made with `ChatClient(telemetry=captured.options)`.

    Args:
        capture: which contents are told, as in `TelemetryOptions`.

    Attributes:
        options: sends everything here and nothing elsewhere.
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
        """The spans that have ended, in the order they did."""
        return self._memory.spans()

    @property
    def metrics(self) -> list[MetricPoint]:
        """What was recorded, summed up for each metric and set of attributes."""
        return self._memory.metrics()

    @property
    def events(self) -> list[FinishedEvent]:
        """The log-based events, in the order they were emitted."""
        return self._memory.events()

    def tree(self) -> list[SpanNode]:
        """Return the spans that have ended as trees, in the order they started."""
        return build_trees(self.spans)

    def clear(self) -> None:
        """Forget what was captured so far."""
        self._memory.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._memory.shutdown()


def capture_telemetry(capture: ContentCapture | CaptureMode | None = None) -> CapturedTelemetry:
    """Return a capture; use it as it is, or in a `with` block that stops it at its end.

    Args:
        capture: which contents are told, as in `TelemetryOptions`.
    """
    return CapturedTelemetry(capture)
