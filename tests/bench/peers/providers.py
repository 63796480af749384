"""The OpenTelemetry SDK as each traced peer gets it: global providers whose exporters drop everything, or that count.

It imports OpenTelemetry alone, because the environments of all traced peers import it.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from opentelemetry._logs import set_logger_provider
from opentelemetry.metrics import Meter, MeterProvider, NoOpMeter, set_meter_provider
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_tracer_provider

from tests.bench.null_exporters import NullExporter, NullLogExporter
from tests.bench.peers.worker import Telemetry

HAS_LOGGER = os.environ.get("BENCH_LOG_EVENTS") == "true"
ENDLESS: dict[str, Any] = {
    "max_queue_size": 1 << 20,
    "max_export_batch_size": 1 << 20,
    "schedule_delay_millis": 3_600_000,
}
"""The exporting thread sleeps until it is flushed: its CPU time would count as that of the passes."""


def drop() -> Telemetry:
    """Set global providers with batch processors, a metric reader and exporters that drop everything."""
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(NullExporter(), **ENDLESS))
    loggers = LoggerProvider(shutdown_on_exit=False)
    loggers.add_log_record_processor(BatchLogRecordProcessor(NullLogExporter(), **ENDLESS))
    set_tracer_provider(tracers)
    set_meter_provider(SdkMeterProvider([InMemoryMetricReader()], shutdown_on_exit=False))
    if HAS_LOGGER:
        set_logger_provider(loggers)

    def flush() -> None:
        tracers.force_flush()
        loggers.force_flush()

    return Telemetry(flush)


def count() -> Telemetry:
    """Set global providers that count finished spans, values recorded by instruments, and log records."""
    counts = Counter(spans=0, records=0, events=0)
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(CountingSpans(counts))
    loggers = LoggerProvider(shutdown_on_exit=False)
    loggers.add_log_record_processor(CountingEvents(counts))
    set_tracer_provider(tracers)
    set_meter_provider(CountingMeterProvider(counts))
    if HAS_LOGGER:
        set_logger_provider(loggers)
    return Telemetry(counts=lambda: dict(counts))


class CountingSpans(SpanProcessor):
    """Counts finished spans."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def on_end(self, span: ReadableSpan) -> None:
        """Count a span."""
        self._counts["spans"] += 1


class CountingEvents(LogRecordProcessor):
    """Counts log records."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def on_emit(self, log_record: Any) -> None:
        """Count a record."""
        self._counts["events"] += 1

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing."""
        return True


class CountingInstrument:
    """Counts the values that a counter, a histogram or a gauge gets."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def record(self, *_: Any, **__: Any) -> None:
        """Count a value."""
        self._counts["records"] += 1

    add = set = record


class CountingMeter(NoOpMeter):
    """Creates counting instruments."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__("counting")
        self._counts = counts

    def _create(self, *_: Any, **__: Any) -> Any:
        return CountingInstrument(self._counts)

    create_counter = create_up_down_counter = create_histogram = create_gauge = _create


class CountingMeterProvider(MeterProvider):
    """Returns a counting meter."""

    def __init__(self, counts: Counter[str]) -> None:
        self._meter = CountingMeter(counts)

    def get_meter(self, *_: Any, **__: Any) -> Meter:
        """Return the counting meter."""
        return self._meter
