"""Servers that others wrote, and servers on what others wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry, context_of
from tests.dashboards.node import PACKAGES
from tests.events.watching import Watching
from tests.judges.programs import missing, program
from tests.markers import MARKER
from tests.mcp.servers import FASTMCP, HttpServer, in_each_mode_and_era, serving, tools_of
from tests.mcp.test_runs import calling
from tests.modes import MODES, run
from tests.waiting import until
from traced_tools import ToolCall
from traced_tools.mcp import McpToolset
from traced_tools.observe import ToolProgressed


@pytest.mark.parametrize("mode", ["call", pytest.param("acall", marks=pytest.mark.slow)])
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


# Servers on Node, with an empty environment: a tool of one of them returns its environment.


def on_node(package: str, *arguments: str) -> McpToolset:
    node = program("node", "install Node 20.15 or newer")
    entry = PACKAGES / "@modelcontextprotocol" / f"server-{package}" / "dist/index.js"
    if not entry.is_file():
        missing(f"{entry.parents[1].name} is not here: npm ci --prefix tests/npm")
    return McpToolset.stdio("env", "-i", node, str(entry), *arguments, name=package)


@pytest.fixture(scope="module")
def everything() -> Iterator[McpToolset]:
    """The reference server of the older era, open for all tests of this module."""
    with on_node("everything", "stdio") as toolset:
        yield toolset


@pytest.mark.parametrize("mode", MODES)
def test_the_server_of_everything_returns_each_kind_of_content(mode: str, everything: McpToolset) -> None:
    calls = [
        ToolCall("echo", {"message": "hi"}),
        ToolCall("get-sum", {"a": 1, "b": 2}),
        ToolCall("get-structured-content", {"location": "Chicago"}),
        ToolCall("get-tiny-image"),
        ToolCall("get-resource-links", {"count": 2}),
        ToolCall("get-env"),
    ]
    telemetry = Telemetry()
    response = run(mode, calling(*calls, telemetry=telemetry.options).prompt("?", tools=[everything]))
    echo, total, structured, image, links, environment = response.tool_results
    assert {result.outcome for result in response.tool_results} == {"ok"}
    assert echo.content == "Echo: hi"
    assert "3" in total.content
    assert {"temperature", "conditions"} <= json.loads(structured.content).keys()
    assert [each.media_type for each in image.images] == ["image/png"]
    assert links.content.count("[link to a resource: ") == 2
    assert {*json.loads(environment.content)} <= {"PWD", "SHLVL", "_"}
    assert len(telemetry.named("tools/call")) == len(calls)


def test_the_server_of_everything_reports_progress(everything: McpToolset) -> None:
    watching = Watching()
    client = calling(ToolCall("trigger-long-running-operation", {"duration": 0.2, "steps": 2}), advisors=[watching])
    assert client.prompt("?", tools=[everything]).call().tool_results[0].outcome == "ok"
    found = [event for event in watching.events if isinstance(event, ToolProgressed)]
    assert [(event.progress, event.total) for event in found] == [(1, 2), (2, 2)]


@pytest.mark.parametrize("mode", MODES)
def test_the_server_of_files_reads_one_and_refuses_another(mode: str, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside.txt"
    inside.mkdir()
    (inside / "a.txt").write_text("a text")
    outside.write_text(MARKER)
    with on_node("filesystem", str(inside)) as files:
        calls = [ToolCall("read_text_file", {"path": str(path)}) for path in (inside / "a.txt", outside)]
        response = run(mode, calling(*calls).prompt("?", tools=[files]))
        assert tools_of(files)["read_text_file"].metadata.annotations.read_only is True
    read, refused = response.tool_results
    assert (read.outcome, read.content) == ("ok", "a text")
    assert refused.outcome == "error" and MARKER not in refused.content


# FastMCP, which speaks both eras.


@pytest.fixture(scope="module")
def fastmcp_over_http() -> Iterator[HttpServer]:
    with serving(FASTMCP) as server:
        yield server


def fastmcp(transport: str, request: pytest.FixtureRequest) -> McpToolset:
    if transport == "stdio":
        return McpToolset.stdio(sys.executable, FASTMCP, name="tests")
    server: HttpServer = request.getfixturevalue("fastmcp_over_http")
    return server.tools()


@in_each_mode_and_era
@pytest.mark.parametrize("transport", ["http", pytest.param("stdio", marks=pytest.mark.slow)])
def test_a_server_on_fastmcp_is_used_in_each_era(
    mode: str, era: str, transport: str, request: pytest.FixtureRequest
) -> None:
    telemetry, watching = Telemetry(), Watching()
    calls = [
        ToolCall("add", {"a": 1, "b": 2}),
        ToolCall("fail", {"text": "no such file"}),
        ToolCall("count", {"to": 2}),
    ]
    with fastmcp(transport, request) as toolset:
        client = calling(*calls, telemetry=telemetry.options, advisors=[watching])
        added, failed, counted = run(mode, client.prompt("?", tools=[toolset])).tool_results
    assert (added.content, added.value.structured_content) == ("3", {"result": 3})
    assert failed.outcome == "error" and "no such file" in failed.content
    assert counted.content == "counted"
    assert [event.progress for event in watching.events if isinstance(event, ToolProgressed)] == [1, 2]
    attributes = telemetry.one("tools/call add").attributes or {}
    assert attributes["mcp.protocol.version"] == {"modern": "2026-07-28", "handshake": "2025-11-25"}[era]


@pytest.mark.slow
@in_each_mode_and_era
def test_the_spans_of_a_server_are_below_the_span_of_the_call_in_one_trace(mode: str, era: str, tmp_path: Path) -> None:
    telemetry, path = Telemetry(), tmp_path / "spans.jsonl"
    with McpToolset.stdio(sys.executable, FASTMCP, name="peer", env={"SPANS": str(path)}) as toolset:
        client = calling(ToolCall("add", {"a": 1, "b": 2}), telemetry=telemetry.options)
        run(mode, client.prompt("?", tools=[toolset]))
        call = context_of(telemetry.one("tools/call add"))
        parents = {f"0x{call.span_id:016x}"}

        def spans() -> list[dict[str, Any]]:
            lines = path.read_text().splitlines() if path.exists() else []
            return [span for line in lines if (span := json.loads(line))["parent_id"] in parents]

        until(lambda: bool(spans()))
    (span,) = spans()
    assert span["kind"] == "SpanKind.SERVER"
    assert span["context"]["trace_id"] == f"0x{call.trace_id:032x}"
