"""Back-dated history of the scenario's metrics: OpenMetrics text whose counters only grow."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from traced_tools.testing import OUTCOMES, Scenario, write_history

END = 1_800_000_000
STEP = 600
FEW = Scenario(seed=2, without=OUTCOMES.keys() - {"answered", "tool_error", "audited"})
GROWING = ("_total", "_bucket", "_count", "_sum")
Samples = dict[str, list[tuple[int, float]]]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two hours of history."""
    path = tmp_path_factory.mktemp("history") / "history.txt"
    write_history(path, FEW, days=1 / 12, step=STEP, runs_per_step=8, end=END, service_name="shop")
    return path.read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def series(lines: list[str]) -> Samples:
    """The times and values of each series."""
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
    counts = [each for name, each in series.items() if name.startswith("gen_ai_invoke_agent_duration_seconds_count")]
    firsts, lasts = (sum(samples[place][1] for samples in counts) for place in (0, -1))
    assert firsts <= 8
    assert lasts > 60  # twelve steps of up to eight runs


def test_the_target_has_the_name_of_the_service(series: Samples) -> None:
    (target,) = [name for name in series if name.startswith("target_info{")]
    assert 'service_name="shop"' in target


def test_the_time_of_the_last_verification_is_that_of_the_step(series: Samples) -> None:
    (verified,) = [each for name, each in series.items() if name.startswith("traced_tools_audit_last_verified")]
    assert all(time == value for time, value in verified)


def test_a_history_that_is_shorter_than_a_step_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorter than a step"):
        write_history(tmp_path / "history.txt", days=0.0001, step=60)
