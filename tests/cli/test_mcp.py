"""`traced-tools mcp serve`: tools of a module, over stdio and HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.waiting import PATIENCE, in_time
from traced_tools.cli.app import app

MODULE = '''
import os, sys
from traced_tools import Policy, PolicyAdvisor, Rule
from traced_tools.mcp import McpServer

print("imported")
os.system("echo imported by a process")


def price(article: str) -> float:
    """Return the price of an article."""
    print("called")
    return 19.9


class Shop:
    tools = [price]


tools = [price]
denied = Policy([Rule("no", then="deny", reason="It is closed.")])
server = McpServer(tools, name="shop", advisors=[PolicyAdvisor(denied)])
number = 42
'''
ENVELOPE = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "price", "arguments": {"article": "lamp"}, "_meta": ENVELOPE},
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import no_such_module_anywhere")
    return tmp_path


@contextmanager
def serve(where: Path, *args: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(Path(sys.executable).parent / "traced-tools"), "mcp", "serve", *args]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=where, env={**os.environ, **env}, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def called(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The result of a call over stdio."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{json.dumps(CALL)}\n")
    process.stdin.flush()
    found: dict[str, Any] = json.loads(in_time(process.stdout.readline))["result"]
    return found


def failure(where: Path, patch: pytest.MonkeyPatch, *args: str) -> str:
    """The line on standard error of a command that fails."""
    patch.chdir(where)
    patch.setattr(sys, "path", list(sys.path))
    for name in ("shop", "broken"):
        patch.delitem(sys.modules, name, raising=False)
    result = CliRunner().invoke(app, ["mcp", "serve", *args])
    assert result.exit_code == 2 and result.stdout in ("", "imported\n")
    return result.stderr.splitlines()[-1]


def test_only_the_protocol_is_on_standard_output(shop: Path) -> None:
    with serve(shop, "shop:Shop.tools") as process:
        assert called(process)["structuredContent"] == {"result": 19.9}
        out, error = process.communicate(timeout=PATIENCE)
    assert out == "" and process.returncode == 0
    assert {"imported", "imported by a process", "called"} <= {*error.splitlines()}


@pytest.mark.slow
def test_a_server_with_advisors_is_served(shop: Path) -> None:
    with serve(shop, "shop:server") as process:
        assert "It is closed." in called(process)["content"][0]["text"]


@pytest.mark.slow
def test_over_http_the_token_is_that_of_the_variable(shop: Path) -> None:
    token = "a-token-for-the-tests"
    options = ("--transport", "http", "--port", "0")
    with serve(shop, "shop:tools", *options, TRACED_TOOLS_MCP_TOKEN=f"{token}\n") as process:
        assert process.stderr is not None
        lines = [in_time(process.stderr.readline) for _ in range(3)]
        url = lines[-1].strip().removeprefix("mcp: serving at ")
        assert url.endswith("/mcp")
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": "price",
        }
        assert httpx.post(url, json=CALL, headers=headers, trust_env=False).status_code == 401
        answer = httpx.post(url, json=CALL, headers={**headers, "Authorization": f"Bearer {token}"}, trust_env=False)
        assert answer.json()["result"]["content"][0]["text"] == "19.9"
        assert httpx.post(url.replace("/mcp", "/other"), json=CALL, trust_env=False).status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["shop"], "mcp: 'shop' is not of the form MODULE:OBJECT, such as shop.tools:tools"),
        (["nothing:tools"], "mcp: there is no module nothing: pass its name, and run this where it is"),
        (["shop:nothing"], "mcp: the module shop has no object nothing"),
        (["shop:number"], "mcp: int is not a tool"),
        (["broken:x"], "mcp: the module broken cannot be imported: ModuleNotFoundError: No module named"),
        (
            ["shop:tools", "--transport", "http", "--host", "0.0.0.0"],
            "mcp: anybody who reaches 0.0.0.0 could call the tools: set TRACED_TOOLS_MCP_TOKEN",
        ),
    ],
)
def test_what_cannot_be_served_is_one_line_and_the_status_2(
    args: list[str], message: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failure(shop, monkeypatch, *args).startswith(message)


def test_a_port_that_is_taken_and_a_short_token_are_errors(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        line = failure(shop, monkeypatch, "shop:tools", "--transport", "http", "--port", port)
    assert line.startswith(f"mcp: cannot serve at 127.0.0.1, port {port}: Address already in use")
    monkeypatch.setenv("TRACED_TOOLS_MCP_TOKEN", "short")
    line = failure(shop, monkeypatch, "shop:tools", "--transport", "http")
    assert line.startswith("mcp: a token must have at least 16 characters") and "short" not in line


def test_the_help_has_the_options_with_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, ["mcp", "serve", "--help"])
    assert shown.exit_code == 0
    for option, default in (("--transport", "stdio"), ("--host", "127.0.0.1"), ("--port", "8000")):
        (line,) = [each for each in shown.stdout.splitlines() if option in each]
        assert f"[default: {default}]" in line
    assert CliRunner().invoke(app, ["mcp", "serve", "shop:tools", "--transport", "sse"]).exit_code == 2


@pytest.mark.slow
def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['mcp'] = sys.modules['mcp_types'] = None; from traced_tools.cli import main; "
        "sys.argv = ['traced-tools', 'mcp', 'serve', 'json:loads']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["mcp: serving tools needs an extra: pip install 'traced_tools[mcp]'"]
