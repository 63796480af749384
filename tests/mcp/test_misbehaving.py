"""Servers that break the rules of the protocol: what they do wrong costs no more than the call that it is part of."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from starlette.responses import Response

from tests.markers import MARKER
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import is_alive, raw_server, tools_of
from tests.mcp.serving import listening
from tests.mcp.test_failures import result_of
from tests.mcp.test_runs import calling
from tests.modes import MODES, run
from traced_tools import ToolCall
from traced_tools.errors import McpCallLost, McpRequestError, McpUnavailable
from traced_tools.mcp import McpApp, McpServer, McpToolset, transports
from traced_tools.mcp.transports import Era
from traced_tools.testing import ReplayServer, Reply

eras = pytest.mark.parametrize("speaks", [[], ["modern"]], ids=["handshake", "modern"])
"""Runs a test with a server of each era."""


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_dies_when_it_is_asked_what_it_speaks_is_started_again_for_the_handshake(mode: str) -> None:
    for _ in range(2):
        with raw_server("dies_of_probe") as toolset:
            response = run(mode, calling(ToolCall("counts")).prompt("?", tools=[toolset]))
        counts = json.loads(response.tool_results[0].content)
        assert counts == {"initialize": 1, "tools/list": 1, "tools/call": 1}
    assert tasks_left() == []


@pytest.mark.parametrize("speaks", [[], pytest.param(["modern", "picky"], marks=pytest.mark.slow)], ids=str)
def test_a_server_that_ignores_the_question_what_it_speaks_is_used_before_the_time_out(speaks: list[str]) -> None:
    with raw_server("ignores_probe", *speaks, timeout=2) as toolset:
        assert tools_of(toolset)["echo"].call('{"text": "x"}') == "echo: x"


@eras
def test_lines_beside_the_messages_are_passed_over(speaks: list[str]) -> None:
    with raw_server("chats", *speaks) as toolset:
        assert result_of("call", toolset, ToolCall("echo", {"text": "é"})).content == "echo: é"
        for name in ("no_utf8", "floods"):
            assert result_of("acall", toolset, ToolCall(name, {"text": "x"})).content == f"{name}: x"


@eras
def test_answers_to_requests_that_nobody_made_are_passed_over(speaks: list[str]) -> None:
    with raw_server(*speaks) as toolset:
        call = ToolCall("answers_others", {"text": "x"})
        assert result_of("call", toolset, call).content == "answers_others: x"


@pytest.mark.slow
@eras
@pytest.mark.parametrize("mode", MODES)
def test_a_message_without_end_ends_the_session_and_the_next_call_has_another_one(
    mode: str, speaks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "_MOST_BYTES", 1024 * 1024)
    with raw_server(*speaks) as toolset:
        first = int(tools_of(toolset)["process_id"].call("{}"))
        result = result_of(mode, toolset, ToolCall("endless_line"))
        assert (result.outcome, type(result.error)) == ("unknown", McpCallLost)
        assert int(tools_of(toolset)["process_id"].call("{}")) != first
        assert not is_alive(first)
    assert tasks_left() == []


@eras
def test_the_tools_of_a_run_are_those_at_its_beginning_although_the_list_changes_all_the_time(
    speaks: list[str],
) -> None:
    with raw_server("restless", *speaks) as toolset:
        echo = ToolCall("echo", {"text": "x"})
        for number in (1, 2, 3):
            response = run("call", calling(echo, ToolCall(f"tool_{number}")).prompt("?", tools=[toolset]))
            assert [result.content for result in response.tool_results] == ["echo: x", f"tool_{number}: "]


@eras
def test_a_tool_that_is_listed_twice_is_offered_once(speaks: list[str]) -> None:
    with raw_server("twice", *speaks) as toolset:
        tools = tools_of(toolset)
        assert len(tools) == len({tool.definition.name for tool in tools.values()})
        assert tools["echo"].call('{"text": "x"}') == "echo: x"


@pytest.mark.slow
@eras
def test_ten_thousand_tools_are_offered(speaks: list[str]) -> None:
    with raw_server("many", *speaks) as toolset:
        tools = tools_of(toolset)
        assert len(tools) == 10_000
        assert tools["tool_9999"].call('{"text": "x"}') == "tool_9999: x"


@eras
def test_a_list_of_tools_without_end_is_an_error(speaks: list[str]) -> None:
    with raw_server("endless", *speaks) as toolset, pytest.raises(McpRequestError, match="more than 200 pages"):
        tools_of(toolset)


@eras
def test_a_server_without_tools_has_none(speaks: list[str]) -> None:
    with raw_server("none", *speaks) as toolset:
        assert tools_of(toolset) == {}


def test_tools_with_invalid_marks_for_headers_are_left_out_as_the_newer_era_demands() -> None:
    with raw_server("marked", "modern") as modern, raw_server("marked", name="old") as old:
        assert "valid" in tools_of(modern)
        assert not {"empty", "spaced", "no text"} & {*tools_of(modern)}
        assert {"valid", "empty", "spaced"} <= {*tools_of(old)}  # where the marks mean nothing


def test_a_server_that_asks_for_input_is_told_that_nobody_answers() -> None:
    with raw_server() as toolset:
        answer = json.loads(tools_of(toolset)["asks"].call('{"text": "Your name?"}'))
    assert answer["id"] == "s1"
    assert "error" in answer


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_are_no_unicode_arrive_with_question_marks(mode: str) -> None:
    with raw_server(context_keys=["user"]) as toolset:
        text = ToolCall("echo", '{"text": "\\ud800", "\\ud800": ["\\ud800", {"a": "\\udfff"}]}')
        assert result_of(mode, toolset, text).content == "echo: ?"
        spec = calling(text).prompt("?", tools=[toolset], tool_context={"user": "\ud800"})
        assert run(mode, spec).tool_results[0].outcome == "ok"


REPLIES = {
    "it answers with the HTTP status 500": Reply.json({}, 500),
    "it answers with the HTTP status 401": Reply.json({"error": MARKER}, 401),
    "it answers with the HTTP status 404": Reply(b"", 404),
    "it answers with something that is no message of MCP": Reply(f"<html>{MARKER}".encode(), content_type="text/html"),
    "it answers with a redirect to another server, which is not followed": Reply(
        status=307, headers={"Location": f"https://{MARKER}.example/mcp"}
    ),
    "it answers with something that cannot be read": Reply.json({"jsonrpc": "2.0", "id": MARKER}),
    "it closed the connection": Reply(b"", content_type="text/event-stream"),
    "httpx2.RemoteProtocolError": Reply(b'{"jsonrpc', cut=True),
}


@pytest.mark.parametrize("problem", REPLIES)
def test_a_server_over_http_that_speaks_no_mcp_is_an_error_that_says_how_it_answers(problem: str) -> None:
    with ReplayServer([REPLIES[problem]] * 2) as server, McpToolset.http(f"{server.url}/mcp", name="web") as toolset:
        with pytest.raises(McpUnavailable) as caught:
            tools_of(toolset)
        place = server.url.removeprefix("http://")
        assert str(caught.value) == f"the MCP server 'web' cannot be reached: {problem} ({place})"
    assert tasks_left() == []


@pytest.mark.parametrize("era", ["auto", "handshake"])
def test_a_token_that_expires_is_an_error_with_the_status(era: Era) -> None:
    def double(number: int) -> int:
        return 2 * number

    refused: list[str] = []
    app = McpApp(McpServer([double]))

    async def gate(scope: Any, receive: Any, send: Any) -> None:
        await (Response(MARKER, 401) if refused else app)(scope, receive, send)

    with listening(gate) as url, McpToolset.http(url, name="web", era=era) as toolset:
        tools_of(toolset)
        refused.append("everything")
        result = result_of("call", toolset, ToolCall("double", {"number": 2}))
    assert str(result.error) == "the MCP server 'web' refused a request with the HTTP status 401"
    assert "HTTP status 401" in result.content


def test_no_thread_is_left_of_servers_that_fail() -> None:
    before = threading.active_count()
    for arguments in (["dies"], ["dies_of_probe", "modern"], ["endless"]):
        with raw_server(*arguments) as toolset, pytest.raises((McpUnavailable, McpRequestError)):
            tools_of(toolset)
    assert threading.active_count() <= before + 1  # the loop's own
    assert tasks_left() == []


@pytest.mark.parametrize(
    ("headers", "problem"), [({"Content-Encoding": "gzip"}, "DecodingError"), ({}, "ReadError")], ids=str
)
def test_a_response_that_is_too_large_or_compressed_is_not_read(
    headers: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "_MOST_BYTES", 1000)
    large = Reply.json({"jsonrpc": "2.0", "id": 1, "result": {"text": "x" * 5000}}, headers=headers)
    with ReplayServer([large] * 2) as server, McpToolset.http(f"{server.url}/mcp", name="web") as toolset:
        with pytest.raises(McpUnavailable, match=problem):
            tools_of(toolset)
    assert tasks_left() == []
