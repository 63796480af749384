"""Turn telemetry on: `configure` for an application, `InMemoryTelemetry` for a test.

The package itself uses the OpenTelemetry API alone. Here is where the SDK comes in: its providers are made and, by
`configure`, set for the whole process, which OpenTelemetry allows once. Every `OTEL_*` variable keeps its meaning,
mostly because the SDK and the exporters are made without arguments and read it themselves.

After set-up nothing here raises: what goes wrong with an export, a flush or a shutdown goes to the log.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import environ
from types import TracebackType
from typing import Self

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    DataPointT,
    DataT,
    Gauge,
    InMemoryMetricReader,
    Metric,
    MetricExporter,
    MetricReader,
    NumberDataPoint,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from traced_tools._checks import expect
from traced_tools.errors import ConfigurationError
from traced_tools.telemetry.otlp import GRPC, METRICS, TRACES, check_collector
from traced_tools.telemetry.points import MetricPoint
from traced_tools.telemetry.prometheus import (
    PrometheusCollector,
    PrometheusReader,
    PrometheusServer,
    metrics_of,
    parse_address,
)
from traced_tools.telemetry.scope import error_type
from traced_tools.telemetry.tree import OpenTraces, build_trees, render_text, trace_id

_LOG = logging.getLogger(__name__)

FinishedSpans = tuple[ReadableSpan, ...]


def configure(
    *,
    service_name: str | None = None,
    otlp: bool | str | None = None,
    prometheus: int | str | None = None,
    console: bool = False,
) -> Telemetry:
    """Set OpenTelemetry up for this process, and return the handle that flushes and stops it.

    A second call changes nothing, says so in the log and returns the first call's handle. Providers the application has
    set already stay in force.

    Args:
        service_name: the service's name; None for `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES`.
        otlp: True sends traces and metrics over OTLP to where the `OTEL_EXPORTER_OTLP_*` variables say, a URL sends
            them there, False sends nothing. None sends what those variables give an endpoint for, or what
            `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` want as `otlp`. A signal whose exporter is `none` is
            never sent.
        prometheus: where scrapers find the metrics: a port of 127.0.0.1, or `host:port`; port 0 for any free one.
        console: True prints each finished trace to stderr, as a tree, without content.

    Raises:
        TypeError: for an argument of the wrong type; the text names it.
        ConfigurationError: for a setting that cannot work, or after a shutdown: OpenTelemetry takes no second set of
            providers.
    """
    global _current
    settings = _checked(service_name, otlp, prometheus, console)
    with _LOCK:
        if _current is None:
            _current = _set_up(settings)
        elif _current.stopped:
            raise ConfigurationError(
                "configure() was called after shutdown(): OpenTelemetry sets its providers once in a process; keep the "
                "first handle open, or give providers of your own to ChatClient(telemetry=TelemetryOptions(...))"
            )
        else:
            _LOG.warning("configure() was called before; this call changes nothing and returns the first one's handle")
        return _current


class Telemetry:
    """What `configure` set up; leaving its `with` block, `shutdown` and the end of the process flush and stop it.

    Args:
        providers: what to flush and stop; none when others are in charge of it.
        server: the Prometheus server, when there is one.
    """

    def __init__(
        self, providers: tuple[TracerProvider | MeterProvider, ...] = (), server: PrometheusServer | None = None
    ) -> None:
        self._providers = providers
        self._server = server
        self._address = None if server is None else server.address
        self._lock = threading.Lock()
        self._stopped = False
        if providers:
            atexit.register(self.shutdown)

    @property
    def prometheus_address(self) -> str | None:
        """Where scrapers find the metrics, as `host:port`; None when they are not served."""
        return self._address

    @property
    def stopped(self) -> bool:
        """Whether providers of this handle were shut down; never true of a handle that has none."""
        return self._stopped and bool(self._providers)

    def force_flush(self, timeout: float = 10.0) -> bool:
        """Send what is waiting, within `timeout` seconds, and return whether that went well."""
        deadline = time.monotonic() + timeout
        flushed = [_quietly(provider.force_flush, _milliseconds_until(deadline)) for provider in self._providers]
        return all(flushed)

    def shutdown(self) -> None:
        """Send what is waiting and stop; a second call does nothing."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        atexit.unregister(self.shutdown)
        if self._server is not None:
            _quietly(self._server.stop)
        for provider in self._providers:
            _quietly(provider.shutdown)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<Telemetry prometheus={self._address} stopped={self._stopped}>"


