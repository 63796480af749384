"""The telemetry of served tools, and what of a call leaves the process."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from opentelemetry import baggage
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.captured import Telemetry, context_of
from tests.markers import MARKER
from tests.mcp.serving import SERVED, User, calling, in_each_era, listening, serving_http, talk, text_of
from tests.observe.closed_list import assert_consistent
from tests.observe.exported import Wiretap
from traced_tools import AuditAdvisor, ChatClient, ObserverAdvisor, ToolCall, ToolContext, tool
from traced_tools.audit import AuditTrail
from traced_tools.core import ToolErrors
from traced_tools.mcp import McpApp, McpServer, McpToolset
from traced_tools.testing import ScriptedChatModel


def echo(text: str) -> str:
    """Return the text."""
    return text


def fail(text: str) -> str:
    """Fail with the text."""
    raise ValueError(text)


@tool(requires_approval=True)
def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


def steps(text: str, context: ToolContext) -> str:
    """Report the text as progress."""
    context.report_progress(1, 2, text)
    return text


def carried() -> str:
    """Return the baggage and the state of the trace in which it runs."""
    return f"tenant={baggage.get_baggage('tenant')} {get_current_span().get_span_context().trace_state.to_header()}"


def attributes_of(telemetry: Telemetry, name: str) -> dict[str, Any]:
    return dict(telemetry.one(name).attributes or {})


# Spans.


@in_each_era
def test_each_request_has_one_server_span_and_a_call_has_the_tools_span_below_it(era: str) -> None:
    telemetry = Telemetry()
    with serving_http([echo], name="shop", telemetry=telemetry.options) as url:

        async def both(client: Client) -> None:
            await client.list_tools()
            await client.call_tool("echo", {"text": "a"})

        talk(url, era, both)
    first = "server/discover" if era == "modern" else "initialize"
    assert [span.name for span in telemetry.spans] == [first, "tools/list", "tools/call echo", "execute_tool echo"]
    assert [span.kind for span in telemetry.spans] == [*[SpanKind.SERVER] * 3, SpanKind.INTERNAL]
    assert telemetry.parent(telemetry.one("execute_tool echo")) == "tools/call echo"
    attributes = attributes_of(telemetry, "tools/call echo")
    assert attributes.pop("jsonrpc.request.id")
    assert attributes == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28" if era == "modern" else "2025-11-25",
        "network.transport": "tcp",
        "gen_ai.tool.name": "echo",
        "gen_ai.agent.name": "shop",
    }
    telemetry.check_each_ended_once()
    assert_consistent(telemetry)


@in_each_era
def test_failures_are_on_the_server_span_with_their_code_and_no_text(era: str) -> None:
    telemetry = Telemetry()
    with serving_http([echo, fail], telemetry=telemetry.options) as url:

        async def failing(client: Client) -> None:
            await client.call_tool("fail", {"text": MARKER})
            with pytest.raises(MCPError):
                await client.call_tool(MARKER, {})

        talk(url, era, failing)
    errors = [("tools/call fail", "tool_error", None), ("tools/call _unknown", "-32602", "-32602")]
    for name, error, code in errors:
        span = telemetry.one(name)
        assert span.status.status_code is StatusCode.ERROR and span.status.description == error
        found = attributes_of(telemetry, name)
        assert (found["error.type"], found.get("rpc.response.status_code")) == (error, code)
        assert not span.events
    assert_consistent(telemetry)


def test_a_request_that_the_protocol_does_not_know_has_a_span_without_its_name() -> None:
    telemetry = Telemetry()
    with serving_http([echo], telemetry=telemetry.options, app={"stateless": True}) as url:
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        body = {"jsonrpc": "2.0", "id": MARKER * 20, "method": MARKER}
        assert "error" in httpx.post(url, json=body, headers=headers, trust_env=False).text
    attributes = attributes_of(telemetry, "_OTHER")
    assert (attributes["mcp.method.name"], attributes["rpc.response.status_code"]) == ("_OTHER", "-32601")
    assert_consistent(telemetry)


@in_each_era
def test_the_duration_is_measured_with_method_tool_and_error(era: str) -> None:
    telemetry = Telemetry()
    with serving_http([echo, fail], name="shop", telemetry=telemetry.options) as url:

        async def both(client: Client) -> None:
            await client.call_tool("echo", {"text": "a"})
            await client.call_tool("fail", {"text": "a"})

        talk(url, era, both)
    points = {
        (each.attributes["mcp.method.name"], each.attributes.get("gen_ai.tool.name"), each.attributes.get("error.type"))
        for each in telemetry.metrics
        if each.name == "mcp.server.operation.duration"
    }
    assert {("tools/call", "echo", None), ("tools/call", "fail", "tool_error")} <= points


@in_each_era
def test_the_span_continues_the_clients_trace_and_has_a_link_to_the_span_around_it(era: str) -> None:
    telemetry = Telemetry()
    inner = McpApp(McpServer([carried], telemetry=telemetry.options))

    async def instrumented(scope: Any, receive: Any, send: Any) -> None:
        with telemetry.tracer.start_as_current_span("http"):
            await inner(scope, receive, send)

    carrier: dict[str, str] = {}
    with telemetry.tracer.start_as_current_span("client") as client_span:
        TraceContextTextMapPropagator().inject(carrier)
    meta: Any = {"traceparent": carrier["traceparent"], "tracestate": "vendor=kept", "baggage": "tenant=a"}
    with listening(instrumented) as url:
        carried_on = talk(url, era, lambda client: client.call_tool("carried", {}, meta=meta))
        begun = talk(url, era, lambda client: client.call_tool("carried", {}, meta={"traceparent": "wrong"}))
    assert (text_of(carried_on), text_of(begun)) == ("tenant=a vendor=kept", "tenant=None ")
    continued, other = telemetry.named("tools/call carried")
    assert continued.parent is not None and continued.parent.span_id == client_span.get_span_context().span_id
    around = {context_of(span).span_id for span in telemetry.named("http")}
    (link,) = continued.links
    assert link.context.span_id in around
    assert other.parent is not None and other.parent.span_id in around and not other.links


# Two processes, one trace.


@contextmanager
def traced_program(transport: str, spans: Path, **options: Any) -> Iterator[McpToolset]:
    """The toolset of a server in another process, which writes its spans to a file."""
    options |= {"name": "shop", "timeout": 30, "elicit": lambda *_: {"approve": True}}
    if transport == "stdio":
        yield McpToolset.stdio(sys.executable, SERVED, "traced", env={"SPANS": str(spans)}, **options)
        return
    command = [sys.executable, SERVED, "traced-http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"SPANS": str(spans)}) as server:
        assert server.stdout is not None
        yield McpToolset.http(server.stdout.readline().strip(), **options)
        server.terminate()
        assert server.wait(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "era"), [("stdio", "handshake"), ("http", "auto")])
def test_client_and_server_are_in_one_trace_also_if_the_server_asks_back(
    transport: str, era: str, tmp_path: Path
) -> None:
    telemetry, spans = Telemetry(), tmp_path / "spans.jsonl"
    calls = [ToolCall("echo", {"text": MARKER}), ToolCall("pay", {"to": MARKER})]
    with traced_program(transport, spans, era=era) as shop, shop:
        client = ChatClient(ScriptedChatModel([calls, "x"]), telemetry=telemetry.options)
        results = client.prompt("?", tools=[shop]).call().tool_results
    assert [each.content for each in results] == [MARKER, f"paid 5 to {MARKER}"]
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    served = {each["name"]: each for each in found}
    assert MARKER not in spans.read_text()
    assert [each["name"] for each in found].count("tools/call echo") == 1
    here = {f"0x{context_of(span).span_id:016x}": span.name for span in telemetry.spans}
    call, execute = served["tools/call echo"], served["execute_tool echo"]
    assert here[call["parent_id"]] == "tools/call echo" and call["kind"] == "SpanKind.SERVER"
    assert execute["parent_id"] == call["context"]["span_id"]
    assert here[served["tools/list"]["parent_id"]] == "tools/list"
    assert {each["scope"] for each in found} == {"traced_tools"}  # none is of the SDK
    (trace_id,) = {f"0x{context_of(span).trace_id:032x}" for span in telemetry.spans}
    assert {each["context"]["trace_id"] for each in found} == {trace_id}


# Contents.


@in_each_era
@pytest.mark.parametrize("capture", [None, "SPAN_AND_EVENT"])
def test_no_content_is_in_anything_that_is_exported_unless_it_is_captured(
    era: str,
    capture: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    user = User("accept", {"approve": True, "note": MARKER})

    async def everything(client: Client) -> list[str]:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            texts.append(message or "")

        texts: list[str] = []
        for name in ("echo", "fail", "pay", "steps"):
            argument = {"to" if name == "pay" else "text": MARKER}
            texts.append(text_of(await client.call_tool(name, argument, progress_callback=report)))
        texts.append(text_of(await client.call_tool("echo", {"wrong": MARKER})))
        with pytest.raises(MCPError):
            await client.call_tool(f"x-{MARKER}", {MARKER: MARKER})
        return texts

    with Wiretap(caplog, capfd, capture=capture) as tap, AuditTrail(tmp_path / "audit.db") as trail:
        advisors = [AuditAdvisor(trail), ObserverAdvisor(exporters=[])]
        settings: dict[str, Any] = {"advisors": advisors, "telemetry": tap.telemetry.options}
        with serving_http([echo, fail, pay, steps], **settings) as url:
            texts = talk(url, era, everything, elicitation_callback=user)
            for body in (f"no json {MARKER}", json.dumps({"jsonrpc": "2.0", "id": {}, "method": MARKER})):
                httpx.post(url, content=body, headers={"Host": MARKER, "Authorization": MARKER}, trust_env=False)
                httpx.post(url, content=body, headers={"Content-Type": "application/json"}, trust_env=False)
        assert trail.flush()
        assert sum(MARKER in text for text in texts) >= 4 and MARKER in user.asked[0].message
        _drop_lines_of_the_clients(caplog)
        logging.getLogger(__name__).info("the log is captured")
        if capture is None:
            tap.check()
        else:
            for span in tap.telemetry.spans:
                if span.kind is SpanKind.SERVER:
                    assert MARKER not in str(span.attributes) + span.name + str(span.status.description)
            assert MARKER in str(attributes_of(tap.telemetry, "execute_tool fail"))
    for file in tmp_path.glob("audit.db*"):
        assert MARKER.encode() not in file.read_bytes()


def _drop_lines_of_the_clients(caplog: pytest.LogCaptureFixture) -> None:
    """Leave out what the clients log in this process."""
    ours = [each for each in caplog.records if not each.name.startswith(("mcp.client", "httpx", "httpcore", "client"))]
    caplog.handler.records[:] = ours
    caplog.handler.stream.seek(0)
    caplog.handler.stream.truncate()
    for record in ours:
        caplog.handler.stream.write(caplog.handler.format(record))


@in_each_era
def test_the_wire_has_no_text_of_an_exception_beyond_what_the_error_policy_says(era: str) -> None:
    with serving_http([fail], tool_errors=ToolErrors(message=lambda tool, error: "sorry")) as url:
        result = calling(url, era, "fail", {"text": MARKER})
    assert MARKER not in result.model_dump_json()
