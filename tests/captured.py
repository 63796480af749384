"""Telemetry kept in memory: the captured telemetry of `traced_tools.testing`, with more options and ways to read it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanContext, Tracer
from opentelemetry.trace.status import StatusCode

from traced_tools.observe.metric_point import MetricPoint
from traced_tools.otel.memory import FinishedEvent
from traced_tools.otel.prometheus import iter_metrics
from traced_tools.testing.telemetry import CapturedTelemetry


class Telemetry(CapturedTelemetry):
    """Captured telemetry: pass `options` to `ChatClient(telemetry=...)`.

    In a `with` block, it also captures what OpenTelemetry logs.

    Args:
        capture: which contents are captured, as in `TelemetryOptions`.
        sampler: decides which spans are recorded; None for all.
        readers: further readers of the metrics.
        cumulative: whether the metrics can be read as OpenTelemetry has them, which costs time for each instrument.
        options: other arguments of `TelemetryOptions`.
    """

    def __init__(
        self,
        capture: Any = None,
        *,
        sampler: Sampler | None = None,
        readers: Sequence[MetricReader] = (),
        cumulative: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(capture)
        self.capture = capture
        self.tracer_provider = self._memory.tracer_provider
        self.meter_provider = self._memory.meter_provider
        self.logger_provider = self._memory.logger_provider
        if sampler is not None:
            self.tracer_provider.sampler = sampler
        for reader in readers:
            self.meter_provider.add_metric_reader(reader)
        self._cumulative = InMemoryMetricReader() if cumulative else None
        if self._cumulative is not None:
            self.meter_provider.add_metric_reader(self._cumulative)
        self.options = replace(self.options, **{"slow_hook": 60.0, **options})  # a busy machine makes no hook slow
        self.counting = SpanCounter()
        self.tracer_provider.add_span_processor(self.counting)
        self.complaints = LogTexts()

    def __enter__(self) -> Self:
        logging.getLogger("opentelemetry").addHandler(self.complaints)
        return self

    def __exit__(self, *_: object) -> None:
        """Capture no more logs. The providers stay: a run that a test leaves is collected, and recorded, later."""
        logging.getLogger("opentelemetry").removeHandler(self.complaints)

    # Spans.

    @property
    def tracer(self) -> Tracer:
        """A tracer of the application's own."""
        return self.tracer_provider.get_tracer("application")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended, in the order they started."""
        return tuple(sorted(super().spans, key=lambda span: span.start_time or 0))

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name such as `chat small-1`, or of an operation such as `chat`, as they started."""
        return [span for span in self.spans if span.name == name or span.name.startswith(f"{name} ")]

    def one(self, name: str) -> ReadableSpan:
        """Return the only span of that name or operation."""
        (span,) = self.named(name)
        return span

    def children(self, parent: ReadableSpan | None) -> list[ReadableSpan]:
        """Return the spans right below `parent`, in the order they started; of None, the roots."""
        wanted = None if parent is None else span_id(parent)
        return [span for span in self.spans if (None if span.parent is None else span.parent.span_id) == wanted]

    def parent(self, span: ReadableSpan) -> str | None:
        """Return the name of a span's parent; None for a root."""
        if span.parent is None:
            return None
        by_id = {span_id(each): each.name for each in self.spans}
        return by_id.get(span.parent.span_id, "a span that has not ended")

    def parents(self) -> list[tuple[str, str | None]]:
        """Return each span's name and its parent's, sorted."""
        return sorted(((span.name, self.parent(span)) for span in self.spans), key=str)

    def nested_names(self) -> list[Any]:
        """Return the names of the spans as they are nested: a name for a leaf, (name, children) for the rest."""
        return [self._nested(span) for span in self.children(None)]

    def _nested(self, span: ReadableSpan) -> Any:
        below = [self._nested(child) for child in self.children(span)]
        return (span.name, below) if below else span.name

    def leave_out(self, name: str) -> None:
        """Forget the ended spans of that name."""
        exporter = self._memory._spans
        kept = [span for span in exporter.get_finished_spans() if span.name != name]
        exporter.clear()
        exporter.export(kept)

    # Events and metrics.

    @property
    def records(self) -> tuple[ReadableLogRecord, ...]:
        """The log-based events as OpenTelemetry's log records, in the order they were emitted."""
        return tuple(self._memory._records.get_finished_logs())

    def events_named(self, name: str) -> list[FinishedEvent]:
        """Return the log-based events of one name."""
        return [event for event in self.events if event.name == name]

    def metrics_data(self) -> MetricsData:
        """Return all metrics as OpenTelemetry has them, from the beginning. Needs `cumulative`."""
        data = self._read()
        assert data is not None, "nothing was recorded"
        return data

    def observed(self, name: str) -> list[Any]:
        """Return the points of one metric as OpenTelemetry reports them now. Needs `cumulative`."""
        return [
            point for metric in iter_metrics(self._read()) if metric.name == name for point in metric.data.data_points
        ]

    def _read(self) -> MetricsData | None:
        assert self._cumulative is not None, "pass cumulative=True"
        return self._cumulative.get_metrics_data()

    def metric(self, name: str) -> list[MetricPoint]:
        """Return the series of one metric."""
        return [point for point in self.metrics if point.name == name]

    # Assertions.

    def check_each_ended_once(self) -> None:
        """Assert that there are spans, that each has ended once, and that OpenTelemetry logged nothing."""
        assert self.counting.begun, "no span has begun"
        assert self.counting.begun == self.counting.ended
        assert set(self.counting.ended.values()) == {1}
        assert not self.complaints.texts, self.complaints.texts

    def check_cancelled(self) -> None:
        """Assert the same, and that the one run counts as cancelled."""
        self.check_each_ended_once()
        self.check_run("cancelled", "cancelled")

    def check_run(self, stop_reason: str, error_type: str | None = None) -> None:
        """Assert how the one run ended."""
        span = self.one("invoke_agent")
        assert span.attributes is not None
        assert span.attributes["traced_tools.loop.stop_reason"] == stop_reason
        assert span.attributes.get("error.type") == error_type
        assert (span.status.status_code is StatusCode.ERROR) == (error_type is not None)


class SpanCounter(SpanProcessor):
    """Counts how often each span begins and ends."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun[span_id(span)] += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.ended[span_id(span)] += 1


class LogTexts(logging.Handler):
    """Keeps the texts of what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def context_of(span: ReadableSpan) -> SpanContext:
    """Return the context of a span that has one."""
    context = span.get_span_context()
    assert context is not None
    return context


def span_id(span: ReadableSpan) -> int:
    """Return the id of `span`."""
    return context_of(span).span_id


def trace_id(span: ReadableSpan) -> int:
    """Return the id of the trace of `span`."""
    return context_of(span).trace_id


def hex_ids(span: ReadableSpan) -> tuple[str, str]:
    """Return the ids of the trace of `span` and of the span, as events have them."""
    return f"{trace_id(span):032x}", f"{span_id(span):016x}"


def total(point: MetricPoint) -> float:
    """Return the number of a series, or the sum of a histogram."""
    found = point.value if point.count is None else point.sum
    assert found is not None
    return found


def series_key(point: MetricPoint) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Return what identifies a series: its metric and its attributes."""
    return point.name, tuple(sorted(point.attributes.items()))
