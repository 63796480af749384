"""Toolsets of several servers: they are opened, listed and closed at once, and some may be missing."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.mcp.fake_http import ECHO, FakeHttp, faking
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import connection_of, is_alive, raw_server, tools_of
from tests.mcp.test_failures import in_each_mode_and_an_era, result_of
from tests.mcp.test_runs import calling
from tests.modes import ALL_MODES, MODES, run
from tests.waiting import PATIENCE, until
from traced_tools import ToolCall
from traced_tools.errors import McpRequestError, McpUnavailable
from traced_tools.mcp import McpToolset, connection, session, transports
from traced_tools.testing import Received, Reply


def gone(name: str = "gone", **options: Any) -> McpToolset:
    """Return the tools of a server that can't be reached."""
    return McpToolset.stdio("no-such-program-anywhere", name=name, **options)


def holding(fakes: list[FakeHttp], method: str, status: int = 200) -> None:
    """Have the servers reply to a method only when all of them have been asked."""
    together = threading.Barrier(len(fakes))
    for fake in fakes:

        def reply(request: Received, fake: FakeHttp = fake) -> Reply:
            together.wait(PATIENCE)
            if method == "DELETE":
                return Reply(b"", 204)
            return Reply.json({"jsonrpc": "2.0", "id": request.json()["id"], **fake._answer(request.json())})

        fake.replies[method] = reply


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("method", ["initialize", "tools/list"])
def test_several_servers_are_opened_and_listed_at_once(mode: str, method: str) -> None:
    with faking() as one, faking() as other:
        holding([one, other], method)
        with McpToolset(one.tools(name="one"), other.tools(name="other")) as both:
            assert result_of(mode, both, ToolCall("echo")).content == "fine"


@pytest.mark.parametrize("mode", ALL_MODES)
def test_several_servers_are_closed_at_once_and_each_gets_a_limited_time(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "_GOODBYE_SECONDS", 0.5)
    asked, release = threading.Semaphore(0), threading.Event()

    def hold(request: Received) -> Reply:
        asked.release()
        release.wait(PATIENCE)
        return Reply(b"", 204)

    with faking() as one, faking() as other:
        one.replies["DELETE"] = other.replies["DELETE"] = hold
        with McpToolset(one.tools(name="one"), other.tools(name="other")) as both:
            run(mode, calling(ToolCall("echo")).prompt("?", tools=[both]))
        assert asked.acquire(timeout=PATIENCE) and asked.acquire(timeout=PATIENCE)
        assert not release.is_set()  # the block has ended although no server has answered
        release.set()
    assert tasks_left() == []


def test_a_session_that_does_not_end_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_CLOSING_SECONDS", 0.2)
    monkeypatch.setattr(transports, "_GOODBYE_SECONDS", PATIENCE)
    release = threading.Event()
    with faking() as fake:
        fake.replies["DELETE"] = lambda request: Reply(b"", 204) if release.wait(PATIENCE) else Reply(b"", 500)
        with fake.tools() as toolset:
            tools_of(toolset)
        assert not release.is_set()
        release.set()
    until(lambda: tasks_left() == [])


def test_the_errors_of_several_servers_are_one_error_with_notes_and_log_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with faking() as fake, faking() as wrong:
        wrong.listed = {"tools": None}
        parts = [fake.tools(name="works"), gone("first"), wrong.tools(name="second")]
        with McpToolset(*parts) as toolset:
            with pytest.raises(McpUnavailable, match="the MCP server 'first' cannot be reached") as caught:
                tools_of(toolset)
            other = "the MCP server 'second' gave an answer that cannot be read"
            assert caught.value.__notes__ == [f"also: {other}"] and other in caplog.messages
            wrong.listed = {"tools": [ECHO]}
            with pytest.raises(McpUnavailable):
                tools_of(toolset)
            assert len(fake.sent("tools/list")) == 1


# Servers that are not required.


