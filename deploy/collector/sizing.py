"""Measures what a run emits, for the README and docs/cost-and-volume.md: `python deploy/collector/sizing.py`.

A run has four iterations with one tool call in each but the last, two advisors besides the loop, and an audit trail.
The sizes are those of OTLP requests with 20 runs each, uncompressed and with gzip.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from traced_tools import (
    Advisor,
    AuditAdvisor,
    AuditTrail,
    ChatClient,
    LoopLimits,
    TelemetryOptions,
    ToolCall,
    Usage,
    tool,
)
from traced_tools.core.enums import DETAILS, CaptureMode, Detail
from traced_tools.testing import ScriptedChatModel

RUNS: Final = 20
ITERATIONS: Final = 4
_WORDS: Final = [f"{number:x}" for number in Random(0).sample(range(16**4, 16**8), 2_000)]


@dataclass(frozen=True)
class Row:
    """What runs emit of one kind of item.

    Attributes:
        items: what is emitted, as a text.
        per_run: the number of items of a run, their bytes, and their bytes with gzip.
        per_iteration: the same of one more iteration with a tool call.
    """

    items: str
    per_run: tuple[float, float, float]
    per_iteration: tuple[float, float, float]

    def __str__(self) -> str:
        count, size, zipped = self.per_run
        cells = [f"{size / count:.0f}", f"{zipped / count:.0f}"]
        for count, size, zipped in (self.per_run, self.per_iteration):
            cells += [f"{count:.0f}", f"{size / 1000:.1f} kB", f"{zipped / 1000:.2f} kB"]
        return f"| {self.items} | {' | '.join(cells)} |"


def measured() -> list[Row]:
    """Measure the spans at each level of detail, the spans with content, the events, and the audit records."""
    return [
        *(_row("spans", f', `detail="{detail}"`', detail) for detail in DETAILS),
        _row("spans", ', `detail="hooks"`, with content', "hooks", "SPAN_ONLY"),
        _row("events", "", "run"),
        _row("audit records", "", "run"),
    ]


def _row(items: str, condition: str, detail: Detail, capture: CaptureMode = "NO_CONTENT") -> Row:
    run, longer = (_size(emitted(length, detail, capture)[items]) for length in (ITERATIONS, ITERATIONS + 10))
    count, size, zipped = ((one - other) / 10 for one, other in zip(longer, run, strict=True))
    return Row(items + condition, run, (count, size, zipped))


def _size(items: Sequence[Any]) -> tuple[float, float, float]:
    """Return the number of items per run, their bytes, and their bytes with gzip."""
    encode = encode_spans if isinstance(items[0], ReadableSpan) else encode_logs
    body = encode(items).SerializeToString()
    return len(items) / RUNS, len(body) / RUNS, len(gzip.compress(body)) / RUNS


@cache
def emitted(iterations: int, detail: Detail, capture: CaptureMode = "NO_CONTENT") -> dict[str, list[Any]]:
    """Have 20 runs with so many iterations, and return their spans, events and audit records."""
    spans, records = InMemorySpanExporter(), InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    resource = Resource.create({"service.name": "travel", "service.version": "1.4.0", "host.name": "agents-7f9c"})
    tracers, loggers = TracerProvider(resource=resource), LoggerProvider(resource)
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    loggers.add_log_record_processor(SimpleLogRecordProcessor(records))
    options = TelemetryOptions(tracer_provider=tracers, logger_provider=loggers, detail=detail, capture=capture)
    with (
        TemporaryDirectory() as folder,
        AuditTrail(Path(folder, "audit.db"), key=b"k" * 32, telemetry=options) as trail,
    ):
        for number in range(RUNS):
            _run(Random(number), iterations, options, trail)
    found: dict[str, list[Any]] = {"spans": [*spans.get_finished_spans()], "events": [], "audit records": []}
    for record in records.get_finished_logs():
        is_audit = (record.log_record.event_name or "").startswith("traced_tools.audit.")
        found["audit records" if is_audit else "events"].append(record)
    return found


def _run(
    random: Random, iterations: int, options: TelemetryOptions, trail: AuditTrail, name: str = "travel_planner"
) -> None:
    def text(characters: int) -> str:
        return " ".join(random.choices(_WORDS, k=characters // 9))

    @tool
    def search_flights(city: str, day: str) -> str:
        """Search flights to a city."""
        return text(2_000)

    calls = [ToolCall("search_flights", {"city": text(20), "day": "2026-12-01"}) for _ in range(iterations - 1)]
    usage = Usage(input_tokens=1_800, output_tokens=120, cache_read_tokens=1_024)
    model = _Remote([*calls, text(400)], usage=usage, model="gpt-5-mini")
    advisors = [_Memory(), _Policy(), AuditAdvisor(trail)]
    limits = LoopLimits(max_iterations=iterations, max_calls_per_tool=None)
    client = ChatClient(
        model,
        name=name,
        system=text(3_000),
        tools=[search_flights],
        advisors=advisors,
        limits=limits,
        telemetry=options,
    )
    client.prompt(text(1_000), conversation_id=random.randbytes(8).hex()).call()


def prometheus_series() -> tuple[int, int]:
    """Return the series in Prometheus of an agent with a model and a tool, and those of one more agent like it."""
    one, two = (_series(agents) for agents in (1, 2))
    return one, two - one


def _series(agents: int) -> int:
    reader = InMemoryMetricReader()
    options = TelemetryOptions(meter_provider=MeterProvider([reader]))
    with TemporaryDirectory() as folder, AuditTrail(Path(folder, "audit.db"), key=b"k" * 32) as trail:
        for number in range(agents):
            _run(Random(0), ITERATIONS, options, trail, name=f"planner_{number}")
    data = reader.get_metrics_data()
    assert data is not None
    points = [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    # A histogram has a series for each bucket, its sum and its count.
    return sum(len(point.bucket_counts) + 2 if isinstance(point, HistogramDataPoint) else 1 for point in points)


class _Remote(ScriptedChatModel):
    server_address, server_port, provider = "api.openai.com", 443, "openai"


class _Memory(Advisor):
    name, order = "memory", 200

    async def advise(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


class _Policy(Advisor):
    name, order = "policy", 350

    async def advise_tool(self, call: Any, call_next: Any) -> Any:
        return await call_next(call)


if __name__ == "__main__":
    print("| items | bytes each | gzipped | a run | bytes | gzipped | an iteration | bytes | gzipped |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    print(*measured(), sep="\n")
    print("\n{} series in Prometheus for an agent, {} for one more".format(*prometheus_series()))
