"""Back-dated history of a scenario's metrics, for windows of days, with a load as in production."""

from __future__ import annotations

import math
import time
from itertools import islice
from os import PathLike
from pathlib import Path
from random import Random
from typing import Final

from opentelemetry.trace import NoOpTracerProvider

from dashboards.recording import MetricRecording
from traced_tools.core.checks import expect, expect_positive, expect_whole
from traced_tools.demo.scenario.scenario import Scenario, play
from traced_tools.demo.scenario.stage import Stage
from traced_tools.observe.run_telemetry import TelemetryOptions

_INSTANCE: Final = "127.0.0.1:9464"
_DAY, _HOUR = 86_400, 3600


def write_history(
    path: str | PathLike[str],
    scenario: Scenario | None = None,
    *,
    days: float = 3.0,
    step: int = 60,
    runs_per_step: int = 4,
    end: float | None = None,
    service_name: str = "traced-tools-demo",
    job: str | None = None,
) -> None:
    """Write the metrics of days of a scenario as OpenMetrics text, blocking; it takes seconds.

    One round of the scenario runs for real, a few runs per step. Each step of the history then repeats none or some of
    these steps, so counters and histograms grow as they did there. The load is highest at 14:00 UTC and lowest at
    night, and half as high at weekends. Gauges have the values between two steps, when no run is active.

    The file has one sample per series and step, with the labels `job` and `instance` that a scrape adds. It is for
    `promtool tsdb create-blocks-from openmetrics`.

    Args:
        path: the file to write.
        scenario: the scenario; by default `Scenario()`.
        days: the length of the history.
        step: seconds between two samples of a series.
        runs_per_step: the number of runs in a step, on the average of a working day.
        end: the Unix time of the last sample; by default now.
        service_name: the service's name in `target_info`.
        job: the label `job` of all series; by default `service_name`. The label `instance` is `127.0.0.1:9464`.

    Raises:
        ValueError: the history is shorter than a step.
    """
    expect("scenario", scenario, (Scenario, type(None)), "a Scenario or None")
    expect_positive("days", days)
    expect_whole("step", step, 1)
    expect_whole("runs_per_step", runs_per_step, 1)
    expect("service_name", service_name, str, "a str")
    expect("job", job, (str, type(None)), "a str or None")
    played_scenario = Scenario() if scenario is None else scenario
    last = int(time.time() if end is None else end)
    times = range(last - step * (int(days * _DAY / step) - 1), last + 1, step)
    if not times:
        raise ValueError("days is shorter than a step: pass more days or a shorter step")
    recording = _record(played_scenario, runs_per_step, service_name)
    random = Random(played_scenario.seed)
    order = [
        [random.randrange(recording.readings) for _ in range(int(_load_at(now) + random.random()))] for now in times
    ]
    with Path(path).open("w", encoding="utf-8") as file:
        recording.write(file, order, times, {"job": service_name if job is None else job, "instance": _INSTANCE})


def _load_at(now: int) -> float:
    """Return the load at a Unix time, as a multiple of the average of a working day."""
    is_weekend = (now // _DAY + 3) % 7 >= 5  # the first day of Unix time is a Thursday
    by_hour = 1 + 0.7 * math.cos(math.tau * (now / _HOUR - 14) / 24)
    return by_hour / 2 if is_weekend else by_hour


def _record(scenario: Scenario, runs_per_step: int, service_name: str) -> MetricRecording:
    """Play a round of the scenario step by step, and read the metrics after each step."""
    recording = MetricRecording(service_name)
    telemetry = TelemetryOptions(NoOpTracerProvider(), recording.meter_provider)
    try:
        with Stage(telemetry) as stage:
            runs = islice(scenario.runs(stage), scenario.runs_per_round)
            while batch := list(islice(runs, runs_per_step)):
                play(batch)
                recording.read()
    finally:
        recording.meter_provider.shutdown()
    return recording
