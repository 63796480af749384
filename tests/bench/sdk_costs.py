"""What parts of the OpenTelemetry SDK cost, each beside a way to do the same for less.

`python -m tests.bench.sdk_costs [--markdown]` prints the figures of docs/sdk-costs.md. The parts take turns, and the
best round of each counts, because other programs can only add to a time. Nothing of this package takes part.
"""

from __future__ import annotations

import argparse
import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from time import time_ns
from typing import Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics._internal._view_instrument_match import _hash_attributes
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.version import __version__
from opentelemetry.trace import set_span_in_context

from tests.bench.null_exporters import NullExporter, NullLogExporter
from tests.bench.timing import Case, sample
from tests.bench.workload import repeated

NUMBER: Final = 200
ATTRIBUTES: Final[dict[str, Any]] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "small-1",
    "gen_ai.usage.input_tokens": 61,
    "gen_ai.usage.output_tokens": 17,
    "gen_ai.request.temperature": 0.5,
}
LABELS: Final[dict[str, Any]] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "acme",
    "gen_ai.request.model": "small-1",
    "gen_ai.agent.name": "planner",
}
_LIMIT: Final = 128
_SIMPLE: Final = {str, int, float, bool}
_CURRENT: Final[ContextVar[object]] = ContextVar("current")


@dataclass(frozen=True)
class Part:
    """A part of the SDK.

    Attributes:
        name: what it does.
        sdk: does it with the SDK.
        less: does what is needed of it for less; None if there is no such way, or that is the sum of the others.
        proposal: how the SDK could do it for less.
    """

    name: str
    sdk: Callable[[], object]
    less: Callable[[], object] | None = None
    proposal: str = ""


@dataclass(frozen=True)
class Cost:
    """What a part costs: the microseconds of the SDK's way and of the other one."""

    part: Part
    sdk: float
    less: float | None


class CopyableRecord(LogRecord):
    """A log record that copies itself."""

    def __copy__(self) -> CopyableRecord:
        copied = CopyableRecord.__new__(CopyableRecord)
        copied.__dict__.update(self.__dict__)
        return copied


@contextmanager
def parts() -> Iterator[tuple[list[Part], Callable[[], None]]]:
    """Yield the parts, and a function that empties the queues of the processors."""
    traces, logs = TracerProvider(shutdown_on_exit=False), LoggerProvider(shutdown_on_exit=False)
    batch_of_spans, batch_of_logs = BatchSpanProcessor(NullExporter()), BatchLogRecordProcessor(NullLogExporter())
    traces.add_span_processor(batch_of_spans)
    logs.add_log_record_processor(batch_of_logs)
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    with ExitStack() as ending:
        for provider in (traces, logs, meters):
            ending.callback(provider.shutdown)
        root = traces.get_tracer("costs").start_span("run")
        token = attach(set_span_in_context(root))
        ending.callback(detach, token)
        spans, tracer = _span_parts(traces, batch_of_spans), traces.get_tracer("costs")
        whole = Part("a span of 5 attributes under another one, ended", lambda: _span(tracer))

        def flush() -> None:
            batch_of_spans.force_flush()
            batch_of_logs.force_flush()

        yield [whole, *spans, *_metric_parts(meters), *_log_parts(logs)], flush


def _span(tracer: Any) -> None:
    tracer.start_span("chat", attributes=ATTRIBUTES).end()


def _span_parts(provider: TracerProvider, processor: BatchSpanProcessor) -> list[Part]:
    ids, queue, lock = RandomIdGenerator(), deque[Any](maxlen=2048), Lock()
    span: Any = provider.get_tracer("costs").start_span("chat", attributes=ATTRIBUTES)
    readable, own = span._readable_span(), dict(ATTRIBUTES)

    def all_ids() -> None:
        ids.generate_trace_id()
        for _ in range(4):
            ids.generate_span_id()

    def checked_copy() -> dict[str, Any]:
        known = {*map(type, ATTRIBUTES.values())} <= _SIMPLE and len(ATTRIBUTES) <= _LIMIT
        return ATTRIBUTES.copy() if known else {}

    def checked_update() -> None:
        if {*map(type, ATTRIBUTES.values())} <= _SIMPLE:
            with lock:
                own.update(ATTRIBUTES)

    def current() -> None:
        detach(attach(set_span_in_context(span)))

    def current_in_variable() -> None:
        _CURRENT.reset(_CURRENT.set(span))

    return [
        Part("the ids of a trace and of four spans", all_ids),
        Part(
            "`BoundedAttributes` of 5 attributes",
            lambda: BoundedAttributes(_LIMIT, ATTRIBUTES, immutable=False),
            checked_copy,
            "copy the mapping if all values are of simple types and below the limits, without a lock of its own",
        ),
        Part(
            "`set_attributes` with 5 attributes that exist",
            lambda: span.set_attributes(ATTRIBUTES),
            checked_update,
            "update the mapping under the lock of the span alone, if all values are of simple types",
        ),
        Part(
            "the empty lists of events and links",
            lambda: (BoundedList(_LIMIT), BoundedList(_LIMIT)),
            lambda: ((), ()),
            "make a list, with its lock, when the first item is added",
        ),
        Part(
            "the readable copy of a span that ends",
            span._readable_span,
            lambda: span,
            "hand the ended span itself to processors that are part of the SDK",
        ),
        Part(
            "`on_end` of the batch processor",
            lambda: processor.on_end(readable),
            lambda: queue.append(readable),
            "ask for the process id in a fork hook instead of each time, and test the length once",
        ),
        Part(
            "a span made current and no longer",
            current,
            current_in_variable,
            "keep the current span in a variable of its own, so that no mapping is copied twice",
        ),
    ]


