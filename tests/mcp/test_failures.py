"""Servers that die, hang, talk nonsense or are not there: the loop goes on, and the model is told."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import (
    HttpServer,
    connection_of,
    in_each_mode_and_era,
    is_alive,
    raw_server,
    sdk_server,
    serving,
    speak,
    tools_of,
)
from tests.mcp.test_runs import calling
from tests.modes import MODES, run
from tests.waiting import until
from traced_tools import AuditAdvisor, RetryToolAdvisor, ToolCall, ToolResult
from traced_tools.audit import AuditTrail, read_verified
from traced_tools.errors import McpCallLost, McpRequestError, McpToolError, McpUnavailable
from traced_tools.mcp import McpToolset, connection
from traced_tools.tools.callback import FunctionToolCallback

in_each_mode_and_an_era = pytest.mark.parametrize(("mode", "speaks"), [("call", []), ("astream", ["modern"])])


def impatient(toolset: McpToolset, name: str = "hang") -> FunctionToolCallback:
    """Return a tool that does not return, with a short time-out."""
    tool = tools_of(toolset)[name]
    tool.metadata = tool.metadata.replace(timeout=0.5)
    return tool


def result_of(mode: str, toolset: McpToolset | FunctionToolCallback, call: ToolCall, **options: Any) -> ToolResult:
    """Return the result of one call in a run, which goes on after it."""
    response = run(mode, calling(call, **options).prompt("?", tools=[toolset]))
    assert response.content == "done"
    return response.tool_results[0]


@in_each_mode_and_era
def test_the_model_reads_what_a_failed_tool_reports(mode: str, era: str, http_server: HttpServer) -> None:
    with http_server.tools() as toolset:
        result = result_of(mode, toolset, ToolCall("fail", {"text": "no such file"}))
    assert (result.outcome, type(result.error)) == ("error", McpToolError)
    assert "no such file" in result.content
    assert "no such file" not in str(result.error) + repr(result.error)
    assert result.part().is_error


@in_each_mode_and_era
def test_the_model_reads_why_a_server_refuses_a_call(mode: str, era: str, http_server: HttpServer) -> None:
    with http_server.tools() as toolset:
        result = result_of(mode, toolset, ToolCall("refuse", {"text": "not today"}))
    assert isinstance(result.error, McpRequestError)
    assert result.error.code == -32050
    assert result.content == "not today (error -32050)"
    assert "not today" not in str(result.error) + repr(result.error)


@in_each_mode_and_an_era
def test_a_server_that_dies_during_a_call_leaves_an_unknown_outcome(
    mode: str, speaks: list[str], tmp_path: Path
) -> None:
    telemetry, marker = Telemetry(), str(tmp_path / "died")
    with AuditTrail(tmp_path / "audit.db") as trail, raw_server(*speaks) as toolset:
        call = ToolCall("die_once", {"text": marker})
        options = {"telemetry": telemetry.options, "advisors": [AuditAdvisor(trail)]}
        result = result_of(mode, toolset, call, **options)
        assert trail.flush()
        with read_verified(tmp_path / "audit.db") as reader:
            outcomes = [call.outcome.fields["outcome"] for call in reader.calls() if call.outcome is not None]
        assert result_of(mode, toolset, call).content == f"die_once: {marker}"
    assert (result.outcome, type(result.error)) == ("unknown", McpCallLost)
    assert result.content.startswith("The outcome of the call is unknown, and it may have run: ")
    attributes = telemetry.one("execute_tool die_once").attributes
    assert attributes is not None and attributes["traced_tools.tool.outcome"] == "unknown"
    assert outcomes == ["unknown"]
    assert len(telemetry.named("tools/call")) == 1
    telemetry.check_each_ended_once()


@in_each_mode_and_an_era
def test_a_lost_call_is_repeated_once_if_its_tool_is_idempotent(mode: str, speaks: list[str], tmp_path: Path) -> None:
    telemetry = Telemetry()
    with raw_server(*speaks) as toolset:
        call = ToolCall("die_once_idempotent", {"text": str(tmp_path / "died")})
        result = result_of(mode, toolset, call, telemetry=telemetry.options)
    assert result.outcome == "ok"
    below = telemetry.children(telemetry.one("execute_tool"))
    assert [span.name for span in below if span.name.startswith("tools/call")] == ["tools/call die_once_idempotent"] * 2


def test_a_lost_call_is_repeated_if_the_application_says_that_its_tool_is_idempotent(tmp_path: Path) -> None:
    with raw_server(idempotent=["die_once"]) as toolset:
        assert tools_of(toolset)["die_once"].call(json.dumps({"text": str(tmp_path / "died")}))


@pytest.mark.parametrize("mode", MODES)
def test_a_retrying_advisor_does_not_repeat_a_call_of_unknown_outcome(mode: str, tmp_path: Path) -> None:
    with raw_server() as toolset:
        call = ToolCall("die_once", {"text": str(tmp_path / "died")})
        assert result_of(mode, toolset, call, advisors=[RetryToolAdvisor("die_once")]).outcome == "unknown"


@in_each_mode_and_era
def test_a_server_that_hangs_is_told_that_the_call_is_cancelled(
    mode: str, era: str, tmp_path: Path, http_server: HttpServer
) -> None:
    path = tmp_path / "cancelled"
    with http_server.tools() as toolset:
        result = result_of(mode, impatient(toolset), ToolCall("hang", {"path": str(path)}))
        assert result.outcome == "timeout"
        until(path.exists)
        assert tools_of(toolset)["echo"].call('{"text": "still here"}') == "still here"
    assert tasks_left() == []


@pytest.mark.slow
def test_a_server_over_stdio_that_hangs_is_told_so_too(era: str, tmp_path: Path) -> None:
    path = tmp_path / "cancelled"
    with sdk_server() as toolset:
        assert result_of("acall", impatient(toolset), ToolCall("hang", {"path": str(path)})).outcome == "timeout"
        until(path.exists)


@pytest.mark.parametrize("mode", MODES)
def test_five_megabytes_arrive_whole(mode: str, http_server: HttpServer) -> None:
    with http_server.tools() as toolset:
        result = result_of(mode, toolset, ToolCall("large", {"megabytes": 5}))
    assert result.cut  # by the loop's own limit, for the model
    assert len(result.value.content[0].text) == 5 * 1024 * 1024


def test_five_megabytes_arrive_whole_over_stdio(era: str) -> None:
    with sdk_server() as toolset:
        assert len(tools_of(toolset)["large"].call('{"megabytes": 5}')) == 5 * 1024 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_fifty_megabytes_arrive_whole_before_the_time_out(mode: str, era: str) -> None:
    with sdk_server(timeout=5) as toolset:
        result = result_of(mode, toolset, ToolCall("large", {"megabytes": 50}))
    assert len(result.value.content[0].text) == 50 * 1024 * 1024


@pytest.mark.parametrize("mode", MODES)
def test_lines_that_are_no_messages_are_passed_over(mode: str) -> None:
    with raw_server() as toolset:
        assert result_of(mode, toolset, ToolCall("garbage", {"text": "x"})).content == "garbage: x"


@in_each_mode_and_an_era
@pytest.mark.parametrize("tool", ["wrong_result", "wrong_structure"])
def test_a_result_that_is_none_or_not_what_the_tool_promises_is_an_error(
    mode: str, speaks: list[str], tool: str
) -> None:
    with raw_server(*speaks) as toolset:
        result = result_of(mode, toolset, ToolCall(tool, {"text": "quoted"}))
    assert isinstance(result.error, McpRequestError)
    assert "quoted" not in result.content + str(result.error)


def test_a_number_that_other_libraries_round_arrives_exactly() -> None:
    with raw_server() as toolset:
        assert tools_of(toolset)["huge_number"].call("{}") == json.dumps({"n": 2**70})


def test_a_schema_that_is_invalid_is_logged_and_does_not_keep_its_tool_from_working(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with raw_server() as toolset:
        (name,) = [each for each in tools_of(toolset) if each.startswith("bad_schema_")]
        assert tools_of(toolset)[name].call('{"text": "x"}') == "bad schema: x"
    assert any(each.startswith(f"the input schema of {name} is not a valid") for each in caplog.messages)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("command", [["no-such-program-anywhere"], [sys.executable, "-c", "import sys; sys.exit(3)"]])
def test_a_server_that_cannot_be_reached_is_an_error_of_the_run_that_lists_its_tools(
    mode: str, command: list[str]
) -> None:
    with McpToolset.stdio(*command, name="gone", timeout=20) as toolset:
        with pytest.raises(McpUnavailable, match="the MCP server 'gone' cannot be reached: "):
            run(mode, calling(ToolCall("echo")).prompt("?", tools=[toolset]))
        with pytest.raises(McpUnavailable, match=r"the next connection is tried in 0\.\d s"):
            run(mode, calling(ToolCall("echo")).prompt("?", tools=[toolset]))
    assert tasks_left() == []


def test_a_working_directory_that_is_missing_is_told_from_a_program_that_is_missing(tmp_path: Path) -> None:
    with raw_server(cwd=tmp_path / "missing") as toolset, pytest.raises(McpUnavailable, match="NotADirectoryError"):
        tools_of(toolset)


def test_a_silent_server_is_an_error_after_the_time_out() -> None:
    with raw_server("silent", timeout=1) as toolset, pytest.raises(McpUnavailable, match="TimeoutError"):
        tools_of(toolset)
    assert tasks_left() == []


def test_the_pauses_between_connections_grow_until_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [1000.0], []
    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    with McpToolset.stdio("no-such-program-anywhere", name="gone") as toolset:
        for _ in range(8):
            with pytest.raises(McpUnavailable, match="FileNotFoundError"):
                tools_of(toolset)
            held = connection_of(toolset)
            pauses.append(held._next_try - now[0])
            now[0] = held._next_try
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.slow
@in_each_mode_and_era
def test_a_server_over_http_that_is_down_is_told_to_the_model_and_called_again_when_it_is_back(
    mode: str, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_PAUSES", (0.0,))
    call = ToolCall("echo", {"text": "hi"})
    with serving() as server, server.tools() as toolset:
        assert result_of(mode, toolset, call).outcome == "ok"
        server.stop()
        result = result_of(mode, toolset, call)
        assert (result.outcome, type(result.error)) == ("error", McpUnavailable)
        assert "cannot be reached" in result.content
        server.start()
        assert result_of(mode, toolset, call).content == "hi"
    assert tasks_left() == []


@pytest.mark.slow
def test_a_session_that_a_restarted_server_does_not_know_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    speak("handshake", monkeypatch)
    with serving() as server, server.tools() as toolset:
        echo = tools_of(toolset)["echo"]
        server.stop()
        server.start()
        assert echo.call('{"text": "again"}') == "again"


def test_a_server_that_dies_between_two_calls_is_started_again() -> None:
    with raw_server() as toolset:
        process_id = int(tools_of(toolset)["process_id"].call("{}"))
        os.kill(process_id, signal.SIGKILL)
        until(lambda: not is_alive(process_id))
        held = connection_of(toolset)
        until(lambda: held._session is None or held._session.has_ended)
        assert int(tools_of(toolset)["process_id"].call("{}")) != process_id
