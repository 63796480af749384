"""An event exporter that emits OpenTelemetry log records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import _logs, trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.context import Context

from traced_tools._version import __version__
from traced_tools.core.checks import expect
from traced_tools.events.exporter import EventExporter, ExportFailed
from traced_tools.observe import names
from traced_tools.observe.sanitize import safe_identifier

if TYPE_CHECKING:
    from opentelemetry._logs import Logger

    from traced_tools.observe.typed_events.types import Event

_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ATTRIBUTES: Final = {
    "type": names.EVENT_TYPE,
    "id": names.EVENT_ID,
    "sequence": names.EVENT_SEQUENCE,
    "run_id": names.RUN_ID,
    "agent": names.AGENT_NAME,
    "conversation_id": names.CONVERSATION_ID,
    "tool": names.TOOL_NAME,
}


class OtlpEventExporter(EventExporter):
    """Emits each event as an OpenTelemetry log record through the application's logger provider.

    The record is named `traced_tools.event`, its body is the event's JSON as a map, and it has the time and the span of
    the event. The log pipeline then delivers the record and counts its own losses.

    Args:
        logger_provider: emits the records; None uses the current global provider.
    """

    name = "otlp.events"

    def __init__(self, logger_provider: _logs.LoggerProvider | None = None) -> None:
        expect("logger_provider", logger_provider, (_logs.LoggerProvider, type(None)), "a LoggerProvider or None")
        self._logger_provider = logger_provider

    def export(self, events: Sequence[Event]) -> None:
        """Emit events; raises an `ExportFailed` that is not retryable if no logger is enabled."""
        logger = self._provider.get_logger(names.SCOPE, __version__)
        if not logger.enabled(severity_number=SeverityNumber.INFO, event_name=names.EXPORTED_EVENT.name):
            raise ExportFailed(
                "no OpenTelemetry logger is enabled: call traced_tools.configure() first, or pass logger_provider=",
                retryable=False,
            )
        for event in events:
            _emit(logger, event)

    def flush(self) -> None:
        """Flush the provider if it can flush; raises `ExportFailed` if the provider reports a failure.

        `close` does not flush: the provider stays open and sends the records in its own interval.
        """
        force_flush = getattr(self._provider, "force_flush", None)
        if callable(force_flush) and force_flush() is False:
            raise ExportFailed("the logger provider could not flush all its records")

    @property
    def _provider(self) -> _logs.LoggerProvider:
        return _logs.get_logger_provider() if self._logger_provider is None else self._logger_provider


def _emit(logger: Logger, event: Event) -> None:
    fields = event.model_dump(mode="json", exclude_none=True)
    logger.emit(
        timestamp=(event.time - _START) // timedelta(microseconds=1) * 1000,
        context=_context(event),
        severity_number=SeverityNumber.INFO,
        severity_text=names.EXPORTED_EVENT.severity,
        body=fields,
        attributes=_attributes(fields),
        event_name=names.EXPORTED_EVENT.name,
    )


def _attributes(fields: dict[str, Any]) -> dict[str, Any]:
    attributes = {name: fields[field] for field, name in _ATTRIBUTES.items() if field in fields}
    if fields["iteration"] > 0:
        attributes[names.ITERATION_INDEX] = fields["iteration"]
    if "call_id" in fields:
        attributes[names.TOOL_CALL_ID] = safe_identifier(fields["call_id"])
    return attributes


def _context(event: Event) -> Context:
    """Return a context with the event's span, or with no span, but never with the exporter's current span."""
    span = trace.INVALID_SPAN
    if event.trace_id is not None and event.span_id is not None:
        ids = trace.SpanContext(int(event.trace_id, 16), int(event.span_id, 16), is_remote=False)
        span = trace.NonRecordingSpan(ids)
    return trace.set_span_in_context(span, Context())
