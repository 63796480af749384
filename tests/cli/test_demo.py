"""`traced-tools demo`, run as a new user runs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.test_docs import weather_service
from traced_tools.testing import ReplayServer


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_"))}
    code = "from traced_tools.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env={**kept, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def printed() -> str:
    """What the demo prints in a narrow terminal."""
    run = demo("demo", COLUMNS="80")
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


def test_the_answer_is_printed(printed: str) -> None:
    assert "A sunny weekend is waiting: fly TAP from Oslo to Lisbon" in printed


def tree(output: str) -> list[tuple[int, str]]:
    """Return the depth and the name of each span that was printed."""
    lines = [line for line in output.splitlines() if line.lstrip("│├└─ ").startswith(SPANS)]
    return [
        ((len(line) - len(line.lstrip("│├└─ "))) // 3, " ".join(line.lstrip("│├└─ ").split()[:2])) for line in lines
    ]


def test_the_demo_tree_counts_the_hooks_in_which_nothing_happened(printed: str) -> None:
    shape = tree(printed)
    assert shape[:6] == [
        (0, "invoke_agent trip_planner"),
        (1, "advise profile"),
        (2, "advise tool_calling"),
        (3, shape[3][1]),
        (4, "advise observer"),
        (5, "chat trip-script-1"),
    ]
    assert [name.split()[0] for depth, name in shape if depth == 3] == ["iteration"] * 4
    assert printed.count("… 2 hooks, ") == 5  # of the loop, and of its four iterations
    assert printed.count("… 2 hooks") == 10  # and of five calls


def test_each_row_of_the_demo_fits_a_terminal_of_80_columns(printed: str) -> None:
    assert max(map(len, printed.splitlines())) <= 80


def test_the_demo_says_why_a_call_was_refused_and_by_whom(printed: str) -> None:
    assert "book_hotel was refused by the policy advisor, rule costs-money" in printed
    assert "bookings are made by the traveller" in printed


def test_the_demo_shows_the_audit_records_and_verifies_them(printed: str) -> None:
    rows = printed.partition("audit trail")[2].partition("verified: 15 records, whole and unchanged")[0].splitlines()
    decisions = [tuple(row.split()[:2]) for row in rows[1:] if row]
    assert sorted(decisions[:3]) == [
        ("find_flights", "allowed"),
        ("find_hotels", "allowed"),
        ("get_weather", "allowed"),
    ]
    assert decisions[3:] == [("find_hotels", "allowed"), ("book_hotel", "denied")]


@pytest.mark.slow
def test_the_demo_tree_shows_all_hooks_if_asked() -> None:
    run = demo("demo", "--all")
    assert run.returncode == 0, run.stderr
    shape = tree(run.stdout)
    assert shape[:9] == [
        (0, "invoke_agent trip_planner"),
        (1, "advise profile"),
        (2, "advise tool_calling"),
        (3, "initialize tool_calling"),
        (3, shape[4][1]),
        (4, "before tool_calling"),
        (4, "advise observer"),
        (5, "chat trip-script-1"),
        (4, "after tool_calling"),
    ]
    assert [name.split()[0] for depth, name in shape if depth == 3] == ["initialize", *["iteration"] * 4, "finalize"]


CALLS = ("execute_tool", "refuse_tool")
SPANS = (
    "invoke_agent",
    "advise",
    "initialize",
    "iteration",
    "before",
    "after",
    "chat",
    "execute_tool",
    "refuse_tool",
    "finalize",
)


def test_parallel_failed_retried_and_refused_calls_are_seen(printed: str) -> None:
    lines = [line.lstrip("│├└─ ") for line in printed.splitlines()]
    below = ["" if line.startswith(SPANS) else line for line in lines[1:]]
    calls = [f"{line} {facts}" for line, facts in zip(lines, below, strict=False) if line.startswith(CALLS)]
    fates = [(call.split()[1], "TimeoutError" in call, "denied" in call) for call in calls]
    assert sorted(fates[:3]) == [
        ("find_flights", False, False),
        ("find_hotels", True, False),
        ("get_weather", False, False),
    ]
    assert fates[3:] == [("find_hotels", False, False), ("book_hotel", False, True)]
    assert "refuse_tool book_hotel" in printed


def test_tokens_self_times_and_metrics_are_seen(printed: str) -> None:
    assert "2610 -> 222 tokens" in printed
    assert "self " in printed
    assert "traced_tools.tool.decisions" in printed
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in printed


@pytest.mark.slow
def test_with_a_server_in_the_environment_the_demo_uses_it() -> None:
    with ReplayServer(weather_service) as server:
        run = demo("demo", OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_MODEL="other-model")
        assert [request.json()["model"] for request in server.requests] == ["other-model"] * len(server.requests)
    assert run.returncode == 0, run.stderr
    assert "chat other-model" in run.stdout


@pytest.mark.slow
def test_a_server_that_is_not_there_ends_the_demo_with_the_trace_and_a_reason() -> None:
    run = demo("demo", OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    assert run.returncode == 1
    assert "the connection to 127.0.0.1:9 failed" in run.stderr
    assert "OPENAI_BASE_URL" in run.stderr
    assert "invoke_agent trip_planner" in run.stdout
    assert "Traceback" not in run.stderr


@pytest.mark.slow
def test_help_is_printed_and_an_unknown_command_is_a_usage_error() -> None:
    assert "demo" in demo("--help").stdout
    assert "local server" in demo("demo", "--help").stdout
    assert demo("no-such-command").returncode == 2


def test_without_its_extra_the_command_line_names_it() -> None:
    code = "import sys; sys.modules['typer'] = None; from traced_tools.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "traced_tools[cli]" in run.stderr
