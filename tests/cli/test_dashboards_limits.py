"""`dashboards export` with other limits writes what the generator writes for the same limits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests import yaml_files
from tests.judges.programs import ROOT
from traced_tools.cli.app import app
from traced_tools.cli.dashboards.exporting import export_dashboards
from traced_tools.cli.dashboards.files import BoardSchema
from traced_tools.cli.dashboards.limits import DEFAULTS, Limits
from traced_tools.errors import ConfigurationError

OTHERS: dict[str, float] = {
    "run_success": 0.97,
    "run_latency": 0.98,
    "slow_run_seconds": 51.2,
    "model_success": 0.96,
    "model_errors": 0.35,
    "tool_errors": 0.65,
    "limited_runs": 0.15,
    "first_chunk_seconds": 2.5,
    "stuck_run_seconds": 1234,
    "stuck_tool_seconds": 432,
    "approval_seconds": 777,
    "pending_seconds": 7200,
    "ready_seconds": 55,
    "idle_run_seconds": 66,
    "daily_cost": 250,
    "cost_factor": 8,
}
GENERATE = """
import json, sys
from traced_tools.cli.dashboards import limits
limits.DEFAULTS = limits.Limits(**json.loads(sys.argv[1]))
from dashboards.__main__ import FOLDER, files
print(json.dumps({str(path.relative_to(FOLDER)): text for path, text in files()}))
"""


def generated(changed: dict[str, float]) -> dict[str, Any]:
    """Return the documents that the generator writes with other limits, by their paths."""
    command = [sys.executable, "-W", "ignore", "-c", GENERATE, json.dumps(changed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {path: parsed(path, text) for path, text in json.loads(done.stdout).items() if "tests" not in path}


def exported(folder: Path, **settings: Any) -> dict[str, Any]:
    """Return the documents that are exported, by their paths in the repository."""
    found = {}
    for schema in BoardSchema:
        for path in export_dashboards(folder / schema, schema=schema, **settings):
            of_rules = path.parent.name == "rules"
            found[f"rules/{path.name}" if of_rules else f"{schema}/{path.name}"] = parsed(path.name, path.read_text())
    return found


def parsed(path: str, text: str) -> Any:
    """Return the document of a file: a board is JSON, rules are YAML."""
    return json.loads(text) if path.endswith(".json") else yaml_files.load(text)


def test_every_limit_is_another_one_here() -> None:
    assert OTHERS.keys() == {each.name for each in fields(Limits)}
    assert all(value != getattr(DEFAULTS, name) for name, value in OTHERS.items())


@pytest.mark.parametrize(
    "changed",
    [OTHERS, *(pytest.param({name: OTHERS[name]}, marks=pytest.mark.slow) for name in ("daily_cost", "run_success"))],
)
def test_an_export_with_other_limits_equals_what_the_generator_writes(
    changed: dict[str, float], tmp_path: Path
) -> None:
    found, wanted = exported(tmp_path, limits=Limits(**changed)), generated(changed)
    assert found.keys() == wanted.keys()
    assert [path for path in wanted if found[path] != wanted[path]] == []


def test_an_export_without_options_writes_the_files_as_they_are(tmp_path: Path) -> None:
    for path in export_dashboards(tmp_path):
        folder = "rules" if path.parent.name == "rules" else "classic"
        assert path.read_bytes() == (ROOT / "dashboards" / folder / path.name).read_bytes()


def test_the_command_has_an_option_for_each_limit_and_address(tmp_path: Path) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OTHERS.items()]
    addresses = ["--runbooks=https://wiki.example.com/agents/", "--grafana=https://grafana.example.com/x/"]
    ran = CliRunner().invoke(app, ["dashboards", "export", "--dir", str(tmp_path), *options, *addresses])
    assert ran.exit_code == 0, ran.output
    rules = yaml_files.load((tmp_path / "rules/alerts.yaml").read_text())
    alerts = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}
    assert alerts["DailyCostExceeded"]["expr"].endswith("> 250")
    notes = alerts["RunStuck"]["annotations"]
    assert notes["runbook_url"] == "https://wiki.example.com/agents#runstuck"
    assert notes["dashboard_url"] == "https://grafana.example.com/x/d/tt-home?viewPanel=3"


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"run_success": 1}, "run_success must be a share below 1 and above 0.931"),
        ({"model_success": 0.5}, "model_success must be a share below 1"),
        ({"tool_errors": 1.5}, "tool_errors must be a share between 0 and 1"),
        ({"slow_run_seconds": 30}, "slow_run_seconds must be one of"),
        ({"daily_cost": 0}, "daily_cost must be a positive number"),
        ({"ready_seconds": float("nan")}, "ready_seconds must be a positive number"),
        ({"cost_factor": float("inf")}, "cost_factor must be a positive number"),
    ],
)
def test_an_impossible_limit_is_refused(limit: dict[str, float], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Limits(**limit)
    ((name, value),) = limit.items()
    command = ["dashboards", "export", "--dir", str(tmp_path), f"--{name.replace('_', '-')}={value}"]
    ran = CliRunner().invoke(app, command)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert said in ran.stderr


def test_an_address_of_another_scheme_is_refused(tmp_path: Path) -> None:
    for option in ("runbooks", "grafana"):
        with pytest.raises(ConfigurationError, match=f"{option} must be an http or https address"):
            list(export_dashboards(tmp_path, **{option: "javascript:alert(1)"}))
