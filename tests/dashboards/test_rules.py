"""The recording and alert rules, checked and tested by Prometheus's own tool, and their links."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dashboards.__main__ import FOLDER
from dashboards.alerts import GROUPS, RUNBOOKS
from dashboards.boards import BOARDS
from dashboards.outcomes import CANCELLED, FAILED, LIMITED, SUCCEEDED, WAITING
from dashboards.rule_tests import CASES, CASES_OF_SMALL_LIMITS, SMALL_LIMIT, UNTESTED, rule_test_files
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
@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_each_alert_fires_when_it_must_and_is_silent_when_it_must(file: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", file)


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
