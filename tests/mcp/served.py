"""Serves tools as a program: over `stdio`, or over `http` at a URL that it prints.

As `traced` or `traced-http`, it writes its spans to the file that the variable `SPANS` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from traced_tools import ToolContext, tool
from traced_tools.mcp import McpServer, serve


class LinesExporter(SpanExporter):
    """Writes each span as a line of JSON to the file that a variable names."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["SPANS"]).open("a") as file:
            for each in spans:
                scope = each.instrumentation_scope
                shown = {**json.loads(each.to_json(indent=None)), "scope": None if scope is None else scope.name}
                file.write(f"{json.dumps(shown)}\n")
        return SpanExportResult.SUCCESS


def echo(text: str) -> str:
    """Return the text."""
    return text


def fail(text: str) -> str:
    """Fail with the text."""
    raise ValueError(text)


def talkative(text: str) -> str:
    """Print the text in all ways, and return it."""
    print(text)
    sys.stdout.write(f"{text}\n")
    os.write(1, f"{text}\n".encode())
    subprocess.run(["echo", text], check=True)
    return text


def listen() -> str:
    """Return what standard input holds for a tool and its processes."""
    return sys.stdin.read() + subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout


def process_id() -> int:
    """Return the id of the process."""
    return os.getpid()


def touch(path: str) -> None:
    Path(path).touch()


async def wait(path: str) -> str:
    """Wait until it is cancelled, which a file tells."""
    touch(path)
    try:
        await asyncio.sleep(600)
    finally:
        touch(f"{path}.cancelled")
    return "waited"


def block(path: str, context: ToolContext) -> str:
    """Wait, blocking, until it is cancelled, which a file tells."""
    touch(path)
    while not context.cancelled:
        time.sleep(0.01)
    touch(f"{path}.cancelled")
    return "blocked"


@tool(requires_approval=True)
def pay(to: str, amount: int = 5) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


TOOLS = [echo, fail, talkative, listen, process_id, wait, block, pay]


def show(url: str) -> None:
    print(url, flush=True)


def main(way: str) -> None:
    if way.startswith("traced"):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(LinesExporter()))
        trace.set_tracer_provider(provider)
        over_http = way.endswith("http")
        serve(McpServer(TOOLS, name="shop"), transport="http" if over_http else "stdio", port=0, on_ready=show)
    elif way == "http":
        serve(TOOLS, transport="http", port=0, on_ready=show)
    else:
        serve(TOOLS)


if __name__ == "__main__":
    main(sys.argv[1])
