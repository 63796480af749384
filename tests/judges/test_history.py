"""A real Prometheus reads the back-dated history of the scenario, and answers questions about days."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.history import write_history
from tests.judges.programs import program
from tests.judges.prometheus import PACKAGE, backfill, scraping
from traced_tools.demo import OUTCOMES, Scenario

pytestmark = pytest.mark.slow


def test_rates_over_days_are_positive(tmp_path: Path) -> None:
    program("prometheus", PACKAGE)
    history = tmp_path / "history.txt"
    write_history(history, Scenario(without=OUTCOMES.keys() - {"answered", "tool_error"}), days=3, step=600)
    backfill(history, tmp_path)
    with scraping({}, tmp_path) as prometheus:
        runs = prometheus.value("sum(rate(gen_ai_invoke_agent_duration_seconds_count[2d]))")
        failed = prometheus.value('sum(rate(gen_ai_execute_tool_duration_seconds_count{error_type!=""}[2d]))')
        slowest = "histogram_quantile(0.9, sum by (le) (rate(gen_ai_invoke_agent_duration_seconds_bucket[2d])))"
        assert 0 < failed < runs
        of_job = 'rate(gen_ai_invoke_agent_duration_seconds_count{job="traced-tools-demo"}[2d])'
        of_target = f"{of_job} * on (job, instance) group_left (service_name) target_info"
        assert prometheus.value(f"sum({of_job})") == prometheus.value(f"sum by (service_name) ({of_target})") == runs
        assert prometheus.value(slowest) > 0
