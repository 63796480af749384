"""Servers that others wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mcp.servers import tools_of
from tests.mcp.test_runs import calling
from tests.modes import run
from traced_tools import ToolCall
from traced_tools.mcp import McpToolset


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_the_server_of_times_converts_one(mode: str) -> None:
    with McpToolset.stdio(sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC", name="time") as times:
        arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        response = run(mode, calling(ToolCall("convert_time", arguments)).prompt("?", tools=[times]))
    assert json.loads(response.tool_results[0].content)["time_difference"] == "+9.0h"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")
def test_the_server_of_repositories_shows_the_status_of_one(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "new.txt").touch()
    with McpToolset.stdio(sys.executable, "-m", "mcp_server_git", "--repository", str(tmp_path), name="git") as git:
        status = tools_of(git)["git_status"].call(json.dumps({"repo_path": str(tmp_path)}))
    assert "new.txt" in status
