"""Runs with and without captured content, and accessors of what was captured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import run
from tests.sample_tools import add, fail
from traced_tools import Advisor, ChatClient, ToolCall, ToolResult, tool
from traced_tools.observe import content, names
from traced_tools.observe import genai_messages as shapes
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

CONTENT = {name for each in (*names.SPANS, *names.EVENTS.values()) for name in each.content}


@tool(capture=False)
def discreet(secret: str) -> str:
    """Raise, quoting the argument."""
    raise ValueError(f"cannot use {secret}")


@tool(capture=False)
def quiet(secret: str) -> str:
    """Return the argument."""
    return secret


class Reasons(Advisor):
    """Finds the reason for a call."""

    name, order = "reasons", 350

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(intent=f"because of {call.name}"))


def talk(telemetry: Telemetry, mode: str, *calls: ToolCall, tools: Any = (add, fail, discreet, quiet)) -> None:
    """A run whose first answer is `calls`, the second `done`."""
    model = ScriptedChatModel([["let me see", *calls], "done"])
    client = ChatClient(model, system="Be brief.", tools=list(tools), advisors=[Reasons()], telemetry=telemetry.options)
    run(mode, client.prompt("1+2?"))


def on_spans(telemetry: Telemetry) -> set[str]:
    return CONTENT & {name for span in telemetry.spans for name in span.attributes or {}}


def on_events(telemetry: Telemetry) -> set[str]:
    return CONTENT & {name for event in telemetry.events for name in event.attributes}


def captured_value(telemetry: Telemetry, span: str, name: str) -> Any:
    """The JSON of an attribute of the only span of that name."""
    return json.loads(str((telemetry.one(span).attributes or {})[name]))


def refuse_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let anything that begins to make content fail."""

    def never(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("content was made")

    for function in ("InputMessages", "output_messages", "SystemInstructions", "ToolDefinitions", "from_json"):
        monkeypatch.setattr(shapes, function, never)
    monkeypatch.setattr(content, "truncate_json", never)
    monkeypatch.setattr(content, "truncate_utf8", never)
    monkeypatch.setattr(content.LazyContent, "__init__", never)
