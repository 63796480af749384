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

from traced_tools.observe.export_stats import Ledger
from traced_tools.observe.run_telemetry import TelemetryOptions, instruments_of
from traced_tools.otel.exporting import log_pipeline, metric_pipeline, trace_pipeline
from traced_tools.otel.handle import Telemetry
from traced_tools.otel.prometheus import iter_metrics


@dataclass
class Pipelines:
    """All three signals on their way to one collector."""

    options: TelemetryOptions
    handle: Telemetry
    spans: Ledger
    metrics: Ledger
    logs: Ledger
    reader: InMemoryMetricReader

    @property
    def ledgers(self) -> tuple[Ledger, Ledger, Ledger]:
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
    (spans, spans_ledger), (logs, logs_ledger) = trace_pipeline(url), log_pipeline(url)
    metrics, metrics_ledger = metric_pipeline(url)
    tracers = TracerProvider(ALWAYS_ON, shutdown_on_exit=False)
    tracers.add_span_processor(spans)
    loggers = LoggerProvider(shutdown_on_exit=False)
    loggers.add_log_record_processor(logs)
    reader = InMemoryMetricReader()
    meters = MeterProvider([metrics, reader], shutdown_on_exit=False)
    ledgers = [spans_ledger, metrics_ledger, logs_ledger]
    instruments = instruments_of(meters)
    assert instruments is not None
    instruments.exports.show(ledgers)
    handle = Telemetry([tracers, loggers, meters], ledgers=ledgers)
    options = TelemetryOptions(tracer_provider=tracers, meter_provider=meters, logger_provider=loggers)
    try:
        yield Pipelines(options, handle, spans_ledger, metrics_ledger, logs_ledger, reader)
    finally:
        handle.shutdown(0.5)
