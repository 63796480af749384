"""Back-dated metrics: increments that were recorded once, repeated in any order as OpenMetrics text with timestamps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from typing import TextIO

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from prometheus_client.openmetrics.exposition import generate_latest

from traced_tools.observe import names
from traced_tools.otel.prometheus import Labels, PrometheusCollector, PrometheusReader, make_registry
from traced_tools.otel.prometheus_names import prometheus_name

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_LAST_VERIFIED = prometheus_name(names.AUDIT_LAST_VERIFIED)


@dataclass
class _Family:
    """A metric family of the exposition: its comment lines, its type, and the readings of its series.

    The readings are grouped by the labels that a histogram's buckets, count and sum share.
    """

    comments: list[str]
    kind: str
    groups: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @property
    def grows(self) -> bool:
        """Whether the values only grow; only such a family has a `_created` line, at the end of each group."""
        return self.kind in ("counter", "histogram")


class MetricRecording:
    """The metrics of a meter provider, read again and again; `write` repeats what changed between two readings.

    Args:
        service_name: the service's name in `target_info`.

    Attributes:
        meter_provider: for `TelemetryOptions`.
        readings: the number of readings so far.
    """

    def __init__(self, service_name: str) -> None:
        reader = PrometheusReader()
        resource = Resource.create({SERVICE_NAME: service_name})
        self.meter_provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self.readings = 0
        self._registry = make_registry(PrometheusCollector(reader))
        self._families: dict[str, _Family] = {}

    def read(self) -> None:
        """Read all metrics, under the names and labels that Prometheus would scrape."""
        self.readings += 1
        text = generate_latest(self._registry).decode()  # type: ignore[no-untyped-call]
        for part in re.split("^(?=# HELP )", text.removesuffix("# EOF\n"), flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            comments = [line for line in lines if line.startswith("#")]
            name, kind = comments[1].removeprefix("# TYPE ").split(" ")
            self._add(
                self._families.setdefault(name, _Family(comments, kind)), f"{name}_created", lines[len(comments) :]
            )

    def _add(self, family: _Family, created: str, lines: Iterable[str]) -> None:
        """Add a reading of a family; the name `created` ends each group of a counter or histogram."""
        group: dict[str, float] = {}
        for line in lines:
            series, value = line.rsplit(" ", 1)
            if not series.startswith(created) or not family.grows:
                group[series] = float(value)
            if series.startswith(created) or not family.grows:
                for key, reading in group.items():
                    readings = family.groups.setdefault(series, {}).setdefault(key, [])
                    self._fill(readings, 0.0 if family.grows else reading, self.readings - 1)
                    readings.append(reading)
                group = {}

    def _fill(self, readings: list[float], first: float, count: int) -> None:
        """Fill in the readings at which a series was missing: with its last value, or with `first` before any value."""
        last = readings[-1] if readings else first
        readings.extend([last] * (count - len(readings)))

    def write(self, file: TextIO, order: Sequence[Sequence[int]], times: Sequence[int], target: Labels) -> None:
        """Write one sample per series and time.

        Counters and histograms grow at each time by what they grew up to each of its readings since the reading before
        that one. Gauges have the value of its last reading, and keep their value if the time has no reading.

        Args:
            file: where to write the text.
            order: for each time, the numbers of its readings, from 0.
            times: the Unix times of the samples in seconds, ascending.
            target: the labels that a scraper adds to all series, such as `job` and `instance`.
        """
        target_labels = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in target.items())
        for name, family in self._families.items():
            file.writelines(f"{line}\n" for line in family.comments)
            for group in family.groups.values():
                columns = [
                    _samples(_add_labels(series, target_labels), self._values(name, readings, order, times))
                    for series, readings in group.items()
                ]
                for now, *samples in zip(times, *columns, strict=True):
                    file.writelines(f"{sample} {now}\n" for sample in samples)
        file.write("# EOF\n")

    def _values(
        self, name: str, readings: list[float], order: Sequence[Sequence[int]], times: Sequence[int]
    ) -> Iterable[float]:
        if name == _LAST_VERIFIED:
            return times
        if not self._families[name].grows:
            self._fill(readings, 0.0, self.readings)
            last = accumulate(order, lambda before, indexes: indexes[-1] if indexes else before, initial=0)
            return (readings[index] for index in islice(last, 1, None))
        growth = [after - before for before, after in pairwise([0.0, *readings])]
        return accumulate(sum((growth[index] for index in indexes), 0.0) for indexes in order)


def _add_labels(series: str, labels: str) -> str:
    """Return a series with further labels."""
    name, _, rest = series.partition("{")
    return f"{name}{{{labels},{rest}" if rest else f"{name}{{{labels}}}"


def _samples(series: str, values: Iterable[float]) -> Iterator[str]:
    return (f"{series} {value}" for value in values)
