"""A process that plays the scenario and serves its metrics: `python -m tests.dashboards.player --help`.

OpenTelemetry is set up once in a process, so each setup has a process of its own. Each line it writes is JSON: first
the address of its metrics, and when it has played, the ids of the traces that ended. It begins when it reads a line,
and serves until its input ends.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from tempfile import TemporaryDirectory
from threading import Event, Thread

from opentelemetry import trace
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

import traced_tools
from tests.dashboards.durable_lives import drive_runs_until
from traced_tools import Approve, ChatClient, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.demo import Scenario
from traced_tools.errors import ResumeError
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusReader, PrometheusServer
from traced_tools.testing import ScriptedChatModel


class EndedTraces(SpanProcessor):
    """The ids of the traces of all spans that ended."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def on_end(self, span: ReadableSpan) -> None:
        """Keep the id of the span's trace."""
        assert span.context is not None
        self.ids.add(f"{span.context.trace_id:032x}")


def served_by_configure(otlp: str | None) -> str:
    """Set OpenTelemetry up as `configure` does, and return the address of the metrics."""
    handle = traced_tools.configure(service_name="played", prometheus=0, otlp=otlp or False)
    assert handle.prometheus_address is not None
    return handle.prometheus_address


def served_by_logfire(traces: EndedTraces) -> str:
    """Set logfire up with a reader of ours, and return the address of the metrics."""
    import logfire  # type: ignore[import-not-found, unused-ignore]

    reader: MetricReader = PrometheusReader()
    logfire.configure(
        send_to_logfire=False,
        console=False,
        additional_span_processors=[traces],
        # logfire's own views make histograms exponential, which Prometheus's text formats do not have
        metrics=logfire.MetricsOptions(additional_readers=[reader], views=()),
    )
    assert isinstance(reader, PrometheusReader)
    return PrometheusServer(PrometheusCollector(reader), "127.0.0.1", [0]).address


def served_by_instrumentation() -> str:
    """Return the address of the exporter that `opentelemetry-instrument` has set up."""
    return f"{os.environ['OTEL_EXPORTER_PROMETHEUS_HOST']}:{os.environ['OTEL_EXPORTER_PROMETHEUS_PORT']}"


def keep_runs(store: PendingStore) -> None:
    """Keep a run that waits in a store, a run that is decided, and a run that can't resume."""

    def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedChatModel([ToolCall("pay", id="c1")] * 3)
    client = ChatClient(model, name="support_desk", tools=[tool(pay, requires_approval=True)], pending_store=store)
    _, decided, refused = (client.prompt(f"Pay {number}.").call() for number in range(3))
    for response in (decided, refused):
        store.decide("c1", Approve(), run_id=response.run_id)
    with suppress(ResumeError):
        client.replace(tools=[]).resume(refused.state or "").call()
    store.report_metrics()


def main() -> None:
    """Set OpenTelemetry up, play, and serve until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--setup", choices=("configure", "logfire", "instrumentation"), required=True)
    parser.add_argument("--otlp")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    given = parser.parse_args()
    scenario, traces = Scenario(), EndedTraces()
    match given.setup:
        case "configure":
            address = served_by_configure(given.otlp)
            trace.get_tracer_provider().add_span_processor(traces)  # type: ignore[attr-defined]
        case "logfire":
            address = served_by_logfire(traces)
        case _:
            address = served_by_instrumentation()
    print(json.dumps({"address": address}), flush=True)
    sys.stdin.readline()
    folder = TemporaryDirectory()
    keep_runs(store := PendingStore(f"{folder.name}/pending.db"))
    is_over = Event()
    driver = Thread(target=drive_runs_until, args=(is_over, store))
    driver.start()
    scenario.run(count=given.rounds * scenario.runs_per_round, rate=given.rate, on_unexpected=print_unexpected)
    is_over.set()
    driver.join()
    print(json.dumps({"traces": sorted(traces.ids)}), flush=True)
    sys.stdin.read()
    store.close()
    folder.cleanup()


def print_unexpected(error: Exception) -> None:
    """Report a run that an overloaded machine made end in another way; the next round plays its outcome again."""
    print(repr(error), file=sys.stderr)


if __name__ == "__main__":
    main()
