"""Runs the demo's agent, and prints its answer as it streams."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from secrets import token_bytes
from tempfile import TemporaryDirectory

from rich.console import Console

from traced_tools import AuditTrail
from traced_tools.demo.report import print_audit, print_destination, print_metrics, print_refusals, print_trace
from traced_tools.demo.server import MODEL, trip_server
from traced_tools.demo.trip import QUESTION, trip_planner
from traced_tools.models import OpenAIChatModel
from traced_tools.run_handles import ChatStream
from traced_tools.testing import capture_telemetry


def run_demo(console: Console, *, with_hooks: bool = False) -> None:
    """Run the trip planner and print its answer as it streams, then its trace, its audit records and its metrics.

    Args:
        console: where to print.
        with_hooks: whether each hook has a line of its own in the tree of spans.
    """
    with ExitStack() as stack:
        model = stack.enter_context(_model(stack, console))
        telemetry = stack.enter_context(capture_telemetry())
        store = Path(stack.enter_context(TemporaryDirectory(prefix="traced-tools-demo-"))) / "audit.db"
        trail = stack.enter_context(AuditTrail(store, key=token_bytes(32)))
        client = trip_planner(model, telemetry.options, trail)
        console.print(f"[bold]> {QUESTION}[/]\n", highlight=False)
        try:
            with client.prompt(QUESTION).stream() as stream:
                _print_stream(stream, console)
        finally:  # also if the run failed, because then the trace shows where
            print_trace(console, telemetry, with_hooks=with_hooks)
        print_refusals(console, stream.response)
        trail.close()
        print_audit(console, store)
        print_metrics(console, telemetry)
        print_destination(console)


def _model(stack: ExitStack, console: Console) -> OpenAIChatModel:
    """Return the model that the environment configures, else the scripted one on a local server."""
    if os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"):
        model = OpenAIChatModel(os.environ.get("OPENAI_MODEL", "gpt-5-mini"))
    else:
        server = stack.enter_context(trip_server())
        model = OpenAIChatModel(MODEL, base_url=f"{server.url}/v1", api_key="none")
    console.print(f"[dim]model {model.model} at {model.server_address}:{model.server_port}[/]", highlight=False)
    return model


def _print_stream(stream: ChatStream, console: Console) -> None:
    """Print the text of the chunks; the text of each iteration starts on a new line."""
    current = 1
    for chunk in stream:
        if chunk.iteration != current and chunk.text:
            console.print("\n" if current else "")
            current = chunk.iteration
        console.print(chunk.text, end="", markup=False, highlight=False)
    console.print("\n")
