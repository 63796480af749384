"""The export of an empty batch over OTLP, which shows whether a collector accepts what the application would send."""

from __future__ import annotations

from dataclasses import dataclass
from os import environ
from typing import Any, Final

from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExportResult

from traced_tools.otel.exporters import make_exporter
from traced_tools.otel.exporting import filter_exporter_logs, suppress_exporter_logs
from traced_tools.otel.otlp import GRPC, Signal

_SUCCESS: Final = (SpanExportResult.SUCCESS, MetricExportResult.SUCCESS, LogRecordExportResult.SUCCESS)


@dataclass(frozen=True)
class EmptyExport:
    """What came of an empty export.

    Args:
        problem: why the collector did not accept it; empty if it did.
        date: the header `Date` of the collector's answer; None if it is not known.
    """

    problem: str
    date: str | None


def export_nothing(signal: Signal, otlp: str | None) -> EmptyExport:
    """Export an empty batch, with the exporter, the protocol, the headers and the certificates of the application.

    Args:
        signal: what is exported.
        otlp: the collector, as for `configure`; None for that of the environment.

    Raises:
        ConfigurationError: a variable is invalid.
    """
    exporter = make_exporter(signal, otlp)
    filter_exporter_logs()
    batch: Any = MetricsData(resource_metrics=[]) if signal.name == "METRICS" else []
    with suppress_exporter_logs():
        try:
            lost, cause = exporter.send(1, lambda sdk_exporter: sdk_exporter.export(batch) in _SUCCESS)
        finally:
            exporter.exporter.shutdown()
    return EmptyExport(cause if lost else "", exporter.date)


def endpoint_of(signal: Signal, otlp: str | None) -> str:
    """Return the URL, or `host:port` over gRPC, that a signal is sent to. It may hold a password.

    Raises:
        ConfigurationError: a variable is invalid.
    """
    if (endpoint := signal.endpoint(otlp)) is not None:
        return endpoint
    own, common = environ.get(signal.endpoint_variable), environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if own or signal.protocol() == GRPC:
        return own or common or "http://localhost:4317"
    return f"{(common or 'http://localhost:4318').rstrip('/')}/{signal.path}"
