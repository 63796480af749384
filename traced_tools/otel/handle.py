"""The handle of configured telemetry: it flushes and stops the providers within a time-out."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer
from prometheus_client import CollectorRegistry, make_asgi_app, make_wsgi_app

from traced_tools.core.checks import expect
from traced_tools.core.fork import on_fork, register_shutdown
from traced_tools.flow.background import EXIT_TIMEOUT, Task, TaskWorker, deadline_in, seconds_until
from traced_tools.flow.deferred import run_deferred
from traced_tools.observe.export_stats import ExportStats
from traced_tools.observe.failures import error_type
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusServer, RegisteredCollector, make_registry

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from traced_tools.otel.prometheus_targets import TargetsFile

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]
"""An application as the ASGI specification defines it."""

_LOG = logging.getLogger(__name__)

PATIENCE = EXIT_TIMEOUT
"""Default seconds that a flush or a shutdown waits for collectors, for all signals together."""


class Provider(Protocol):
    """The methods that the SDK's providers of all signals have."""

    def force_flush(self, timeout_millis: int = ...) -> bool:
        """Send pending telemetry."""

    def shutdown(self) -> None:
        """Send pending telemetry and stop."""


class Telemetry:
    """The telemetry that `configure` set up. `shutdown`, the end of a `with` block and process exit flush and stop it.

    Args:
        providers: the providers to flush and stop; empty if the application owns them.
        server: the Prometheus server, if there is one.
        collector: the metrics for Prometheus, if they are collected.
        registered: the metrics in a registry of the application, if they are in one.
        export_stats: the counts of items that each exporter sent and lost.
    """

    def __init__(
        self,
        providers: Sequence[Provider] = (),
        server: PrometheusServer | None = None,
        export_stats: Sequence[ExportStats] = (),
        collector: PrometheusCollector | None = None,
        registered: RegisteredCollector | None = None,
    ) -> None:
        self._providers = [(provider, TaskWorker("traced_tools-telemetry")) for provider in providers]
        self._start_threads()
        self._server = server
        self._export_stats = export_stats
        self._address = None if server is None else server.address
        self._collector = collector
        self._registered = registered
        self._stopper = 0
        self._stopped = False
        self._completion = threading.Event()
        self._lock = threading.RLock()  # a signal handler may call `shutdown` while its thread is in it
        self._inherited = False
        on_fork(self._leave_to_parent)
        if providers:
            atexit.register(self.shutdown)
            register_shutdown(self, self.shutdown)

    @property
    def prometheus_address(self) -> str | None:
        """The address of the metrics endpoint, as `host:port`; None if there is none, as in a forked child."""
        return self._address

    def asgi_app(self) -> ASGIApp:
        """Return an ASGI application that serves the metrics of this process, for mounting in your application.

        It serves nothing unless `configure` was given `prometheus=`.
        """
        return make_asgi_app(self._registry("asgi_app"))

    def wsgi_app(self) -> WSGIApplication:
        """Return a WSGI application that serves the metrics of this process; see `asgi_app`."""
        return make_wsgi_app(self._registry("wsgi_app"))

    def _registry(self, name: str) -> CollectorRegistry:
        if self._collector is None:
            _LOG.warning(
                "%s() serves no metrics, because configure() collects none: it needs prometheus=True, no "
                "OTEL_SDK_DISABLED, and no meter provider of the application's own",
                name,
            )
        return make_registry(self._collector)

    @property
    def stopped(self) -> bool:
        """Whether this handle has shut down its providers; False if it has none."""
        return self._stopped and bool(self._providers)

    def force_flush(self, timeout: float = PATIENCE) -> bool:
        """Send queued telemetry, and return whether all of it was sent.

        Args:
            timeout: seconds to wait, for all signals together. Telemetry that is not sent by then stays queued.
        """
        deadline = _deadline(timeout)
        run_deferred()
        lost = sum(stats.lost_in_all for stats in self._export_stats)
        providers = [] if self._stopped else self._providers
        flushed = _do(
            [(worker, Task(partial(_flush, provider, deadline), deadline)) for provider, worker in providers], deadline
        )
        return all(flushed) and lost == sum(stats.lost_in_all for stats in self._export_stats)

    def shutdown(self, timeout: float = PATIENCE) -> None:
        """Send queued telemetry and stop; a second call does nothing.

        Args:
            timeout: seconds to wait, for all signals together. Telemetry that is not sent by then is lost, counted and
                logged.
        """
        deadline = _deadline(timeout)
        with self._lock:
            is_first, self._stopped = not self._stopped, True
        if not is_first:  # wait for the first call, but not in a signal handler that interrupted it
            self._completion.wait(0 if self._stopper == threading.get_ident() else seconds_until(deadline))
            return
        self._stopper = threading.get_ident()
        try:
            self._stop(deadline)
        finally:  # even if an interrupt ends the wait
            for stats in self._export_stats:
                stats.close()
            self._completion.set()
            atexit.unregister(self.shutdown)

    def _stop(self, deadline: float) -> None:
        run_deferred()
        if self._server is not None:
            _quietly(self._server.stop)
        if self._registered is not None:
            _quietly(self._registered.unregister)
        _do([(worker, Task(partial(_quietly, provider.shutdown))) for provider, worker in self._providers], deadline)

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the process that called `configure`."""
        return self._inherited

    def serve(self, host: str, ports: Sequence[int], targets: TargetsFile | None) -> bool:
        """Serve the metrics in a forked child on its own socket; return False if there is nothing to start."""
        if self._collector is None or self._server is not None:
            return False
        self._server = PrometheusServer(self._collector, host, ports, targets)
        self._address = self._server.address
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<Telemetry prometheus={self._address} stopped={self._stopped}>"

    def _start_threads(self) -> None:
        """Start the threads before they are needed, because Python 3.12 starts none while the interpreter exits."""
        for _, worker in self._providers:
            worker.start()

    def _leave_to_parent(self) -> None:
        """In a forked child, count from zero and close the socket; the parent exports its counts and serves on it."""
        for provider, _ in self._providers:
            _restart_metrics(provider)
        self._start_threads()
        self._lock = threading.RLock()
        self._inherited = True
        if self._server is not None:
            _quietly(self._server.stop)
        self._server = self._address = None
        if self._providers:
            register_shutdown(self, self.shutdown)


def _deadline(timeout: float) -> float:
    accepted = () if isinstance(timeout, bool) else (int, float)
    expect("timeout", timeout, accepted, "a number of seconds")
    return deadline_in(timeout)


def _do(tasks: Sequence[tuple[TaskWorker, Task]], deadline: float) -> list[bool]:
    """Run tasks in parallel, and return for each whether it succeeded by the deadline."""
    for worker, task in tasks:
        worker.submit(task)
    return [task.wait(deadline) for _, task in tasks]


def _flush(provider: Provider, deadline: float) -> bool:
    """Flush a provider, return whether that succeeded, and log an exception before the deadline."""
    try:
        return provider.force_flush(int(seconds_until(deadline) * 1000)) is not False
    except Exception as error:
        if time.monotonic() < deadline:
            _log_type(provider.force_flush, error)
        return False


def _quietly(action: Callable[[], object]) -> bool:
    """Call a function, return whether it succeeded, and log the type of an exception."""
    try:
        return action() is not False
    except Exception as error:
        _log_type(action, error)
        return False


def _log_type(action: Callable[..., object], error: Exception) -> None:
    """Log only the type of an error, because its text may quote content."""
    _LOG.warning("telemetry: %s raised %s", getattr(action, "__qualname__", "a call"), error_type(error))


def _restart_metrics(provider: object) -> None:
    """Empty the aggregations of a meter provider in a forked child, because the parent exports what it has counted.

    The instruments stay, and create their series anew, with start times after the fork.

    Args:
        provider: a provider of any signal; only meter providers have aggregations.
    """
    consumer = getattr(provider, "_measurement_consumer", None)
    if isinstance(provider, MeterProvider) and isinstance(consumer, SynchronousMeasurementConsumer):
        readers = [*consumer._reader_storages]
        consumer._lock = threading.Lock()  # a thread of the parent may hold the inherited lock, and is not in the child
        consumer._reader_storages = {}
        for reader in readers:
            consumer.add_metric_reader(reader)