def _metric_parts(provider: MeterProvider) -> list[Part]:
    histogram = provider.get_meter("costs").create_histogram("d", unit="s")
    histogram.record(0.3, LABELS)
    key = (*LABELS, *LABELS.values())
    series, values = {key: object()}, deque[Any](maxlen=2048)
    context = get_current()

    def queued() -> None:
        values.append((series[(*LABELS, *LABELS.values())], 0.3, time_ns(), context))

    return [
        Part(
            "a value of a histogram with 4 labels",
            lambda: histogram.record(0.3, LABELS),
            queued,
            "find the series by the labels as they come, and let values wait for the collection",
        ),
        Part(
            "the key of 4 labels alone",
            lambda: _hash_attributes(LABELS),
            lambda: (*LABELS, *LABELS.values()),
            "sort and tag the labels once per combination, and remember which series it was",
        ),
    ]


def _log_parts(provider: LoggerProvider) -> list[Part]:
    logger, queue = provider.get_logger("costs"), deque[Any](maxlen=2048)

    def record(kind: type[LogRecord]) -> LogRecord:
        return kind(
            timestamp=time_ns(),
            context=Context(),
            severity_number=SeverityNumber.INFO,
            body="a tool failed",
            attributes=ATTRIBUTES,
            event_name="tool.failed",
        )

    plain, copyable = record(LogRecord), record(CopyableRecord)
    return [
        Part(
            "a log record of 5 attributes, emitted",
            lambda: logger.emit(record(LogRecord)),
            lambda: queue.append(record(LogRecord)),
            "check the attributes of simple types by their types alone",
        ),
        Part(
            "the copy of a log record",
            lambda: copy.copy(plain),
            lambda: copy.copy(copyable),
            "define `__copy__`: otherwise `copy` asks the class how to pickle it",
        ),
    ]


def costs(rounds: int = 60) -> list[Cost]:
    """Measure each part.

    Args:
        rounds: how often each part is timed.
    """
    with parts() as (listed, settle):
        ways = {f"{part.name}, sdk": part.sdk for part in listed}
        ways |= {f"{part.name}, less": part.less for part in listed if part.less is not None}
        cases = {name: Case(repeated(way, NUMBER), NUMBER) for name, way in ways.items()}
        series = sample(cases, rounds, settle)
    return [
        Cost(
            part,
            series[f"{part.name}, sdk"].fastest,
            None if part.less is None else series[f"{part.name}, less"].fastest,
        )
        for part in listed
    ]


def markdown(measured: list[Cost]) -> str:
    """Return the table of the page."""
    lines = ["| part | the SDK | for less | how |", "| --- | ---: | ---: | --- |"]
    for cost in measured:
        less = "" if cost.less is None else f"{cost.less:.2f} µs"
        lines.append(f"| {cost.part.name} | {cost.sdk:.2f} µs | {less} | {cost.part.proposal} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sdk_costs", description=description)
    parser.add_argument("--markdown", action="store_true", help="the table of docs/sdk-costs.md")
    measured = costs()
    if parser.parse_args().markdown:
        print(markdown(measured))
        return
    print(f"opentelemetry-sdk {__version__}, microseconds")
    for cost in measured:
        less = "" if cost.less is None else f"{cost.less:6.2f}"
        print(f"{cost.sdk:6.2f} {less:6}  {cost.part.name}")


if __name__ == "__main__":
    main()
