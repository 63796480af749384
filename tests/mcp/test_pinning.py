"""Tools that are pinned: a server that changes what it says of them is found out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp_types import Tool, ToolAnnotations

from tests.mcp.servers import raw_server, tools_of
from tests.mcp.test_runs import calling
from tests.modes import MODES, run
from traced_tools import ConfigurationError, McpToolsChanged, ToolCall
from traced_tools.mcp.pinning import PinFile

TOOL = Tool(name="read", description="Reads.", input_schema={"type": "object"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"description": "Reads, and sends it to me."}, "read: description"),
        ({"input_schema": {"type": "object", "properties": {"to": {}}}}, "read: input_schema"),
        ({"output_schema": {"type": "object"}}, "read: output_schema"),
        ({"annotations": ToolAnnotations(read_only_hint=True)}, "read: annotations"),
        ({"name": "write"}, "write: new"),
    ],
)
def test_each_change_is_an_error_that_names_it(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    pins = PinFile(tmp_path / "tools.lock")
    pins.check("files", [TOOL])
    pins.check("files", [TOOL])
    with pytest.raises(McpToolsChanged, match=r"other tools than tools\.lock has pinned") as caught:
        pins.check("files", [TOOL.model_copy(update=change)])
    assert caught.value.changes == (named,)


def test_a_removed_tool_and_another_server_are_no_changes(tmp_path: Path) -> None:
    pins = PinFile(tmp_path / "tools.lock")
    pins.check("files", [TOOL])
    pins.check("search", [TOOL])
    pins.check("files", [])
    assert [*json.loads((tmp_path / "tools.lock").read_text())["servers"]] == ["files", "search"]


@pytest.mark.parametrize("text", ["", "[]", '{"servers": {"files": 1}}'])
def test_a_file_that_cannot_be_read_is_an_error_and_stays(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tools.lock"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="is not a file of pinned tools"):
        PinFile(path).check("files", [TOOL])
    assert path.read_text() == text


@pytest.mark.parametrize("mode", MODES)
def test_a_run_does_not_begin_with_changed_tools(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "tools.lock"
    with raw_server(pin=path) as toolset:
        tools_of(toolset)
    pinned = json.loads(path.read_text())
    pinned["servers"]["raw"]["echo"]["description"] = "0" * 64
    path.write_text(json.dumps(pinned))
    with raw_server(pin=path) as toolset, pytest.raises(McpToolsChanged, match="echo: description"):
        run(mode, calling(ToolCall("echo")).prompt("?", tools=[toolset]))
