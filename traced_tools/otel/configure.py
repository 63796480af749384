"""`configure`: sets up the OpenTelemetry SDK for the process.

The rest of the package uses the OpenTelemetry API only. This module creates the SDK's providers and sets them for the
whole process, which OpenTelemetry allows once. Every `OTEL_*` variable keeps its meaning, mostly because the SDK and
the exporters are created without arguments and read the variables themselves.

After set-up nothing here raises: a failed export, flush or shutdown is counted and logged.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike, environ
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from traced_tools.core.checks import expect
from traced_tools.errors import ConfigurationError
from traced_tools.observe.content import ContentCapture, as_capture, set_process_capture
from traced_tools.observe.export_stats import ExportStats
from traced_tools.observe.failures import error_type
from traced_tools.observe.providers import check_sdk, instruments_of, is_stand_in
from traced_tools.observe.settings import (
    CAPTURE_CONTENT,
    DEV,
    read_capture_mode,
    read_detail,
    read_dev,
    read_openinference,
)
from traced_tools.otel import file_configuration
from traced_tools.otel.console import ConsoleProcessor
from traced_tools.otel.exporting import log_pipeline, metric_pipeline, trace_pipeline
from traced_tools.otel.handle import Provider, Telemetry
from traced_tools.otel.otlp import GRPC, LOGS, METRICS, SIGNALS, TRACES, check_collector
from traced_tools.otel.prometheus import (
    PrometheusCollector,
    PrometheusReader,
    PrometheusServer,
    RegisteredCollector,
    parse_address,
)
from traced_tools.otel.prometheus_targets import TargetsFile
from traced_tools.otel.variables import check_batches, check_metrics, check_otlp, check_providers

if TYPE_CHECKING:
    from traced_tools.otel.development import DevelopmentTerminal

_LOG = logging.getLogger(__name__)


def configure(
    *,
    service_name: str | None = None,
    otlp: bool | str | None = None,
    prometheus: bool | int | str | CollectorRegistry | None = None,
    prometheus_targets: str | PathLike[str] | None = None,
    console: bool = False,
    capture: ContentCapture | str | None = None,
    dev: bool | None = None,
) -> Telemetry:
    """Set up OpenTelemetry for this process, and return the handle that flushes and stops it.

    A second call changes nothing, logs a warning and returns the first call's handle. In a forked child, a second call
    starts the child's Prometheus server. Providers that the application has already set stay in use. If
    `OTEL_CONFIG_FILE` is set, the file it names configures the SDK, and `capture` is the only argument allowed.

    Args:
        service_name: the service's name; None uses `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES`.
        otlp: True sends traces, metrics and log-based events over OTLP to the endpoint that the
            `OTEL_EXPORTER_OTLP_*` variables set, or to the default one. A URL sends them to that collector. False sends
            nothing. None sends the signals for which those variables set an endpoint, or for which
            `OTEL_TRACES_EXPORTER`, `OTEL_METRICS_EXPORTER` or `OTEL_LOGS_EXPORTER` is `otlp`. A signal whose exporter
            variable is `none` is never sent.
        prometheus: the address of the metrics endpoint: a port of 127.0.0.1, or `host:port`; port 0 for any free port.
            `host:first-last` takes the first free port of a range. True collects the metrics without a server; the
            application serves the handle's `asgi_app()` or `wsgi_app()`. A `CollectorRegistry` of prometheus-client
            gets the metrics, so that the application's own page has them, until the handle is shut down. None and
            False collect nothing.
        prometheus_targets: the path of a JSON file for Prometheus's `file_sd_configs`. Each worker process of a program
            lists its address there while it serves. The folder must exist, and all workers must use the same file.
        console: True prints each finished trace to stderr as a tree, without content.
        capture: content capture for clients that don't set their own. None uses
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`; if that is unset, nothing is captured.
        dev: True prints each event when it happens, and each finished trace with its contents and the tracebacks of
            tools, to stderr. No span or event carries contents then, whatever clients capture. It cannot be combined
            with OTLP, a configuration file, content capture or providers of the application. None uses
            `TRACED_TOOLS_DEV`.

    Raises:
        TypeError: an argument has the wrong type; the message names it.
        ConfigurationError: a setting is invalid, or the handle was shut down before: OpenTelemetry accepts its
            providers only once in a process.
    """
    global _current
    settings = _check_arguments(service_name, otlp, prometheus, prometheus_targets, console, capture, dev)
    with _LOCK:
        if _current is None:
            _current = _set_up(settings)
        elif _current.stopped:
            raise ConfigurationError(
                "configure() was called after shutdown(): OpenTelemetry accepts its providers only once in a process; "
                "keep the first handle open, or pass your own providers to ChatClient(telemetry=TelemetryOptions(...))"
            )
        elif _current.inherited and settings.prometheus is not None:
            _serve_in_child(_current, settings.prometheus)
        elif not (_current.inherited and settings.registry is not None):  # a child serves its copy of the registry
            _LOG.warning("configure() was called before; this call changes nothing and returns the first call's handle")
        return _current


_LOCK = threading.RLock()  # reentrant: a signal handler may call configure() while its thread holds the lock
_current: Telemetry | None = None


@dataclass(frozen=True)
class _Endpoint:
    """The Prometheus endpoint: it takes the first free port, and `targets` lists its address."""

    host: str
    ports: range
    targets: TargetsFile | None


def _serve_in_child(handle: Telemetry, endpoint: _Endpoint) -> None:
    """Serve the metrics in a forked child. Everything else that the parent set up keeps working there."""
    if not handle.serve(endpoint.host, endpoint.ports, endpoint.targets):
        _LOG.warning(
            "configure() was called before this process was forked, and either collects no metrics or already serves "
            "them: this call changes nothing; pass prometheus= to the first call as well"
        )


@dataclass(frozen=True)
class _Settings:
    """The checked arguments of `configure`; `is_scraped` is whether metrics are collected for Prometheus."""

    service_name: str | None
    otlp: bool | str | None
    is_scraped: bool
    prometheus: _Endpoint | None
    registry: CollectorRegistry | None
    console: bool
    capture: ContentCapture | None
    dev: bool

    @property
    def sets_more_than_capture(self) -> bool:
        """Whether an argument other than `capture` was passed."""
        return (self.service_name, self.otlp) != (None, None) or self.is_scraped or self.console


@dataclass
class _Build:
    """The parts that were created so far; `undo` stops them if a later part fails."""

    undo: ExitStack
    export_stats: list[ExportStats] = field(default_factory=list)
    server: PrometheusServer | None = None
    collector: PrometheusCollector | None = None
    registered: RegisteredCollector | None = None
    terminal: DevelopmentTerminal | None = None


def _check_arguments(
    service_name: str | None,
    otlp: bool | str | None,
    prometheus: bool | int | str | CollectorRegistry | None,
    prometheus_targets: str | PathLike[str] | None,
    console: bool,
    capture: ContentCapture | str | None,
    dev: bool | None,
) -> _Settings:
    expect("service_name", service_name, (str, type(None)), "a str or None")
    expect("otlp", otlp, (bool, str, type(None)), "True, False, None or the URL of a collector")
    kinds = 'True, a port number, "host:port", a CollectorRegistry or None'
    expect("prometheus", prometheus, (bool, int, str, CollectorRegistry, type(None)), kinds)
    expect("prometheus_targets", prometheus_targets, (str, PathLike, type(None)), "the path of a file or None")
    expect("console", console, bool, "True or False")
    expect("dev", dev, (bool, type(None)), "True, False or None")
    if service_name is not None and not service_name.strip():
        raise ConfigurationError("service_name must be a non-blank str, or None for OTEL_SERVICE_NAME")
    if isinstance(otlp, str):
        check_collector(otlp)
    is_scraped, endpoint = prometheus is not None and prometheus is not False, None
    registry = prometheus if isinstance(prometheus, CollectorRegistry) else None
    if prometheus is not None and not isinstance(prometheus, (bool, CollectorRegistry)):
        targets = None if prometheus_targets is None else TargetsFile(Path(prometheus_targets).absolute())
        endpoint = _Endpoint(*parse_address(prometheus), targets)
    elif prometheus_targets is not None:
        raise ConfigurationError("prometheus_targets needs a server: pass a port or an address as prometheus= as well")
    is_dev = read_dev() if dev is None else dev
    for read_setting in (read_capture_mode, read_detail, read_openinference):
        read_setting()
    return _Settings(service_name, otlp, is_scraped, endpoint, registry, console, as_capture(capture), is_dev)


def _set_up(settings: _Settings) -> Telemetry:
    if environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
        _LOG.info("%s is true: configure() sets up nothing", OTEL_SDK_DISABLED)
        return Telemetry()
    if settings.dev:
        _refuse_to_export_contents(settings)
    handle = _from_file(settings) if file_configuration.is_named() else _from_variables(settings)
    set_process_capture(settings.capture)
    check_sdk()
    return handle


def _refuse_to_export_contents(settings: _Settings) -> None:
    """Raise `ConfigurationError` if contents could leave the terminal in development mode."""
    problem = None
    if file_configuration.is_named():
        problem = f"{file_configuration.CONFIG_FILE} may name exporters: unset it"
    elif signal := next(filter(lambda signal: signal.is_sent(settings.otlp), SIGNALS), None):
        source = f"the environment sends {signal.name.lower()}" if settings.otlp is None else "otlp= is passed"
        problem = f"{source} over OTLP: pass otlp=False"
    elif settings.capture is not None and settings.capture.mode != "NO_CONTENT":
        problem = "capture= puts contents on spans or events: drop it, or pass a ContentCapture with mode NO_CONTENT"
    elif read_capture_mode() not in (None, "NO_CONTENT"):
        problem = f"{CAPTURE_CONTENT} puts contents on spans or events: unset it"
    elif not all(map(is_stand_in, (trace.get_tracer_provider(), _logs.get_logger_provider()))):
        problem = "the application has set its own OpenTelemetry provider, which may export: do not set it"
    if problem is not None:
        raise ConfigurationError(
            f"development mode shows contents in the terminal and exports none, but {problem}, or turn development "
            f"mode off (dev=False, or unset {DEV})"
        )


def _from_file(settings: _Settings) -> Telemetry:
    if settings.sets_more_than_capture:
        raise ConfigurationError(
            f"{file_configuration.CONFIG_FILE} is set, so service_name, otlp, prometheus and console cannot be passed; "
            "configure them in the file, or unset the variable"
        )
    return Telemetry(file_configuration.set_up(_is_free))


def _from_variables(settings: _Settings) -> Telemetry:
    _check_variables(settings)
    _warn_about_settings(settings)
    with ExitStack() as undo:
        try:
            handle = _build(settings, _Build(undo))
        except ConfigurationError:
            raise
        except Exception as error:  # its text may contain a value, such as a URL with a password
            raise ConfigurationError(
                f"telemetry cannot be set up from the OTEL_* variables: the SDK raised {error_type(error)}"
            ) from None
        undo.pop_all()
    return handle


def _build(settings: _Settings, parts: _Build) -> Telemetry:
    """Create the providers and set them for the process."""
    resource = Resource.create({} if settings.service_name is None else {SERVICE_NAME: settings.service_name})
    tracers, loggers, meters = None, None, None
    if _is_free(trace.get_tracer_provider(), "traces"):
        tracers = _tracer_provider(settings, resource, parts)
    if LOGS.is_sent(settings.otlp) and _is_free(_logs.get_logger_provider(), "logs"):
        loggers = _logger_provider(settings, resource, parts)
    if _is_free(metrics.get_meter_provider(), "metrics"):
        meters = _meter_provider(settings, resource, parts)
    if tracers is not None:
        trace.set_tracer_provider(tracers)
        if parts.terminal is not None:
            parts.terminal.start()
    if loggers is not None:
        _logs.set_logger_provider(loggers)
    if meters is not None:
        metrics.set_meter_provider(meters)
    if (instruments := instruments_of(None)) is not None:
        instruments.exports.show(parts.export_stats)
    optional_providers: list[Provider | None] = [tracers, loggers, meters]
    providers = [provider for provider in optional_providers if provider is not None]
    return Telemetry(providers, parts.server, parts.export_stats, parts.collector, parts.registered)


def _tracer_provider(settings: _Settings, resource: Resource, parts: _Build) -> TracerProvider:
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if settings.dev:
        from traced_tools.otel.development import DevelopmentTerminal  # it imports the typed events, which cost time

        parts.terminal = DevelopmentTerminal()
        provider.add_span_processor(parts.terminal)
    elif settings.console:
        provider.add_span_processor(ConsoleProcessor())
    if TRACES.is_sent(settings.otlp):
        pipeline, stats = trace_pipeline(settings.otlp)
        parts.undo.callback(pipeline.shutdown)
        parts.export_stats.append(stats)
        provider.add_span_processor(pipeline)
    return provider


def _logger_provider(settings: _Settings, resource: Resource, parts: _Build) -> LoggerProvider:
    pipeline, stats = log_pipeline(settings.otlp)
    parts.undo.callback(pipeline.shutdown)
    parts.export_stats.append(stats)
    provider = LoggerProvider(resource, shutdown_on_exit=False)
    provider.add_log_record_processor(pipeline)
    return provider


def _meter_provider(settings: _Settings, resource: Resource, parts: _Build) -> MeterProvider:
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
    if parts.collector is not None and settings.registry is not None:
        parts.registered = RegisteredCollector(parts.collector, settings.registry)
        parts.undo.callback(parts.registered.unregister)
    return provider


def _is_free(provider: object, signal: str) -> bool:
    """Whether no provider is set for a signal; log a warning if the application has set one."""
    if is_stand_in(provider):
        return True
    _LOG.warning(
        "the application has set its own OpenTelemetry provider for %s; configure() keeps it and adds nothing", signal
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


def _warn_about_settings(settings: _Settings) -> None:
    """Log a warning for unknown exporters, and for a set-up that sends telemetry nowhere."""
    for signal in SIGNALS:
        if unknown := sorted(signal.exporters() - {"otlp", "none"}):
            _LOG.warning(
                "%s contains %s, which configure() ignores; it supports otlp and none",
                signal.exporter_variable,
                ", ".join(unknown),
            )
    if settings.registry is not None and environ.get("PROMETHEUS_MULTIPROC_DIR"):
        _LOG.warning(
            "PROMETHEUS_MULTIPROC_DIR is set: the registry has the runs of this process only, and none in the files of "
            "that folder; serve each worker's metrics with prometheus_targets=, or pass otlp="
        )
    is_any_sent = any(signal.is_sent(settings.otlp) for signal in SIGNALS)
    if not is_any_sent and not settings.is_scraped and not settings.console and not settings.dev:
        _LOG.warning("configure() sends telemetry nowhere: pass otlp=, prometheus= or console=")
