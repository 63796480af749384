"""What each outcome of the scenario adds to the metrics, recorded apart, for a Prometheus that can leave outcomes out.

Each outcome is a job of its own. The boards select by job, so the regular expression of some jobs is a scenario with
these outcomes. One more job for each label has the metrics of all outcomes, with that label renamed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.core import Metric as Family

from tests.dashboards.asked import RULES, Asked
from tests.judges.prometheus import backfill, scraping
from tests.waiting import until
from traced_tools import TelemetryOptions
from traced_tools.demo import OUTCOMES, Scenario
from traced_tools.demo.scenario.outcomes import OutcomeSeries
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusReader, make_registry
from traced_tools.otel.prometheus_names import label_name, prometheus_name

Labels = frozenset[tuple[str, str]]
_TRIES, _SAMPLES, _STEP = 3, 4, 60
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass
class Exposition:
    """What a process exposes.

    Attributes:
        growing: the values of counters and histograms by name and labels.
        gauges: the values of the other series.
    """

    growing: dict[tuple[str, Labels], float] = field(default_factory=dict)
    gauges: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def shows(self, signal: OutcomeSeries) -> bool:
        """Whether the signal of an outcome is among the series."""
        labels = {(label_name(name), str(value)) for name, value in signal.labels.items()}
        prefix, series = prometheus_name(signal.metric), {**self.growing, **self.gauges}
        return any(name.startswith(prefix) and labels <= has and value for (name, has), value in series.items())

    def renamed(self, renamed: Collection[str]) -> Exposition:
        """Return the same with other names of some labels."""

        def of(series: Mapping[tuple[str, Labels], float]) -> dict[tuple[str, Labels], float]:
            return {
                (name, frozenset((f"renamed_{key}" if key in renamed else key, value) for key, value in labels)): number
                for (name, labels), number in series.items()
            }

        return Exposition(of(self.growing), of(self.gauges))

    def of(self, names: Collection[str]) -> Exposition:
        """Return only the series of these names."""

        def named(series: Mapping[tuple[str, Labels], float]) -> dict[tuple[str, Labels], float]:
            return {(name, labels): value for (name, labels), value in series.items() if name in names}

        return Exposition(named(self.growing), named(self.gauges))

    def lines(self, job: str, end: int) -> Iterator[str]:
        """Yield OpenMetrics text of a service whose counters have grown steadily until a Unix time."""
        for index in range(_SAMPLES):
            at = end - _STEP * (_SAMPLES - 1 - index)
            for series, value in self.growing.items():
                yield f"{_text(series, job)} {value * (index + 1)} {at}\n"
            for series, value in self.gauges.items():
                yield f"{_text(series, job)} {value} {at}\n"


def _text(series: tuple[str, Labels], job: str) -> str:
    name, labels = series
    pairs = ",".join(f'{key}="{value.translate(_ESCAPED)}"' for key, value in (("job", job), *labels))
    return f"{name}{{{pairs}}}"


def total(expositions: Iterable[Exposition]) -> Exposition:
    """Return the exposition of a process in which all of this has happened."""
    growing: Counter[tuple[str, Labels]] = Counter()
    gauges: dict[tuple[str, Labels], float] = {}
    for each in expositions:
        growing.update(each.growing)
        gauges.update(each.gauges)
    return Exposition(dict(growing), gauges)


def recorded(outcome: str) -> Exposition:
    """Play an outcome as often as a round has it, and return the metrics.

    An overloaded machine can make a run end in another way, so there are several tries.
    """
    for _ in range(_TRIES - 1):
        with suppress(AssertionError):
            return _recorded(outcome)
    return _recorded(outcome)


def _recorded(outcome: str) -> Exposition:
    with exposing() as (telemetry, exposed):
        Scenario(without=OUTCOMES.keys() - {outcome}).run(telemetry=telemetry)
        until(lambda: exposed().shows(OUTCOMES[outcome].signal))  # a late result comes late
        return exposed()


@contextmanager
def exposing() -> Iterator[tuple[TelemetryOptions, Callable[[], Exposition]]]:
    """Yield telemetry options, and a function that returns what a scrape would read of the metrics."""
    reader = PrometheusReader()
    resource = Resource.create({SERVICE_NAME: "recorded"})
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    registry = make_registry(PrometheusCollector(reader))
    try:
        telemetry = TelemetryOptions(TracerProvider(shutdown_on_exit=False), provider)
        yield telemetry, lambda: _exposition(registry.collect())
    finally:
        provider.shutdown()


def _exposition(families: Iterable[Family]) -> Exposition:
    exposition = Exposition()
    for family in families:
        values = exposition.growing if family.type in ("counter", "histogram") else exposition.gauges
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                values[sample.name, frozenset(sample.labels.items())] = sample.value
    return exposition


@contextmanager
def recording(folder: Path, jobs: Mapping[str, Exposition], *, alertmanagers: Iterable[str] = ()) -> Iterator[Asked]:
    """Run a Prometheus that has these expositions as the last minutes of its jobs, and has evaluated the rules.

    Args:
        folder: where it keeps its files.
        jobs: the expositions by the name of the job.
        alertmanagers: the addresses to which it sends alerts.
    """
    end, text = int(time.time()), folder / "jobs.txt"
    with text.open("w") as file:
        for job, exposition in jobs.items():
            file.writelines(exposition.lines(job, end))
        file.write("# EOF\n")
    backfill(text, folder)
    with scraping({}, folder, rules=RULES, alertmanagers=alertmanagers, every="5s") as prometheus:
        once = prometheus.evaluated_after(end)
        evaluated = prometheus.evaluated_after(once)  # by now, all groups have read what the others recorded
        yield Asked(prometheus, evaluated - _SAMPLES * _STEP, evaluated, _STEP, f"{_SAMPLES * _STEP}s", "")
