"""A server on FastMCP, which speaks both eras: over stdio, or with a port as its argument over HTTP.

If `SPANS` names a file, the server writes its spans there, a line of JSON each.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

server: FastMCP[Any] = FastMCP("peer", cache_ttl=3_600_000)


@server.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
def fail(text: str) -> str:
    """Fail with the text."""
    raise ToolError(text)


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Count, and report each number."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to)
    return "counted"


def one_line(span: ReadableSpan) -> str:
    return f"{span.to_json(indent=None)}\n"


if __name__ == "__main__":
    if path := os.environ.get("SPANS"):
        provider = TracerProvider()
        out = open(path, "w", buffering=1)  # noqa: SIM115  # until the process ends
        exporter = ConsoleSpanExporter(out=out, formatter=one_line)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
    if len(sys.argv) > 1:
        server.run("http", show_banner=False, host="127.0.0.1", port=int(sys.argv[1]), log_level="CRITICAL")
    else:
        server.run("stdio", show_banner=False, log_level="CRITICAL")
