"""`traced-tools demo --load`, run as an operator runs it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tests.cli.test_demo import demo
from tests.otel.collector import collecting
from traced_tools.cli.app import app
from traced_tools.demo import OUTCOMES

WIDE = {"COLUMNS": "120"}  # of the terminal: errors are wrapped


@pytest.mark.slow
def test_the_telemetry_is_sent_and_a_table_of_outcomes_is_printed() -> None:
    with collecting() as collector:
        arguments = ("--otlp", collector.url, "--duration", "1", "--rate", "40", "--without", "answered")
        run = demo("demo", "--load", *arguments, COLUMNS="200")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert f"runs, {len(lines) - 2} of {len(OUTCOMES)} outcomes" in lines[0]
    assert lines[1].split() == ["outcome", "runs", "what", "happens"]
    printed = [line.split()[0] for line in lines[2:]]
    assert printed
    assert set(printed) < OUTCOMES.keys() - {"answered"}
    assert any(span.name.startswith("invoke_agent ") for span in collector.spans())
    assert collector.bodies["/v1/metrics"]
    assert collector.bodies["/v1/logs"]


def test_without_a_target_the_command_names_the_options_that_set_it() -> None:
    run = CliRunner(env=WIDE).invoke(app, ["demo", "--load"])
    assert run.exit_code == 2
    assert "pass --otlp URL or --prometheus PORT" in run.stderr


def test_an_unknown_outcome_is_a_usage_error_that_lists_the_names() -> None:
    run = CliRunner(env=WIDE).invoke(app, ["demo", "--load", "--prometheus", "0", "--without", "no_such"])
    assert run.exit_code == 2
    assert "tool_timeout" in run.stderr
    assert isinstance(run.exception, SystemExit)


def test_options_of_the_load_need_it() -> None:
    run = CliRunner(env=WIDE).invoke(app, ["demo", "--prometheus", "0"])
    assert run.exit_code == 2
    assert "need --load" in run.stderr
