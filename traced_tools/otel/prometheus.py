"""Prometheus exposition: the SDK's metrics as prometheus-client families, with a trace id on each latency bucket.

Names and labels follow OpenTelemetry's rules for Prometheus, as the Collector applies them, so that a series has one
name whether it is scraped here or comes through a Collector. There are no scope labels. The rules:
https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/

The SDK hands out an exemplar once and forgets it. Here the last one of each bucket is kept, as prometheus-client keeps
its own, so that a second scraper sees it too.
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
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Literal
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
from traced_tools.observe.scope import error_type

if TYPE_CHECKING:
    from traced_tools.otel.targets import TargetsFile

_LOG = logging.getLogger(__name__)
_ACCEPTED = (
    'prometheus must be True, a port from 0 to 65535 (0 for any free one), "host:port", or "host:first-last" for the '
    "first free one of several"
)
_RANGE = re.compile(r"(.*):(\d{1,5})-(\d{1,5})")

Kind = Literal["counter", "gauge", "histogram", "info"]
_SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "counter": ("_total", "_created"),
    "gauge": (),
    "histogram": ("_bucket", "_count", "_sum", "_created"),
    "info": ("_info",),
}
_UNITS = {
    "d": "days",
    "h": "hours",
    "min": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "TiBy": "tibibytes",
    "KBy": "kilobytes",
    "MBy": "megabytes",
    "GBy": "gigabytes",
    "TBy": "terabytes",
    "m": "meters",
    "V": "volts",
    "A": "amperes",
    "J": "joules",
    "W": "watts",
    "g": "grams",
    "Cel": "celsius",
    "Hz": "hertz",
    "%": "percent",
}
_PER = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}

Labels = dict[str, str]
Series = tuple[str, tuple[tuple[str, str], ...]]
"""A family's name and the labels of one of its series, sorted."""


class PrometheusReader(MetricReader):
    """Collects the metrics of its meter provider when it is asked to, which is when somebody scrapes."""

    def __init__(self) -> None:
        # The defaults are what Prometheus needs: cumulative sums and, unless a view says otherwise, explicit buckets.
        super().__init__()
        self._begin_unlocked()
        on_fork(self._begin_unlocked)
        self._data: MetricsData | None = None
        self._stopped = False

    def _begin_unlocked(self) -> None:
        self._lock = threading.Lock()

    def read(self) -> MetricsData | None:
        """Return the metrics as they are now; None when there are none, or after a shutdown."""
        run_deferred()
        with self._lock:
            self._data = None
            if not self._stopped:
                self.collect()
            return self._data

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: object) -> None:
        self._data = metrics_data

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: what is pulled needs no pushing, and collecting would use up the SDK's exemplars."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None:
        """Give no more metrics."""
        self._stopped = True


class PrometheusCollector(Collector):
    """The metrics of a reader as families for a `CollectorRegistry`.

    What cannot be exposed is left out, counted in `skipped` and logged once for each metric: an exponential histogram,
    a name another metric has taken, a series whose labels are the same as another's once they are written as
    Prometheus wants them.

    Attributes:
        skipped: how often each metric (by its OpenTelemetry name) or one of its series was left out.
    """

    def __init__(self, reader: PrometheusReader) -> None:
        self.skipped: Counter[str] = Counter()
        self._reader = reader
        self._begin_unlocked()
        on_fork(self._begin_unlocked)
        self._exemplars: dict[tuple[Series, int], Exemplar] = {}
        self._created: dict[Series, float] = {}
        self._scraped = time.time()

    def _begin_unlocked(self) -> None:
        self._lock = threading.Lock()

    def collect(self) -> list[Family]:
        """Return the families as they are now; one scrape at a time."""
        with self._lock:
            try:
                before, self._scraped = self._scraped, time.time()
                scrape = _Scrape(self._exemplars, self._created, (before, self._scraped))
                return self._families(scrape, self._reader.read())
            except Exception as error:
                _LOG.warning("a scrape found no metrics: reading them raised %s", error_type(error))
                return []

    def _families(self, scrape: _Scrape, data: MetricsData | None) -> list[Family]:
        for resource_metrics in () if data is None else data.resource_metrics:
            scrape.target(resource_metrics.resource.attributes)
        for metric in metrics_of(data):
            problem = scrape.add(metric)
            if problem is not None:
                self._skip(metric.name, problem)
        return list(scrape.families.values())

    def _skip(self, name: str, problem: str) -> None:
        self.skipped[name] += 1
        if self.skipped[name] == 1:
            _LOG.warning("the metric %s is left out of the Prometheus exposition, or a part of it: %s", name, problem)


