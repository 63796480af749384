"""Prometheus exposition: converts the SDK's metrics to prometheus-client families, with exemplars on buckets.

Names and labels follow OpenTelemetry's rules for Prometheus, which the Collector applies too. A series therefore has
the same name whether Prometheus scrapes this process or a Collector. There are no scope labels. The rules:
https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/

The SDK returns each exemplar once. The collector here keeps the last exemplar of each bucket, as prometheus-client
does, so that every scraper sees it.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
from opentelemetry.sdk.metrics.export import (
    DataPointT,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.util.types import AttributeValue
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import start_wsgi_server
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from traced_tools.core.fork import on_fork
from traced_tools.core.messages import encodable
from traced_tools.errors import ConfigurationError
from traced_tools.flow.deferred import run_deferred
from traced_tools.observe.failures import error_type
from traced_tools.otel.prometheus_names import Kind, label_name, make_family

if TYPE_CHECKING:
    from traced_tools.otel.prometheus_targets import TargetsFile

_LOG = logging.getLogger(__name__)
_ACCEPTED = (
    'prometheus must be True, a port from 0 to 65535 (0 for any free port), "host:port", or "host:first-last" for the '
    "first free port of a range"
)
_RANGE = re.compile(r"(.*):(\d{1,5})-(\d{1,5})")

_SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "counter": ("_total", "_created"),
    "gauge": (),
    "histogram": ("_bucket", "_count", "_sum", "_created"),
    "info": ("_info",),
}
Labels = dict[str, str]
Series = tuple[str, tuple[tuple[str, str], ...]]
"""A family's name and the labels of one of its series, sorted."""


class PrometheusReader(MetricReader):
    """A metric reader that collects the metrics of its meter provider on each scrape."""

    def __init__(self) -> None:
        # The defaults are what Prometheus needs: cumulative sums and, unless a view says otherwise, explicit buckets.
        super().__init__()
        self._reset_lock()
        on_fork(self._reset_lock)
        self._data: MetricsData | None = None
        self._stopped = False

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()

    def read(self) -> MetricsData | None:
        """Collect and return the metrics; None if there are none, or after a shutdown."""
        run_deferred()
        with self._lock:
            self._data = None
            if not self._stopped:
                self.collect()
            return self._data

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: object) -> None:
        self._data = metrics_data

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: metrics are pulled, and collecting here would consume the SDK's exemplars."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None:
        """Stop collecting; `read` returns None from now on."""
        self._stopped = True


class PrometheusCollector(Collector):
    """Exposes the metrics of a reader as families of a `CollectorRegistry`.

    Some metrics cannot be exposed: exponential histograms, metrics whose Prometheus name another metric already has,
    and series whose Prometheus labels equal another's. They are skipped, counted in `skipped`, and logged once for each
    metric.

    Attributes:
        skipped: how often each metric, or one of its series, was skipped; by OpenTelemetry name.
    """

    def __init__(self, reader: PrometheusReader) -> None:
        self._reader = reader
        self._begin()
        on_fork(self._begin)  # the exemplars and creation times are those of the parent's series

    def _begin(self) -> None:
        self.skipped: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._exemplars: dict[tuple[Series, int], Exemplar] = {}
        self._created: dict[Series, float] = {}
        self._scraped = time.time()

    def collect(self) -> list[Family]:
        """Return the current families. Scrapes run one at a time."""
        with self._lock:
            try:
                before, self._scraped = self._scraped, time.time()
                scrape = _Scrape(self._exemplars, self._created, (before, self._scraped))
                return self._families(scrape, self._reader.read())
            except Exception as error:
                _LOG.warning("a Prometheus scrape returned no metrics: reading them raised %s", error_type(error))
                return []

    def _families(self, scrape: _Scrape, data: MetricsData | None) -> list[Family]:
        for resource_metrics in () if data is None else data.resource_metrics:
            scrape.target(resource_metrics.resource.attributes)
        for metric in iter_metrics(data):
            problem = scrape.add(metric)
            if problem is not None:
                self.skip(metric.name, problem)
        return list(scrape.families.values())

    def skip(self, name: str, problem: str) -> None:
        """Count a metric that is skipped, and log the problem the first time."""
        self.skipped[name] += 1
        if self.skipped[name] == 1:
            _LOG.warning("the metric %s is not, or only partly, exposed to Prometheus: %s", name, problem)


