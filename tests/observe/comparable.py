"""The telemetry of runs without times and ids, so that runs can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from tests.captured import Telemetry, context_of, hex_ids, series_key, total
from traced_tools.observe import names
from traced_tools.observe.metric_point import MetricPoint

TIMES = {
    names.ADVISOR_SELF_TIME,
    names.TOOL_QUEUE_TIME,
    names.RESPONSE_TIME_TO_FIRST_CHUNK,
    names.RUN_ID,
    names.STREAM_READER_WAIT,
    names.TOOL_CALL_ID,
}
STREAMING = {names.REQUEST_STREAM, names.RESPONSE_TIME_TO_FIRST_CHUNK, names.STREAM_READER_WAIT}
STREAMING_METRICS = {names.INFERENCE_TIME_TO_FIRST_CHUNK.name, names.INFERENCE_TIME_PER_OUTPUT_CHUNK.name}
LEDGER = {*names.TIME_BY_KIND.values()}
"""The time of a run by kind: a run has only the kinds that took any."""


def values_apart_from_times(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span, with `…` for values that differ between runs, and without its ledger."""
    return _apart_from_times({key: value for key, value in (span.attributes or {}).items() if key not in LEDGER})


def _apart_from_times(attributes: Any) -> dict[str, Any]:
    return {key: "…" if key in TIMES else value for key, value in attributes.items()}


def lineage(telemetry: Telemetry) -> list[Any]:
    """Each span with the names above it, its kind, status and attributes, apart from times and ids."""
    return lineage_of(telemetry.spans)


def lineage_of(spans: Iterable[ReadableSpan]) -> list[Any]:
    """The same for some of the spans; a span without its parent among them is a root."""
    by_id = {context_of(span).span_id: span for span in spans}

    def path(span: ReadableSpan) -> tuple[str, ...]:
        index = (span.attributes or {}).get(names.ITERATION_INDEX, "")
        parent = None if span.parent is None else by_id.get(span.parent.span_id)
        return (*(() if parent is None else path(parent)), f"{span.name} {index}")

    found = []
    for span in by_id.values():
        attributes = {key: value for key, value in values_apart_from_times(span).items() if key not in STREAMING}
        found.append((path(span), span.kind.name, span.status.status_code.name, sorted(attributes.items(), key=str)))
    return sorted(found, key=str)


def emitted_events(telemetry: Telemetry) -> list[Any]:
    """Each event with the name of the span it belongs to, apart from times and ids."""
    span_names = {hex_ids(span)[1]: span.name for span in telemetry.spans}
    found = []
    for event in telemetry.events:
        attributes = {key: value for key, value in _apart_from_times(event.attributes).items() if key not in STREAMING}
        where = span_names.get(event.span_id or "", "no span")
        found.append((event.name, event.severity, where, sorted(attributes.items(), key=str)))
    return sorted(found, key=str)


def steady(telemetry: Telemetry) -> list[MetricPoint]:
    """The series that each mode records."""
    return sorted(
        (
            each
            for each in telemetry.metrics
            if each.name not in {*STREAMING_METRICS, names.RUN_TIME.name}
            and each.attributes.get(names.ADVISOR_HOOK) != "on_chunk"
        ),
        key=lambda p: str(series_key(p)),
    )


def point_shape(point: MetricPoint) -> Any:
    """A series without its time, if it counts seconds."""
    is_time = names.METRICS[point.name].unit == "s"
    return series_key(point), point.count, "…" if is_time else total(point)
