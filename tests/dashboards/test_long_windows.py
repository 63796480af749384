"""Queries and rules over days have data in a Prometheus that has the scenario's history of days."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.dashboards.asked import IN_PANELS, RULES, RULES_AND_ALERTS, Asked, check_all
from tests.dashboards.board_queries import BoardQuery
from tests.dashboards.recorded_outcomes import backfill
from tests.judges.programs import program
from tests.judges.prometheus import PACKAGE, scraping
from traced_tools.testing import write_history

pytestmark = pytest.mark.slow

DAYS, STEP = 3, 1200
NOT_IN_HISTORY = {
    "rate5m": "samples are 20 minutes apart",
    "up{": "nothing is scraped",
    "traced_tools_export_": "nothing is exported",
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


def test_each_recording_rule_over_half_an_hour_or_longer_has_a_series(history: Asked) -> None:
    def check(query: BoardQuery) -> None:
        assert history.now(f'{query.title}{{job="history"}}')

    rules = [query for query in RULES_AND_ALERTS if query.board == "recording.yaml"]
    check_all([query for query in rules if is_in_history(query.title)], check)


def is_in_history(text: str) -> bool:
    """Whether a history has what a query or a recorded name stands for."""
    return not any(part in text for part in NOT_IN_HISTORY)
