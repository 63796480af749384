"""The telemetry of the gateway: the spans and metrics of a served tool, in the trace of the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.trace import SpanKind

from tests.captured import Telemetry, context_of
from tests.markers import MARKER
from tests.mcp.proxied import proxied
from tests.observe.closed_list import assert_consistent
from tests.otel.collector import collecting
from tests.waiting import patiently
from traced_tools.mcp.proxy.gate import Gate
from traced_tools.mcp.proxy.relay import Relay
from traced_tools.mcp.scopes import McpEndpoint

TOOL = {"name": "echo", "description": "Echoes.", "inputSchema": {"type": "object"}}
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "tenant=acme"}
Answer = Callable[[dict[str, Any]], dict[str, Any]]


def echo(message: dict[str, Any]) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": MARKER}]}}


def call_through(gate: Gate, answer: Answer = echo, *, name: str = "echo", meta: Any = None) -> list[dict[str, Any]]:
    """Call a tool through a gate and return the messages for the server and for the client."""
    messages: list[dict[str, Any]] = []

    async def talk() -> None:
        answered = asyncio.Event()

        async def to_client(data: bytes) -> None:
            messages.append(json.loads(data))
            answered.set()

        async def to_server(data: bytes) -> None:
            message = json.loads(data)
            messages.append(message)
            result = {"result": {"tools": [TOOL]}} if message["method"] == "tools/list" else answer(message)
            reply = json.dumps({"jsonrpc": "2.0", "id": message["id"], **result}).encode()
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(relay.from_server(reply)))

        relay = Relay(gate, to_client, to_server, to_server)
        params = {"name": name, "arguments": {"text": MARKER}, **({} if meta is None else {"_meta": meta})}
        await relay.from_client(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        )
        await answered.wait()

    asyncio.run(patiently(talk()))
    return messages


def gate_of(telemetry: Telemetry) -> Gate:
    return Gate("shop", McpEndpoint("shop", "tcp", "127.0.0.1", 80), telemetry=telemetry.options)


def test_a_call_has_the_spans_of_a_served_tool_and_that_of_the_request_to_the_server() -> None:
    telemetry = Telemetry()
    call_through(gate_of(telemetry))
    spans = [(span.name, span.kind) for span in telemetry.spans]
    assert spans == [
        ("tools/call echo", SpanKind.SERVER),
        ("execute_tool echo", SpanKind.INTERNAL),
        ("tools/call echo", SpanKind.CLIENT),
    ]
    telemetry.check_each_ended_once()
    assert_consistent(telemetry)
    assert MARKER not in str([(span.name, span.attributes, span.events) for span in telemetry.spans])


def test_the_trace_of_the_client_goes_on_at_the_server() -> None:
    telemetry = Telemetry()
    messages = call_through(gate_of(telemetry), meta={"progressToken": 5, **TRACE})
    served, _, requested = telemetry.spans
    assert served.parent is not None and f"{served.parent.span_id:016x}" == "b7ad6b7169203331"
    meta = next(message for message in messages if message.get("method") == "tools/call")["params"]["_meta"]
    context = context_of(requested)
    assert meta.pop("traceparent") == f"00-0af7651916cd43dd8448eb211c80319c-{context.span_id:016x}-01"
    assert meta == {"progressToken": 5, "baggage": "tenant=acme"}


def test_a_call_without_a_trace_begins_one() -> None:
    telemetry = Telemetry()
    messages = call_through(gate_of(telemetry))
    call = next(message for message in messages if message.get("method") == "tools/call")
    assert call["params"]["_meta"]["traceparent"].startswith(f"00-{context_of(telemetry.spans[0]).trace_id:032x}-")
    assert call["params"]["arguments"] == {"text": MARKER}


def test_the_duration_of_requests_is_measured_on_both_sides() -> None:
    telemetry = Telemetry()
    call_through(gate_of(telemetry))
    for metric in ("mcp.server.operation.duration", "mcp.client.operation.duration"):
        (point,) = telemetry.metric(metric)
        assert point.attributes["gen_ai.tool.name"] == "echo"


def test_failures_are_on_the_spans_with_their_code_and_no_text() -> None:
    telemetry = Telemetry()
    gate = gate_of(telemetry)
    call_through(gate, lambda _: {"error": {"code": -32000, "message": MARKER}})
    call_through(gate, lambda _: {"result": {"content": [{"type": "text", "text": MARKER}], "isError": True}})
    call_through(gate, name=MARKER)
    statuses = [(span.name, span.status.description) for span in telemetry.spans if span.kind is SpanKind.SERVER]
    assert statuses == [
        ("tools/call echo", "-32000"),
        ("tools/call echo", "tool_error"),
        ("tools/call _unknown", "tool_error"),
    ]
    assert MARKER not in str([(span.name, span.attributes, span.events) for span in telemetry.spans])
    assert_consistent(telemetry)


def test_the_command_exports_telemetry_and_joins_the_trace_of_the_client(tmp_path: Path) -> None:
    with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        with proxied(tmp_path, "--name", "shop", env=env) as gateway:
            gateway.begin()
            gateway.call(1, "echo", MARKER, _meta=TRACE)
            gateway.message()
            assert gateway.leave() == 0
        assert collector.span_names() == {"tools/call echo", "execute_tool echo"}
        assert {span.trace_id.hex() for span in collector.spans()} == {"0af7651916cd43dd8448eb211c80319c"}
        assert "mcp.server.operation.duration" in collector.metric_names()
        assert collector.resource()["service.name"] == "shop"
        assert not any(MARKER.encode() in body for bodies in collector.bodies.values() for body in bodies)
    (call,) = gateway.calls()
    assert call["_meta"]["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert call["_meta"]["traceparent"] != TRACE["traceparent"]
