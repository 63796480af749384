"""Real runs whose telemetry goes wherever the arguments say: `python -m tests.judges.agent --otlp URL`.

OpenTelemetry is set up once in a process, so the runs have one of their own. Each line it writes is JSON: first where
its metrics are served, then the spans as the SDK saw them end. It goes on serving until its input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import traced_tools
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.observe.embedders import RemoteEmbedder
from traced_tools import Advisor, ChatClient, RateLimited, ToolCall, ToolResult, Usage, tool
from traced_tools.models import EmbeddingResponse, OpenAIChatModel
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

USAGE = Usage(input_tokens=812, output_tokens=93, cache_read_tokens=512, reasoning_tokens=40)
"""What each answer reports to have cost."""


@tool
def weather(city: str) -> str:
    """Return the weather."""
    return f"{MARKER} sunny in {city}"


@tool(retries=1, retry_on=(OSError,))
def flights(city: str) -> str:
    """Find flights."""
    raise OSError(f"{MARKER} no way to {city}")


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"{MARKER} paid {amount}"


class Policy(Advisor):
    """Lets nobody pay."""

    name, order = "policy", 350

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Refuse to pay."""
        return call.denied(MARKER, code="no_payments") if call.name == "pay" else await call_next(call)


class NoEmbedder(RemoteEmbedder):
    """Has no time."""

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Refuse."""
        raise RateLimited(f"{MARKER} slow down", provider=self.provider)


def asked(name: str, **arguments: Any) -> ToolCall:
    """Return a call as a model asks for it."""
    return ToolCall(name=name, arguments=arguments)


SCRIPTS: dict[str, list[Any]] = {
    "pair": [[asked("weather", city=MARKER), asked("weather", city="Oslo")], MARKER],
    "failing": [[asked("flights", city=MARKER)], MARKER],
    "refused": [[asked("pay", amount=3), asked(f"invented_{MARKER}")], MARKER],
    "broken": [RateLimited(f"{MARKER} slow down", provider="scripted")],
}
"""What the model says to each agent."""


def ask(agent: str, model: Any, mode: str) -> None:
    """Run an agent; what its model raises is part of the story."""
    client = ChatClient(model, tools=[weather, flights, pay], advisors=[Policy()], name=agent, system=MARKER)
    with contextlib.suppress(RateLimited):
        run(mode, client.prompt(f"{MARKER} go"))


def ask_over_http() -> None:
    """Run an agent whose model is behind HTTP and streams."""
    deltas: list[dict[str, Any]] = [{"delta": {"content": word}, "index": 0} for word in (MARKER, " is", " here")]
    chunks: list[dict[str, Any]] = [{"choices": [delta]} for delta in deltas]
    usage = {"prompt_tokens": USAGE.input_tokens, "completion_tokens": USAGE.output_tokens}
    chunks += [{"choices": [{"delta": {}, "index": 0, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
    events = [f"data: {json.dumps({'id': 'r1', 'model': 'gpt-x', **chunk})}\n\n".encode() for chunk in chunks]
    reply = Reply([*events, b"data: [DONE]\n\n"], content_type="text/event-stream")
    with ReplayServer([reply]) as server, OpenAIChatModel("gpt-x", base_url=server.url, api_key=MARKER) as model:
        ask("remote", model, "stream")


def run_all() -> None:
    """Run each agent in each mode, one over HTTP, and embed."""
    for mode in MODES:
        for agent, script in SCRIPTS.items():
            ask(agent, ScriptedChatModel(script, usage=USAGE, model="scripted-1"), mode)
    ask_over_http()
    RemoteEmbedder().embed([MARKER])
    asyncio.run(RemoteEmbedder().aembed([MARKER]))
    with contextlib.suppress(RateLimited):
        NoEmbedder().embed([MARKER])


def described(span: ReadableSpan) -> dict[str, Any]:
    """Return what is to be found again of a span."""
    context = span.get_span_context()
    assert context is not None
    assert span.start_time is not None
    assert span.end_time is not None
    return {
        "name": span.name,
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "parent_id": None if span.parent is None else f"{span.parent.span_id:016x}",
        "seconds": (span.end_time - span.start_time) / 1_000_000_000,
        "status": span.status.status_code.name,
        "attributes": dict(span.attributes or {}),
    }


def main() -> None:
    """Set telemetry up, run, and stay until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--otlp", default=False)
    parser.add_argument("--prometheus", action="store_true")
    parser.add_argument("--capture")
    wanted = parser.parse_args()
    port = 0 if wanted.prometheus else None
    handle = traced_tools.configure(service_name="judged", otlp=wanted.otlp, prometheus=port, capture=wanted.capture)
    kept, provider = InMemorySpanExporter(), trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with handle:
        print(json.dumps({"address": handle.prometheus_address}), flush=True)
        run_all()
        assert handle.force_flush(30)
        print(json.dumps({"spans": [described(span) for span in kept.get_finished_spans()]}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
