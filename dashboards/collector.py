"""The metrics of an OpenTelemetry Collector about itself: https://opentelemetry.io/docs/collector/internal-telemetry/."""

from __future__ import annotations

from typing import Final

from dashboards.promql import total

ACCEPTED: Final = "receiver_accepted"
REFUSED: Final = "receiver_refused"
FAILED_TO_RECEIVE: Final = "receiver_failed"
SENT: Final = "exporter_sent"
FAILED_TO_SEND: Final = "exporter_send_failed"
FAILED_TO_ENQUEUE: Final = "exporter_enqueue_failed"
SIGNALS: Final = ("spans", "metric_points", "log_records")
"""The ends of the names above."""
QUEUE_SIZE: Final = "exporter_queue_size"
QUEUE_CAPACITY: Final = "exporter_queue_capacity"
TRACES_DECIDED: Final = "processor_tail_sampling_global_count_traces_sampled"
TRACES_DECIDED_BY_POLICY: Final = "processor_tail_sampling_count_traces_sampled"
DROPPED_TOO_EARLY: Final = "processor_tail_sampling_sampling_trace_dropped_too_early"
LATE_SPANS: Final = "processor_tail_sampling_sampling_late_span_age(_seconds)?_count"


def select(metric: str, *matchers: str) -> str:
    """Return the selector of a metric, whose name ends in `_total` in some setups."""
    return "{" + ", ".join((f'__name__=~"otelcol_{metric}(_total)?"', *matchers)) + "}"


def select_all(*metrics: str, matchers: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the selectors of several metrics for all signals."""
    return tuple(select(f"{metric}_{signal}", *matchers) for metric in metrics for signal in SIGNALS)


def queue_fill(*by: str) -> str:
    """Return the share of exporters' queues that is full."""
    size, capacity = (total(select(metric), *by) for metric in (QUEUE_SIZE, QUEUE_CAPACITY))
    return f"{size} / ({capacity} > 0)"