_LOCK = threading.Lock()
_current: Telemetry | None = None


@dataclass(frozen=True)
class _Settings:
    """The arguments of `configure`, checked; `prometheus` is (host, port)."""

    service_name: str | None
    otlp: bool | str | None
    prometheus: tuple[str, int] | None
    console: bool


def _checked(
    service_name: str | None, otlp: bool | str | None, prometheus: int | str | None, console: bool
) -> _Settings:
    expect("service_name", service_name, (str, type(None)), "a str or None")
    expect("otlp", otlp, (bool, str, type(None)), "True, False, None or the URL of a collector")
    accepted = (str, type(None)) if isinstance(prometheus, bool) else (int, str, type(None))  # True is no port 1
    expect("prometheus", prometheus, accepted, 'a port number, "host:port" or None')
    expect("console", console, bool, "True or False")
    if service_name is not None and not service_name.strip():
        raise ConfigurationError("service_name must be a non-blank str, or None for OTEL_SERVICE_NAME")
    if isinstance(otlp, str):
        check_collector(otlp)
    return _Settings(service_name, otlp, None if prometheus is None else parse_address(prometheus), console)


def _set_up(settings: _Settings) -> Telemetry:
    if environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
        _LOG.info("%s is true: configure() sets nothing up", OTEL_SDK_DISABLED)
        return Telemetry()
    _warn_of_settings(settings)
    with ExitStack() as undo:
        try:
            handle = _build(settings, undo)
        except ConfigurationError:
            raise
        except Exception as error:  # its text may quote a value, such as a URL with a password
            raise ConfigurationError(
                f"telemetry cannot be set up from the OTEL_* variables: the SDK raised {error_type(error)}"
            ) from None
        undo.pop_all()
    return handle


def _build(settings: _Settings, undo: ExitStack) -> Telemetry:
    """Make what is wanted and set it as the process's; `undo` stops what was started, should a later part fail."""
    named = {} if settings.service_name is None else {SERVICE_NAME: settings.service_name}
    resource = Resource.create(named)
    tracer_provider, meter_provider, server = None, None, None
    if _is_free(trace.get_tracer_provider(), "traces"):
        tracer_provider = _tracer_provider(settings, resource, undo)
    if _is_free(metrics.get_meter_provider(), "metrics"):
        meter_provider, server = _meter_provider(settings, resource, undo)
    if tracer_provider is not None:
        trace.set_tracer_provider(tracer_provider)
    if meter_provider is not None:
        metrics.set_meter_provider(meter_provider)
    return Telemetry(tuple(filter(None, (tracer_provider, meter_provider))), server)


def _tracer_provider(settings: _Settings, resource: Resource, undo: ExitStack) -> TracerProvider:
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if settings.console:
        provider.add_span_processor(_Console())
    if TRACES.is_sent(settings.otlp):
        processor = BatchSpanProcessor(_span_exporter(settings.otlp))
        undo.callback(_quietly, processor.shutdown)
        provider.add_span_processor(processor)
    return provider


def _meter_provider(
    settings: _Settings, resource: Resource, undo: ExitStack
) -> tuple[MeterProvider, PrometheusServer | None]:
    readers: list[MetricReader] = []
    if METRICS.is_sent(settings.otlp):
        reader = PeriodicExportingMetricReader(_metric_exporter(settings.otlp))
        undo.callback(_quietly, reader.shutdown)
        readers.append(reader)
    scraped = PrometheusReader()
    if settings.prometheus is not None:
        readers.append(scraped)
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    if settings.prometheus is None:
        return provider, None
    server = PrometheusServer(PrometheusCollector(scraped), *settings.prometheus)
    undo.callback(_quietly, server.stop)
    return provider, server


def _is_free(provider: object, signal: str) -> bool:
    """Whether nobody has set a provider: the API's stand-in is there, whose class for metrics has no public name."""
    if type(provider).__name__ in ("ProxyTracerProvider", "_ProxyMeterProvider"):
        return True
    _LOG.warning(
        "the application has set OpenTelemetry's provider of %s; it stays, and configure() adds nothing", signal
    )
    return False


def _warn_of_settings(settings: _Settings) -> None:
    """Tell the log of exporters that nobody here knows, and of a set-up that sends nothing anywhere."""
    for signal in (TRACES, METRICS):
        if unknown := sorted(signal.exporters() - {"otlp", "none"}):
            _LOG.warning("%s names %s; configure() knows otlp and none", signal.exporter_variable, ", ".join(unknown))
    sent = TRACES.is_sent(settings.otlp) or METRICS.is_sent(settings.otlp)
    if not sent and settings.prometheus is None and not settings.console:
        _LOG.warning("configure() was told of nowhere to send to: give otlp=, prometheus= or console=")


