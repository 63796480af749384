"""Turn telemetry on: `configure`.

The package itself uses the OpenTelemetry API alone. Here is where the SDK comes in: its providers are made and set for
the whole process, which OpenTelemetry allows once. Every `OTEL_*` variable keeps its meaning, mostly because the SDK
and the exporters are made without arguments and read it themselves.

After set-up nothing here raises: what goes wrong with an export, a flush or a shutdown is counted and goes to the log.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike, environ
from pathlib import Path

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider

from traced_tools.core.checks import expect
from traced_tools.errors import ConfigurationError
from traced_tools.observe.content import ContentCapture, as_capture, set_process_capture
from traced_tools.observe.export_stats import ExportStats
from traced_tools.observe.run_telemetry import instruments_of, is_stand_in
from traced_tools.observe.scope import error_type
from traced_tools.observe.settings import captured_by_environment, detail_by_environment, openinference_by_environment
from traced_tools.otel import file_configuration
from traced_tools.otel.console import ConsoleProcessor
from traced_tools.otel.exporting import log_pipeline, metric_pipeline, trace_pipeline
from traced_tools.otel.handle import Provider, Telemetry
from traced_tools.otel.otlp import GRPC, LOGS, METRICS, SIGNALS, TRACES, check_collector
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusReader, PrometheusServer, parse_address
from traced_tools.otel.targets import TargetsFile
from traced_tools.otel.variables import check_batches, check_metrics, check_otlp, check_providers

_LOG = logging.getLogger(__name__)


def configure(
    *,
    service_name: str | None = None,
    otlp: bool | str | None = None,
    prometheus: bool | int | str | None = None,
    prometheus_targets: str | PathLike[str] | None = None,
    console: bool = False,
    capture: ContentCapture | str | None = None,
) -> Telemetry:
    """Set OpenTelemetry up for this process, and return the handle that flushes and stops it.

    A second call changes nothing, says so in the log and returns the first call's handle; in a forked child it starts a
    Prometheus server for it. Providers the application has set already stay in force. Where `OTEL_CONFIG_FILE` names a
    file, it says what is set up, and of the arguments only `capture` may be given.

    Args:
        service_name: the service's name; None for `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES`.
        otlp: True sends traces, metrics and log-based events over OTLP to where the `OTEL_EXPORTER_OTLP_*` variables
            say, a URL sends them there, False sends nothing. None sends what those variables give an endpoint for, or
            what `OTEL_TRACES_EXPORTER`, `OTEL_METRICS_EXPORTER` and `OTEL_LOGS_EXPORTER` want as `otlp`. A signal whose
            exporter is `none` is never sent.
        prometheus: where scrapers find the metrics: a port of 127.0.0.1, or `host:port`; port 0 for any free one, and
            `host:first-last` for the first free one of several. True listens nowhere: the application serves
            `asgi_app()` or `wsgi_app()` of the handle.
        prometheus_targets: a JSON file for Prometheus's `file_sd_configs`, to which each worker of a program adds its
            address while it serves there. Its folder must be there, and all workers write to the same file.
        console: True prints each finished trace to stderr, as a tree, without content.
        capture: which contents clients tell that do not say themselves; None for
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`, which says none unless it is set.

    Raises:
        TypeError: for an argument of the wrong type; the text names it.
        ConfigurationError: for a setting that cannot work, or after a shutdown: OpenTelemetry takes no second set of
            providers.
    """
    global _current
    settings = _checked(service_name, otlp, prometheus, prometheus_targets, console, capture)
    with _LOCK:
        if _current is None:
            _current = _set_up(settings)
        elif _current.stopped:
            raise ConfigurationError(
                "configure() was called after shutdown(): OpenTelemetry sets its providers once in a process; keep the "
                "first handle open, or give providers of your own to ChatClient(telemetry=TelemetryOptions(...))"
            )
        elif _current.inherited and settings.prometheus is not None:
            _serve_in_child(_current, settings.prometheus)
        else:
            _LOG.warning("configure() was called before; this call changes nothing and returns the first one's handle")
        return _current


_LOCK = threading.RLock()  # a signal handler may come here while its thread is in here
_current: Telemetry | None = None


@dataclass(frozen=True)
class _Endpoint:
    """Where the metrics are served: on the first free one of the ports, and which file lists it."""

    host: str
    ports: range
    targets: TargetsFile | None


def _serve_in_child(handle: Telemetry, endpoint: _Endpoint) -> None:
    """Serve the metrics in a forked child; all else that the parent has set up goes on in it by itself."""
    if not handle.serve(endpoint.host, endpoint.ports, endpoint.targets):
        _LOG.warning(
            "configure() was called before this process was forked, and set up no metrics to serve, or serves them "
            "already: this call changes nothing; give prometheus= to the first call as well"
        )


@dataclass(frozen=True)
class _Settings:
    """The arguments of `configure`, checked; `is_scraped` tells whether metrics are collected for Prometheus."""

    service_name: str | None
    otlp: bool | str | None
    is_scraped: bool
    prometheus: _Endpoint | None
    console: bool
    capture: ContentCapture | None

    @property
    def names_outlets(self) -> bool:
        """Whether more than `capture` was given."""
        return (self.service_name, self.otlp) != (None, None) or self.is_scraped or self.console


@dataclass
class _Parts:
    """What is being set up; `undo` stops what was started, should a later part fail."""

    undo: ExitStack
    export_stats: list[ExportStats] = field(default_factory=list)
    server: PrometheusServer | None = None
    collector: PrometheusCollector | None = None


def _checked(
    service_name: str | None,
    otlp: bool | str | None,
    prometheus: bool | int | str | None,
    prometheus_targets: str | PathLike[str] | None,
    console: bool,
    capture: ContentCapture | str | None,
) -> _Settings:
    expect("service_name", service_name, (str, type(None)), "a str or None")
    expect("otlp", otlp, (bool, str, type(None)), "True, False, None or the URL of a collector")
    expect("prometheus", prometheus, (bool, int, str, type(None)), 'True, a port number, "host:port" or None')
    expect("prometheus_targets", prometheus_targets, (str, PathLike, type(None)), "the path of a file or None")
    expect("console", console, bool, "True or False")
    if service_name is not None and not service_name.strip():
        raise ConfigurationError("service_name must be a non-blank str, or None for OTEL_SERVICE_NAME")
    if isinstance(otlp, str):
        check_collector(otlp)
    is_scraped, endpoint = prometheus is not None and prometheus is not False, None
    if prometheus is not None and not isinstance(prometheus, bool):
        targets = None if prometheus_targets is None else TargetsFile(Path(prometheus_targets).absolute())
        endpoint = _Endpoint(*parse_address(prometheus), targets)
    elif prometheus_targets is not None:
        raise ConfigurationError("prometheus_targets lists where metrics are served: give prometheus= a port as well")
    for read in (captured_by_environment, detail_by_environment, openinference_by_environment):
        read()
    return _Settings(service_name, otlp, is_scraped, endpoint, console, as_capture(capture))


def _set_up(settings: _Settings) -> Telemetry:
    if environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
        _LOG.info("%s is true: configure() sets nothing up", OTEL_SDK_DISABLED)
        return Telemetry()
    handle = _from_file(settings) if file_configuration.is_named() else _from_variables(settings)
    set_process_capture(settings.capture)
    return handle


def _from_file(settings: _Settings) -> Telemetry:
    if settings.names_outlets:
        raise ConfigurationError(
            f"{file_configuration.CONFIG_FILE} is set, and the file says all: service_name, otlp, prometheus and "
            "console cannot be given beside it; put them into the file, or unset the variable"
        )
    return Telemetry(file_configuration.set_up(_is_free))


def _from_variables(settings: _Settings) -> Telemetry:
    _check_variables(settings)
    _warn_of_settings(settings)
    with ExitStack() as undo:
        try:
            handle = _build(settings, _Parts(undo))
        except ConfigurationError:
            raise
        except Exception as error:  # its text may quote a value, such as a URL with a password
            raise ConfigurationError(
                f"telemetry cannot be set up from the OTEL_* variables: the SDK raised {error_type(error)}"
            ) from None
        undo.pop_all()
    return handle


def _build(settings: _Settings, parts: _Parts) -> Telemetry:
    """Make what is wanted and set it as the process's."""
    named = {} if settings.service_name is None else {SERVICE_NAME: settings.service_name}
    resource = Resource.create(named)
    tracers, loggers, meters = None, None, None
    if _is_free(trace.get_tracer_provider(), "traces"):
        tracers = _tracer_provider(settings, resource, parts)
    if LOGS.is_sent(settings.otlp) and _is_free(_logs.get_logger_provider(), "logs"):
        loggers = _logger_provider(settings, resource, parts)
    if _is_free(metrics.get_meter_provider(), "metrics"):
        meters = _meter_provider(settings, resource, parts)
    if tracers is not None:
        trace.set_tracer_provider(tracers)
    if loggers is not None:
        _logs.set_logger_provider(loggers)
    if meters is not None:
        metrics.set_meter_provider(meters)
    if (instruments := instruments_of(metrics.get_meter_provider())) is not None:
        instruments.exports.show(parts.export_stats)
    made: list[Provider | None] = [tracers, loggers, meters]
    return Telemetry([each for each in made if each is not None], parts.server, parts.export_stats, parts.collector)


def _tracer_provider(settings: _Settings, resource: Resource, parts: _Parts) -> TracerProvider:
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if settings.console:
        provider.add_span_processor(ConsoleProcessor())
    if TRACES.is_sent(settings.otlp):
        pipeline, stats = trace_pipeline(settings.otlp)
        parts.undo.callback(pipeline.shutdown)
        parts.export_stats.append(stats)
        provider.add_span_processor(pipeline)
    return provider


def _logger_provider(settings: _Settings, resource: Resource, parts: _Parts) -> LoggerProvider:
    pipeline, stats = log_pipeline(settings.otlp)
    parts.undo.callback(pipeline.shutdown)
    parts.export_stats.append(stats)
    provider = LoggerProvider(resource, shutdown_on_exit=False)
    provider.add_log_record_processor(pipeline)
    return provider


def _meter_provider(settings: _Settings, resource: Resource, parts: _Parts) -> MeterProvider:
    readers: list[MetricReader] = []
    if METRICS.is_sent(settings.otlp):
        pipeline, stats = metric_pipeline(settings.otlp)
        parts.undo.callback(pipeline.shutdown)
        parts.export_stats.append(stats)
        readers.append(pipeline)
    scraped = PrometheusReader()
    if settings.is_scraped:
        readers.append(scraped)
        parts.collector = PrometheusCollector(scraped)
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    if parts.collector is not None and (endpoint := settings.prometheus) is not None:
        parts.server = PrometheusServer(parts.collector, endpoint.host, endpoint.ports, endpoint.targets)
        parts.undo.callback(parts.server.stop)
    return provider


def _is_free(provider: object, signal: str) -> bool:
    """Whether nobody has set a provider: the API's stand-in is there."""
    if is_stand_in(provider):
        return True
    _LOG.warning(
        "the application has set OpenTelemetry's provider of %s; it stays, and configure() adds nothing", signal
    )
    return False


def _check_variables(settings: _Settings) -> None:
    check_providers()
    for signal in SIGNALS:
        if signal.is_sent(settings.otlp):
            check_otlp(signal.name, is_grpc=signal.protocol() == GRPC)
    if TRACES.is_sent(settings.otlp):
        check_batches("OTEL_BSP")
    if LOGS.is_sent(settings.otlp):
        check_batches("OTEL_BLRP")
    if METRICS.is_sent(settings.otlp):
        check_metrics()


def _warn_of_settings(settings: _Settings) -> None:
    """Tell the log of exporters that nobody here knows, and of a set-up that sends nothing anywhere."""
    for signal in SIGNALS:
        if unknown := sorted(signal.exporters() - {"otlp", "none"}):
            _LOG.warning("%s names %s; configure() knows otlp and none", signal.exporter_variable, ", ".join(unknown))
    sent = any(signal.is_sent(settings.otlp) for signal in SIGNALS)
    if not sent and not settings.is_scraped and not settings.console:
        _LOG.warning("configure() was told of nowhere to send to: give otlp=, prometheus= or console=")
