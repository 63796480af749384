"""The spans of requests to MCP servers, and what of a call leaves this process."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage
from opentelemetry import context as otel_context
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from tests.captured import Telemetry, context_of
from tests.markers import MARKER
from tests.mcp.servers import SERVER, HttpServer, in_each_mode_and_era, raw_server, sdk_server, tools_of
from tests.mcp.test_runs import calling
from tests.modes import MODES, run
from tests.observe.exported import Wiretap
from traced_tools import AuditAdvisor, ToolCall
from traced_tools.audit import AuditTrail
from traced_tools.mcp.sdk_logs import silence_sdk

VERSIONS = {"modern": "2026-07-28", "handshake": "2025-11-25"}


def wire_spans(telemetry: Telemetry) -> list[str]:
    return [span.name for span in telemetry.spans if span.kind is SpanKind.CLIENT and "chat" not in span.name]


@in_each_mode_and_era
def test_each_request_has_one_span_below_what_it_is_for(mode: str, era: str, http_server: HttpServer) -> None:
    telemetry = Telemetry()
    with http_server.tools() as toolset:
        run(mode, calling(ToolCall("add", {"a": 1, "b": 2}), telemetry=telemetry.options).prompt("?", tools=[toolset]))
    first = "server/discover" if era == "modern" else "initialize"
    assert wire_spans(telemetry) == [first, "tools/list", "tools/call add"]
    assert telemetry.parent(telemetry.one("tools/call")) == "execute_tool add"
    assert len({context_of(span).trace_id for span in telemetry.spans}) == 1
    execute = telemetry.one("execute_tool").attributes
    assert execute is not None and execute["traced_tools.tool.source"] == "tests"
    telemetry.check_each_ended_once()


def test_a_call_over_stdio_has_the_attributes_of_the_conventions() -> None:
    telemetry = Telemetry()
    with sdk_server() as toolset:
        calling(ToolCall("echo", {"text": "x"}), telemetry=telemetry.options).prompt("?", tools=[toolset]).call()
    attributes = dict(telemetry.one("tools/call echo").attributes or {})
    assert attributes.pop("jsonrpc.request.id").isdecimal()
    assert attributes == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "network.transport": "pipe",
        "gen_ai.tool.name": "echo",
        "gen_ai.agent.name": "assistant",
        "traced_tools.tool.source": "tests",
    }


def test_a_call_over_http_names_host_and_port(http_server: HttpServer) -> None:
    telemetry = Telemetry()
    with http_server.tools() as toolset:
        calling(ToolCall("echo", {"text": "x"}), telemetry=telemetry.options).prompt("?", tools=[toolset]).call()
    attributes = telemetry.one("tools/call echo").attributes or {}
    address = (attributes["network.transport"], attributes["server.address"], attributes["server.port"])
    assert address == ("tcp", "127.0.0.1", http_server.port)


def labels_of_requests(telemetry: Telemetry) -> dict[str, dict[str, Any]]:
    """The labels of the durations of requests, without those that all requests have, by method and tool."""
    found = {}
    for point in telemetry.metric("mcp.client.operation.duration"):
        labels = dict(point.attributes)
        assert labels.pop("traced_tools.tool.source") == "tests"
        assert labels.pop("network.transport") == "tcp"
        name = f"{labels.pop('mcp.method.name')} {labels.pop('gen_ai.tool.name', '')}".strip()
        assert point.count == 1, name
        found[name] = labels
    return found


@in_each_mode_and_era
def test_each_request_is_measured_with_the_labels_of_the_conventions(
    mode: str, era: str, http_server: HttpServer
) -> None:
    telemetry = Telemetry()
    calls = [ToolCall("echo", {"text": "x"}), ToolCall("fail", {"text": "x"}), ToolCall("refuse", {"text": "x"})]
    with http_server.tools() as toolset:
        run(mode, calling(*calls, telemetry=telemetry.options).prompt("?", tools=[toolset]))
    agreed = {"gen_ai.agent.name": "assistant", "mcp.protocol.version": VERSIONS[era]}
    assert labels_of_requests(telemetry) == {
        "server/discover" if era == "modern" else "initialize": {"gen_ai.agent.name": "assistant"},
        "tools/list": agreed,
        "tools/call echo": agreed,
        "tools/call fail": {**agreed, "error.type": "tool_error"},
        "tools/call refuse": {**agreed, "error.type": "-32050", "rpc.response.status_code": "-32050"},
    }
    (echo,) = [each for each in telemetry.metric("mcp.client.operation.duration") if "echo" in str(each.attributes)]
    span = telemetry.one("tools/call echo")
    assert span.end_time is not None and span.start_time is not None
    assert echo.sum == pytest.approx((span.end_time - span.start_time) / 1e9)


@pytest.mark.parametrize(("tool", "error", "code"), [("fail", "tool_error", None), ("refuse", "-32050", "-32050")])
def test_a_failure_is_on_both_spans_with_its_code_and_no_text(
    tool: str, error: str, code: str | None, http_server: HttpServer
) -> None:
    telemetry = Telemetry()
    with http_server.tools() as toolset:
        calling(ToolCall(tool, {"text": MARKER}), telemetry=telemetry.options).prompt("?", tools=[toolset]).call()
    for span in (telemetry.one(f"tools/call {tool}"), telemetry.one(f"execute_tool {tool}")):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None and not span.events
        assert span.status.description == span.attributes["error.type"]
    attributes = telemetry.one("tools/call").attributes or {}
    assert (attributes["error.type"], attributes.get("rpc.response.status_code")) == (error, code)


@in_each_mode_and_era
def test_the_server_gets_the_trace_context_of_the_span_and_the_named_keys_of_the_tool_context(
    mode: str, era: str, http_server: HttpServer
) -> None:
    telemetry = Telemetry()
    context = {"user": {"id": 7}, "password": MARKER}
    caller = SpanContext(0xC0FFEE, 0xBEE, True, TraceFlags(1), TraceState([("vendor", "kept")]))
    around = set_span_in_context(NonRecordingSpan(caller), baggage.set_baggage("tenant", "a"))
    token = otel_context.attach(around)
    try:
        with http_server.tools(context_keys=["user", "absent"]) as toolset:
            spec = calling(ToolCall("meta"), telemetry=telemetry.options).prompt(
                "?", tools=[toolset], tool_context=context
            )
            result = run(mode, spec).tool_results[0]
    finally:
        otel_context.detach(token)
    span = context_of(telemetry.one("tools/call meta"))
    sent = ast.literal_eval(result.content)
    assert span.trace_id == caller.trace_id
    assert sent.pop("traceparent").startswith(f"00-{span.trace_id:032x}-{span.span_id:016x}-")
    assert sent == {"baggage": "tenant=a", "tracestate": "vendor=kept", "user": {"id": 7}}


def test_nothing_of_the_tool_context_leaves_the_process_unless_it_is_named(http_server: HttpServer) -> None:
    with http_server.tools() as toolset:
        spec = calling(ToolCall("meta")).prompt("?", tools=[toolset], tool_context={"password": MARKER})
        assert MARKER not in spec.call().tool_results[0].content


SDK_SPANS = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

from traced_tools import ChatClient, ToolCall
from traced_tools.mcp import McpToolset
from traced_tools.testing import ScriptedChatModel

for era in ("auto", "handshake"):
    with McpToolset.stdio(sys.executable, sys.argv[1], name="tests", era=era) as toolset:
        calls = [ToolCall("echo", {"text": "x"}), ToolCall("refuse", {"text": "secret"})]
        ChatClient(ScriptedChatModel([calls, "done"])).prompt("?", tools=[toolset]).call()
spans = exporter.get_finished_spans()
print(sorted({span.instrumentation_scope.name for span in spans}), len([s for s in spans if "tools/call" in s.name]))

import asyncio
from mcp import Client, StdioServerParameters

async def own():
    async with Client(StdioServerParameters(command=sys.executable, args=[sys.argv[1]])) as client:
        await client.call_tool("echo", {"text": "x"})

asyncio.run(own())
print(sorted({span.instrumentation_scope.name for span in exporter.get_finished_spans()}))
"""


