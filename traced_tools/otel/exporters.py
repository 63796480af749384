"""OTLP exporters, created from the environment, and the number of items that were lost of each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from os import environ
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from opentelemetry.sdk._logs.export import LogRecordExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from traced_tools.otel.otlp import GRPC, Signal

if TYPE_CHECKING:
    from traced_tools.otel.session import CollectorSession

Exporter = SpanExporter | LogRecordExporter | MetricExporter
ExporterT = TypeVar("ExporterT", bound=Exporter)

_PROTO = "opentelemetry.exporter.otlp.proto"
_SERVICES = "opentelemetry.proto.collector"


@dataclass(frozen=True)
class _OtlpClasses:
    """The module and class names of a signal's exporter and of its response message."""

    module: str
    exporter: str
    messages: str
    response: str
    rejected: str


_PARTS = {
    "TRACES": _OtlpClasses(
        "trace_exporter",
        "OTLPSpanExporter",
        "trace.v1.trace_service_pb2",
        "ExportTraceServiceResponse",
        "rejected_spans",
    ),
    "METRICS": _OtlpClasses(
        "metric_exporter",
        "OTLPMetricExporter",
        "metrics.v1.metrics_service_pb2",
        "ExportMetricsServiceResponse",
        "rejected_data_points",
    ),
    "LOGS": _OtlpClasses(
        "_log_exporter",
        "OTLPLogExporter",
        "logs.v1.logs_service_pb2",
        "ExportLogsServiceResponse",
        "rejected_log_records",
    ),
}


class OtlpExporter(Generic[ExporterT]):
    """An OTLP exporter and, over HTTP, the session that remembers the collector's response.

    Over gRPC, or with the session of a credential provider, only the exporter's result is known.

    Args:
        exporter: the SDK's exporter.
        session: the HTTP session of the exporter; None if it is not a `CollectorSession`.
        rejected: returns the number of rejected items from the body of a response.
    """

    def __init__(
        self,
        exporter: ExporterT,
        session: CollectorSession | None = None,
        rejected: Callable[[bytes], int] | None = None,
    ) -> None:
        self.exporter = exporter
        self._session = session
        self._rejected = rejected

    def send(self, count: int, export: Callable[[ExporterT], bool]) -> tuple[int, str]:
        """Send a batch of `count` items; return the number of lost items and the reason as text for the log."""
        if self._session is None or self._rejected is None:
            return (0, "") if export(self.exporter) else (count, "the collector was unreachable or refused them")
        self._session.forget()
        succeeded = export(self.exporter)
        status = self._session.status
        if succeeded and status is not None and 200 <= status < 300:  # the exporters treat a redirect as a success
            return min(count, self._rejected(self._session.body)), "the collector rejected a part of them"
        return count, _reason(status, self._session.error)

    @property
    def date(self) -> str | None:
        """The header `Date` of the collector's last response; None if that is not known."""
        return None if self._session is None else self._session.date

    def problem(self) -> str | None:
        """Return why the last attempt to send the current batch failed; None if that is not known."""
        if self._session is None or (self._session.status is None and self._session.error is None):
            return None
        return _reason(self._session.status, self._session.error)


def make_exporter(signal: Signal, otlp: bool | str | None) -> OtlpExporter[Any]:
    """Return an exporter for a signal, configured by the `OTEL_EXPORTER_OTLP_*` variables.

    Args:
        signal: the signal that it sends.
        otlp: the argument of `configure`.
    """
    # The exporters are imported on first use: importing gRPC alone takes a tenth of a second.
    parts, endpoint = _PARTS[signal.name], signal.endpoint(otlp)
    protocol = "grpc" if signal.protocol() == GRPC else "http"
    kind = getattr(import_module(f"{_PROTO}.{protocol}.{parts.module}"), parts.exporter)
    if protocol == "grpc" or _has_credential_provider(signal):
        return OtlpExporter(kind(endpoint))
    from traced_tools.otel.session import CollectorSession

    session = CollectorSession()
    return OtlpExporter(kind(endpoint, session=session), session, _rejected_count_reader(signal))


def _has_credential_provider(signal: Signal) -> bool:
    """Whether the environment names a plug-in that creates the session, which a `CollectorSession` would replace."""
    prefix = "OTEL_PYTHON_EXPORTER_OTLP_HTTP"
    names = (f"{prefix}_CREDENTIAL_PROVIDER", f"{prefix}_{signal.name}_CREDENTIAL_PROVIDER")
    return any(environ.get(name) for name in names)


def _rejected_count_reader(signal: Signal) -> Callable[[bytes], int]:
    """Return a function that reads the number of rejected items from the body of a collector's response."""
    parts = _PARTS[signal.name]
    response = getattr(import_module(f"{_SERVICES}.{parts.messages}"), parts.response)

    def read(body: bytes) -> int:
        try:
            return max(0, int(getattr(response.FromString(body).partial_success, parts.rejected)))
        except Exception:  # not OTLP: some collectors answer with JSON or plain text
            return 0

    return read


def _reason(status: int | None, error: str | None) -> str:
    if status is not None:
        return f"the collector answered HTTP {status}"
    return f"the collector was unreachable or did not answer ({error or 'nothing was sent'})"
