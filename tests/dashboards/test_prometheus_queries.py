"""Every PromQL query of the boards and rules has data in a Prometheus that scrapes the real loop."""

from __future__ import annotations

import pytest

from dashboards.alerts import GROUPS as ALERTS
from tests.dashboards.asked import (
    BOARDS,
    IN_PANELS,
    RULES_AND_ALERTS,
    check_all,
    is_ours,
    labels_shown,
    variables_of,
)
from tests.dashboards.board_queries import BoardQuery, all_queries
from tests.dashboards.conftest import EARLIER_NAMES, Played
from tests.dashboards.matrix import LIVE
from tests.sweeps import check_each

pytestmark = pytest.mark.slow

NO_DATA = {
    "AuditCheckpointsLost": "no outcome of the scenario publishes checkpoints",
}
"""Alerts whose value has no data while the scenario plays, and why."""
CHOICES = [(query, name) for query in IN_PANELS for name in variables_of(query)]
"""The queries with their variables."""


def test_each_query_of_a_panel_has_data(played: Played) -> None:
    check_all(IN_PANELS, played.asked.has_data)


def test_each_panel_of_the_present_is_not_always_0(played: Played) -> None:
    shown = {
        (query.board, query.panel) for query in IN_PANELS for _, values in played.asked.lines(query) if any(values)
    }
    assert LIVE.keys() <= shown, LIVE.keys() - shown


def test_each_query_of_a_panel_has_data_with_the_earlier_names(played: Played) -> None:
    check_all(IN_PANELS, played.asked.of(EARLIER_NAMES).has_data)


def test_each_query_of_a_panel_has_data_for_all_services_at_once(played: Played) -> None:
    check_all(IN_PANELS, played.asked.of(".*").has_data)


def test_each_query_has_data_for_a_single_value_of_each_of_its_variables(played: Played) -> None:
    values = {each: played.asked.choices(*each) for each in {(query.board, name) for query, name in CHOICES}}
    assert all(values.values()), values

    def check(choice: tuple[BoardQuery, str]) -> None:
        query, name = choice
        assert any(played.asked.lines(query, **{name: value}) for value in values[query.board, name])

    check_all(CHOICES, check)


def test_no_panel_shows_numbers_of_a_service_that_is_not_chosen(played: Played) -> None:
    nobody = played.asked.of("nobody")

    def check(query: BoardQuery) -> None:
        shown = [labels for labels, values in nobody.lines(query) if any(values)]
        assert not shown, shown

    check_all([query for query in IN_PANELS if "job" in variables_of(query)], check)


def test_each_label_in_a_legend_is_a_label_of_a_series(played: Played) -> None:
    def check(query: BoardQuery) -> None:
        found = {label for labels, _ in played.asked.lines(query) for label, value in labels.items() if value}
        assert labels_shown(query) <= found

    check_all([query for query in IN_PANELS if labels_shown(query)], check)


def test_each_column_of_a_table_is_a_label_or_a_value(played: Played) -> None:
    tables = {
        f"{board['uid']} {panel['id']}": (board["uid"], panel)
        for board in BOARDS
        for panel in board["panels"]
        if panel["type"] == "table" and panel["datasource"]["type"] == "prometheus"
    }

    def check(table: tuple[str, dict]) -> None:  # type: ignore[type-arg]
        uid, panel = table
        queries = [query for query in IN_PANELS if (query.board, query.panel) == (uid, panel["id"])]
        labels = {label for query in queries for found, _ in played.asked.lines(query) for label in found}
        values = {"Value"} if len(queries) == 1 else {f"Value #{target['refId']}" for target in panel["targets"]}
        for transformation in panel["transformations"]:
            assert set(transformation["options"].get("includeByName", ())) <= labels | values

    check_each(tables, check)


def test_each_query_with_exemplars_leads_to_traces_that_ended(played: Played) -> None:
    def check(query: BoardQuery) -> None:
        text = played.asked.text(query)
        found = {each["labels"]["trace_id"] for each in played.asked.prometheus.exemplars(text)}
        assert found, f"no exemplars of {text}"
        assert found <= played.traces

    check_all([query for query in IN_PANELS if query.exemplars], check)


def test_each_query_of_an_annotation_and_each_alert_is_one_that_prometheus_understands(played: Played) -> None:
    others = [query for query in all_queries() if query.language == "promql" and query.panel is None]
    check_all(others, played.asked.lines)


def test_each_recording_rule_has_a_series(played: Played) -> None:
    def check(query: BoardQuery) -> None:
        for job in (played.asked.job, EARLIER_NAMES):
            assert played.asked.now(f'{query.title}{{job="{job}"}}'), job

    check_all([query for query in RULES_AND_ALERTS if query.board == "recording.yaml"], check)


def test_the_value_of_each_alert_has_data_while_the_scenario_plays(played: Played) -> None:
    all_alerts = [alert for alerts in ALERTS.values() for alert in alerts]
    values = {alert.name: alert.value for alert in all_alerts if is_ours(alert.value)}
    assert NO_DATA.keys() <= values.keys()

    def check(name: str) -> None:
        assert bool(played.asked.over_time(values[name])) == (name not in NO_DATA)

    check_each({name: name for name in values}, check)