@pytest.mark.slow
def test_the_sdk_makes_no_spans_of_its_own_for_this_package_and_still_does_for_others() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SDK_SPANS, SERVER], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['traced_tools'] 4", "['mcp-python-sdk', 'traced_tools']"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", ["raw", "http"])
def test_no_content_of_either_direction_is_in_anything_that_is_exported(
    mode: str,
    transport: str,
    http_server: HttpServer,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    text, path = {"text": MARKER}, {"text": str(tmp_path / MARKER)}
    calls = {
        "raw": [ToolCall(name, text) for name in ("echo", "garbage", "wrong_result", "wrong_structure", "a.b")],
        "http": [ToolCall(name, text) for name in ("echo", "fail", "refuse")],
    }
    toolset = {"raw": raw_server, "http": http_server.tools}[transport](context_keys=["user"])
    with Wiretap(caplog, capfd) as tap, toolset, AuditTrail(tmp_path / "audit.db") as trail:
        client = calling(*calls[transport], telemetry=tap.telemetry.options)
        spec = client.prompt("?", tools=[toolset], tool_context={"user": MARKER}, advisors=[AuditAdvisor(trail)])
        response = tap.run(spec, mode)
        if transport == "raw":
            lost = calling(ToolCall("die_once", path), telemetry=tap.telemetry.options)
            tap.run(lost.prompt("?", tools=[toolset], advisors=[AuditAdvisor(trail)]), mode)
        assert trail.flush()
        assert sum(MARKER in result.content for result in response.tool_results) >= 2
        errors = [result.error for result in response.tool_results if result.error is not None]
        assert errors and MARKER not in repr(errors) + str([*map(str, errors)])
        logging.getLogger(__name__).info("the log is captured")
        tap.check()
    for file in tmp_path.glob("audit.db*"):
        assert MARKER.encode() not in file.read_bytes()


def test_content_is_on_the_span_of_the_tool_alone_if_it_is_captured(http_server: HttpServer) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    with http_server.tools() as toolset:
        calling(ToolCall("fail", {"text": MARKER}), telemetry=telemetry.options).prompt("?", tools=[toolset]).call()
    assert MARKER in str(telemetry.one("execute_tool fail").attributes)
    assert MARKER not in str(telemetry.one("tools/call fail").attributes)


def test_the_log_of_other_users_of_the_sdk_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with raw_server() as toolset:
        tools_of(toolset)["garbage"].call('{"text": "x"}')
    logging.getLogger("mcp.client.stdio").warning("of another client")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("mcp.")] == ["of another client"]


@pytest.mark.parametrize("name", ["connection", "http11", "http2", "proxy", "socks"])
def test_the_http_client_is_silent_from_the_first_connection_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(logging.root.manager.loggerDict, f"httpcore2.{name}", raising=False)  # as in a new process
    silence_sdk()
    assert logging.getLogger(f"httpcore2.{name}").filters
