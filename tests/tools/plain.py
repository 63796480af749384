"""Minimal tools, and the results of calls to them in the loop."""

from __future__ import annotations

from typing import Any

from tests.modes import run
from traced_tools import ChatClient, ToolCall, ToolContext
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.testing import ScriptedChatModel


def nothing() -> str:
    """Take nothing."""
    return "nothing given"


def whoami(context: ToolContext) -> str:
    """Return who is asking."""
    return f"{context['user']} {context.tool} {context.call_id} {context.iteration}"


class Own:
    """A tool that implements the protocol itself."""

    def __init__(self, name: str = "own", return_direct: bool = False, answer: Any = None) -> None:
        self.definition = ToolDefinition(name=name)
        self.metadata = ToolMetadata(return_direct=return_direct)
        self.inputs: list[tuple[str, ToolContext | None]] = []
        self._answer = answer

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        self.inputs.append((tool_input, context))
        return tool_input if self._answer is None else self._answer


def in_loop(mode: str, *calls: ToolCall, tools: Any, **settings: Any) -> list[str]:
    model = ScriptedChatModel([list(calls), "done"])
    return [each.content for each in run(mode, ChatClient(model, tools=tools, **settings).prompt("?")).tool_results]
