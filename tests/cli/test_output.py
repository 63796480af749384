"""The output of every command, and its exit status if the output cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import traced_tools
from traced_tools.cli.app import COMMANDS, app

ROOT = Path(__file__).parents[2]
SQL = ROOT / "deploy/audit/postgresql.sql"


def ran(*arguments: str, stdout: Any = subprocess.PIPE) -> tuple[int, str, str]:
    """The exit status, and what was printed to standard output and standard error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_"))}
    code = "from traced_tools.cli import main; main()"
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, env=kept, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    return done.returncode, done.stdout or "", done.stderr


def test_the_version_is_printed() -> None:
    run = CliRunner().invoke(app, ["--version"])
    assert (run.exit_code, run.stdout, run.stderr) == (0, f"traced-tools {traced_tools.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS, ids=[command.name for command in COMMANDS])
def test_the_list_of_commands_says_what_the_first_sentence_of_their_help_says(command: Any) -> None:
    listed, _, _ = command.command.help.partition("\n\n")
    assert command.help == " ".join(listed.split())


def test_the_list_of_commands_is_printed_without_what_only_a_command_needs() -> None:
    code = (
        "import sys; from traced_tools.cli import main; sys.argv[1:] = ['--help']\n"
        "try: main()\n"
        "finally: print(sorted(sys.modules.keys() & {'sqlalchemy', 'httpx', 'pydantic', 'opentelemetry.sdk'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "approvals" in done.stdout and done.stdout.endswith("[]\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "command",
    [
        "--version",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("--help", "", "demo", "audit", "audit list --help")),
    ],
)
def test_an_unwritable_stdout_ends_with_one_line_and_no_traceback(command: str) -> None:
    with open("/dev/full", "wb") as full:
        status, _, said = ran(*command.split(), stdout=full)
    assert (status, said) == (2, "traced-tools: standard output cannot be written: No space left on device\n")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["--help", "audit list --help", "audit sql"])
def test_a_closed_pipe_ends_the_command_without_a_traceback(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        _, _, said = ran(*command.split(), stdout=write)
    finally:
        os.close(write)
    assert said == ""


@pytest.mark.slow
def test_audit_sql_prints_the_packaged_sql_of_a_postgresql_store() -> None:
    assert ran("audit", "sql") == (0, SQL.read_text(), "")
    in_package = Path(traced_tools.__file__).parent / "audit/postgresql.sql"
    assert in_package.samefile(SQL) or in_package.read_text() == SQL.read_text()
