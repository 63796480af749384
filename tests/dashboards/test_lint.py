"""The boards and alerts follow our rules, and each rule finds a fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.rules import GROUPS as RECORDINGS
from tests import yaml_files
from tests.dashboards import lint
from tests.dashboards.board_queries import files
from tests.dashboards.lint import BOARDS, RULES_OF_ALERTS, RULES_OF_BOARDS
from tests.dashboards.promql_reader import Expression

ALERTS = {
    rule["alert"]: rule
    for path in files("rules", "alerts.yaml")
    for group in yaml_files.load(path.read_text())["groups"]
    for rule in group["rules"]
}

INTENDED = {
    "traced_tools_audit_records_total lacks $agent": "gaps, erasures and checkpoints belong to no agent",
}
"""Findings that are intended, and why."""


@pytest.mark.parametrize("rule", RULES_OF_BOARDS, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("uid", BOARDS)
def test_a_board_follows_the_rules(uid: str, rule: Callable[[Any], Any]) -> None:
    assert BOARDS[uid]["uid"] == uid
    assert not [finding for finding in rule(BOARDS[uid]) if finding.partition(": ")[2] not in INTENDED]


def test_each_intended_finding_is_one() -> None:
    findings = {
        found.partition(": ")[2] for board in BOARDS.values() for rule in RULES_OF_BOARDS for found in rule(board)
    }
    assert INTENDED.keys() <= findings


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_follows_the_rules(name: str) -> None:
    assert not [finding for rule in RULES_OF_ALERTS for finding in rule(ALERTS[name])]


def test_recording_rules_read_what_is_emitted() -> None:
    texts = [rule.text for group in RECORDINGS.values() for rule in group.rules]
    assert not [finding for text in texts for finding in lint.unknown_names(Expression(text))]


@pytest.mark.parametrize("uid", BOARDS)
def test_a_board_is_one_for_the_classic_model_of_the_sdk(uid: str) -> None:
    read = json.loads(json.dumps(Dashboard.from_json(BOARDS[uid]), cls=JSONEncoder))
    assert [each["title"] for each in read["panels"]] == [each["title"] for each in BOARDS[uid]["panels"]]
    assert [each["name"] for each in read["templating"]["list"]] == [
        each["name"] for each in BOARDS[uid]["templating"]["list"]
    ]


# Faults.

TARGET = ("panels", 0, "targets", 0)
EXPRESSION = (*TARGET, "expr")
RUNS = 'traced_tools_loop_iterations_count{job=~"$job", gen_ai_agent_name=~"$agent"}'
BUCKETS = RUNS.replace("count", "bucket")


@pytest.mark.parametrize(
    ("rule", "path", "fault", "finding"),
    [
        (lint.identity, ("uid",), "home", "does not begin with tt-"),
        (lint.identity, ("uid",), "tt-" + "x" * 40, "more than 40"),
        (lint.identity, ("schemaVersion",), 41, "schema is 41"),
        (lint.identity, ("version",), 3, "has version"),
        (lint.panel_ids, ("panels", 1, "id"), 1, "2 panels have the id 1"),
        (lint.texts, ("panels", 0, "title"), "", "no title"),
        (lint.texts, ("panels", 0, "description"), "Runs.", "no question"),
        (lint.texts, ("panels", 0, "fieldConfig", "defaults", "unit"), "", "no unit"),
        (lint.texts, ("panels", 0, "fieldConfig", "defaults", "noValue"), "", "while it is empty"),
        (lint.data_sources, ("panels", 0, "datasource", "uid"), "P1809F7CD0C75ACF3", "panel 1 has the data source"),
        (lint.data_sources, (*TARGET, "datasource"), {}, "panel 1 A has the data source"),
        (lint.data_sources, (*TARGET, "datasource", "uid"), "${tempo}", "panel 1 A has the data source"),
        (lint.data_sources, ("annotations", "list", 0, "datasource", "uid"), "x", "annotation New versions has"),
        (lint.selection, EXPRESSION, "sum(increase(traced_tools_loop_iterations_count[$__range]))", "lacks $job"),
        (lint.selection, EXPRESSION, RUNS.replace(', gen_ai_agent_name=~"$agent"', ""), "lacks $agent"),
        (lint.selection, EXPRESSION, "max(traced_tools:run_errors:ratio_rate5m)", "lacks $job"),
        (lint.windows, EXPRESSION, f"sum(rate({RUNS}[$__rate_interval]))", "window $__rate_interval instead of"),
        (lint.windows, EXPRESSION, f"sum(rate({RUNS}[5m]))", "window 5m instead of $__range"),
        (lint.windows, ("panels", 4, "targets", 0, "expr"), f"rate({RUNS}[$__range])", "window $__range instead of"),
        (lint.counters, EXPRESSION, f"sum({RUNS})", "shows the counter"),
        (
            lint.sums_of_spans,
            ("panels", 11, "targets", 0, "query"),
            "{ } | sum_over_time(span.x)",
            "without span.x > 0",
        ),
        (lint.quantiles, EXPRESSION, f"histogram_quantile(0.9, sum(rate({BUCKETS}[$__range])))", "is not by le"),
        (lint.known_names, EXPRESSION, "sum(rate(gen_ai_agent_runs_total[$__range]))", "no metric is called"),
        (lint.known_names, EXPRESSION, f"sum by (agent) (rate({RUNS}[$__range]))", "no label is called agent"),
        (lint.known_names, EXPRESSION, RUNS.replace("agent_name", "tool_name"), "has no label gen_ai_tool_name"),
        (lint.few_series, EXPRESSION, "sum by (gen_ai_conversation_id) (up)", "groups by gen_ai_conversation_id"),
        (lint.links, ("panels", 0, "links", 0, "url"), "/d/tt-gone?x", "tt-gone, which does not exist"),
        (lint.links, ("panels", 0, "links", 0, "url"), "/d/tt-slo?${agent:queryparam}", "tt-slo does not have"),
        (lint.links, ("panels", 0, "links", 0, "url"), "/d/tt-slo?var-tool=x", "sets tool"),
        (lint.grid, ("panels", 1, "gridPos", "x"), 5, "panel 2 covers panel 1"),
        (lint.grid, ("panels", 3, "gridPos", "w"), 7, "beyond the grid"),
    ],
)
def test_a_rule_finds_a_fault_of_a_board(
    rule: Callable[[Any], Any], path: tuple[str | int, ...], fault: Any, finding: str
) -> None:
    board = changed(BOARDS["tt-home"], path, fault)
    assert [each for each in rule(board) if finding in each], list(rule(board))


@pytest.mark.parametrize(
    ("path", "fault", "finding"),
    [
        (("labels", "severity"), "critical", "the severity is critical"),
        (("labels", "team"), "", "no team receives it"),
        (("annotations", "summary"), "", "there is no summary"),
        (("annotations", "description"), "", "there is no description"),
        (("annotations", "runbook_url"), "docs/runbooks.md#gone", "there is no runbook docs/runbooks.md#gone"),
        (("annotations", "dashboard_url"), "/d/tt-home?viewPanel=999", "there is no panel 999 on the board tt-home"),
        (("expr",), "sum(gen_ai_agent_runs_total) > 1", "no metric is called gen_ai_agent_runs_total"),
    ],
)
def test_a_rule_finds_a_fault_of_an_alert(path: tuple[str, ...], fault: str, finding: str) -> None:
    alert = changed(ALERTS["RunStuck"], path, fault)
    assert [found for rule in RULES_OF_ALERTS for found in rule(alert)] == [finding]


def changed(value: Any, path: tuple[str | int, ...], fault: Any) -> Any:
    """Return a copy with another value at a path."""
    whole = copy.deepcopy(value)
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = fault
    return whole
