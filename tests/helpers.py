"""What the tests of the client, the advisors, the tools and their telemetry share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from traced_tools import Advisor, ChatClientRequest, ChatClientRequestSpec, ChatClientResponse, TelemetryOptions
from traced_tools.advisors.base import AdviseNext

MODES = ("call", "acall", "stream", "astream")
MARKER = "mArKeR-7f3a"

relaxed = settings(database=None, deadline=None, max_examples=60)
"""A property may take its time and leaves nothing on disk."""


def stable_id(value: object) -> str:
    """Return the id of a test's parameter: its `repr` without addresses, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def run(spec: ChatClientRequestSpec, mode: str) -> ChatClientResponse:
    """Run `spec` in `mode` and return the response: of a stream, the aggregate."""
    return run_chunks(spec, mode)[0]


def run_chunks(spec: ChatClientRequestSpec, mode: str) -> tuple[ChatClientResponse, list[ChatClientResponse]]:
    """Run `spec` in `mode` and return the response and the chunks; without a stream there are none."""
    if mode == "call":
        return spec.call(), []
    if mode == "acall":
        return asyncio.run(spec.acall()), []
    if mode == "stream":
        with spec.stream() as stream:
            chunks = list(stream)
        return stream.response, chunks
    return asyncio.run(_drain(spec))


async def _drain(spec: ChatClientRequestSpec) -> tuple[ChatClientResponse, list[ChatClientResponse]]:
    async with spec.astream() as stream:
        chunks = [chunk async for chunk in stream]
    return stream.response, chunks


class Recorder(Advisor):
    """Keeps every request and response that passes it."""

    def __init__(self, name: str = "recorder", order: int = 400) -> None:
        self.name = name
        self.order = order
        self.requests: list[ChatClientRequest] = []
        self.responses: list[ChatClientResponse] = []

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self.requests.append(request)
        response = await call_next(request)
        self.responses.append(response)
        return response


@dataclass(frozen=True)
class Point:
    """One series of a metric: its labels, how often it was recorded, and the sum."""

    name: str
    labels: Mapping[str, Any]
    count: int
    total: float

    @property
    def key(self) -> tuple[str, tuple[tuple[str, Any], ...]]:
        return self.name, tuple(sorted(self.labels.items()))


@dataclass(frozen=True)
class Event:
    """A log-based event, and the span it belongs to."""

    name: str
    severity: str
    attributes: Mapping[str, Any]
    body: Any
    trace_id: int
    span_id: int


@dataclass
class Telemetry:
    """In-memory exporters, and the options that lead a client's telemetry there.

    `readers` are further ones of the same metrics.
    """

    sampler: Sampler | None = None
    detail: Any = None
    slow_hook: float | None = 60.0
    openinference: bool | None = None
    capture: Any = None
    prices: Any = None
    readers: Sequence[MetricReader] = ()
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    log_exporter: InMemoryLogRecordExporter = field(default_factory=InMemoryLogRecordExporter)

    def __post_init__(self) -> None:
        self.tracer_provider = TracerProvider(sampler=self.sampler, shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter_provider = MeterProvider([self.reader, *self.readers], shutdown_on_exit=False)
        self.logger_provider = LoggerProvider(shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self.log_exporter))
        self.options = TelemetryOptions(
            tracer_provider=self.tracer_provider,
            meter_provider=self.meter_provider,
            logger_provider=self.logger_provider,
            detail=self.detail,
            slow_hook=self.slow_hook,
            openinference=self.openinference,
            capture=self.capture,
            prices=self.prices,
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        """The ended spans in the order they started."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of one name."""
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of that name."""
        (span,) = self.named(name)
        return span

    def children(self, parent: ReadableSpan | None) -> list[ReadableSpan]:
        """The spans right below `parent`, in the order they started; of None, the roots."""
        wanted = None if parent is None else context_of(parent).span_id
        return [span for span in self.spans if (None if span.parent is None else span.parent.span_id) == wanted]

    def tree(self) -> list[Any]:
        """The span names, nested: a name for a leaf, (name, children) for the rest."""
        return [self._node(span) for span in self.children(None)]

    def _node(self, span: ReadableSpan) -> Any:
        below = [self._node(child) for child in self.children(span)]
        return (span.name, below) if below else span.name

    @property
    def events(self) -> list[Event]:
        """The log-based events in the order they were emitted."""
        return [_event(record) for record in self.log_exporter.get_finished_logs()]

    def events_named(self, name: str) -> list[Event]:
        """The events of one name."""
        return [event for event in self.events if event.name == name]

    def points(self) -> list[Point]:
        """Every series recorded so far."""
        data = self.reader.get_metrics_data()
        return [] if data is None else list(_points(data))

    def metric(self, name: str) -> list[Point]:
        """The series of one metric."""
        return [point for point in self.points() if point.name == name]


def context_of(span: ReadableSpan) -> Any:
    """The context of a span that has one."""
    assert span.context is not None
    return span.context


def _event(record: ReadableLogRecord) -> Event:
    log = record.log_record
    told = dict(log.attributes or {})
    return Event(log.event_name or "", log.severity_text or "", told, log.body, log.trace_id or 0, log.span_id or 0)


def _points(data: MetricsData) -> Iterator[Point]:
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    count = getattr(point, "count", 1)
                    total = point.sum if hasattr(point, "sum") else point.value
                    yield Point(metric.name, dict(point.attributes or {}), count, total)


def everything(value: object, depth: int = 0) -> str:
    """All text reachable in `value`, for marker searches."""
    if isinstance(value, Mapping):
        return " ".join(f"{key!r} {everything(item, depth + 1)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return " ".join(everything(item, depth + 1) for item in value)
    return f"{value!s} {value!r}"
