"""A logging filter that adds the ids of the current run to log records."""

from __future__ import annotations

import logging
from typing import Final

from opentelemetry import trace

from traced_tools.run.context import RunContext, current_run

_FIELDS: Final = ("trace_id", "span_id", "run_id", "conversation_id", "agent")


class RunIdFilter(logging.Filter):
    """Sets `trace_id`, `span_id`, `run_id`, `conversation_id` and `agent` on each log record.

        handler.addFilter(RunIdFilter())

    In a run, also in its tools, threads and tasks, records have the ids of the innermost run and of the current span.
    Outside a run, and where an id is unknown, they have empty strings, so that a format such as `%(run_id)s` works for
    each record. The filter keeps attributes that a record already has, and lets every record pass.

    Add the filter to handlers: a filter of a logger does not see the records of the loggers below it. With a queue, add
    it to the `QueueHandler`, which runs where the record is logged.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attributes; return True."""
        run = current_run()
        values = ("",) * len(_FIELDS) if run is None else _field_values(run)
        for field, value in zip(_FIELDS, values, strict=True):
            if not hasattr(record, field):
                setattr(record, field, value)
        return True


def _field_values(run: RunContext) -> tuple[str, ...]:
    """Return the values of `_FIELDS` in a run."""
    span = trace.get_current_span().get_span_context()
    ids = (trace.format_trace_id(span.trace_id), trace.format_span_id(span.span_id)) if span.is_valid else ("", "")
    return (*ids, run.id, run.conversation_id or "", run.agent)
