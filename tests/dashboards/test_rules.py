"""The recording and alert rules, checked and tested by Prometheus's own tool, and their links."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.__main__ import FOLDER
from dashboards.alerts import GROUPS, RUNBOOKS
from dashboards.boards import BOARDS
from dashboards.outcomes import CANCELLED, FAILED, LIMITED, SUCCEEDED, WAITING
from dashboards.rule_tests import CASES, CASES_OF_SMALL_LIMITS, SMALL_LIMIT, UNTESTED, rule_test_files
from tests import yaml_files
from tests.judges.programs import ROOT, program
from tests.judges.prometheus import PACKAGE
from traced_tools.core.enums import STOP_REASONS

RULES = FOLDER / "rules"
TESTS = sorted((RULES / "tests").glob("*.yaml"))
ALERTS = [alert for group in GROUPS.values() for alert in group]


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run([program("promtool", PACKAGE), *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_all_rules() -> None:
    assert promtool("check", "rules", *RULES.glob("*.yaml")).count("SUCCESS") == 2


@pytest.mark.slow
def test_each_alert_fires_when_it_must_and_is_silent_when_it_must(tmp_path: Path) -> None:
    """Each test has the rules that its alert reads. promtool compares that alert alone, but evaluates all rules."""
    rules = {path.name: yaml_files.load(path.read_text())["groups"] for path in RULES.glob("*.yaml")}
    for file in TESTS:
        content = yaml_files.load(file.read_text())
        for number, test in enumerate(content["tests"]):
            (alert,) = {each["alertname"] for each in test["alert_rule_test"]}
            used = read_by(alert, [rule for groups in rules.values() for group in groups for rule in group["rules"]])
            (tmp_path / f"{file.stem}-{number}.rules").write_text(json.dumps({"groups": only(used, rules.values())}))
            (tmp_path / f"{file.stem}-{number}.json").write_text(
                json.dumps({**content, "rule_files": [f"{file.stem}-{number}.rules"], "tests": [test]})
            )
    tests = sorted(tmp_path.glob("*.json"))
    assert promtool("test", "rules", *tests).count("SUCCESS") == len(tests) > 70


def read_by(alert: str, rules: list[dict[str, str]]) -> set[str]:
    """Return the names of a rule and of those that it reads, and so on."""
    texts = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules}
    names, more = set[str](), {alert}
    while more:
        names |= more
        more = {name for name in texts if any(name in re.findall(r"[\w:]+", texts[each]) for each in more)} - names
    return names


def only(names: set[str], files: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the groups of rule files with the rules of these names, in their order."""
    return [
        {**group, "rules": [rule for rule in group["rules"] if (rule.get("alert") or rule["record"]) in names]}
        for groups in files
        for group in groups
    ]


@pytest.mark.slow
def test_the_files_of_tests_name_the_files_of_rules() -> None:
    assert "SUCCESS" in promtool("test", "rules", RULES / "tests" / "alerts_1h.yaml")
    for file in TESTS:
        content = yaml_files.load(file.read_text())
        assert [(file.parent / rules).resolve() for rules in content["rule_files"]] == [
            RULES / "recording.yaml",
            RULES / "alerts.yaml",
        ]


@pytest.mark.slow
def test_an_alert_counts_the_series_of_each_process_alone(tmp_path: Path) -> None:
    rules, test = tmp_path / "rules.yaml", tmp_path / "test.yaml"
    (alert,) = (each for each in ALERTS if each.name == "TooManySeries")
    small = replace(alert, condition=f"> {SMALL_LIMIT}")
    rules.write_text((RULES / "alerts.yaml").read_text().replace(alert.text, small.text))
    (content,) = rule_test_files(CASES_OF_SMALL_LIMITS).values()
    test.write_text(yaml.safe_dump({**content, "rule_files": [str(rules)]}))
    assert "SUCCESS" in promtool("test", "rules", test)


def test_each_alert_has_a_test_or_a_reason_why_it_has_none() -> None:
    assert sorted([*CASES, *CASES_OF_SMALL_LIMITS, *UNTESTED]) == sorted(alert.name for alert in ALERTS)


def test_each_alert_has_a_runbook() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / RUNBOOKS).read_text(), flags=re.MULTILINE)
    assert sorted(headings) == sorted(alert.name for alert in ALERTS)


def test_each_alert_links_to_a_panel_that_shows_what_it_compares() -> None:
    panels = {(board.uid, panel.id) for board in BOARDS for panel in board.panels}
    assert {alert.panel for alert in ALERTS} <= panels


def test_each_stop_reason_is_in_one_group() -> None:
    grouped = (*FAILED, *LIMITED, *CANCELLED, *WAITING, *SUCCEEDED)
    assert sorted(grouped) == sorted(STOP_REASONS)
