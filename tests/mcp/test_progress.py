"""The progress that a server reports of a call."""

from __future__ import annotations

import pytest

from tests.events.watching import Watching, check_sequence
from tests.mcp.servers import HttpServer, in_each_mode_and_era, raw_server, sdk_server
from tests.mcp.test_failures import impatient
from tests.mcp.test_misbehaving import eras
from tests.mcp.test_runs import calling
from tests.modes import run
from traced_tools import ContentCapture, TelemetryOptions, ToolCall
from traced_tools.observe import ToolProgressed


@in_each_mode_and_era
@pytest.mark.parametrize("transport", [pytest.param("stdio", marks=pytest.mark.slow), "http"])
def test_what_a_server_reports_of_a_call_is_an_event(
    mode: str, era: str, transport: str, http_server: HttpServer
) -> None:
    watching = Watching()
    telemetry = TelemetryOptions(capture=ContentCapture("EVENT_ONLY"))
    with sdk_server() if transport == "stdio" else http_server.tools() as toolset:
        client = calling(ToolCall("count", {"to": 3}), telemetry=telemetry, advisors=[watching])
        run(mode, client.prompt("?", tools=[toolset]))
    found = [event for event in watching.events if isinstance(event, ToolProgressed)]
    assert [(event.progress, event.total, event.message) for event in found] == [
        (number, 3, f'"counted {number}"') for number in (1, 2, 3)
    ]
    assert {(event.tool, event.source) for event in found} == {("count", "tests")}
    check_sequence(watching.events)


def test_without_a_listener_no_reports_are_asked_for(http_server: HttpServer) -> None:
    with http_server.tools() as toolset:
        (silent,) = calling(ToolCall("meta")).prompt("?", tools=[toolset]).call().tool_results
        client = calling(ToolCall("meta"), advisors=[Watching()])
        (heard,) = client.prompt("?", tools=[toolset]).call().tool_results
    assert "progress_token" not in silent.content
    assert "progress_token" in heard.content


@eras
def test_reports_that_are_none_are_passed_over(speaks: list[str]) -> None:
    watching = Watching()
    with raw_server(*speaks) as toolset:
        client = calling(ToolCall("odd_progress"), advisors=[watching])
        response = client.prompt("?", tools=[toolset]).call()
    assert response.tool_results[0].content == "odd_progress: "
    assert [event.progress for event in watching.events if isinstance(event, ToolProgressed)] == [1]


def test_reports_do_not_prolong_the_time_out(http_server: HttpServer, era: str) -> None:
    with http_server.tools() as toolset:
        tool = impatient(toolset, "tick")
        watching = Watching()
        (result,) = calling(ToolCall("tick"), advisors=[watching]).prompt("?", tools=[tool]).call().tool_results
    assert result.outcome == "timeout"
    assert "tool_progressed" in watching.types