class _Scrape:
    """One exposition in the making.

    Args:
        exemplars: the last exemplar of each bucket, kept from scrape to scrape.
        created: the Unix time at which each series was 0, kept from scrape to scrape.
        times: the Unix times of the scrape before this one and of this one.
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
        """Add what describes the process, as `target_info`."""
        family = self._claim(Family("target", "Target metadata", "info"), "info")
        if family is not None:
            family.samples.append(Sample("target_info", _labels(resource), 1))

    def add(self, metric: Metric) -> str | None:
        """Add a metric; return what was wrong with it, if anything was."""
        kind = _kind(metric)
        if kind is None:
            return "Prometheus's text formats have no exponential histograms; use a view with explicit buckets"
        family = self._claim(family_of(metric.name, metric.description or "", metric.unit or "", kind), kind)
        if family is None:
            return "another metric has the same name in Prometheus"
        added = [self._add_point(family, point) for point in metric.data.data_points]
        return None if all(added) else "two of its series have the same labels in Prometheus"

    def _claim(self, family: Family, kind: Kind) -> Family | None:
        """Return the family to add to: `family`, the one of its kind that is there already, or None if they clash."""
        known = self.families.get(family.name)
        if known is not None:
            return known if (known.type, known.unit) == (family.type, family.unit) else None
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
                series, self._begin_of(point.start_time_unix_nano or point.time_unix_nano)
            )
            family.samples.append(Sample(f"{family.name}_created", labels, created))
        return True

    def _begin_of(self, nanoseconds: int) -> float:
        """Return when a new series was 0: when the SDK began it, or at the scrape before if it did so for this one.

        The SDK begins an observed counter when it is scraped, and Prometheus takes no zero as new as a sample.
        """
        began = nanoseconds / 1_000_000_000
        return began if began < self._now else self._before

    def _number(self, family: Family, series: Series, labels: Labels, point: NumberDataPoint) -> Sample:
        if family.type == "counter":
            return Sample(f"{family.name}_total", labels, point.value, None, self._exemplars.get((series, 0)))
        return Sample(family.name, labels, point.value)

    def _buckets(self, family: Family, series: Series, labels: Labels, point: HistogramDataPoint) -> Iterator[Sample]:
        bounds = (*point.explicit_bounds, float("inf"))
        for index, (bound, count) in enumerate(zip(bounds, accumulate(point.bucket_counts), strict=True)):
            bucket = {**labels, "le": floatToGoString(bound)}  # type: ignore[no-untyped-call]
            yield Sample(f"{family.name}_bucket", bucket, count, None, self._exemplars.get((series, index)))
        if bounds[0] >= 0:  # OpenMetrics has no sum for what can be negative, since it could go down
            yield Sample(f"{family.name}_count", labels, point.count)
            yield Sample(f"{family.name}_sum", labels, point.sum)

    def _remember_exemplars(self, series: Series, exemplars: Sequence[SdkExemplar], bounds: Sequence[float]) -> None:
        for exemplar in exemplars:
            if exemplar.trace_id and exemplar.span_id:
                ids = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
                found = Exemplar(ids, exemplar.value, exemplar.time_unix_nano / 1_000_000_000)
                self._exemplars[series, bisect_left(bounds, exemplar.value)] = found


class PrometheusServer:
    """Serves the metrics of a reader to scrapers, on the first free one of some ports, until it is stopped.

    OpenMetrics, which alone can carry exemplars, for those who accept it; else the older text format.

    Args:
        collector: what to serve.
        host: the name or address to listen on.
        ports: the ports to try; 0 for any free one.
        targets: the file that lists the address for Prometheus, if there is one.

    Raises:
        ConfigurationError: when nobody can listen there, or the file cannot be written.
    """

    def __init__(
        self, collector: PrometheusCollector, host: str, ports: Sequence[int], targets: TargetsFile | None = None
    ) -> None:
        self._targets = targets
        registry = registry_of(collector)
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
        """Where it listens, as `host:port`."""
        host, port = self._server.server_address[:2]
        return _address(str(host), port)

    def stop(self) -> None:
        """Stop listening; a second call does nothing."""
        if self._thread.is_alive():  # not in a forked child, which has the socket and not the thread
            self._server.shutdown()
            self._thread.join()
            if self._targets is not None:
                self._server.server_close()
                self._targets.remove(self.address)
        self._server.server_close()


def registry_of(collector: PrometheusCollector | None) -> CollectorRegistry:
    """Return what prometheus-client serves: a collector's metrics, or none."""
    registry = CollectorRegistry(support_collectors_without_names=True)
    if collector is not None:
        registry.register(collector)
    return registry