class _Scrape:
    """Builds the families of one scrape.

    Args:
        exemplars: the last exemplar of each bucket; shared by all scrapes.
        created: the Unix time at which each series was 0; shared by all scrapes.
        times: the Unix times of the previous scrape and of this one.
    """

    def __init__(
        self, exemplars: dict[tuple[Series, int], Exemplar], created: dict[Series, float], times: tuple[float, float]
    ) -> None:
        self.families: dict[str, Family] = {}
        self._exemplars = exemplars
        self._created = created
        self._before, self._now = times
        self._names: set[str] = set()
        self._series: set[Series] = set()

    def target(self, resource: Mapping[str, AttributeValue]) -> None:
        """Add the resource attributes of the process as `target_info`."""
        family = self._claim(Family("target", "Target metadata", "info"), "info")
        if family is not None:
            family.samples.append(Sample("target_info", _labels(resource), 1))

    def add(self, metric: Metric) -> str | None:
        """Add a metric. Return the problem if it, or one of its series, cannot be exposed."""
        kind = _kind(metric)
        if kind is None:
            return "Prometheus's text formats have no exponential histograms; use a view with explicit buckets"
        family = self._claim(make_family(metric.name, metric.description or "", metric.unit or "", kind), kind)
        if family is None:
            return "another metric has the same name in Prometheus"
        are_added = [self._add_point(family, point) for point in metric.data.data_points]
        return None if all(are_added) else "two of its series have the same labels in Prometheus"

    def _claim(self, family: Family, kind: Kind) -> Family | None:
        """Return `family` or the existing family with its name and type; None if the name conflicts with another."""
        existing = self.families.get(family.name)
        if existing is not None:
            return existing if (existing.type, existing.unit) == (family.type, family.unit) else None
        names = {family.name, *(family.name + suffix for suffix in _SUFFIXES[kind])}
        if names & self._names:
            return None
        self._names |= names
        self.families[family.name] = family
        return family

    def _add_point(self, family: Family, point: DataPointT) -> bool:
        labels = _labels(point.attributes or {}, reserved="le" if family.type == "histogram" else None)
        series = (family.name, tuple(sorted(labels.items())))
        if series in self._series:
            return False
        self._series.add(series)
        if isinstance(point, HistogramDataPoint):
            self._remember_exemplars(series, point.exemplars, point.explicit_bounds)
            family.samples.extend(self._buckets(family, series, labels, point))
        elif isinstance(point, NumberDataPoint):
            self._remember_exemplars(series, point.exemplars, ())
            family.samples.append(self._number(family, series, labels, point))
        if family.type != "gauge":
            created = self._created.setdefault(
                series, self._created_time(point.start_time_unix_nano or point.time_unix_nano)
            )
            family.samples.append(Sample(f"{family.name}_created", labels, created))
        return True

    def _created_time(self, start: int) -> float:
        """Return the Unix time at which a new series was 0; `start` is its start in nanoseconds, set by the SDK.

        The SDK starts an observable counter during the scrape, and Prometheus ignores a creation time that is not
        before the sample. Such a series gets the time of the previous scrape.
        """
        started = start / 1_000_000_000
        return started if started < self._now else self._before

    def _number(self, family: Family, series: Series, labels: Labels, point: NumberDataPoint) -> Sample:
        if family.type == "counter":
            return Sample(f"{family.name}_total", labels, point.value, None, self._exemplars.get((series, 0)))
        return Sample(family.name, labels, point.value)

    def _buckets(self, family: Family, series: Series, labels: Labels, point: HistogramDataPoint) -> Iterator[Sample]:
        bounds = (*point.explicit_bounds, float("inf"))
        for index, (bound, count) in enumerate(zip(bounds, accumulate(point.bucket_counts), strict=True)):
            bucket = {**labels, "le": floatToGoString(bound)}  # type: ignore[no-untyped-call]
            yield Sample(f"{family.name}_bucket", bucket, count, None, self._exemplars.get((series, index)))
        if bounds[0] >= 0:  # in OpenMetrics a histogram of negative values has no sum, because it could decrease
            yield Sample(f"{family.name}_count", labels, point.count)
            yield Sample(f"{family.name}_sum", labels, point.sum)

    def _remember_exemplars(self, series: Series, exemplars: Sequence[SdkExemplar], bounds: Sequence[float]) -> None:
        for exemplar in exemplars:
            if exemplar.trace_id and exemplar.span_id:
                ids = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
                own_exemplar = Exemplar(ids, exemplar.value, exemplar.time_unix_nano / 1_000_000_000)
                self._exemplars[series, bisect_left(bounds, exemplar.value)] = own_exemplar


class RegisteredCollector(Collector):
    """The metrics of a collector in a registry of the application, until they are unregistered.

    A family whose name the application's metrics have is skipped, because a page with both would be invalid. So is
    `target_info` if the registry has its own.

    Args:
        collector: the metrics.
        registry: the application's registry.
    """

    def __init__(self, collector: PrometheusCollector, registry: CollectorRegistry) -> None:
        self._collector = collector
        self._registry = registry
        registry.register(self)

    def describe(self) -> list[Family]:
        """Return no families, so that registering collects nothing: instruments come later."""
        return []

    def collect(self) -> list[Family]:
        """Return the current families."""
        names = self._registry._names_to_collectors.keys()
        families = []
        for family in self._collector.collect():
            if names.isdisjoint((family.name, *(sample.name for sample in family.samples))):
                families.append(family)
            elif family.name != "target":
                self._collector.skip(family.name, "a metric of the application has the same name in its registry")
        return families

    def unregister(self) -> None:
        """Remove the metrics from the registry. A second call does nothing."""
        with suppress(KeyError):  # the application may have removed them
            self._registry.unregister(self)


