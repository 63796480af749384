"""Published tools: calls that a benchmark accepts run, and others get an error with the reason."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.fixtures import ReferenceCall, bfcl_calls, bfcl_queries, bfcl_tools, livemcp_tools
from traced_tools import AssistantMessage, ChatClient, LoopLimits, ToolCall, ToolContext, ToolResult, UserMessage
from traced_tools.core import ToolCallback, ToolDefinition, ToolMetadata
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback, ToolCallingManager, tool_callbacks

KINDS = ("own", "function")
INVALID, MENDED = 24, 3
"""Reference calls that do not fit their schema, and those of them that do without a null for an optional field."""


class Own:
    """A tool with only a JSON Schema, like one of a server; it records its arguments."""

    def __init__(self, name: str, schema: dict[str, Any]) -> None:
        self.definition = ToolDefinition(name=name, input_schema=schema)
        self.metadata = ToolMetadata()
        self.inputs: list[Any] = []

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        self.inputs.append(json.loads(tool_input))
        return "done"


class OfFunction(FunctionToolCallback):
    """A function with only a JSON Schema; it records its arguments."""

    def __init__(self, name: str, schema: dict[str, Any]) -> None:
        self.inputs: list[Any] = []
        super().__init__(self._take, definition=ToolDefinition(name=name, input_schema=schema))

    def _take(self, **given: Any) -> str:
        self.inputs.append(given)
        return "done"


def made(kind: str, name: str, schema: dict[str, Any]) -> Own | OfFunction:
    return Own(name, schema) if kind == "own" else OfFunction(name, schema)


def execute(tools: list[Any], calls: list[ToolCall]) -> list[ToolResult]:
    """Run calls by hand, however often they repeat each other."""
    response = ChatResponse(AssistantMessage(tool_calls=calls))
    limits = LoopLimits(max_repeated_calls=None)
    return list(
        ToolCallingManager().execute_tool_calls([UserMessage("?")], response, tools=tools, limits=limits).results
    )


def queries() -> Iterator[tuple[list[tuple[str, dict[str, Any]]], list[tuple[str, ReferenceCall]]]]:
    """Each query's tools as (name, schema), and its correct calls by name."""
    tools = {tool["id"]: (tool["name"], tool["parameters"]) for tool in bfcl_tools()}
    asked = [query for query in bfcl_queries() if query.get("calls")]
    names = [name for query in asked for call in query["calls"] for name in call]
    for (query, named), about in zip(
        groupby(zip(names, bfcl_calls(), strict=True), key=lambda each: each[1].query), asked, strict=True
    ):
        assert query == about["id"]
        yield [tools[each] for each in about["offered"]], list(named)


def wrong_fields(call: ReferenceCall) -> set[str]:
    """The fields that the library's own validator reports."""
    found: set[str] = set()
    for error in Draft202012Validator(call.schema).iter_errors(call.arguments):
        path = ".".join(map(str, error.path))
        missing = (
            [name for name in error.validator_value if name not in error.instance]
            if error.validator == "required"
            else []
        )
        found |= {f"{path}.{name}".lstrip(".") for name in missing} if missing else {path}
    return found


def repaired(call: ReferenceCall) -> ReferenceCall:
    """The call without the optional fields that are null, and with numbers as strings where the schema wants those."""
    needed = call.schema.get("required", ())
    kept = {name: value for name, value in call.arguments.items() if value is not None or name in needed}
    for error in Draft202012Validator(call.schema).iter_errors(kept):
        if error.validator == "type" and error.validator_value == "string" and type(error.instance) in (int, float):
            (name,) = error.absolute_path
            kept[name] = str(error.instance)
    return ReferenceCall(call.query, call.schema, kept)


