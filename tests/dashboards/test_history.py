"""Back-dated history of the scenario's metrics: OpenMetrics text whose counters only grow."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from dashboards.history import write_history
from traced_tools.demo import OUTCOMES, Scenario

END = 1_800_000_000
STEP = 600
FEW = Scenario(seed=2, without=OUTCOMES.keys() - {"answered", "tool_error", "audited"})
GROWING = ("_total", "_bucket", "_count", "_sum")
RUNS = "gen_ai_invoke_agent_duration_seconds_count"
Samples = dict[str, list[tuple[int, float]]]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two hours of history."""
    path = tmp_path_factory.mktemp("history") / "history.txt"
    write_history(path, FEW, days=1 / 12, step=STEP, runs_per_step=8, end=END, service_name="shop")
    return path.read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def series(lines: list[str]) -> Samples:
    return series_of(lines)


def series_of(lines: list[str]) -> Samples:
    """Return the times and values of each series."""
    found: Samples = {}
    for line in lines:
        if not line.startswith("#"):
            name, value, time = line.rsplit(" ", 2)
            found.setdefault(name, []).append((int(time), float(value)))
    return found


def test_the_text_has_each_family_once_and_ends_with_its_mark(lines: list[str]) -> None:
    families = [line for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families)) > 10
    assert lines[-1] == "# EOF"


def test_each_series_has_one_sample_per_step_up_to_the_end(series: Samples) -> None:
    expected = tuple(range(END - 11 * STEP, END + 1, STEP))
    assert {tuple(time for time, _ in samples) for samples in series.values()} == {expected}


def test_counters_and_histograms_only_grow(series: Samples) -> None:
    growing = {name: samples for name, samples in series.items() if name.split("{")[0].endswith(GROWING)}
    assert growing
    shrinking = [
        name
        for name, samples in growing.items()
        if any(after < before for (_, before), (_, after) in pairwise(samples))
    ]
    assert shrinking == []


def test_runs_are_counted_over_the_whole_history(series: Samples) -> None:
    first, *_, last = runs_by_time(series).values()
    assert first <= 16
    assert 48 < last < 144  # twelve steps of about eight runs


def runs_by_time(series: Samples) -> dict[int, float]:
    """Return how many runs there were up to each time."""
    found: Counter[int] = Counter()
    for name, samples in series.items():
        if name.startswith(RUNS):
            found.update(dict(samples))  # type: ignore[arg-type]
    return dict(found)


def runs_by_hour(path: Path, seed: int, days: int) -> dict[datetime, float]:
    """Return how many runs there were in each hour of some days, of which the first is a Monday."""
    scenario = Scenario(seed=seed, without=OUTCOMES.keys() - {"unpriced_model", "image_result"})
    end = datetime(2026, 6, 1, tzinfo=UTC) + timedelta(days=days)
    write_history(path, scenario, days=days, step=900, runs_per_step=1, end=end.timestamp())
    counts = runs_by_time(series_of(path.read_text("utf-8").splitlines()))
    found: defaultdict[datetime, float] = defaultdict(float)
    for (_, before), (now, after) in pairwise(counts.items()):
        found[datetime.fromtimestamp(now - 1, UTC).replace(minute=0, second=0)] += after - before
    return found


def test_the_load_is_high_by_day_low_at_night_and_lower_at_weekends(tmp_path: Path) -> None:
    runs = runs_by_hour(tmp_path / "history.txt", 3, days=7)

    def mean(days: range, hours: range) -> float:
        return fmean(count for hour, count in runs.items() if hour.weekday() in days and hour.hour in hours)

    for days in (range(5), range(5, 7)):
        assert mean(days, range(12, 16)) > 2 * mean(days, range(4))
    assert mean(range(5), range(24)) > 1.5 * mean(range(5, 7), range(24))
    assert 3 < mean(range(5), range(24)) < 5  # four steps of about one run


def test_the_seed_decides_when_runs_are(tmp_path: Path) -> None:
    first, same, other = (runs_by_hour(tmp_path / "history.txt", seed, days=1) for seed in (3, 3, 4))
    assert first == same != other


def test_gauges_keep_their_value_while_no_run_is_active(series: Samples) -> None:
    gauges = {
        name: {value for _, value in series[name]}
        for name in series
        if name.startswith(("traced_tools_run_active", "traced_tools_audit_verified"))
    }
    assert {next(iter(values)) for values in gauges.values() if len(values) == 1} == {0.0, 1.0}
    assert all(len(values) == 1 for values in gauges.values())


def test_each_series_has_the_labels_that_a_scrape_adds(series: Samples) -> None:
    others = [name for name in series if not re.search(r'[{]job="shop",instance="127.0.0.1:9464"[,}]', name)]
    assert others == []
    assert any(name.endswith('{job="shop",instance="127.0.0.1:9464"}') for name in series)  # has no other labels


def test_a_job_may_differ_from_the_service_and_have_any_characters(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    write_history(path, FEW, days=1, step=86_400, end=END, service_name="shop", job='a "job"\\n\n')
    samples = [sample for family in parse_openmetrics(path.read_text("utf-8")) for sample in family.samples]
    assert {sample.labels["job"] for sample in samples} == {'a "job"\\n\n'}
    assert {sample.labels["service_name"] for sample in samples if sample.name == "target_info"} == {"shop"}


def test_the_target_has_the_name_of_the_service(series: Samples) -> None:
    (target,) = [name for name in series if name.startswith("target_info{")]
    assert 'service_name="shop"' in target


def test_the_time_of_the_last_verification_is_that_of_the_step(series: Samples) -> None:
    (verified,) = [each for name, each in series.items() if name.startswith("traced_tools_audit_last_verified")]
    assert all(time == value for time, value in verified)


def test_a_history_that_is_shorter_than_a_step_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorter than a step"):
        write_history(tmp_path / "history.txt", days=0.0001, step=60)