def _span_exporter(otlp: bool | str | None) -> SpanExporter:
    # The exporters are imported when they are wanted: gRPC alone takes a tenth of a second.
    endpoint = TRACES.endpoint(otlp)
    if TRACES.protocol() == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter

        return GrpcSpanExporter(endpoint)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint)


def _metric_exporter(otlp: bool | str | None) -> MetricExporter:
    endpoint = METRICS.endpoint(otlp)
    if METRICS.protocol() == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter

        return GrpcMetricExporter(endpoint)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(endpoint)


def _quietly(action: Callable[..., object], *arguments: object) -> bool:
    """Do something, return whether it went well, and log the type of what it raised; the text may quote content."""
    try:
        return action(*arguments) is not False
    except Exception as error:
        _LOG.warning("telemetry: %s raised %s", getattr(action, "__qualname__", "a call"), error_type(error))
        return False


def _milliseconds_until(deadline: float) -> int:
    return max(0, int((deadline - time.monotonic()) * 1000))


class _Console(SpanProcessor):
    """Prints each trace to stderr once none of its spans is under way here, which is when its local root has ended."""

    def __init__(self) -> None:
        self._traces: OpenTraces[ReadableSpan] = OpenTraces()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Remember that a span is under way."""
        _quietly(_print_trees, self._traces.begin(trace_id(span)))

    def on_end(self, span: ReadableSpan) -> None:
        """Print the trace if this was the last of its spans."""
        _quietly(_print_trees, self._traces.end(trace_id(span), span))

    def shutdown(self) -> None:
        """Print what is left, beside spans that never ended."""
        _quietly(_print_trees, self._traces.drain())


def _print_trees(spans: list[ReadableSpan]) -> None:
    if spans and sys.stderr is not None:  # on lines of its own: an answer may have been printed without its end
        sys.stderr.write("".join(f"\n{render_text(tree)}\n" for tree in build_trees(spans)))


class InMemoryTelemetry:
    """Providers, not the process's own, that keep what they are given in memory.

    Attributes:
        tracer_provider: for `TelemetryOptions`.
        meter_provider: for `TelemetryOptions`.
    """

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(ALWAYS_ON, shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        # Sums are read as what was added since the last time, so that `clear` can start them from nothing.
        delta: dict[type, AggregationTemporality] = dict.fromkeys(
            (Counter, Histogram, ObservableCounter), AggregationTemporality.DELTA
        )
        self._reader = InMemoryMetricReader(delta)
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self._lock = threading.Lock()
        self._points: dict[tuple[str, str], MetricPoint] = {}

    def spans(self) -> FinishedSpans:
        """Return the spans that have ended, in the order they did."""
        return self._exporter.get_finished_spans()

    def metrics(self) -> list[MetricPoint]:
        """Return what was recorded, summed up for each metric and set of attributes."""
        with self._lock:
            self._collect()
            return list(self._points.values())

    def clear(self) -> None:
        """Forget the spans and what was counted; how many of something there are now is no count, and stays."""
        with self._lock:
            self._exporter.clear()
            self._collect()
            self._points.clear()

    def shutdown(self) -> None:
        """Stop both providers; what they kept can still be read."""
        _quietly(self.tracer_provider.shutdown)
        _quietly(self.meter_provider.shutdown)

    def _collect(self) -> None:
        for metric in metrics_of(self._reader.get_metrics_data()):
            for point in metric.data.data_points:
                self._add(_point(metric, point), is_delta=_is_delta(metric.data))

    def _add(self, point: MetricPoint, *, is_delta: bool) -> None:
        key = (point.name, repr(sorted(point.attributes.items())))
        known = self._points.get(key)
        self._points[key] = point if known is None or not is_delta else known.plus(point)


def _is_delta(data: DataT) -> bool:
    return not isinstance(data, Gauge) and data.aggregation_temporality is AggregationTemporality.DELTA


def _point(metric: Metric, point: DataPointT) -> MetricPoint:
    plain = MetricPoint(metric.name, dict(point.attributes or {}), metric.unit or "")
    if isinstance(point, NumberDataPoint):
        return replace(plain, value=point.value)
    return replace(plain, count=point.count, sum=point.sum)
