"""What a client of MCP does by the specification, and what other frameworks do, each with a server of each era."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.mcp.asking_server import STATE
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import RAW, HttpServer, in_each_mode_and_era, raw_server, tools_of
from tests.mcp.test_failures import result_of
from tests.mcp.test_misbehaving import eras
from tests.mcp.test_runs import calling
from tests.modes import MODES, run
from traced_tools import ChatClient, ToolCall, ToolExecutionError
from traced_tools.core import ToolErrors
from traced_tools.errors import (
    InvalidArguments,
    McpCallLost,
    McpError,
    McpRequestError,
    McpToolError,
    ToolNotFoundError,
)
from traced_tools.mcp import McpToolset, session
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel
from traced_tools.testing.server import Received
from traced_tools.tools import AugmentedArguments, augmented, tool_callbacks


def request_of(toolset: McpToolset, arguments: str = "{}") -> dict[str, Any]:
    """The parameters of the request that a call sends."""
    found: dict[str, Any] = json.loads(tools_of(toolset)["request"].call(arguments))
    return found


# Providers and names.


@pytest.mark.parametrize("mode", MODES)
def test_no_servers_and_no_tools_are_an_empty_list(mode: str) -> None:
    with McpToolset() as nothing:
        assert tool_callbacks(nothing) == []
        assert run(mode, ChatClient(ScriptedChatModel(["done"])).prompt("?", tools=[nothing])).content == "done"


@eras
@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (lambda server, tool: server == "b", {"b.echo", "b.counts"}),
        (lambda server, tool: tool.name == "echo", {"a.echo", "b.echo"}),
        (lambda server, tool: server == "a" and tool.name == "echo", {"a.echo"}),
        (lambda server, tool: True, {"a.echo", "a.counts", "b.echo", "b.counts"}),
    ],
    ids=["server", "tool", "both", "all"],
)
def test_a_filter_selects_by_server_by_tool_or_by_both(speaks: list[str], chosen: Any, names: set[str]) -> None:
    def few(server: str, tool: Any) -> bool:
        return tool.name in ("echo", "counts") and bool(chosen(server, tool))

    servers = [raw_server(*speaks, name=name, filter=few) for name in ("a", "b")]
    with McpToolset(*servers) as both:
        found = {f"{tool.metadata.source}.{tool.definition.name.rpartition('_')[2]}" for tool in tool_callbacks(both)}
    assert found == names


@eras
@pytest.mark.parametrize("mode", MODES)
def test_a_server_is_called_by_its_own_name_of_a_tool_which_the_span_has(mode: str, speaks: list[str]) -> None:
    telemetry = Telemetry()
    with raw_server(*speaks, prefix=True) as toolset:
        offered = {tool.definition.description: tool.definition.name for tool in tool_callbacks(toolset)}
        assert (offered["Does a_b."], offered["Does a.b."][:8]) == ("raw_a_b", "raw_a_b_")
        client = calling(ToolCall(offered["Does a.b."], {"text": "x"}), telemetry=telemetry.options)
        (result,) = run(mode, client.prompt("?", tools=[toolset])).tool_results
    assert result.content == "a.b: x"
    assert telemetry.parent(telemetry.one("tools/call a.b")) == f"execute_tool {offered['Does a.b.']}"


@eras
def test_names_stay_when_servers_list_their_tools_again_and_describe_them_anew(speaks: list[str]) -> None:
    with McpToolset(raw_server("restless", *speaks, name="a"), raw_server("restless", *speaks, name="b")) as both:
        first, second = tools_of(both), tools_of(both)
        assert {*second} - {*first} == {"tool_2", "b_tool_2"}
        assert {*first} - {*second} == {"tool_1", "b_tool_1"}
        described = [tools["b_echo"].definition.description for tools in (first, second)]
        assert described == ["Does echo, 1.", "Does echo, 2."]
        assert second["b_process_id"].call("{}") == first["b_process_id"].call("{}") != first["process_id"].call("{}")


def test_tools_of_servers_are_not_found_by_their_names_alone(http_server: HttpServer) -> None:
    with http_server.tools() as toolset:
        assert "add" in tools_of(toolset)
        with pytest.raises(ToolNotFoundError, match="'add'"):
            ChatClient(ScriptedChatModel(["done"]), tools=["add"])


# Calls.


@eras
def test_no_arguments_are_sent_as_an_empty_object(speaks: list[str]) -> None:
    with raw_server(*speaks) as toolset:
        assert [request_of(toolset, text)["arguments"] for text in ("", " ", "{}")] == [{}, {}, {}]
        result = result_of("call", toolset, ToolCall("request", ""))
        assert json.loads(result.content)["arguments"] == {}


class Thinking(BaseModel):
    inner_thought: str


@eras
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_server_gets_additional_arguments_only_if_they_are_kept(mode: str, keep: bool, speaks: list[str]) -> None:
    telemetry, heard = Telemetry(), list[str]()

    def hear(event: AugmentedArguments[Thinking]) -> None:
        heard.append(event.arguments.inner_thought)

    with raw_server(*speaks) as toolset:
        tools = augmented(toolset, arguments=Thinking, on_arguments=hear, keep=keep)
        calls = [ToolCall("request", {"inner_thought": "why", "text": "x"}), ToolCall("request", {"text": "x"})]
        sent, refused = run(mode, calling(*calls, telemetry=telemetry.options).prompt("?", tools=tools)).tool_results
    assert json.loads(sent.content)["arguments"] == {"text": "x", **({"inner_thought": "why"} if keep else {})}
    assert refused.decision == "invalid_arguments"
    assert heard == ["why"]
    span = telemetry.one("execute_tool request")
    assert (span.attributes or {})["traced_tools.tool.source"] == "raw"
    assert telemetry.parent(telemetry.one("tools/call request")) == "execute_tool request"


@in_each_mode_and_era
@pytest.mark.parametrize(("tool", "error"), [("fail", McpToolError), ("refuse", McpRequestError)])
def test_a_tool_that_fails_and_a_server_that_refuses_end_the_run_if_the_application_wants_that(
    mode: str, era: str, tool: str, error: type[McpError], http_server: HttpServer
) -> None:
    telemetry = Telemetry()
    with http_server.tools() as toolset:
        errors = ToolErrors(raise_on=(error,))
        client = calling(ToolCall(tool, {"text": MARKER}), tool_errors=errors, telemetry=telemetry.options)
        with pytest.raises(ToolExecutionError) as caught:
            run(mode, client.prompt("?", tools=[toolset]))
    assert isinstance(caught.value.original, error)
    assert MARKER not in str(caught.value) + repr(caught.value.original)
    assert telemetry.named(f"tools/call {tool}")
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)


@eras
def test_arguments_that_the_schema_does_not_allow_are_not_sent(speaks: list[str]) -> None:
    with raw_server(*speaks) as toolset:
        assert isinstance(result_of("call", toolset, ToolCall("echo", {"text": {}})).error, InvalidArguments)
        assert json.loads(tools_of(toolset)["counts"].call("{}"))["tools/call"] == 1


@eras
def test_a_result_without_content_is_an_empty_text(speaks: list[str]) -> None:
    with raw_server(*speaks) as toolset:
        assert result_of("call", toolset, ToolCall("nothing")).content == ""


def test_structured_content_is_any_json_in_the_newer_era() -> None:
    with raw_server("modern") as toolset:
        result = result_of("call", toolset, ToolCall("list_of_numbers"))
    assert (result.content, result.value.structured_content) == ("[1, 2]", [1, 2])


# The newer era.


@pytest.mark.parametrize("mode", MODES)
def test_each_request_has_revision_and_capabilities_and_there_is_no_handshake(mode: str) -> None:
    with raw_server("modern") as toolset:
        calls = [ToolCall("request"), ToolCall("counts")]
        sent, counts = run(mode, calling(*calls).prompt("?", tools=[toolset])).tool_results
    meta = json.loads(sent.content)["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "traced_tools"
    assert not {"io.modelcontextprotocol/tasks"} & {*meta["io.modelcontextprotocol/clientCapabilities"]}
    assert {*json.loads(counts.content)} <= {"server/discover", "tools/list", "tools/call", "subscriptions/listen"}


def test_a_request_of_the_older_era_has_nothing_of_the_newer_one() -> None:
    with raw_server() as toolset:
        assert request_of(toolset).get("_meta", {}).keys() <= {"traceparent", "tracestate", "baggage"}


def test_a_server_that_refuses_a_revision_is_asked_for_one_that_it_supports() -> None:
    with raw_server("modern", "picky") as toolset:
        counts = json.loads(tools_of(toolset)["counts"].call("{}"))
    assert counts["server/discover"] == 2 and "initialize" not in counts


def test_a_result_without_a_type_is_complete() -> None:
    with raw_server("modern", "bare") as toolset:
        assert result_of("acall", toolset, ToolCall("echo", {"text": "x"})).content == "echo: x"


def test_a_result_of_a_type_that_nobody_asked_for_is_an_error() -> None:
    call = ToolCall("other_type", {"text": MARKER})
    with raw_server("modern") as modern, raw_server(name="old") as old:
        result = result_of("astream", modern, call)
        assert result_of("astream", old, call).content == MARKER  # where results have no type
    assert isinstance(result.error, McpRequestError)
    assert "gave an answer that cannot be read" in result.content and MARKER not in result.content


@eras
def test_the_era_belongs_to_the_command_and_another_command_is_asked(speaks: list[str]) -> None:
    for arguments in ([], ["chats"], []):
        with raw_server(*speaks, *arguments) as toolset:
            tools_of(toolset)
    asked = [key[3:-1] for key in session._eras]  # without the transport, the era, the program and its folder
    assert sorted(asked) == [(RAW, *speaks), (RAW, *speaks, "chats")]


# Over HTTP.

TOOLS = [
    {
        "name": name,
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string", "x-mcp-header": "Text"}}},
        "annotations": {"idempotentHint": name == "lost_idempotent"},
    }
    for name in ("echo", "ask", "lost", "lost_idempotent")
]
QUESTION = {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {}}}


class HttpWire:
    """A server over HTTP, in this process, that keeps what it receives.

    Args:
        era: what it speaks.
        status: with which status it answers what it does not know.
        is_picky: whether it refuses the first revision that it is asked for.
    """

    def __init__(self, era: str, status: int = 400, *, is_picky: bool = False) -> None:
        self._is_modern = era == "modern"
        self._status = status
        self._is_picky = is_picky
        self.server = ReplayServer(self._reply)

    def sent(self, method: str) -> list[Received]:
        """The requests of a method of the protocol."""
        return [each for each in self.server.requests if each.body and each.json()["method"] == method]

    def _reply(self, request: Received) -> Reply:
        if request.method != "POST":
            return Reply(b"", 405)
        message = request.json()
        if "id" not in message:
            return Reply(b"", 202)
        name = message.get("params", {}).get("name", "")
        lost = [each for each in self.sent("tools/call") if each.json()["params"]["name"] == name]
        if name.startswith("lost") and len(lost) == 1:
            return Reply.sse([], cut=True)
        if self._is_picky and len(self.sent("server/discover")) == 1:
            data = {"supported": ["2026-07-28"], "requested": "?"}
            error = {"code": -32022, "message": "no", "data": data}
            return Reply.json({"jsonrpc": "2.0", "id": message["id"], "error": error}, 400)
        if (found := self._result(message)) is None:
            return Reply(b"no", self._status, content_type="text/plain")
        headers = {"Mcp-Session-Id": "s-1"} if message["method"] == "initialize" else {}
        return Reply.json({"jsonrpc": "2.0", "id": message["id"], "result": found}, headers=headers)

    def _result(self, message: dict[str, Any]) -> dict[str, Any] | None:
        capabilities: dict[str, Any] = {"tools": {}}
        listed = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"} if self._is_modern else {}
        match message["method"]:
            case "server/discover" if self._is_modern:
                return {**listed, "supportedVersions": ["2026-07-28"], "capabilities": capabilities}
            case "initialize" if not self._is_modern:
                information = {"name": "wire", "version": "1"}
                return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": information}
            case "tools/list":
                return {**listed, "tools": TOOLS}
            case "tools/call" if message["params"]["name"] == "ask" and "inputResponses" not in message["params"]:
                question = {"method": "elicitation/create", "params": QUESTION}
                return {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": STATE}
            case "tools/call":
                text = f"{message['params']['name']} done"
                return {**listed, "content": [{"type": "text", "text": text}]}
        return None


@contextmanager
def wired(era: str, elicit: Any = None, **options: Any) -> Iterator[tuple[HttpWire, McpToolset]]:
    """A server over HTTP, and its open toolset."""
    wire = HttpWire(era, **options)
    with wire.server as server:
        with McpToolset.http(f"{server.url}/mcp", name="wire", elicit=elicit, timeout=20) as toolset:
            yield wire, toolset
    assert tasks_left() == []


ERAS = pytest.mark.parametrize("speaks", ["modern", "handshake"])


@pytest.mark.parametrize("status", [400, 404, 405, 406, 501])
def test_a_server_over_http_that_does_not_know_the_question_is_one_of_the_older_era(status: int) -> None:
    with wired("handshake", status=status) as (wire, toolset):
        assert [*tools_of(toolset)] == [each["name"] for each in TOOLS]
        with McpToolset.http(f"{wire.server.url}/mcp", name="again") as again:
            tools_of(again)
    assert [len(wire.sent(method)) for method in ("server/discover", "initialize")] == [1, 2]


def test_a_server_over_http_that_refuses_a_revision_is_asked_for_one_that_it_supports() -> None:
    with wired("modern", is_picky=True) as (wire, toolset):
        assert "echo" in tools_of(toolset)
    assert [len(wire.sent(method)) for method in ("server/discover", "initialize")] == [2, 0]


@pytest.mark.parametrize("mode", MODES)
def test_answers_go_with_the_same_request_and_the_state_of_the_server_under_another_id(mode: str) -> None:
    with wired("modern", elicit=lambda *_: {}) as (wire, toolset):
        assert result_of(mode, toolset, ToolCall("ask", {"text": "x"})).content == "ask done"
        first, second = (each.json() for each in wire.sent("tools/call"))
    assert first.pop("id") != second.pop("id")
    answers = {"q": {"action": "accept", "content": {}}}
    assert second == {**first, "params": {**first["params"], "inputResponses": answers, "requestState": STATE}}


@ERAS
@pytest.mark.parametrize("mode", MODES)
def test_requests_over_http_have_the_headers_of_their_era(mode: str, speaks: str) -> None:
    with wired(speaks) as (wire, toolset):
        assert result_of(mode, toolset, ToolCall("echo", {"text": "x"})).content == "echo done"
        (call,) = wire.sent("tools/call")
    if speaks == "modern":
        headers = {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
        assert headers.items() <= {name: call.headers.get(name) for name in headers}.items()
        assert call.headers["Mcp-Param-Text"] == "x"
        assert not any("Mcp-Session-Id" in each.headers for each in wire.server.requests)
        envelope = {
            f"io.modelcontextprotocol/{each}" for each in ("protocolVersion", "clientCapabilities", "clientInfo")
        }
        assert all(envelope <= {*each.json()["params"]["_meta"]} for each in wire.server.requests)
    else:
        assert call.headers["Mcp-Session-Id"] == "s-1"
        assert not {"mcp-method", "mcp-name", "mcp-param-text"} & {*call.headers}


@ERAS
@pytest.mark.parametrize("mode", MODES)
def test_a_call_whose_stream_breaks_is_lost_and_sent_again_with_another_id_only_if_it_may_be(
    mode: str, speaks: str
) -> None:
    with wired(speaks) as (wire, toolset):
        lost = result_of(mode, toolset, ToolCall("lost"))
        repeated = result_of(mode, toolset, ToolCall("lost_idempotent"))
        sent = [(each.json()["params"]["name"], each.json()["id"]) for each in wire.sent("tools/call")]
    assert (lost.outcome, type(lost.error)) == ("unknown", McpCallLost)
    assert (repeated.outcome, repeated.content) == ("ok", "lost_idempotent done")
    assert [name for name, _ in sent] == ["lost", "lost_idempotent", "lost_idempotent"]
    assert all(first != second for (_, first), (_, second) in itertools.pairwise(sent[1:]))
