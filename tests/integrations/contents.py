"""All that a run records, in which tests look for contents."""

from __future__ import annotations

from tests.captured import Telemetry


def everything(telemetry: Telemetry) -> str:
    """Return the spans, events and metrics as text."""
    spans = [span.to_json() for span in telemetry.spans]
    records = [repr((record.log_record.body, record.log_record.attributes)) for record in telemetry.records]
    return "".join([*spans, *records, repr(telemetry.metrics)])


def names_by_end(telemetry: Telemetry) -> list[str]:
    """Return the names of the spans in the order in which they ended."""
    return [span.name for span in sorted(telemetry.spans, key=lambda span: span.end_time or 0)]
