"""A process that forks while it uses servers: parent and child each have their own connection."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mcp.servers import HttpServer, is_alive, raw_server, sdk_server, tools_of
from tests.mcp.test_runs import calling
from tests.modes import ALL_MODES, run
from tests.observe.test_forked_runs import status_of_child
from tests.waiting import in_time, until
from traced_tools import ToolCall
from traced_tools.mcp import McpToolset

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")


def process_of(toolset: McpToolset, mode: str = "call") -> int:
    return int(run(mode, calling(ToolCall("process_id")).prompt("?", tools=[toolset])).tool_results[0].content)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_forked_child_has_a_process_of_its_own_which_ends_with_its_block(mode: str, tmp_path: Path) -> None:
    found = tmp_path / "process_id"

    def use() -> None:
        found.write_text(str(process_of(toolset, mode)))
        toolset.__exit__(None, None, None)

    with raw_server() as toolset:
        of_parent = process_of(toolset)
        assert status_of_child(use) == 0
        of_child = int(found.read_text())
        assert of_child != of_parent
        assert not is_alive(of_child)
        assert process_of(toolset, mode) == of_parent
    assert not is_alive(of_parent)


def test_a_forked_child_has_a_connection_of_its_own_over_http(http_server: HttpServer, era: str) -> None:
    with http_server.tools() as toolset:
        server = process_of(toolset)
        assert status_of_child(lambda: _check(process_of(toolset) == server)) == 0
        assert process_of(toolset) == server


@pytest.mark.slow
def test_a_call_goes_on_while_the_process_forks(tmp_path: Path) -> None:
    path = tmp_path / "hanging"
    with sdk_server() as toolset:
        hang = tools_of(toolset)["hang"]
        hang.metadata = hang.metadata.replace(timeout=1.0)
        client = calling(ToolCall("hang", {"path": str(path)}))
        outcomes: list[object] = []
        thread = threading.Thread(
            target=lambda: outcomes.append(client.prompt("?", tools=[hang]).call().tool_results[0].outcome)
        )
        thread.start()
        until(path.with_suffix(".began").exists)
        assert status_of_child(lambda: _check(process_of(toolset) > 0)) == 0
        in_time(thread.join)
    assert outcomes == ["timeout"]


def test_a_server_ends_with_its_parents_block_although_a_child_lives_on() -> None:
    with raw_server() as toolset:
        process_id = process_of(toolset)
        child = _living_child()
        began = time.monotonic()
    try:
        assert time.monotonic() - began < 1.5  # the SDK would wait 2 s for a server whose input stays open
        assert not is_alive(process_id)
    finally:
        child()


def _living_child() -> Callable[[], None]:
    """Fork a child that lives until the returned function is called."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)

    def end() -> None:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)

    return end


def _check(condition: bool) -> None:
    assert condition
