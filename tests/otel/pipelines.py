"""The pipelines of `configure`, without setting the process's providers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from traced_tools.observe.export_stats import ExportStats
from traced_tools.observe.providers import instruments_of
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.otel.exporting import log_pipeline, metric_pipeline, trace_pipeline
from traced_tools.otel.handle import Telemetry
from traced_tools.otel.prometheus import iter_metrics


@dataclass
class Pipelines:
    """All three signals on their way to one collector."""

    options: TelemetryOptions
    handle: Telemetry
    spans: ExportStats
    metrics: ExportStats
    logs: ExportStats
    reader: InMemoryMetricReader

    @property
    def export_stats(self) -> tuple[ExportStats, ExportStats, ExportStats]:
        return self.spans, self.metrics, self.logs

    def measured(self, name: str) -> dict[tuple[object, ...], object]:
        """The values of one of the metrics of exporting, for each exporter and reason."""
        return {
            tuple((point.attributes or {}).values()): point.value
            for metric in iter_metrics(self.reader.get_metrics_data())
            if metric.name == name
            for point in metric.data.data_points
        }


@contextmanager
def pipelines(url: str) -> Iterator[Pipelines]:
    """Send to the collector at `url`, configured by the environment, until the end of the block."""
    (spans, spans_stats), (logs, logs_stats) = trace_pipeline(url), log_pipeline(url)
    metrics, metrics_stats = metric_pipeline(url)
    tracers = TracerProvider(ALWAYS_ON, shutdown_on_exit=False)
    tracers.add_span_processor(spans)
    loggers = LoggerProvider(shutdown_on_exit=False)
    loggers.add_log_record_processor(logs)
    reader = InMemoryMetricReader()
    meters = MeterProvider([metrics, reader], shutdown_on_exit=False)
    export_stats = [spans_stats, metrics_stats, logs_stats]
    instruments = instruments_of(meters)
    assert instruments is not None
    instruments.exports.show(export_stats)
    handle = Telemetry([tracers, loggers, meters], export_stats=export_stats)
    options = TelemetryOptions(tracer_provider=tracers, meter_provider=meters, logger_provider=loggers)
    try:
        yield Pipelines(options, handle, spans_stats, metrics_stats, logs_stats, reader)
    finally:
        handle.shutdown(0.5)
