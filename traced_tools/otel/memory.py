"""OpenTelemetry providers that store telemetry in memory, for tests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    DataPointT,
    DataT,
    Gauge,
    InMemoryMetricReader,
    Metric,
    NumberDataPoint,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.util.types import AnyValue

from traced_tools.observe.failures import error_type
from traced_tools.observe.metric_point import MetricPoint
from traced_tools.otel.prometheus import iter_metrics

_LOG = logging.getLogger(__name__)

FinishedSpans = tuple[ReadableSpan, ...]


@dataclass(frozen=True)
class FinishedEvent:
    """A log-based event that was emitted.

    Args:
        name: the event's name.
        attributes: the event's attributes.
        severity: its severity text, such as `INFO`; None if it has none.
        trace_id: the trace id of its span, 32 hexadecimal digits; None if it has no span.
        span_id: the id of its span, 16 hexadecimal digits; None if it has no span.
    """

    name: str
    attributes: Mapping[str, AnyValue]
    severity: str | None
    trace_id: str | None
    span_id: str | None


class InMemoryTelemetry:
    """Providers that store spans, metrics and log-based events in memory. They are not set for the process.

    Attributes:
        tracer_provider: for `TelemetryOptions`.
        meter_provider: for `TelemetryOptions`.
        logger_provider: for `TelemetryOptions`.
    """

    def __init__(self) -> None:
        resource = Resource.create()  # once for all: detecting a resource starts threads
        self._spans = InMemorySpanExporter()
        self.tracer_provider: TracerProvider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self._records = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        self.logger_provider: LoggerProvider = LoggerProvider(resource, shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self._records))
        # Sums are read as deltas, so that `clear` can restart them at zero.
        delta: dict[type, AggregationTemporality] = dict.fromkeys(
            (Counter, Histogram, ObservableCounter), AggregationTemporality.DELTA
        )
        self._reader = InMemoryMetricReader(delta)
        self.meter_provider: MeterProvider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self._lock = threading.Lock()
        self._points: dict[tuple[str, str], MetricPoint] = {}

    def spans(self) -> FinishedSpans:
        """Return the ended spans, in the order in which they ended."""
        return self._spans.get_finished_spans()

    def events(self) -> list[FinishedEvent]:
        """Return the log-based events, in the order in which they were emitted."""
        return [_event(record) for record in self._records.get_finished_logs()]

    def metrics(self) -> list[MetricPoint]:
        """Return one point for each metric and set of attributes, with the sum since the last `clear`."""
        with self._lock:
            self._collect()
            return list(self._points.values())

    def clear(self) -> None:
        """Remove spans and events and restart counters and histograms at zero. Gauges and active counts stay."""
        with self._lock:
            self._spans.clear()
            self._records.clear()
            self._collect()
            self._points.clear()

    def shutdown(self) -> None:
        """Shut the providers down; stored telemetry can still be read."""
        for provider in (self.tracer_provider, self.logger_provider, self.meter_provider):
            try:
                provider.shutdown()
            except Exception as error:
                _LOG.warning("in-memory telemetry: shutting down a provider raised %s", error_type(error))

    def _collect(self) -> None:
        for metric in iter_metrics(self._reader.get_metrics_data()):
            for point in metric.data.data_points:
                self._add(_point(metric, point), is_delta=_is_delta(metric.data))

    def _add(self, point: MetricPoint, *, is_delta: bool) -> None:
        key = (point.name, repr(sorted(point.attributes.items())))
        earlier = self._points.get(key)
        self._points[key] = point if earlier is None or not is_delta else earlier.plus(point)


def _event(finished: ReadableLogRecord) -> FinishedEvent:
    record = finished.log_record
    return FinishedEvent(
        name=record.event_name or "",
        attributes=dict(record.attributes or {}),
        severity=record.severity_text,
        trace_id=f"{record.trace_id:032x}" if record.trace_id else None,
        span_id=f"{record.span_id:016x}" if record.span_id else None,
    )


def _is_delta(data: DataT) -> bool:
    return not isinstance(data, Gauge) and data.aggregation_temporality is AggregationTemporality.DELTA


def _point(metric: Metric, point: DataPointT) -> MetricPoint:
    plain = MetricPoint(metric.name, dict(point.attributes or {}), metric.unit or "")
    if isinstance(point, NumberDataPoint):
        return replace(plain, value=point.value)
    return replace(plain, count=point.count, sum=point.sum)