def in_any_order(arguments: dict[str, list[Any]]) -> dict[str, list[str]]:
    """The arguments of the calls of each tool, whatever the order of calls and of fields."""
    return {
        name: sorted(json.dumps(each, sort_keys=True, default=repr) for each in of) for name, of in arguments.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_valid_call_reaches_its_tool_unchanged_and_an_invalid_one_lists_its_fields(kind: str) -> None:
    decisions = Counter[str]()
    for offered, calls in queries():
        tools = {name: made(kind, name, schema) for name, schema in offered}
        asked = [ToolCall(name, call.arguments, id=str(index)) for index, (name, call) in enumerate(calls)]
        expected: dict[str, list[Any]] = {}
        for (name, call), result in zip(calls, execute(list(tools.values()), asked), strict=True):
            fields, arguments = wrong_fields(call), call.arguments
            if fields and not wrong_fields(repaired(call)):
                fields, arguments = set(), repaired(call).arguments
                decisions["mended"] += 1
            decisions[result.decision] += 1
            if fields:
                assert result.decision == "invalid_arguments", call.query
                assert all(f"{field}: " in result.content for field in fields), call.query
            else:
                assert (result.decision, result.content) == ("allowed", "done"), call.query
                expected.setdefault(name, []).append(arguments)
        received = {name: each.inputs for name, each in tools.items() if each.inputs}
        assert in_any_order(received) == in_any_order(expected), calls
    assert decisions == {"allowed": 1640 - INVALID + MENDED, "invalid_arguments": INVALID - MENDED, "mended": MENDED}


def test_names_with_dots_are_called_like_any_other() -> None:
    dotted = [tool for tool in bfcl_tools() if "." in tool["name"]]
    assert len(dotted) == 1322
    for tool in dotted[::25]:
        own = Own(tool["name"], {"type": "object"})
        (result,) = execute([own], [ToolCall(tool["name"], {"x": 1}, id="1")])
        assert (result.tool, result.content, own.inputs) == (tool["name"], "done", [{"x": 1}])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_tools_of_every_real_server_can_be_offered_and_called(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    offered = 0
    for _, published in groupby(livemcp_tools(), key=lambda tool: tool["server"]):
        tools: list[Any] = [made(kind, tool["name"], tool["inputSchema"]) for tool in published]
        model = ScriptedChatModel([[ToolCall(tool.definition.name, "{}") for tool in tools], "done"])
        response = ChatClient(model, tools=tools, limits=LoopLimits(max_tool_calls=None)).prompt("?").call()
        assert model.requests[0].tools == tuple(tool.definition for tool in tools)
        assert [result.decision for result in response.tool_results] == [
            "invalid_arguments" if required(tool) else "allowed" for tool in tools
        ]
        for tool, result in zip(tools, response.tool_results, strict=True):
            assert all(f"{field}: is required" in result.content for field in required(tool)[:10])
        offered += len(tools)
    assert offered == 527
    assert not [each for each in caplog.records if each.levelno > logging.WARNING]


def required(tool: ToolCallback) -> list[str]:
    """The required fields of a call."""
    return sorted(tool.definition.input_schema.get("required", []))


@pytest.mark.parametrize("kind", KINDS)
def test_a_published_tool_with_an_invalid_schema_validates_what_the_schema_means(kind: str) -> None:
    (tool,) = [tool for tool in livemcp_tools() if tool["id"] == "pdf-reader-mcp/read_pdf"]
    reader = made(kind, tool["name"], tool["inputSchema"])
    right = {"sources": [{"path": "a.pdf"}]}
    calls = [ToolCall("read_pdf", right, id="1"), ToolCall("read_pdf", {"sources": 5}, id="2")]
    read, refused = execute([reader], calls)
    assert (read.content, reader.inputs) == ("done", [right])
    assert (refused.decision, "sources: must be an array" in refused.content) == ("invalid_arguments", True)


def test_all_published_tools_have_unique_names_for_every_provider() -> None:
    by_server = groupby(livemcp_tools(), key=lambda tool: tool["server"])
    assert sum(len(tool_callbacks([made("own", tool["name"], {}) for tool in tools])) for _, tools in by_server) == 527