@pytest.mark.parametrize("mode", MODES)
def test_a_run_goes_on_without_a_server_that_is_not_required(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Telemetry()
    with faking() as fake, McpToolset(fake.tools(), gone(required=False)) as toolset:
        for _ in range(3):
            response = run(mode, calling(ToolCall("echo"), telemetry=telemetry.options).prompt("?", tools=[toolset]))
            assert response.tool_results[0].content == "fine"
    (line,) = [each for each in caplog.messages if "'gone'" in each]
    assert line == (
        "the MCP server 'gone' cannot be reached: FileNotFoundError (the program 'no-such-program-anywhere'); "
        "runs go on without its tools until it lists them; logged once per outage"
    )
    (point,) = telemetry.metric("traced_tools.mcp.servers.omitted")
    assert (total(point), point.attributes["traced_tools.tool.source"]) == (3, "gone")
    assert tasks_left() == []


def test_a_server_that_is_not_required_is_tried_again_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_PAUSES", (0.0,))
    asked, release = threading.Event(), threading.Event()

    def hold(request: Received) -> Reply:
        asked.set()
        release.wait(PATIENCE)
        return Reply.json({"jsonrpc": "2.0", "id": request.json()["id"], **fake._answer(request.json())})

    with faking() as fake, fake.tools(required=False) as toolset:
        fake.replies["tools/list"] = lambda request: Reply(b"", 503)
        assert tools_of(toolset) == {}
        fake.replies["tools/list"] = hold
        assert tools_of(toolset) == {}  # which does not wait for the server
        assert asked.wait(PATIENCE) and tools_of(toolset) == {}
        release.set()
        until(lambda: "echo" in tools_of(toolset))
        assert tools_of(toolset)["echo"].call("{}") == "fine"
    assert tasks_left() == []


def test_the_pauses_between_attempts_in_the_background_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [1000.0], []
    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    with gone(required=False) as toolset:
        assert tools_of(toolset) == {}
        held = connection_of(toolset)
        for count in range(1, 9):
            assert tools_of(toolset) == {}
            until(partial(lambda held, count: held._failed_lists == count, held, count))
            assert tools_of(toolset) == {} and held._failed_lists == count
            pauses.append(held._next_list - now[0])
            now[0] = held._next_list
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_tools_of_before_are_offered_while_a_server_is_not_reached_and_each_outage_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_PAUSES", (0.0,))
    for required in (True, False):
        caplog.clear()
        with faking() as fake, fake.tools(required=required) as toolset:
            tools_of(toolset)
            for outage in (1, 2):
                fake.replies["tools/list"] = lambda request: Reply(b"", 503)
                toolset.refresh()
                for _ in range(3):
                    assert [*tools_of(toolset)] == ["echo"]
                assert len([each for each in caplog.messages if "its tools are those of before" in each]) == outage
                del fake.replies["tools/list"]
                until(lambda: bool(tools_of(toolset)) and connection_of(toolset).knows_tools)


def test_a_server_that_is_not_required_and_lists_nonsense_costs_no_run() -> None:
    with faking() as fake, fake.tools(required=False) as toolset:
        fake.listed = {"tools": "none"}
        assert tools_of(toolset) == {}
    with faking() as fake, fake.tools() as toolset, pytest.raises(McpRequestError):
        fake.listed = {"tools": "none"}
        tools_of(toolset)


def test_a_server_that_is_missing_pins_no_tools(tmp_path: Path) -> None:
    pins = tmp_path / "tools.lock"
    with faking() as fake:
        fake.listed = {"tools": None}
        for tools in ([], ["echo"]):
            with fake.tools(required=False, pin=pins) as toolset:
                assert [*tools_of(toolset)] == tools
            assert pins.exists() is bool(tools)
            fake.listed = {"tools": [ECHO]}


def test_a_toolset_is_closed_while_a_missing_server_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_PAUSES", (0.0,))
    with raw_server("silent", required=False, timeout=0.5) as toolset:
        assert tools_of(toolset) == tools_of(toolset) == {}
        later = connection_of(toolset)._listing_task
        assert later is not None
    assert later.done() and tasks_left() == []


def test_required_is_true_or_false() -> None:
    with pytest.raises(TypeError, match="required must be True or False"):
        gone(required="no")


# Processes.


@in_each_mode_and_an_era
def test_children_of_a_program_end_with_it(mode: str, speaks: list[str]) -> None:
    with raw_server(*speaks) as toolset:
        child = int(result_of(mode, toolset, ToolCall("begets")).content)
        assert is_alive(child)
    assert not is_alive(child)


def test_the_error_says_how_a_program_ended() -> None:
    for code, how in (
        ("import sys; sys.exit(3)", "it ended with the exit status 3"),
        ("import os; os.kill(os.getpid(), 9)", "the signal 9 ended it"),
    ):
        with McpToolset.stdio("python3", "-c", code, name="ends") as toolset:
            with pytest.raises(McpUnavailable) as caught:
                tools_of(toolset)
            assert str(caught.value) == f"the MCP server 'ends' cannot be reached: {how} (the program 'python3')"
