"""Back-dated history of a scenario's metrics, for windows of days."""

from __future__ import annotations

import time
from itertools import islice
from os import PathLike
from pathlib import Path
from random import Random

from opentelemetry.trace import NoOpTracerProvider

from traced_tools.core.checks import expect, expect_positive, expect_whole
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.otel.openmetrics import MetricRecording
from traced_tools.testing.scenario.scenario import Scenario, play
from traced_tools.testing.scenario.stage import Stage


def write_history(
    path: str | PathLike[str],
    scenario: Scenario | None = None,
    *,
    days: float = 3.0,
    step: int = 60,
    runs_per_step: int = 4,
    end: float | None = None,
    service_name: str = "traced-tools-demo",
) -> None:
    """Write the metrics of days of a scenario as OpenMetrics text, blocking; it takes seconds.

    One round of the scenario runs for real, a few runs per step. Each step of the history then repeats one of these
    steps, so counters and histograms grow as they did there. Gauges have the values between two steps, when no run is
    active. The file has one sample per series and step. It is for `promtool tsdb create-blocks-from openmetrics`.

    Args:
        path: the file to write.
        scenario: the scenario; by default `Scenario()`.
        days: the length of the history.
        step: seconds between two samples of a series.
        runs_per_step: the number of runs in a step.
        end: the Unix time of the last sample; by default now.
        service_name: the service's name in `target_info`.

    Raises:
        ValueError: the history is shorter than a step.
        OSError: the file cannot be written.
    """
    expect("scenario", scenario, (Scenario, type(None)), "a Scenario or None")
    expect_positive("days", days)
    expect_whole("step", step, 1)
    expect_whole("runs_per_step", runs_per_step, 1)
    chosen = Scenario() if scenario is None else scenario
    last = int(time.time() if end is None else end)
    times = range(last - step * (int(days * 86_400 / step) - 1), last + 1, step)
    if not times:
        raise ValueError("days is shorter than a step: pass more days or a shorter step")
    recording = _record(chosen, runs_per_step, service_name)
    random = Random(chosen.seed)
    order = [random.randrange(recording.readings) for _ in times]
    with Path(path).open("w", encoding="utf-8") as file:
        recording.write(file, order, times)


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
