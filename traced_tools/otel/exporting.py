"""Pipelines that send spans, metrics and log records over OTLP, and lose nothing silently.

The SDK and its exporters batch, encode and retry. `ExportStats` admits items to the queue, so that the SDK queue is
never full, and records the result of each batch. The exporters' own log lines are suppressed while they send for us,
because they quote the collector's texts again and again; the stats log a problem once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic

from opentelemetry.sdk._logs import ReadableLogRecord, ReadWriteLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from traced_tools.core.fork import on_fork
from traced_tools.observe.export_stats import ExportStats
from traced_tools.observe.scope import error_type
from traced_tools.otel.exporters import ExporterT, OtlpExporter, make_exporter
from traced_tools.otel.otlp import LOGS, METRICS, TRACES
from traced_tools.otel.prometheus import metrics_of
from traced_tools.otel.variables import queue_size

TALKATIVE: Final = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.common._internal",
    "opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "urllib3.connection",
    "urllib3.connectionpool",
    "urllib3.response",
    "urllib3.util.retry",
)
"""The loggers whose lines are left out while one of our exporters sends in the same thread."""


class Sender(Generic[ExporterT]):
    """Sends batches through an exporter of OTLP and records the result in the stats.

    A forked child makes an exporter of its own: two processes cannot share a connection.

    Args:
        make: makes the exporter.
        stats: is told.
    """

    def __init__(self, make: Callable[[], OtlpExporter[ExporterT]], stats: ExportStats) -> None:
        self.otlp = make()
        self._stats = stats
        self._make = make
        self._stopped = False
        self._inherited = False
        stats.set_problem_source(lambda: self.otlp.problem())
        on_fork(self._note_fork)
        for name in TALKATIVE:
            logging.getLogger(name).addFilter(_is_told)

    def send(self, count: int, export: Callable[[ExporterT], bool]) -> bool:
        """Send a batch of `count` items and return whether all went well; never raises.

        Args:
            count: how many items there are.
            export: hands the batch to the exporter and returns whether that says it was sent.
        """
        if not self._stats.begin_batch(count):
            return False
        try:
            with _untold():
                self._renew()
                lost, why = self.otlp.send(count, export)
        except Exception as error:  # its text may quote the collector
            lost, why = count, f"sending raised {error_type(error)}"
        self._stats.record_batch(count - lost, lost, why)
        return not lost

    def stop(self) -> None:
        """Stop the exporter: requests under way are given up where that can be done."""
        if not self._stopped:
            self._stopped = True
            if self._inherited:  # the connections are the parent's
                return
            with _untold():
                self.otlp.exporter.shutdown()

    def _note_fork(self) -> None:
        self._inherited = True

    def _renew(self) -> None:
        if self._inherited:
            self.otlp = self._make()
            self._inherited = False


class SpanSender(SpanExporter):
    """Sends spans."""

    def __init__(self, sender: Sender[SpanExporter]) -> None:
        self._sender = sender

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        success = SpanExportResult.SUCCESS
        sent = self._sender.send(len(spans), lambda exporter: exporter.export(spans) is success)
        return success if sent else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Stop."""
        self._sender.stop()


class LogSender(LogRecordExporter):
    """Sends log records."""

    def __init__(self, sender: Sender[LogRecordExporter]) -> None:
        self._sender = sender

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Send a batch."""
        success = LogRecordExportResult.SUCCESS
        sent = self._sender.send(len(batch), lambda exporter: exporter.export(batch) is success)
        return success if sent else LogRecordExportResult.FAILURE

    def shutdown(self) -> None:
        """Stop."""
        self._sender.stop()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing: nothing is kept back here."""
        return True


class MetricSender(MetricExporter):
    """Sends metric points, as sums since the start or since the last time, whichever the environment prefers."""

    def __init__(self, sender: Sender[MetricExporter]) -> None:
        made = sender.otlp.exporter
        super().__init__(made._preferred_temporality, made._preferred_aggregation)
        self._sender = sender

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any) -> MetricExportResult:
        """Send what was collected."""
        success = MetricExportResult.SUCCESS
        points = sum(len(metric.data.data_points) for metric in metrics_of(metrics_data))
        sent = self._sender.send(points, lambda exporter: exporter.export(metrics_data, timeout_millis) is success)
        return success if sent else MetricExportResult.FAILURE

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        """Stop."""
        self._sender.stop()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: nothing is kept back here."""
        return True


class SpanPipeline(BatchSpanProcessor):
    """Batches the spans that have room in the queue."""

    def __init__(self, exporter: SpanExporter, stats: ExportStats) -> None:
        super().__init__(exporter, max_queue_size=stats.capacity)
        self._stats = stats

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span that is sampled, if there is room."""
        if span.context and span.context.trace_flags.sampled and self._stats.try_enqueue():
            super().on_end(span)


class LogPipeline(BatchLogRecordProcessor):
    """Batches the log records that have room in the queue."""

    def __init__(self, exporter: LogRecordExporter, stats: ExportStats) -> None:
        super().__init__(exporter, max_queue_size=stats.capacity)
        self._stats = stats

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Queue a record, if there is room."""
        if self._stats.try_enqueue():
            super().on_emit(log_record)


class MetricPipeline(PeriodicExportingMetricReader):
    """Collects and sends metrics now and then; a forked child does not wait for what the parent was sending."""

    def __init__(self, exporter: MetricExporter) -> None:
        on_fork(self._forget_parent)
        super().__init__(exporter)

    def _forget_parent(self) -> None:
        self._export_lock = threading.Lock()  # the SDK leaves it as it was at the fork, which may be held for good


def trace_pipeline(otlp: bool | str | None) -> tuple[SpanPipeline, ExportStats]:
    """Return what sends spans, which is started, and its stats."""
    stats = ExportStats("otlp.traces", "spans", queue_size("OTEL_BSP"))
    sender: Sender[SpanExporter] = Sender(partial(make_exporter, TRACES, otlp), stats)
    return SpanPipeline(SpanSender(sender), stats), stats


def log_pipeline(otlp: bool | str | None) -> tuple[LogPipeline, ExportStats]:
    """Return what sends log records, which is started, and its stats."""
    stats = ExportStats("otlp.logs", "log records", queue_size("OTEL_BLRP"))
    sender: Sender[LogRecordExporter] = Sender(partial(make_exporter, LOGS, otlp), stats)
    return LogPipeline(LogSender(sender), stats), stats


def metric_pipeline(otlp: bool | str | None) -> tuple[MetricPipeline, ExportStats]:
    """Return what sends metrics, which is started, and its stats."""
    stats = ExportStats("otlp.metrics", "metric points")
    sender: Sender[MetricExporter] = Sender(partial(make_exporter, METRICS, otlp), stats)
    return MetricPipeline(MetricSender(sender)), stats


_thread = threading.local()


@contextmanager
def _untold() -> Iterator[None]:
    """Leave out what the exporters log in this thread."""
    before, _thread.untold = getattr(_thread, "untold", False), True
    try:
        yield
    finally:
        _thread.untold = before


def _is_told(_: logging.LogRecord) -> bool:
    return not getattr(_thread, "untold", False)
