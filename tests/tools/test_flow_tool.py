"""Tools whose functions are flows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.modes import MODES, run
from traced_tools import ChatClient, ToolCall, ToolContext
from traced_tools.core import ToolMetadata
from traced_tools.flow import perform
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools.flow_tool import FlowToolCallback


async def _later(text: str) -> str:
    await asyncio.sleep(0)
    return text


async def join(context: ToolContext, words: list[str]) -> str:
    """Join words.

    Args:
        context: identifies the call.
        words: the words.
    """
    loud = await perform(str.upper, " ".join(words))
    return f"{await perform(_later, loud)} in iteration {context.iteration}"


async def fail() -> str:
    """Fail."""
    raise await perform(LookupError, "nothing is there")


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("mode", MODES)
def test_a_flow_performs_blocking_and_async_functions_in_each_mode(mode: str, timeout: float | None) -> None:
    tool = FlowToolCallback(join, metadata=ToolMetadata(timeout=timeout))
    model = ScriptedChatModel([[ToolCall("join", {"words": [each, "b"]}) for each in "ax"], "done"])
    response = run(mode, ChatClient(model, tools=[tool]).prompt("?"))
    assert [each.content for each in response.tool_results] == ["A B in iteration 1", "X B in iteration 1"]
    assert {*tool.definition.input_schema["properties"]} == {"words"}


@pytest.mark.parametrize("mode", MODES)
def test_what_a_flow_raises_is_the_error_of_the_tool(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("fail"), "done"])
    response = run(mode, ChatClient(model, tools=[FlowToolCallback(fail)]).prompt("?"))
    assert (response.tool_results[0].outcome, response.tool_results[0].error_type) == ("error", "LookupError")


@pytest.mark.parametrize("call", [lambda tool, text: tool.call(text), lambda tool, text: asyncio.run(tool.acall(text))])
def test_a_flow_can_be_called_without_a_run(call: Callable[[Any, str], str]) -> None:
    assert call(FlowToolCallback(join), '{"words": ["a"]}') == "A in iteration 0"
