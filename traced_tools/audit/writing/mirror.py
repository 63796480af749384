"""The mirror: OpenTelemetry log records and metrics of what a trail has stored, for dashboards and alerts.

The store is the evidence. The mirror may lag behind it, and drops records rather than delay anything. A background
thread emits log records, so that a slow exporter of the application never delays an intent.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from traced_tools.audit.records import PRINCIPAL, body_of, person_of, without_text
from traced_tools.audit.writing.chain import kind_and_agent, record_of
from traced_tools.core.fork import on_fork
from traced_tools.core.messages import encodable
from traced_tools.flow.background import Task, TaskWorker, deadline_in
from traced_tools.observe import names
from traced_tools.observe.failures import error_type, report_failure
from traced_tools.observe.providers import instruments_of, logger_of
from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions
from traced_tools.observe.sanitize import agent_name_label, limit_cardinality

if TYPE_CHECKING:
    from traced_tools.audit.records import AuditRecord
    from traced_tools.audit.store import Row
    from traced_tools.observe.attributes import Attributes
    from traced_tools.observe.names.registry_types import EventType

MOST_WAITING: Final = 20_000
"""Maximum number of records that wait for a slow exporter. Further records are counted and not mirrored."""

_EVENTS: Final[Mapping[str, EventType]] = {
    "intent": names.AUDIT_INTENT_EVENT,
    "decision": names.AUDIT_DECISION_EVENT,
    "outcome": names.AUDIT_OUTCOME_EVENT,
    "compaction": names.AUDIT_COMPACTION_EVENT,
    "tools_changed": names.AUDIT_TOOLS_CHANGED_EVENT,
    "checkpoint": names.AUDIT_CHECKPOINT_EVENT,
    "gap": names.AUDIT_GAP_EVENT,
    "erasure": names.AUDIT_ERASURE_EVENT,
}
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "chain_id": names.AUDIT_CHAIN_ID,
    "sequence": names.AUDIT_SEQUENCE,
    "run_id": names.RUN_ID,
    "agent": names.AGENT_NAME,
    "conversation_id": names.CONVERSATION_ID,
    "iteration": names.ITERATION_INDEX,
    "tool": names.TOOL_NAME,
    "call_id": names.TOOL_CALL_ID,
    "actors": names.ACTORS,
    "batch_index": names.TOOL_BATCH_INDEX,
    "batch_size": names.TOOL_BATCH_SIZE,
    "source": names.TOOL_SOURCE,
    "provider": names.PROVIDER_NAME,
    "model": names.RESPONSE_MODEL,
    "response_id": names.RESPONSE_ID,
    "decision": names.TOOL_DECISION,
    "advisor": names.ADVISOR_NAME,
    "reason_code": names.REASON_CODE,
    "rule": names.POLICY_RULE,
    "policy_digest": names.POLICY_DIGEST,
    "error_type": names.ERROR_TYPE,
    "outcome": names.AUDIT_OUTCOME,
    "attempts": names.TOOL_ATTEMPTS,
    "trigger": names.COMPACTION_TRIGGER,
    "strategy": names.COMPACTION_STRATEGY,
    "covered": names.COMPACTION_COVERED,
    "tokens_before": names.COMPACTION_TOKENS_BEFORE,
    "tokens_after": names.COMPACTION_TOKENS_AFTER,
    "tokens_estimated": names.COMPACTION_TOKENS_ESTIMATED,
}
"""The attribute of each field of a record."""
_PEOPLE: Final = {"by": names.APPROVAL_BY, PRINCIPAL: names.PRINCIPAL_ID}
_SIZES: Final = {"arguments": names.TOOL_ARGUMENTS_SIZE, "result": names.TOOL_RESULT_SIZE}
_GLOBAL: Final = TelemetryOptions()
_NO_TRACE: Final = set_span_in_context(INVALID_SPAN, Context())  # an empty context would stand for the current one


def mirror_records(rows: Sequence[Row], options: TelemetryOptions | None = None) -> None:
    """Count durable records, and queue them as log records. Never raises, never waits.

    Call it from any thread that holds no lock. A log record has the time and the trace of the audit record. Its body is
    the audit record's JSON without the texts of contents, which is what the record's hash covers.

    Args:
        rows: the rows that were stored.
        options: the providers; None for the global providers.
    """
    options = options or _GLOBAL
    try:
        if instruments_of(options.meter_provider) is None and logger_of(options.logger_provider) is None:
            return
        telemetry = RunTelemetry(options, agent="")
        if telemetry.instruments is not None:
            for (kind, agent), count in Counter(map(kind_and_agent, rows)).items():
                labels: Attributes = {names.AUDIT_RECORD: kind}
                if agent:
                    labels[names.AGENT_NAME] = agent_name_label(agent)
                telemetry.guarded(telemetry.instruments.audit_records.add, count, labels)
        if telemetry.logger is not None and (dropped := _QUEUE.put(len(rows), partial(_emit_all, rows, telemetry))):
            report_failure(Overflow(), "the mirror of the audit trail")
            if telemetry.instruments is not None:
                telemetry.instruments.telemetry_failures.add(dropped)
    except Exception as error:
        report_failure(error, "the mirror of the audit trail")


def begin(options: TelemetryOptions | None = None) -> None:
    """Start the thread before it is needed if a logger is configured: Python 3.12 starts none at interpreter shutdown.

    Args:
        options: the providers; None for the global providers.
    """
    if logger_of((options or _GLOBAL).logger_provider) is not None:
        _QUEUE.start()


def watch_lag(lag: Callable[[], float], options: TelemetryOptions | None = None) -> None:
    """Report the age of the oldest pending record as a metric.

    Args:
        lag: a bound method that returns the age in seconds, 0 if no record is pending. It is referenced weakly.
        options: the providers; None for the current global providers.
    """
    if (instruments := instruments_of((options or _GLOBAL).meter_provider)) is not None:
        instruments.audit.watch(lag)


def flush(timeout: float = 5.0) -> bool:
    """Wait until all queued records are emitted, and return whether they are after `timeout` seconds."""
    return _QUEUE.flush(timeout)


class CheckpointLosses:
    """Counts failed and lost copies of checkpoints outside the store.

    Args:
        options: the providers; None for the global providers.
    """

    def __init__(self, options: TelemetryOptions | None) -> None:
        self._options: Final = options or _GLOBAL

    def failed(self, error: BaseException) -> None:
        """Count an attempt that failed."""
        labels = {names.ERROR_TYPE: limit_cardinality(names.ERROR_TYPE, "audit checkpoints", error_type(error))}
        self._add("audit_checkpoints_failed", 1, labels)

    def lost(self, lines: int) -> None:
        """Count checkpoints whose copies are lost."""
        self._add("audit_checkpoints_lost", lines, {})

    def _add(self, counter: str, count: int, labels: Mapping[str, str]) -> None:
        try:
            telemetry = RunTelemetry(self._options, agent="")
            if telemetry.instruments is not None:
                telemetry.guarded(getattr(telemetry.instruments, counter).add, count, labels)
        except Exception as error:
            report_failure(error, "the mirror of the audit trail")


class Overflow(Exception):
    """Too many records wait to be mirrored, or no thread can be started for them."""


class _Queue:
    """The queue of the background thread. It holds at most `MOST_WAITING` records, or one larger batch."""

    def __init__(self) -> None:
        self._worker = TaskWorker("traced_tools-audit-mirror")
        self.start: Final = self._worker.start
        self._reset()
        on_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0

    def put(self, size: int, work: Callable[[], object]) -> int:
        """Queue work for `size` records and return 0. If the queue is full or no thread can start, return `size`."""
        with self._lock:
            if self._waiting and self._waiting + size > MOST_WAITING:
                return size
            if not self._worker.submit(Task(partial(self._do, size, work))):
                return size
            self._waiting += size
        return 0

    def _do(self, size: int, work: Callable[[], object]) -> bool:
        try:
            work()
        finally:
            with self._lock:
                self._waiting -= size
        return True

    def flush(self, timeout: float) -> bool:
        """Wait until all queued work is done, and return whether it was done within `timeout` seconds."""
        if not self._waiting:  # there may be no thread, and none can start at interpreter shutdown
            return True
        last = Task(lambda: True)
        self._worker.submit(last)
        return last.wait(deadline_in(timeout))


_QUEUE: Final = _Queue()


def _emit_all(rows: Sequence[Row], telemetry: RunTelemetry) -> None:
    for row in rows:
        telemetry.guarded(_emit, record_of(row), telemetry)


def _emit(record: AuditRecord, telemetry: RunTelemetry) -> None:
    if telemetry.logger is not None:
        event, fields = _EVENTS[record.kind], record.fields
        attributes, body = partial(_attributes, event, record, fields), partial(_body, record, fields)
        telemetry.logger.emit(event, _context(fields), attributes, body, record.time)


def _attributes(event: EventType, record: AuditRecord, fields: Mapping[str, Any]) -> Attributes:
    attributes: Attributes = {names.AUDIT_HASH: record.hash}
    for field, name in _ATTRIBUTES.items():
        value = fields.get(field)
        if value is not None and name in event.attributes:
            attributes[name] = _encodable(value)
    for field, name in _PEOPLE.items():
        person = person_of({field: _without_text(fields.get(field))}, field)
        if person is not None and name in event.attributes:
            attributes[name] = person
    for field, name in _SIZES.items():
        if field in fields and name in event.attributes:
            attributes[name] = fields[field]["size"]
    return attributes


def _encodable(value: Any) -> Any:
    if isinstance(value, list):  # the actors, in JSON
        return tuple(encodable(str(item)) for item in value)
    return encodable(value) if isinstance(value, str) else value


def _body(record: AuditRecord, fields: Mapping[str, Any]) -> str:
    if '"text":' not in record.body:
        return record.body
    return body_of({name: _without_text(value) for name, value in fields.items()})


def _without_text(value: Any) -> Any:
    return without_text(value) if isinstance(value, Mapping) and "digest" in value else value


def _context(fields: Mapping[str, Any]) -> Context:
    """Return a context with the span of the recorded call, marked as sampled so that no sampler drops the record."""
    trace_id, span_id = fields.get("trace_id"), fields.get("span_id")
    if trace_id is None or span_id is None:
        return _NO_TRACE
    span = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(span), Context())
