"""Pipelines that send spans, metrics and log records over OTLP and count every lost item.

The SDK and its exporters do the batching, encoding and retries. `ExportStats` decides which items enter the queue, so
that the SDK's own queue is never full, and counts the result of each batch. What the exporters log while they send is
suppressed, because they repeat the collector's texts for each batch; the stats logs once per outage.
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
from traced_tools.observe.failures import error_type
from traced_tools.otel.exporters import ExporterT, OtlpExporter, make_exporter
from traced_tools.otel.otlp import LOGS, METRICS, TRACES
from traced_tools.otel.prometheus import iter_metrics
from traced_tools.otel.variables import read_queue_size

EXPORTER_LOGGERS: Final = (
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
"""The loggers that are suppressed in a thread while it sends a batch."""


class Sender(Generic[ExporterT]):
    """Sends batches through an OTLP exporter and records the results in a stats.

    A forked child creates its own exporter, because two processes cannot share a connection.

    Args:
        make: creates the exporter.
        stats: counts sent and lost items.
    """

    def __init__(self, make: Callable[[], OtlpExporter[ExporterT]], stats: ExportStats) -> None:
        self.otlp = make()
        self._stats = stats
        self._make = make
        self._stopped = False
        self._inherited = False
        stats.set_problem_source(lambda: self.otlp.problem())
        on_fork(self._mark_inherited)
        filter_exporter_logs()

    def send(self, count: int, export: Callable[[ExporterT], bool]) -> bool:
        """Send a batch and return whether no item was lost; never raises.

        Args:
            count: the number of items in the batch.
            export: passes the batch to the exporter and returns whether the exporter reports success.
        """
        if not self._stats.begin_batch(count):
            return False
        try:
            with suppress_exporter_logs():
                self._renew()
                lost, cause = self.otlp.send(count, export)
        except Exception as error:  # its text may quote the collector's response
            lost, cause = count, f"sending raised {error_type(error)}"
        self._stats.record_batch(count - lost, lost, cause)
        return not lost

    def stop(self) -> None:
        """Stop the exporter. Requests in flight are abandoned if the exporter can do so."""
        if not self._stopped:
            self._stopped = True
            if self._inherited:  # the connections belong to the parent
                return
            with suppress_exporter_logs():
                self.otlp.exporter.shutdown()

    def _mark_inherited(self) -> None:
        self._inherited = True

    def _renew(self) -> None:
        if self._inherited:
            self.otlp = self._make()
            self._inherited = False


class SpanSender(SpanExporter):
    """An SDK span exporter that sends through a `Sender`."""

    def __init__(self, sender: Sender[SpanExporter]) -> None:
        self._sender = sender

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch of spans."""
        success = SpanExportResult.SUCCESS
        is_sent = self._sender.send(len(spans), lambda exporter: exporter.export(spans) is success)
        return success if is_sent else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Stop."""
        self._sender.stop()


class LogSender(LogRecordExporter):
    """An SDK log record exporter that sends through a `Sender`."""

    def __init__(self, sender: Sender[LogRecordExporter]) -> None:
        self._sender = sender

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Send a batch of log records."""
        success = LogRecordExportResult.SUCCESS
        is_sent = self._sender.send(len(batch), lambda exporter: exporter.export(batch) is success)
        return success if is_sent else LogRecordExportResult.FAILURE

    def shutdown(self) -> None:
        """Stop."""
        self._sender.stop()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing: nothing is kept back here."""
        return True


class MetricSender(MetricExporter):
    """An SDK metric exporter that sends through a `Sender`, with the temporality that the environment sets."""

    def __init__(self, sender: Sender[MetricExporter]) -> None:
        exporter = sender.otlp.exporter
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._sender = sender

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any) -> MetricExportResult:
        """Send the collected metrics."""
        success = MetricExportResult.SUCCESS
        points = sum(len(metric.data.data_points) for metric in iter_metrics(metrics_data))
        is_sent = self._sender.send(points, lambda exporter: exporter.export(metrics_data, timeout_millis) is success)
        return success if is_sent else MetricExportResult.FAILURE

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        """Stop."""
        self._sender.stop()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: nothing is kept back here."""
        return True


class SpanPipeline(BatchSpanProcessor):
    """A batch processor that queues only spans that its stats admits."""

    def __init__(self, exporter: SpanExporter, stats: ExportStats) -> None:
        super().__init__(exporter, max_queue_size=stats.capacity)
        self._stats = stats

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span if the queue has room."""
        if span.context and span.context.trace_flags.sampled and self._stats.try_enqueue():
            super().on_end(span)


class LogPipeline(BatchLogRecordProcessor):
    """A batch processor that queues only log records that its stats admits."""

    def __init__(self, exporter: LogRecordExporter, stats: ExportStats) -> None:
        super().__init__(exporter, max_queue_size=stats.capacity)
        self._stats = stats

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Queue a log record if the queue has room."""
        if self._stats.try_enqueue():
            super().on_emit(log_record)


class MetricPipeline(PeriodicExportingMetricReader):
    """A periodic metric reader that also works in a forked child if the parent was exporting during the fork."""

    def __init__(self, exporter: MetricExporter) -> None:
        on_fork(self._reset_lock)
        super().__init__(exporter)

    def _reset_lock(self) -> None:
        self._export_lock = threading.Lock()  # the SDK keeps the parent's, which may be locked forever in the child


def trace_pipeline(otlp: bool | str | None) -> tuple[SpanPipeline, ExportStats]:
    """Return a running pipeline for spans, and its stats."""
    stats = ExportStats("otlp.traces", "spans", read_queue_size("OTEL_BSP"))
    sender: Sender[SpanExporter] = Sender(partial(make_exporter, TRACES, otlp), stats)
    return SpanPipeline(SpanSender(sender), stats), stats


def log_pipeline(otlp: bool | str | None) -> tuple[LogPipeline, ExportStats]:
    """Return a running pipeline for log records, and its stats."""
    stats = ExportStats("otlp.logs", "log records", read_queue_size("OTEL_BLRP"))
    sender: Sender[LogRecordExporter] = Sender(partial(make_exporter, LOGS, otlp), stats)
    return LogPipeline(LogSender(sender), stats), stats


def metric_pipeline(otlp: bool | str | None) -> tuple[MetricPipeline, ExportStats]:
    """Return a running pipeline for metrics, and its stats."""
    stats = ExportStats("otlp.metrics", "metric points")
    sender: Sender[MetricExporter] = Sender(partial(make_exporter, METRICS, otlp), stats)
    return MetricPipeline(MetricSender(sender)), stats


_thread = threading.local()


@contextmanager
def suppress_exporter_logs() -> Iterator[None]:
    """Suppress what the exporters log in this thread."""
    before, _thread.suppressed = getattr(_thread, "suppressed", False), True
    try:
        yield
    finally:
        _thread.suppressed = before


def filter_exporter_logs() -> None:
    """Let `suppress_exporter_logs` take effect on the loggers of the exporters."""
    for name in EXPORTER_LOGGERS:
        logging.getLogger(name).addFilter(_is_not_suppressed)


def _is_not_suppressed(_: logging.LogRecord) -> bool:
    return not getattr(_thread, "suppressed", False)
