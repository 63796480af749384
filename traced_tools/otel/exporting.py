"""Pipelines that send spans, metrics and log records over OTLP, and lose nothing silently.

The batching, the encoding and the retries are the SDK's and its exporters'. Around them stands a `Ledger`: it admits
items to the queue, so that the SDK's own is never full, and learns what became of each batch. What the exporters log
while they send for us is left out, since it quotes the collector's texts again and again; the ledger says it once.
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
from traced_tools.observe.export_stats import Ledger
from traced_tools.observe.scope import error_type
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
"""The loggers whose lines are left out while one of our exporters sends in the same thread."""


class Sender(Generic[ExporterT]):
    """Sends batches through an exporter of OTLP and tells the ledger what became of them.

    A forked child makes an exporter of its own: two processes cannot share a connection.

    Args:
        make: makes the exporter.
        ledger: is told.
    """

    def __init__(self, make: Callable[[], OtlpExporter[ExporterT]], ledger: Ledger) -> None:
        self.otlp = make()
        self._ledger = ledger
        self._make = make
        self._stopped = False
        self._inherited = False
        ledger.ask(lambda: self.otlp.problem())
        on_fork(self._note_fork)
        for name in EXPORTER_LOGGERS:
            logging.getLogger(name).addFilter(_is_not_suppressed)

    def send(self, count: int, export: Callable[[ExporterT], bool]) -> bool:
        """Send a batch of `count` items and return whether all went well; never raises.

        Args:
            count: how many items there are.
            export: hands the batch to the exporter and returns whether that says it was sent.
        """
        if not self._ledger.take(count):
            return False
        try:
            with _suppress_exporter_logs():
                self._renew()
                lost, why = self.otlp.send(count, export)
        except Exception as error:  # its text may quote the collector
            lost, why = count, f"sending raised {error_type(error)}"
        self._ledger.settle(count - lost, lost, why)
        return not lost

    def stop(self) -> None:
        """Stop the exporter: requests under way are given up where that can be done."""
        if not self._stopped:
            self._stopped = True
            if self._inherited:  # the connections are the parent's
                return
            with _suppress_exporter_logs():
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
        points = sum(len(metric.data.data_points) for metric in iter_metrics(metrics_data))
        sent = self._sender.send(points, lambda exporter: exporter.export(metrics_data, timeout_millis) is success)
        return success if sent else MetricExportResult.FAILURE

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        """Stop."""
        self._sender.stop()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: nothing is kept back here."""
        return True


class SpanPipeline(BatchSpanProcessor):
    """Batches the spans that the ledger admits."""

    def __init__(self, exporter: SpanExporter, ledger: Ledger) -> None:
        super().__init__(exporter, max_queue_size=ledger.capacity)
        self._ledger = ledger

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span that is sampled, if there is room."""
        if span.context and span.context.trace_flags.sampled and self._ledger.admit():
            super().on_end(span)


class LogPipeline(BatchLogRecordProcessor):
    """Batches the log records that the ledger admits."""

    def __init__(self, exporter: LogRecordExporter, ledger: Ledger) -> None:
        super().__init__(exporter, max_queue_size=ledger.capacity)
        self._ledger = ledger

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Queue a record, if there is room."""
        if self._ledger.admit():
            super().on_emit(log_record)


class MetricPipeline(PeriodicExportingMetricReader):
    """Collects and sends metrics now and then; a forked child does not wait for what the parent was sending."""

    def __init__(self, exporter: MetricExporter) -> None:
        on_fork(self._forget_parent)
        super().__init__(exporter)

    def _forget_parent(self) -> None:
        self._export_lock = threading.Lock()  # the SDK leaves it as it was at the fork, which may be held for good


def trace_pipeline(otlp: bool | str | None) -> tuple[SpanPipeline, Ledger]:
    """Return what sends spans, which is started, and its ledger."""
    ledger = Ledger("otlp.traces", "spans", read_queue_size("OTEL_BSP"))
    sender: Sender[SpanExporter] = Sender(partial(make_exporter, TRACES, otlp), ledger)
    return SpanPipeline(SpanSender(sender), ledger), ledger


def log_pipeline(otlp: bool | str | None) -> tuple[LogPipeline, Ledger]:
    """Return what sends log records, which is started, and its ledger."""
    ledger = Ledger("otlp.logs", "log records", read_queue_size("OTEL_BLRP"))
    sender: Sender[LogRecordExporter] = Sender(partial(make_exporter, LOGS, otlp), ledger)
    return LogPipeline(LogSender(sender), ledger), ledger


def metric_pipeline(otlp: bool | str | None) -> tuple[MetricPipeline, Ledger]:
    """Return what sends metrics, which is started, and its ledger."""
    ledger = Ledger("otlp.metrics", "metric points")
    sender: Sender[MetricExporter] = Sender(partial(make_exporter, METRICS, otlp), ledger)
    return MetricPipeline(MetricSender(sender)), ledger


_thread = threading.local()


@contextmanager
def _suppress_exporter_logs() -> Iterator[None]:
    """Leave out what the exporters log in this thread."""
    before, _thread.untold = getattr(_thread, "untold", False), True
    try:
        yield
    finally:
        _thread.untold = before


def _is_not_suppressed(_: logging.LogRecord) -> bool:
    return not getattr(_thread, "untold", False)
