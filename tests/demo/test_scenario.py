"""The scenario: every outcome occurs, is visible, and can be left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.captured import Telemetry
from tests.waiting import PATIENCE, until
from traced_tools.core.enums import STOP_REASONS
from traced_tools.demo import OUTCOMES, Scenario
from traced_tools.demo.scenario.stage import ScenarioRun
from traced_tools.observe import names
from traced_tools.observe.metric_point import MetricPoint
from traced_tools.observe.names.registry_types import Metric
from traced_tools.testing import CapturedTelemetry, capture_telemetry


def visible(points: list[MetricPoint]) -> set[str]:
    """Return the outcomes whose signal is among the points."""
    return {
        outcome.name
        for outcome in OUTCOMES.values()
        for point in points
        if point.name == outcome.signal.metric.name
        and outcome.signal.labels.items() <= point.attributes.items()
        and (point.count or point.value)
    }


def values(telemetry: CapturedTelemetry, metric: Metric, label: str) -> set[object]:
    """Return the values of a label of a metric."""
    return {point.attributes.get(label) for point in telemetry.metrics if point.name == metric.name} - {None}


def without_others(*names: str, seed: int = 0) -> Scenario:
    return Scenario(seed=seed, without=OUTCOMES.keys() - set(names))


def visible_in(name: str) -> set[str]:
    """Return the outcomes that are visible after a run with one outcome."""
    with capture_telemetry() as captured:
        without_others(name, seed=len(name) + 1).run(count=1, telemetry=captured.options)
        deadline = time.monotonic() + PATIENCE
        while not (found := visible(captured.metrics)) and time.monotonic() < deadline:
            pass  # a late result may still be on its way
        return found


@pytest.fixture(scope="module")
def round_of_runs() -> Iterator[CapturedTelemetry]:
    """The telemetry of one round."""
    with capture_telemetry() as captured:
        Scenario(seed=1).run(telemetry=captured.options)
        yield captured


def test_each_outcome_alone_has_its_signal_and_that_of_no_other() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(OUTCOMES, pool.map(visible_in, OUTCOMES), strict=True))
    assert found == {name: {name} for name in OUTCOMES}


def test_a_round_has_every_outcome(round_of_runs: CapturedTelemetry) -> None:
    assert visible(round_of_runs.metrics) == OUTCOMES.keys()


def test_without_an_outcome_only_its_signal_is_missing() -> None:
    left_out = {"answered", "tool_timeout", "denied_by_spending_policy", "audit_gap"}
    with capture_telemetry() as captured:
        outcomes = Scenario(seed=1, without=left_out).run(telemetry=captured.options)
    assert visible(captured.metrics) == outcomes.keys() == OUTCOMES.keys() - left_out


def test_a_round_has_every_stop_reason_that_can_occur(round_of_runs: CapturedTelemetry) -> None:
    reasons = values(round_of_runs, names.LOOP_ITERATIONS_METRIC, names.LOOP_STOP_REASON)
    assert reasons == set(STOP_REASONS)


def test_a_round_has_several_agents_models_and_providers_and_one_model_without_a_price(
    round_of_runs: CapturedTelemetry,
) -> None:
    for label, least in ((names.AGENT_NAME, 4), (names.REQUEST_MODEL, 5), (names.PROVIDER_NAME, 3)):
        assert len(values(round_of_runs, names.INFERENCE_DURATION, label)) >= least
    priced = values(round_of_runs, names.USAGE_COST, names.REQUEST_MODEL)
    unpriced = values(round_of_runs, names.UNPRICED_TOKENS, names.REQUEST_MODEL)
    assert len(priced) >= 3
    assert len(unpriced) == 1
    assert not priced & unpriced


def test_a_round_is_streamed_and_not_streamed(round_of_runs: CapturedTelemetry) -> None:
    answers = [span for span in round_of_runs.spans if span.name.startswith(f"{names.CHAT} ")]
    streamed = [span for span in answers if span.attributes and names.REQUEST_STREAM in span.attributes]
    assert 0 < len(streamed) < len(answers)


def test_latencies_have_a_shape(round_of_runs: CapturedTelemetry) -> None:
    durations = {
        (span.end_time or 0) - (span.start_time or 0)
        for span in round_of_runs.spans
        if span.name == f"{names.CHAT} demo-large"
    }
    assert max(durations) > 2 * min(durations) > 0


def test_nothing_is_captured_of_what_runs_say(round_of_runs: CapturedTelemetry) -> None:
    content = {names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.TOOL_CALL_ARGUMENTS, names.TOOL_CALL_RESULT}
    emitted = [*round_of_runs.spans, *round_of_runs.events]
    assert [each.name for each in emitted if content & set(each.attributes or ())] == []


def tokens_of(scenario: Scenario) -> dict[tuple[object, ...], float | None]:
    with capture_telemetry() as captured:
        scenario.run(count=30, telemetry=captured.options)
        return {
            (point.name, *sorted(point.attributes.items())): point.value
            for point in captured.metrics
            if point.name in (names.INPUT_TOKENS_USED.name, names.OUTPUT_TOKENS_USED.name)
        }


def test_the_seed_decides_what_runs_do() -> None:
    first, same, other = (tokens_of(without_others("answered", "tool_error", seed=seed)) for seed in (3, 3, 4))
    assert first == same != other


def test_without_an_outcome_the_other_runs_stay_as_they_are() -> None:
    def embedded(scenario: Scenario, count: int) -> float:
        with capture_telemetry() as captured:
            scenario.run(count=count, telemetry=captured.options)
            (tokens,) = [
                point.sum
                for point in captured.metrics
                if point.name == names.INPUT_TOKENS_A_CALL.name
                and point.attributes[names.REQUEST_MODEL] == "demo-local"
            ]
            return tokens or 0.0

    alone = without_others("unpriced_model", seed=5)
    with_others = without_others("unpriced_model", "image_result", "sub_agent", seed=5)
    assert embedded(alone, alone.runs_per_round) == embedded(with_others, with_others.runs_per_round)


def test_runs_start_at_the_rate_until_the_duration_is_over() -> None:
    with capture_telemetry() as captured:
        began = time.monotonic()
        outcomes = without_others("unpriced_model").run(rate=20.0, duration=0.3, telemetry=captured.options)
    assert time.monotonic() - began >= 0.25
    assert 1 <= sum(outcomes.values()) <= 7


@pytest.mark.slow
def test_an_outage_of_a_load_lasts_until_a_scraper_has_seen_it_and_of_a_round_does_not() -> None:
    with capture_telemetry() as captured, ThreadPoolExecutor(1) as pool:

        def lag() -> float:
            return sum(point.value or 0.0 for point in captured.metrics if point.name == names.AUDIT_LAG.name)

        playing = pool.submit(without_others("audit_gap", seed=2).run, count=1, rate=10.0, telemetry=captured.options)
        until(lambda: lag() > 1.0)
        playing.result()
        assert visible(captured.metrics) == {"audit_gap"}
        assert lag() == 0
        began = time.monotonic()
        without_others("audit_gap", seed=2).run(count=1, telemetry=captured.options)
    assert time.monotonic() - began < 1.0


def test_progress_has_the_outcomes_so_far() -> None:
    seen: list[int] = []
    with capture_telemetry() as captured:
        without_others("unpriced_model").run(
            count=3, telemetry=captured.options, on_progress=lambda outcomes: seen.append(sum(outcomes.values()))
        )
    assert seen == [1, 2, 3]


def test_an_unknown_name_raises_an_error_with_all_names() -> None:
    with pytest.raises(ValueError, match=r"unknown names: no_such; the names are answered, .*audit_gap"):
        Scenario(without=["no_such"])


def test_leaving_out_everything_raises_an_error() -> None:
    with pytest.raises(ValueError, match="nothing is left to run"):
        Scenario(without=OUTCOMES)


def test_each_outcome_has_a_sentence() -> None:
    assert [each.name for each in OUTCOMES.values() if not each.brief.endswith(".") or "\n" in each.brief] == []


def test_a_run_that_ends_in_another_way_is_raised_or_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(run: ScenarioRun) -> None:
        raise AssertionError("it stopped because of error, not answered")

    monkeypatch.setitem(OUTCOMES, "answered", replace(OUTCOMES["answered"], play=surprise, share=2))
    scenario = Scenario(without=OUTCOMES.keys() - {"answered"})
    with pytest.raises(AssertionError, match="not answered"):
        scenario.run(telemetry=Telemetry().options)
    unexpected: list[Exception] = []
    assert scenario.run(telemetry=Telemetry().options, on_unexpected=unexpected.append) == {"answered": 2}
    assert [str(error) for error in unexpected] == ["it stopped because of error, not answered"] * 2
