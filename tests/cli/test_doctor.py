"""`traced-tools doctor`: what MCP servers speak."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.markers import MARKER
from tests.mcp.portal_tasks import remember_tasks, tasks_left
from tests.mcp.servers import RAW, SERVER, HttpServer
from tests.mcp.test_statements import HttpWire
from traced_tools.cli.app import app

HANDSHAKE, MODERN = (shlex.join([sys.executable, *each]) for each in ((RAW, "chats"), (SERVER,)))
ENDS = shlex.join([sys.executable, RAW, "dies"])


def doctor(*servers: str, json: bool = False) -> Result:
    options = [word for server in servers for word in ("--mcp", server)]
    return CliRunner().invoke(app, ["doctor", *options, *(["--json"] if json else [])])


def mcp_results(result: Result) -> list[dict[str, Any]]:
    return [check for check in json.loads(result.stdout)["checks"] if check["group"] == "mcp"]


def test_the_era_the_software_and_the_tools_of_each_server_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    remember_tasks()
    found = doctor(HANDSHAKE, MODERN)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    lines = lines[lines.index("mcp") + 1 :]
    assert lines[0] == f"  {sys.executable} ... ..." and lines[4] == f"  {sys.executable} ..."
    assert lines[1] == "    revision  2025-06-18 (by handshake, an older revision)"
    assert lines[2] == "    software  raw 1"
    assert lines[3].startswith("    tools     24: echo, garbage, ")
    assert lines[5] == "    revision  2026-07-28 (without handshake)"
    assert tasks_left() == []


@pytest.mark.parametrize(("speaks", "revision"), [("modern", "2026-07-28"), ("handshake", "2025-11-25")])
def test_a_server_over_http_is_found_by_its_url(speaks: str, revision: str) -> None:
    with HttpWire(speaks).server as server:
        (found,) = mcp_results(doctor(f"{server.url}/mcp", json=True))
    assert (found["subject"], found["revision"]) == (f"{server.url}/mcp", revision)
    assert found["handshake"] is (speaks == "handshake")
    assert "echo" in found["tools"]


def test_a_server_that_cannot_be_used_is_status_1_and_the_others_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    nowhere, python = HttpServer(), "(the program 'python')"
    found = doctor(ENDS, nowhere.url, "no-such-program-anywhere", HANDSHAKE, json=True)
    assert found.exit_code == 1
    problems = [server["text"] if server["state"] == "problem" else None for server in mcp_results(found)]
    assert problems == [
        f"cannot be reached: it ended with the exit status 3 {python}",
        f"cannot be reached: httpx2.ConnectError (127.0.0.1:{nowhere.port})",
        "cannot be reached: FileNotFoundError (the program 'no-such-program-anywhere')",
        None,
    ]
    printed = doctor(ENDS)
    assert printed.exit_code == 1
    assert f"cannot be reached: it ended with the exit status 3 {python}" in printed.stdout


def test_a_header_has_its_value_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", f"Bearer {MARKER}")
    wire = HttpWire("handshake")
    with wire.server as server:
        options = ["doctor", "--mcp", f"{server.url}/mcp", "--header", "Authorization=KEY"]
        found = CliRunner().invoke(app, options)
    assert found.exit_code == 0 and MARKER not in found.output
    assert {each.headers["authorization"] for each in server.requests} == {f"Bearer {MARKER}"}


@pytest.mark.parametrize("wrong", [f"Authorization={MARKER}", f"Authorization: {MARKER}", "=KEY", "Authorization="])
def test_a_header_without_a_variable_is_status_2_and_is_not_repeated(wrong: str) -> None:
    found = CliRunner().invoke(app, ["doctor", "--mcp", "http://127.0.0.1:1/mcp", "--header", wrong])
    assert found.exit_code == 2 and "--header" in found.stderr and MARKER not in found.output


def test_what_is_no_command_and_no_url_is_status_2() -> None:
    for wrong in ("", "'unclosed", "http://"):
        found = doctor(wrong)
        assert found.exit_code == 2
        assert found.stderr.startswith("doctor: ") and found.stderr.count("\n") == 1