class PrometheusServer:
    """An HTTP server that exposes metrics to scrapers on the first free port, until it is stopped.

    A scraper that accepts OpenMetrics gets it, with exemplars. Others get the older text format, which has none.

    Args:
        collector: the metrics.
        host: the name or address to listen on.
        ports: the ports to try in order; 0 for any free port.
        targets: the file that lists the server's address for Prometheus, or None.

    Raises:
        ConfigurationError: the server cannot listen on any of the ports, or the file cannot be written.
    """

    def __init__(
        self, collector: PrometheusCollector, host: str, ports: Sequence[int], targets: TargetsFile | None = None
    ) -> None:
        self._targets = targets
        registry = make_registry(collector)
        for port in ports:
            try:
                self._server, self._thread = start_wsgi_server(port, host, registry)
                break
            except (OSError, UnicodeError) as error:
                if getattr(error, "errno", None) == errno.EADDRINUSE:
                    if port != ports[-1]:
                        continue
                    raise ConfigurationError(_in_use(host, ports)) from None
                reason = getattr(error, "strerror", None) or "no such host"
                raise ConfigurationError(f"prometheus: cannot listen on {_address(host, port)} ({reason})") from None
        if targets is not None:
            try:
                targets.add(self.address)
            except BaseException:
                self._targets = None
                self.stop()
                raise

    @property
    def address(self) -> str:
        """The address that the server listens on, as `host:port`."""
        host, port = self._server.server_address[:2]
        return _address(str(host), port)

    def stop(self) -> None:
        """Stop listening. A second call does nothing."""
        if self._thread.is_alive():  # a forked child has the socket, but not the thread
            self._server.shutdown()
            self._thread.join()
            if self._targets is not None:
                self._server.server_close()
                self._targets.remove(self.address)
        self._server.server_close()


def make_registry(collector: PrometheusCollector | None) -> CollectorRegistry:
    """Return a prometheus-client registry with a collector's metrics; an empty one for None."""
    registry = CollectorRegistry(support_collectors_without_names=True)
    if collector is not None:
        registry.register(collector)
    return registry


def _in_use(host: str, ports: Sequence[int]) -> str:
    first = _address(host, ports[0])
    if len(ports) > 1:
        return (
            f"prometheus: cannot listen on {first}-{ports[-1]} (Address already in use). All {len(ports)} ports are in "
            "use by other processes: pass a wider range"
        )
    return (
        f"prometheus: cannot listen on {first} (Address already in use). Another worker of the same program may serve "
        f'its metrics there: pass a range of ports with prometheus="{first}-LAST" and prometheus_targets=, or serve '
        "one worker's metrics with prometheus=True and asgi_app() or wsgi_app()"
    )


def parse_address(value: int | str) -> tuple[str, range]:
    """Return the host and ports of a port number (on 127.0.0.1), of `host:port` or of `host:first-last`.

    Raises:
        ConfigurationError: the value is none of these.
    """
    if isinstance(value, int):
        if 0 <= value <= 65535:
            return "127.0.0.1", range(value, value + 1)
        raise ConfigurationError(_ACCEPTED)
    if several := _RANGE.fullmatch(value):
        first, last = int(several[2]), int(several[3])
        if 0 < first <= last <= 65535:
            return parse_address(f"{several[1]}:{first}")[0], range(first, last + 1)
        raise ConfigurationError(_ACCEPTED)
    try:
        parts = urlsplit(f"//{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError(_ACCEPTED) from None
    if not host or port is None or parts.netloc != value or "@" in value or value.split() != [value]:
        raise ConfigurationError(_ACCEPTED)
    return host, range(port, port + 1)


def iter_metrics(data: MetricsData | None) -> Iterator[Metric]:
    """Yield the metrics of all resources and scopes."""
    if data is not None:
        scopes = chain.from_iterable(resource_metrics.scope_metrics for resource_metrics in data.resource_metrics)
        yield from chain.from_iterable(scope.metrics for scope in scopes)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _kind(metric: Metric) -> Kind | None:
    if isinstance(metric.data, Histogram):
        return "histogram"
    if isinstance(metric.data, Sum):
        return "counter" if metric.data.is_monotonic else "gauge"
    return "gauge" if isinstance(metric.data, Gauge) else None


def _labels(attributes: Mapping[str, AttributeValue], *, reserved: str | None = None) -> Labels:
    """Return attributes as labels. Values whose label names collide are joined with `;`, as the specification says."""
    labels: Labels = {}
    for key in sorted(attributes):
        label = label_name(key)
        label = f"exported_{label}" if label == reserved else label
        labels[label] = ";".join(filter(None, (labels.get(label), _text(attributes[key]))))
    return labels


def _text(value: AttributeValue) -> str:
    return encodable(value if isinstance(value, str) else json.dumps(value, default=str))
