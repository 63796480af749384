"""`traced-tools doctor`: versions, variables, and whether what is configured answers."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.markers import MARKER
from tests.otel.collector import absent, answer, collecting, collecting_grpc, hang, mute
from traced_tools import AuditAdvisor, AuditTrail, ChatClient, ToolCall, tool
from traced_tools._version import __version__
from traced_tools.approvals import PendingStore
from traced_tools.cli.app import app
from traced_tools.cli.doctor.clock import check_clock
from traced_tools.cli.doctor.mcp_servers import _shown_command
from traced_tools.cli.doctor.result import Result as CheckResult
from traced_tools.cli.doctor.result import State, plain_url
from traced_tools.core import variables
from traced_tools.testing import ReplayServer, ScriptedChatModel
from traced_tools.testing.reply import Reply

_READ = re.compile(r"OTEL_|TRACED_TOOLS_|OPENAI_|ANTHROPIC_|GOOGLE_|GEMINI_|OLLAMA_|GUNICORN_|WEB_CONC|UWSGI|CELERY")


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if _READ.match(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


def doctor(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words])


def checked(*words: str, group: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit status, and the results of a group by their subjects."""
    result = doctor(*words, "--json")
    checks = json.loads(result.stdout)["checks"]
    return result.exit_code, {check["subject"]: check for check in checks if check["group"] == group}


