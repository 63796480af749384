"""Queries and rules over days have data in a Prometheus that has the scenario's history of days."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards.history import write_history
from tests import yaml_files
from tests.dashboards.asked import IN_PANELS, RULES, RULES_AND_ALERTS, Asked, check_all
from tests.dashboards.board_queries import BoardQuery
from tests.dashboards.test_rules import promtool
from tests.judges.programs import program
from tests.judges.prometheus import PACKAGE, backfill, scraping
from traced_tools.demo import OUTCOMES, Scenario

pytestmark = pytest.mark.slow

DAYS, STEP = 3, 1200
(RECORDING,) = (path for path in RULES if path.name == "recording.yaml")
NOT_RECORDED = {"traced_tools:telemetry_loss:ratio_rate5m"}
"""Nothing is exported in a history."""
NOT_IN_HISTORY = {
    "traced_tools:": "samples are 20 minutes apart, and rules count five minutes",
    "rate5m": "samples are 20 minutes apart",
    "up{": "nothing is scraped",
    "traced_tools_export_": "nothing is exported",
    "traced_tools_pending_store_": "no store of runs is part of a history",
    "traced_tools_durable_run_": "no store of runs is part of a history",
}
"""Parts of queries and names that a history has no series for, and why."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A Prometheus with three days of history."""
    program("prometheus", PACKAGE)
    folder = tmp_path_factory.mktemp("history")
    write_history(folder / "history.txt", days=DAYS, step=STEP, job="history")
    backfill(folder / "history.txt", folder)
    with scraping({}, folder, rules=RULES, every="2s") as prometheus:
        end = prometheus.evaluated_after(time.time())
        yield Asked(prometheus, end - DAYS * 86_400, end, 4 * STEP, f"{4 * STEP}s", "history")


def test_each_query_of_a_panel_has_data_of_days(history: Asked) -> None:
    check_all([query for query in IN_PANELS if is_in_history(query.text)], history.has_data)


def test_each_recording_rule_has_a_series_of_days(tmp_path: Path) -> None:
    """The rules are backfilled in two steps, because ratios add up counts that are recorded first."""
    program("prometheus", PACKAGE)
    end = time.time() // 7_200 * 7_200 - 600  # before the last full block of two hours ended, which none does meanwhile
    scenario = Scenario(
        without=OUTCOMES.keys() - {"answered", "tool_error", "provider_down", "audited", "max_iterations"}
    )
    write_history(tmp_path / "history.txt", scenario, days=1.5, step=120, end=end, job="history")
    backfill(tmp_path / "history.txt", tmp_path)
    for step, rules in enumerate(steps_of_rules()):
        file = tmp_path / f"{step}.yaml"
        file.write_text(json.dumps({"groups": [{"name": "step", "rules": rules}]}))
        with scraping({}, tmp_path, every="2s") as prometheus:
            promtool(
                *("tsdb", "create-blocks-from", "rules", "--eval-interval=4m", f"--start={end - 129_600:.0f}"),
                *(f"--end={end:.0f}", f"--url={prometheus.url}", f"--output-dir={tmp_path / 'data'}", str(file)),
            )

    def check(query: BoardQuery) -> None:  # over a day, because at night some tools are not called for minutes
        found = prometheus.values(f'last_over_time({query.title}{{job="history"}}[1d])', time=end)
        assert bool(found) == (query.title not in NOT_RECORDED), query.title

    with scraping({}, tmp_path, every="2s") as prometheus:
        check_all([query for query in RULES_AND_ALERTS if query.board == "recording.yaml"], check)


def steps_of_rules() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return the recording rules that read no other, and those that read only these."""
    rules = [rule for group in yaml_files.load(RECORDING.read_text())["groups"] for rule in group["rules"]]
    names = {rule["record"] for rule in rules}
    first = [rule for rule in rules if not names & words(rule["expr"])]
    second = [rule for rule in rules if rule not in first]
    assert not {name for rule in second for name in words(rule["expr"]) & names} & {rule["record"] for rule in second}
    return first, second


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w:]+", text))


def is_in_history(text: str) -> bool:
    """Whether a history has what a query or a recorded name stands for."""
    return not any(part in text for part in NOT_IN_HISTORY)
