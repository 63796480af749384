"""The lists of servers' tools: what is left out of them, how long they are kept, and where they end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.markers import MARKER
from tests.mcp.fake_http import ECHO, faking
from tests.mcp.servers import raw_server, tools_of
from tests.mcp.test_runs import calling
from tests.modes import MODES, run
from tests.sweeps import check_each, sweep
from traced_tools import ToolCall
from traced_tools.flow.workers import _portal
from traced_tools.mcp import McpToolset, connection
from traced_tools.tools import tool_callbacks

ODD: dict[str, tuple[dict[str, Any] | Any, str]] = {
    "schema of a text": ({"inputSchema": {"type": "string", "title": MARKER}}, "its inputSchema is not"),
    "no schema": ({"inputSchema": None}, "its inputSchema is not"),
    "schema that is a list": ({"inputSchema": [MARKER]}, "its inputSchema is not"),
    "type that is a number": ({"inputSchema": {"type": 1}}, "its inputSchema is not"),
    "properties that are a list": ({"inputSchema": {"type": "object", "properties": [MARKER]}}, "its inputSchema is"),
    "property that is a text": ({"inputSchema": {"properties": {"a": MARKER}}}, "its inputSchema is not"),
    "required that is a text": ({"inputSchema": {"type": "object", "required": MARKER}}, "its inputSchema is not"),
    "required that has a number": ({"inputSchema": {"type": "object", "required": [1]}}, "its inputSchema is not"),
    "description that is a number": ({"description": 5}, "its description is invalid"),
    "annotations that are a text": ({"annotations": MARKER}, "its annotations is invalid"),
    "output schema that is a text": ({"outputSchema": MARKER}, "its outputSchema is invalid"),
    "icons that are a text": ({"icons": MARKER}, "its icons is invalid"),
    "no name": ({"name": None}, "number 2 (it has no usable name)"),
    "empty name": ({"name": " "}, "number 2 (it has no usable name)"),
    "name that is a number": ({"name": 7}, "number 2 (it has no usable name)"),
    "name with a line feed": ({"name": "a\nb"}, "number 2 (it has no usable name)"),
    "no object": ("odd", "number 2 (it has no usable name)"),
    "nothing": (None, "number 2 (it has no usable name)"),
}
UNTYPED = {
    "union": {"anyOf": [{"type": "object"}, {"type": "object"}]},
    "dialect alone": {"$schema": "http://json-schema.org/draft-07/schema#"},
    "properties": {"properties": {"a": {"type": "string"}}},
    "list of types": {"type": ["object", "null"], "properties": {}},
    "empty": {},
    "any property": {"properties": {"a": True}},
}


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
def test_a_tool_that_cannot_be_used_is_named_and_counted_and_the_others_are_offered(
    modern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def check(case: tuple[Any, str]) -> None:
        caplog.clear()
        telemetry = Telemetry()
        odd = {**ECHO, "name": "odd", **case[0]} if isinstance(case[0], dict) else case[0]
        with faking(modern=modern) as fake, fake.tools() as toolset:
            fake.listed = {"tools": [ECHO, odd, {**ECHO, "name": "other"}]}
            response = calling(ToolCall("echo"), telemetry=telemetry.options).prompt("?", tools=[toolset]).call()
            assert response.tool_results[0].content == "fine"
            assert [*tools_of(toolset)] == ["echo", "other"]
        (line,) = [each for each in caplog.messages if "left out" in each]
        assert line.startswith("tools of the MCP server 'fake': left out, because they cannot be used: ")
        assert case[1] in line and MARKER not in line
        (point,) = telemetry.metric("traced_tools.mcp.tools.omitted")
        assert total(point) == 1
        labels = {"traced_tools.tool.source": "fake", "traced_tools.mcp.omission": "invalid"}
        assert dict(point.attributes) == labels

    check_each(ODD, check)


def test_a_schema_without_the_type_object_gets_it() -> None:
    with faking() as fake, fake.tools() as toolset:
        fake.listed = {"tools": [{**ECHO, "name": name, "inputSchema": schema} for name, schema in UNTYPED.items()]}
        tools = tool_callbacks(toolset)
    assert [tool.definition.input_schema for tool in tools] == [{**each, "type": "object"} for each in UNTYPED.values()]


def test_null_for_no_properties_is_left_out_of_a_schema() -> None:
    schema = {"type": "object", "properties": None, "required": None, "title": "T"}
    with faking() as fake, fake.tools() as toolset:
        fake.listed = {"tools": [{**ECHO, "inputSchema": schema}]}
        assert tools_of(toolset)["echo"].definition.input_schema == {"type": "object", "title": "T"}


def test_many_tools_that_cannot_be_used_are_one_line_of_the_log_until_they_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with faking() as fake, fake.tools() as toolset:
        for count in (100, 100, 101):
            fake.listed = {"tools": [{**ECHO, "name": f"odd_{number}", "inputSchema": 1} for number in range(count)]}
            toolset.refresh()
            assert tools_of(toolset) == {}
    lines = [each for each in caplog.messages if "left out" in each]
    assert len(lines) == 1 and "odd_9" in lines[0] and "odd_10 " not in lines[0] and lines[0].endswith(", …")


def test_marks_for_headers_that_are_invalid_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with raw_server("marked", "modern") as toolset:
        assert "valid" in tools_of(toolset)
    (line,) = [each for each in caplog.messages if "left out" in each]
    assert "'spaced' (its x-mcp-header marks are invalid)" in line


# How long a list is kept.


@sweep(
    mode=MODES,
    times=({}, {"ttlMs": 0}, {"ttlMs": None}, {"ttlMs": "soon"}, {"ttlMs": -1}),
    options=({}, {"list_changed": True}, {"modern": True}),
)
def test_tools_of_a_server_that_states_no_time_are_listed_once(
    mode: str, times: dict[str, Any], options: dict[str, bool]
) -> None:
    with faking(**options) as fake, fake.tools() as toolset:
        first = {"ttlMs": 0} if "modern" in options else {}  # of a server that the process does not know yet
        fake.listed = {**first, **times, "tools": [ECHO]}
        for _ in range(3):
            run(mode, calling(ToolCall("echo")).prompt("?", tools=[toolset]))
        assert len(fake.sent("tools/list")) == 1


def test_tools_are_listed_again_after_five_minutes_unless_the_server_reports_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    for reports, lists in ((False, 2), (True, 1)):
        with faking(list_changed=reports) as fake, fake.tools() as toolset:
            tools_of(toolset)
            now[0] += 299
            tools_of(toolset)
            assert len(fake.sent("tools/list")) == 1
            now[0] += 2
            tools_of(toolset)
            assert len(fake.sent("tools/list")) == lists


def test_tools_that_are_refreshed_are_listed_again() -> None:
    with faking() as fake, fake.tools() as toolset:
        toolset.refresh()
        assert [*tools_of(toolset)] == ["echo"]
        fake.listed = {"tools": [ECHO, {**ECHO, "name": "new"}]}
        assert [*tools_of(toolset)] == ["echo"]
        toolset.refresh()
        assert [*tools_of(toolset)] == ["echo", "new"]


def test_a_list_that_fails_is_listed_again_although_the_connection_is_the_same() -> None:
    with faking() as fake, fake.tools() as toolset:
        tools_of(toolset)
        toolset.refresh()
        fake.listed = {"tools": "none"}
        assert [*tools_of(toolset)] == ["echo"]
        fake.listed = {"tools": [{**ECHO, "name": "new"}]}
        assert [*tools_of(toolset)] == ["new"]


# Where a list ends.


@pytest.mark.parametrize("cursor", ["again", "", "b"])
def test_a_cursor_that_repeats_ends_the_list(cursor: str, caplog: pytest.LogCaptureFixture) -> None:
    pages = {None: "one", "b": "two", "": "two", "again": "two"}

    def page(place: str | None) -> dict[str, Any]:
        return {"tools": [{**ECHO, "name": pages[place]}], "nextCursor": cursor}

    with faking() as fake, fake.tools() as toolset:
        fake.listed = page
        assert [*tools_of(toolset)] == ["one", "two"]
        assert len(fake.sent("tools/list")) == 2
    assert any("the list ends at a cursor that the server repeats" in each for each in caplog.messages)


def test_cursors_in_a_circle_end_the_list() -> None:
    def page(place: str | None) -> dict[str, Any]:
        number = int(place or 0)
        return {"tools": [{**ECHO, "name": f"t{number}"}], "nextCursor": str((number + 1) % 3)}

    with faking() as fake, fake.tools() as toolset:
        fake.listed = page
        assert {"t0", "t1", "t2"} == {*tools_of(toolset)}
        assert len(fake.sent("tools/list")) == 4  # the first page has no cursor


@pytest.mark.parametrize("mode", MODES)
def test_tools_beyond_the_limit_are_logged_and_counted(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    def page(place: str | None) -> dict[str, Any]:
        number = int(place or 0)
        return {"tools": [{**ECHO, "name": f"t{number + each}"} for each in range(3)], "nextCursor": str(number + 3)}

    telemetry = Telemetry()
    with faking() as fake, fake.tools(max_tools=4) as toolset:
        fake.listed = page  # without end
        run(mode, calling(ToolCall("t3"), telemetry=telemetry.options).prompt("?", tools=[toolset]))
        assert [*tools_of(toolset)] == ["t0", "t1", "t2", "t3"]
        assert len(fake.sent("tools/list")) == 2
    (line,) = [each for each in caplog.messages if "max_tools" in each]
    assert line == "tools of the MCP server 'fake': only the first 4 are offered: set max_tools= for more, or filter="
    (point,) = telemetry.metric("traced_tools.mcp.tools.omitted")
    assert (total(point), point.attributes["traced_tools.mcp.omission"]) == (2, "limit")


def test_a_limit_that_is_no_number_is_an_error() -> None:
    for wrong in (0, -1, True, None, "5"):
        with pytest.raises((TypeError, ValueError), match="max_tools must be"):
            McpToolset.stdio("x", name="x", max_tools=wrong)  # type: ignore[arg-type]


def test_the_event_loop_goes_on_while_tools_are_made() -> None:
    """The function that chooses tools waits for the loop, so the test ends only if the loop goes on."""

    def chooses(server: str, tool: Any) -> bool:
        went_on = threading.Event()
        _portal._open().call_soon_threadsafe(went_on.set)
        return went_on.wait(30)

    with faking() as fake, fake.tools(filter=chooses) as toolset:
        assert [*tools_of(toolset)] == ["echo"]