def states(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {subject: check["state"] for subject, check in results.items()}


def test_without_anything_configured_the_versions_are_printed_and_nothing_is_wrong() -> None:
    result = doctor()
    assert result.exit_code == 0, result.output
    assert f"  traced_tools  {__version__}" in result.stdout.splitlines()
    for package in ("Python", "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp", "fast path"):
        assert f"  {package}  " in result.stdout


def test_a_misspelt_variable_is_named_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADRS", MARKER)
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STOER", MARKER)
    monkeypatch.setenv("OTEL_SOMETHING_ELSE_ENTIRELY", MARKER)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    status, results = checked(group="environment")
    assert status == 1
    assert results["OTEL_EXPORTER_OTLP_HEADRS"]["nearest"] == "OTEL_EXPORTER_OTLP_HEADERS"
    assert results["TRACED_TOOLS_AUDIT_STOER"]["nearest"] == "TRACED_TOOLS_AUDIT_STORE"
    assert results["OTEL_SOMETHING_ELSE_ENTIRELY"]["state"] == "note"
    assert (results["OTEL_TRACES_EXPORTER"]["state"], results["OTEL_TRACES_EXPORTER"]["text"]) == ("ok", "none")


def test_a_variable_that_changes_the_whole_process_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("TRACED_TOOLS_DEV", "1")
    status, results = checked(group="environment")
    assert (status, results["OTEL_SDK_DISABLED"]["state"], results["TRACED_TOOLS_DEV"]["state"]) == (0, "note", "note")
    monkeypatch.setenv("TRACED_TOOLS_DEV", "perhaps")
    assert checked(group="environment")[0] == 1


def test_an_invalid_value_is_named_and_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", MARKER)
    monkeypatch.setenv("TRACED_TOOLS_DETAIL", "every-thing")
    result = doctor()
    assert result.exit_code == 1
    assert "OTEL_TRACES_SAMPLER must be one of" in result.stdout and "TRACED_TOOLS_DETAIL must be" in result.stdout


def test_every_variable_that_the_package_reads_is_in_the_list() -> None:
    package = Path(variables.__file__).parent.parent
    spelled = {
        name
        for path in package.rglob("*.py")
        if path.name != "variables.py" or path.parent.name != "core"
        for name in re.findall(r"""["'](TRACED_TOOLS_[A-Z_]+)["']""", path.read_text("utf-8"))
    }
    assert spelled == set(), "take the name from core/variables.py"
    assert variables.DEV in variables.ALL and len(variables.ALL) >= 11


def test_a_collector_gets_an_empty_export_of_each_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={MARKER}")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        status, results = checked(group="collector")
    assert (status, states(results)) == (0, {"traces": "ok", "metrics": "ok", "logs": "ok"})
    assert collector.spans() == [] and len(collector.bodies["/v1/traces"]) == 1
    assert collector.headers["/v1/traces"]["api-key"] == MARKER


def test_a_collector_over_grpc_gets_an_empty_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with collecting_grpc() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        status, results = checked(group="collector")
    assert (status, states(results)) == (0, {"traces": "ok", "metrics": "ok", "logs": "ok"})


def test_the_collector_of_the_code_is_an_option() -> None:
    with collecting() as collector:
        status, results = checked("--otlp", collector.url, group="collector")
    assert (status, set(states(results).values())) == (0, {"ok"})
    with collecting(answer(401)) as collector:
        status, results = checked("--otlp", collector.url, group="collector")
    assert status == 1 and "HTTP 401" in results["traces"]["text"] and "advice" in results["traces"]


def test_a_collector_that_is_absent_or_hangs_is_a_problem_within_bounds() -> None:
    began = time.monotonic()
    with absent() as nobody, mute() as silent, collecting(hang) as hanging:
        for collector in (nobody, silent, hanging):
            status, results = checked("--otlp", collector.url, "--timeout", "3", group="collector")
            assert (status, set(states(results).values())) == (1, {"problem"})
    assert time.monotonic() - began < 20


def test_a_port_for_prometheus_is_free_or_serves_metrics_or_is_taken() -> None:
    with absent() as nobody:
        port = nobody.url.rpartition(":")[2]
    assert checked("--prometheus", port, group="prometheus")[1][f"127.0.0.1:{port}"]["state"] == "ok"
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        status, results = checked("--prometheus", address, "--timeout", "0.2", group="prometheus")
    assert (status, results[address]["state"]) == (1, "problem")
    with ReplayServer([Reply(body=b"# HELP runs\n", content_type="text/plain")]) as server:
        address = server.url.removeprefix("http://")
        status, results = checked("--prometheus", address, group="prometheus")
    assert (status, results[address]["text"]) == (0, "answers /metrics")


def test_a_model_server_is_asked_for_its_models_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", MARKER)
    with ReplayServer([Reply(body=b'{"data": []}')]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        status, results = checked(group="model server")
        (request,) = server.requests
    assert (status, states(results)) == (0, {"openai": "ok"})
    assert request.path == "/v1/models" and request.headers["authorization"] == f"Bearer {MARKER}"


def test_a_model_server_that_refuses_or_is_absent_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", MARKER)
    with ReplayServer([Reply(status=401, body=b"{}")]) as server, absent() as nobody:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        status, results = checked("--model-server", f"{nobody.url}/v1", group="model server")
    assert (status, set(states(results).values())) == (1, {"problem"})
    assert "ANTHROPIC_API_KEY" in results["anthropic"]["advice"]


def test_a_missing_key_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.openai.com/v1")
    status, results = checked(group="model server")
    assert status == 1 and "OPENAI_API_KEY" in results["openai"]["text"]


def test_stores_are_opened_and_neither_created_nor_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool
    def add(a: int) -> int:
        """Add."""
        return a

    audit, pending, missing = tmp_path / "audit.db", tmp_path / "pending.db", tmp_path / "missing.db"
    with AuditTrail(audit) as trail:
        model = ScriptedChatModel([ToolCall("add", {"a": 1}), "done"])
        ChatClient(model, tools=[add], advisors=[AuditAdvisor(trail)]).prompt("?").call()
    with PendingStore(pending) as store:
        store.ready()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STORE", str(audit))
    monkeypatch.setenv("TRACED_TOOLS_PENDING_STORE", str(pending))
    status, results = checked(group="store")
    assert (status, states(results)) == (0, {"audit": "ok", "pending": "ok"})
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STORE", str(missing))
    monkeypatch.setenv("TRACED_TOOLS_PENDING_STORE", str(missing))
    status, results = checked(group="store")
    assert (status, states(results)) == (1, {"audit": "problem", "pending": "problem"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_clock_that_is_off_is_noted() -> None:
    def answered(date: str, late: timedelta = timedelta()) -> CheckResult:
        received = datetime(2026, 7, 1, 12, tzinfo=UTC) + late
        return CheckResult("collector", "traces", State.OK, "", date=date, received=received)

    date = "Wed, 01 Jul 2026 12:00:00 GMT"
    assert [skew.state for skew in check_clock([answered(date)])] == [State.OK]
    (ahead,) = check_clock([answered(date, timedelta(minutes=5))])
    assert ahead.state is State.NOTE and "300 seconds ahead" in ahead.text
    (behind,) = check_clock([answered(date, -timedelta(hours=2))])
    assert "7,200 seconds behind" in behind.text
    assert list(check_clock([answered(MARKER)])) == []


def test_an_answer_that_came_before_a_slow_check_ended_says_nothing_of_the_clock() -> None:
    past = datetime.now(UTC) - timedelta(seconds=30)
    result = CheckResult("model server", "a", State.OK, "", date=format_datetime(past, usegmt=True), received=past)
    assert [skew.state for skew in check_clock([result])] == [State.OK]


def test_forked_workers_are_noted_with_the_settings_that_they_break(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(group="workers")[1] == {}
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with collecting_grpc() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with absent() as nobody:
            port = nobody.url.rpartition(":")[2]
        status, results = checked("--prometheus", port, group="workers")
    assert (status, set(results)) == (0, {"gunicorn", "prometheus", "gRPC"})


@pytest.mark.parametrize("as_json", [True, False])
def test_no_key_header_query_or_password_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool
) -> None:
    secrets = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:{MARKER}@127.0.0.1:1/x?token={MARKER}",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{MARKER}",
        "OTEL_RESOURCE_ATTRIBUTES": f"secret={MARKER}",
        "OTEL_SERVICE_NAME": MARKER,
        "OTEL_EXPORTER_OTLP_HEADRS": MARKER,
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / MARKER),
        "OPENAI_API_KEY": MARKER,
        "OPENAI_BASE_URL": f"http://user:{MARKER}@127.0.0.1:1/v1?key={MARKER}",
        "ANTHROPIC_API_KEY": MARKER,
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "GOOGLE_API_KEY": f"{MARKER} with blanks",
        "OLLAMA_HOST": f"http://user:{MARKER}@127.0.0.1:1",
        "TRACED_TOOLS_AUDIT_KEY": MARKER,
        "TRACED_TOOLS_PSEUDONYM_KEY": MARKER,
        "TRACED_TOOLS_STATE_KEY": MARKER,
        "TRACED_TOOLS_MCP_TOKEN": MARKER,
        "TRACED_TOOLS_AUDIT_STORE": f"postgresql://user:{MARKER}@127.0.0.1:1/db?password={MARKER}",
        "TRACED_TOOLS_PENDING_STORE": f"postgresql://user:{MARKER}@127.0.0.1:1/db?password={MARKER}",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    urls = ["--model-server", f"http://user:{MARKER}@127.0.0.1:1/v1?key={MARKER}"]
    mcp = ["--mcp", f"http://user:{MARKER}@127.0.0.1:1/mcp?key={MARKER}", "--mcp", f"nothing-here --api-key {MARKER}"]
    words = [*urls, *mcp, "--timeout", "3", *(["--json"] if as_json else [])]
    result = doctor(*words)
    assert result.exit_code == 1, result.output
    assert MARKER not in result.stdout + result.stderr
    wrong = doctor("--otlp", f"http://user:{MARKER}@127.0.0.1:1?key={MARKER}")
    assert wrong.exit_code == 2 and MARKER not in wrong.stdout + wrong.stderr


def test_a_url_and_a_command_are_printed_without_secrets() -> None:
    assert plain_url(f"https://u:{MARKER}@[::1]:8/p?{MARKER}#{MARKER}") == "https://[::1]:8/p"
    assert plain_url("collector:4317") == "collector:4317"
    assert plain_url(f"http://[{MARKER}") == "(an invalid URL)"
    words = ["npx", "-y", MARKER, "--api-key", MARKER, f"--token={MARKER}", f"A={MARKER}", f"http://a/{MARKER}"]
    assert _shown_command(words) == "npx -y ... --api-key ... ... ... ..."
    assert MARKER not in _shown_command(["server", f"-p{MARKER}", f"--{MARKER}"])


@pytest.mark.slow
def test_the_module_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "traced_tools", "--version"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout == f"traced-tools {__version__}\n"
