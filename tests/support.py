"""What many tests share: the four ways to run a request, telemetry kept in memory, and ways to wait with a time-out."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from opentelemetry.trace.status import StatusCode

from traced_tools.advisors.exchange import ChatClientResponse
from traced_tools.client import ChatClientRequestSpec
from traced_tools.observe.run_telemetry import TelemetryOptions

T = TypeVar("T")

MODES = ("call", "acall", "stream", "astream")
ASYNC_MODES = ("acall", "astream")
BLOCKING_MODES = ("call", "stream")
PATIENCE = 5.0
"""Seconds after which a test that waits has failed; nothing waits that long when all is well."""


async def arun(mode: str, spec: ChatClientRequestSpec) -> ChatClientResponse:
    """Run `spec` in one of the asyncio modes and return the aggregated response."""
    if mode == "acall":
        return await spec.acall()
    async with spec.astream() as stream:
        async for _ in stream:
            pass
    return stream.response


def run(mode: str, spec: ChatClientRequestSpec) -> ChatClientResponse:
    """Run `spec` in `mode` and return the aggregated response."""
    if mode in ASYNC_MODES:
        return asyncio.run(patiently(arun(mode, spec)))
    if mode == "call":
        return spec.call()
    with spec.stream() as stream:
        for _ in stream:
            pass
    return stream.response


async def patiently(awaitable: Awaitable[T]) -> T:
    """Await `awaitable`, or fail with a `TimeoutError`."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


def in_time(function: Callable[[], T]) -> T:
    """Call `function` in a daemon thread and return its result; an `AssertionError` if it does not return in time."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it does not come back"
    if errors:
        raise errors[0]
    return results[0]


def span_id(span: ReadableSpan) -> int:
    """Return the id of `span`."""
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def trace_id(span: ReadableSpan) -> int:
    """Return the id of the trace of `span`."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


class Counting(SpanProcessor):
    """Counts how often each span begins and ends."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun[span_id(span)] += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.ended[span_id(span)] += 1


class Complaints(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Telemetry:
    """Spans and metrics in memory; pass `options` to `ChatClient(telemetry=...)`."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.counting = Counting()
        self.complaints = Complaints()
        self.reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(self.counting)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.options = TelemetryOptions(self.tracer_provider, self.meter_provider)
        logging.getLogger("opentelemetry").addHandler(self.complaints)

    def close(self) -> None:
        """Stop listening."""
        logging.getLogger("opentelemetry").removeHandler(self.complaints)

    @property
    def tracer(self) -> Tracer:
        """A tracer of the application's own."""
        return self.tracer_provider.get_tracer("application")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended, in the order of their end."""
        return self.exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [span.name for span in self.spans]

    def named(self, start: str) -> list[ReadableSpan]:
        """Return the ended spans whose name begins with `start`, in order of their start."""
        found = [span for span in self.spans if span.name.startswith(start)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, start: str) -> ReadableSpan:
        """Return the only ended span whose name begins with `start`."""
        (span,) = self.named(start)
        return span

    def parent(self, span: ReadableSpan) -> str | None:
        """Return the name of a span's parent; None for a root."""
        if span.parent is None:
            return None
        by_id = {span_id(each): each.name for each in self.spans}
        return by_id.get(span.parent.span_id, "a span that has not ended")

    def tree(self) -> list[tuple[str, str | None]]:
        """Return each span's name and its parent's, sorted."""
        return sorted(((span.name, self.parent(span)) for span in self.spans), key=str)

    def check_each_ended_once(self) -> None:
        """Assert that there are spans, that each has ended once, and that OpenTelemetry logged nothing."""
        assert self.counting.begun, "no span has begun"
        assert self.counting.begun == self.counting.ended
        assert set(self.counting.ended.values()) == {1}
        assert self.complaints.texts == []

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
