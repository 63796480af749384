"""The checks of collectors: an empty export over OTLP for each signal that is sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from os import environ
from typing import Any, Final

from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExportResult

from traced_tools.cli.doctor.result import Check, Result, State, plain_url
from traced_tools.errors import ConfigurationError
from traced_tools.otel import file_configuration
from traced_tools.otel.exporters import make_exporter
from traced_tools.otel.exporting import filter_exporter_logs, suppress_exporter_logs
from traced_tools.otel.otlp import GRPC, SIGNALS, Signal, check_collector

GROUP: Final = "collector"
_SUCCESS: Final = (SpanExportResult.SUCCESS, MetricExportResult.SUCCESS, LogRecordExportResult.SUCCESS)
_ADVICE: Final = "start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL, _HEADERS and _CERTIFICATE"


def collector_checks(url: str | None) -> Iterator[Check]:
    """Yield the checks of the signals that are sent.

    Args:
        url: the collector that the application passes as `configure(otlp=)`; None for that of the environment.
    """
    if url is not None:
        check_collector(url)
    elif file_configuration.is_named():
        yield Check(GROUP, file_configuration.CONFIG_FILE, lambda: [_of_file()])
        return
    for signal in SIGNALS:
        if signal.is_sent(url):
            yield Check(GROUP, signal.name.lower(), partial(_export_nothing, signal, url))


def _of_file() -> Result:
    text = "the file configures the exporters, so no collector is checked"
    return Result(GROUP, file_configuration.CONFIG_FILE, State.NOTE, text, "pass --otlp URL to check a collector")


def _export_nothing(signal: Signal, otlp: str | None) -> Iterator[Result]:
    """Export an empty batch, with the exporter, the protocol, the headers and the certificates of the application."""
    subject = signal.name.lower()
    try:
        place = _place(signal, otlp)
        exporter = make_exporter(signal, otlp)
    except ConfigurationError as error:
        yield Result(GROUP, subject, State.PROBLEM, str(error), "correct it, or unset it")
        return
    filter_exporter_logs()
    batch: Any = MetricsData(resource_metrics=[]) if signal.name == "METRICS" else []
    with suppress_exporter_logs():
        try:
            lost, cause = exporter.send(1, lambda sdk_exporter: sdk_exporter.export(batch) in _SUCCESS)
        finally:
            exporter.exporter.shutdown()
    if lost:
        yield Result(GROUP, subject, State.PROBLEM, f"{place}: {cause}", _ADVICE, exporter.date)
    else:
        yield Result(GROUP, subject, State.OK, f"{place} has accepted an empty export", date=exporter.date)


def _place(signal: Signal, otlp: str | None) -> str:
    """Return where a signal goes, and the protocol."""
    endpoint = signal.endpoint(otlp)
    is_grpc = signal.protocol() == GRPC
    if endpoint is None:
        own, common = environ.get(signal.endpoint_variable), environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        default = "http://localhost:4317" if is_grpc else "http://localhost:4318"
        endpoint = own or common or default
        if not own and not is_grpc:
            endpoint = f"{endpoint.rstrip('/')}/{signal.path}"
    return f"{plain_url(endpoint)} ({signal.protocol()})"
