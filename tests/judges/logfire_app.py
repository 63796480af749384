"""An application that uses logfire: `python -m tests.judges.logfire_app`.

It runs an agent in each mode, with the global providers and with the same ones named, below a span of logfire's. Its
output is JSON: what logfire got of each run.
"""

from __future__ import annotations

import json
from typing import Any

import logfire
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.judges.paths import paths_of
from tests.modes import ALL_MODES, run
from traced_tools import ChatClient, TelemetryOptions, ToolCall
from traced_tools.testing import ScriptedChatModel

spans, records, reader = InMemorySpanExporter(), InMemoryLogRecordExporter(), InMemoryMetricReader()


def add(a: int, b: int) -> int:
    """Add."""
    with logfire.span("adding"):
        return a + b


def traced_in(mode: str, telemetry: TelemetryOptions | None) -> dict[str, Any]:
    """Run an agent and return what logfire got."""
    spans.clear()
    records.clear()
    script = [[ToolCall("add", {"a": 1, "b": 2}), ToolCall("add", {"a": 1, "b": "x"})], "3"]
    with logfire.span("outer"):
        outer = trace.get_current_span()
        run(mode, ChatClient(ScriptedChatModel(script), tools=[add], telemetry=telemetry).prompt("?"))
        is_restored = trace.get_current_span() is outer
    finished = spans.get_finished_spans()
    traces = {span.get_span_context().trace_id for span in finished}
    events = [each.log_record for each in records.get_finished_logs()]
    return {
        "paths": paths_of(finished),
        "traces": len(traces | {event.trace_id for event in events}),
        "events": sorted(str(event.event_name) for event in events),
        "restored": is_restored,
    }


def metric_names() -> list[str]:
    """Return the names of the metrics that were recorded."""
    data = reader.get_metrics_data()
    assert data is not None
    return [metric.name for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]


def main() -> None:
    """Set logfire up, run the agents, and print what logfire got."""
    logfire.configure(
        send_to_logfire=False,
        console=False,
        additional_span_processors=[SimpleSpanProcessor(spans)],
        metrics=logfire.MetricsOptions(additional_readers=[reader]),
        advanced=logfire.AdvancedOptions(log_record_processors=[SimpleLogRecordProcessor(records)]),
    )
    named = TelemetryOptions(trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider())
    runs = {mode: [traced_in(mode, options) for options in (None, named)] for mode in ALL_MODES}
    print(json.dumps({"runs": runs, "metrics": metric_names()}))


if __name__ == "__main__":
    main()