def _in_use(host: str, ports: Sequence[int]) -> str:
    first = _address(host, ports[0])
    if len(ports) > 1:
        return (
            f"prometheus: cannot listen on {first}-{ports[-1]} (Address already in use). Other processes hold all "
            f"{len(ports)} ports: give the workers a wider range"
        )
    return (
        f"prometheus: cannot listen on {first} (Address already in use). Another worker of the same program may serve "
        f'its metrics there: give the workers a range of ports with prometheus="{first}-LAST" and '
        "prometheus_targets=, or serve one worker's metrics with prometheus=True and asgi_app() or wsgi_app()"
    )


def parse_address(value: int | str) -> tuple[str, range]:
    """Return (host, ports) for a port number, which means this machine alone, for `host:port` or for `host:first-last`.

    Raises:
        ConfigurationError: for anything else.
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


def family_of(name: str, brief: str, unit: str, kind: Kind) -> Family:
    """Return the family of a metric, still empty: its name and its unit in Prometheus's words."""
    return Family(_name(name).removesuffix("_total"), brief, kind, _unit(unit, kind))


def metrics_of(data: MetricsData | None) -> Iterator[Metric]:
    """Give the metrics of all scopes, one after the other."""
    if data is not None:
        scopes = chain.from_iterable(each.scope_metrics for each in data.resource_metrics)
        yield from chain.from_iterable(scope.metrics for scope in scopes)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _kind(metric: Metric) -> Kind | None:
    if isinstance(metric.data, Histogram):
        return "histogram"
    if isinstance(metric.data, Sum):
        return "counter" if metric.data.is_monotonic else "gauge"
    return "gauge" if isinstance(metric.data, Gauge) else None


def _name(name: str) -> str:
    clean = re.sub(r"[^a-zA-Z0-9:]+", "_", name)
    return f"_{clean}" if not clean or clean[0].isdigit() else clean


def _unit(unit: str, kind: Kind) -> str:
    """Return a UCUM unit in Prometheus's words; annotations in braces say what is counted, and are no unit."""
    plain = re.sub(r"{[^}]*}", "", unit)
    if plain == "1":
        return "ratio" if kind == "gauge" else ""
    top, slash, bottom = plain.partition("/")
    words = _UNITS.get(top, top)
    if slash and bottom:
        words = f"{words}_per_{_PER.get(bottom, bottom)}"
    return re.sub(r"[^a-zA-Z0-9]+", "_", words).strip("_")


def _labels(attributes: Mapping[str, AttributeValue], *, reserved: str | None = None) -> Labels:
    """Return attributes as labels; values whose names become the same are joined by `;`, as the specification says."""
    labels: Labels = {}
    for key in sorted(attributes):
        label = _label(key)
        label = f"exported_{label}" if label == reserved else label
        labels[label] = ";".join(filter(None, (labels.get(label), _text(attributes[key]))))
    return labels


def _label(key: str) -> str:
    clean = re.sub(r"[^a-zA-Z0-9]+", "_", key)
    return f"key_{clean}" if not clean or clean[0].isdigit() else clean


def _text(value: AttributeValue) -> str:
    return encodable(value if isinstance(value, str) else json.dumps(value, default=str))
