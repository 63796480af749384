"""Tool search over the 70 tools of an MCP server and local ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.mcp.paint_server import COLOURS, THINGS
from tests.mcp.servers import HERE, HttpServer, in_each_mode_and_era, serving
from tests.modes import run
from tests.search.searching import SEARCH, looks, offered, results_in
from traced_tools import Approve, ChatClient, MemoryAdvisor, ToolCall, ToolSearchToolCallingAdvisor, tool
from traced_tools.mcp import McpToolset
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.search import KeywordToolIndex
from traced_tools.testing import ScriptedChatModel

PAINT = str(HERE / "paint_server.py")


@pytest.fixture(scope="module")
def painters() -> Iterator[HttpServer]:
    """The server with 70 tools, over HTTP."""
    with serving(PAINT) as server:
        yield server


@tool(requires_approval=True)
def order_paint(litres: int) -> str:
    """Order paint."""
    return f"ordered {litres} l"


def paints(thing: str, colour: str, id: str, **arguments: Any) -> ToolCall:
    return ToolCall(f"paint_{thing}_{colour}", arguments, id=id)


@in_each_mode_and_era
def test_what_a_search_found_is_offered_after_trimming_in_streams_and_when_a_run_resumes(
    mode: str, era: str, painters: HttpServer
) -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=4)
    search = ToolSearchToolCallingAdvisor(index=KeywordToolIndex(), max_results=1)

    def turn(*turns: Any, toolset: McpToolset, search: Any = search) -> tuple[ChatClient, ScriptedChatModel]:
        model = ScriptedChatModel(list(turns))
        advisors = [search, MemoryAdvisor(memory)]
        return ChatClient(model, tools=[order_paint, toolset], advisors=advisors), model

    with painters.tools() as toolset:
        # found and called
        client, model = turn(
            looks("paint the barn crimson", id="s1"),
            paints("barn", "crimson", "p1", coats=2),
            "Done.",
            toolset=toolset,
        )
        response = run(mode, client.prompt("Barn.", conversation_id="c"))
        assert [offered(each) for each in model.requests] == [
            [SEARCH],
            [SEARCH, "paint_barn_crimson"],
            [SEARCH, "paint_barn_crimson"],
        ]
        assert results_in(response.messages) == ['["paint_barn_crimson"]', "crimson barn, 2 coats"]

        # trimmed: the model reads nothing of the search, and is still offered what it found
        for number in range(3):
            client, model = turn(f"Answer {number}.", toolset=toolset)
            run(mode, client.prompt(f"Small talk {number}.", conversation_id="c"))
        assert offered(model.requests[0]) == [SEARCH, "paint_barn_crimson"]
        assert not results_in(model.requests[0].messages)

        # paused, after another tool was found in the same run
        both = [looks("order paint", id="s2"), looks("olive fence", id="s3")]
        client, model = turn(both, ToolCall("order_paint", {"litres": 5}, id="o"), toolset=toolset)
        paused = run(mode, client.prompt("Order.", conversation_id="c"))
        assert paused.stop_reason == "awaiting_approval"
        known = [SEARCH, "paint_barn_crimson", "order_paint", "paint_fence_olive"]
        assert offered(model.requests[1]) == known

    # resumed elsewhere: nothing but the state and the memory is known
    with painters.tools() as toolset:
        fresh = ToolSearchToolCallingAdvisor(index=KeywordToolIndex(), max_results=1)
        client, model = turn(paints("fence", "olive", "p2"), "Painted.", toolset=toolset, search=fresh)
        response = run(mode, client.resume(paused.state, {"o": Approve(by="ana")}))
        assert [offered(each) for each in model.requests] == [known, known]
        assert [each.content for each in response.tool_results] == ["ordered 5 l", "olive fence, 1 coats"]


def test_a_search_over_local_tools_and_those_of_a_server_sends_few_definitions() -> None:
    telemetry = Telemetry()
    turns = [looks("paint a green door", max_results=3), paints("door", "green", "p"), "Done."]
    search = ToolSearchToolCallingAdvisor(index=KeywordToolIndex())
    with McpToolset.stdio(sys.executable, PAINT, name="paint") as toolset:
        model = ScriptedChatModel(turns)
        client = ChatClient(model, tools=[order_paint, toolset], advisors=[search], telemetry=telemetry.options)
        response = client.prompt("?").call()
    assert response.tool_results[1].content == "green door, 1 coats"
    assert max(len(offered(each)) for each in model.requests) <= 1 + 3
    assert len(COLOURS) * len(THINGS) == 70
    span = telemetry.one("execute_tool paint_door_green").attributes
    assert span is not None and span["traced_tools.tool.source"] == "paint"
    assert telemetry.parent(telemetry.one("tools/call paint_door_green")) == "execute_tool paint_door_green"
