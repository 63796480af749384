"""The scopes of conversation memory: of its operations, and of compactions; and what is counted without a span."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from opentelemetry.trace import SpanKind

from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, put
from traced_tools.observe.failures import error_type
from traced_tools.observe.genai_messages import MemoryRecords
from traced_tools.observe.sanitize import limit_cardinality, safe_person_name
from traced_tools.observe.scopes.scope import Scope

if TYPE_CHECKING:
    from traced_tools.core.enums import MemoryOperation
    from traced_tools.memory.observation import CompactionObservation, MemoryObservation
    from traced_tools.observe.content import Makers
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.logger import ApiLogger
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.names.registry_types import SpanType
    from traced_tools.observe.run_telemetry import RunTelemetry


class MemoryStageScope(Scope):
    """A stage of conversation memory, with a span if iterations have one, or if it fails.

    Args:
        run: the run's telemetry.
        iteration: the iteration of the loop, from 1; 0 outside a loop.
    """

    _type: SpanType

    def __init__(self, run: RunTelemetry, iteration: int) -> None:
        self.run = run
        self.traced = run.traces_iterations
        self._iteration = iteration

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        attributes: Attributes = {}
        put(attributes, names.AGENT_NAME, self.run.agent)
        put(attributes, names.CONVERSATION_ID, self.run.conversation_id)
        if self._iteration:
            attributes[names.ITERATION_INDEX] = self._iteration
        return self._type.name, SpanKind.INTERNAL, attributes

    def _is_notable(self) -> bool:
        """Whether the stage itself failed. The hook around it has no span then, because the error arose here."""
        return not self.traced and self.is_origin

    def _owner(self) -> str:
        return self._type.name


class MemoryScope(MemoryStageScope):
    """One reading of a conversation, or one appending to it: `search_memory`, `upsert_memory`."""

    openinference = names.SEARCH_MEMORY_SPAN.openinference

    def __init__(self, run: RunTelemetry, observed: MemoryObservation) -> None:
        super().__init__(run, observed.iteration)
        self._observed = observed
        self._reads = observed.operation == names.SEARCH_MEMORY
        self._type = names.SEARCH_MEMORY_SPAN if self._reads else names.UPSERT_MEMORY_SPAN
        self.content_names = self._type.content

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        name, kind, attributes = super()._opening()
        attributes[names.OPERATION_NAME] = self._observed.operation
        return name, kind, attributes

    def _final_attributes(self) -> Attributes:
        observed, attributes = self._observed, Attributes()
        put(attributes, names.MEMORY_RECORD_COUNT, observed.messages_read if self._reads else observed.messages_stored)
        if self._reads and observed.messages_read is not None:
            attributes[names.MEMORY_LEFT_OUT] = observed.messages_left_out
        if observed.conflicts:
            attributes[names.MEMORY_CONFLICTS] = observed.conflicts
        return attributes

    def _makers(self) -> Makers:
        return {names.MEMORY_QUERY: self._query, names.MEMORY_RECORDS: self._records}

    def _query(self) -> str | None:
        if self._observed.lookup is None or self.run.content is None:
            return None
        tool, words = self._observed.lookup
        return words if words and self.run.content.may_capture_lookup(tool) else None

    def _records(self) -> MemoryRecords | None:
        observed, content = self._observed, self.run.content
        if content is None:
            return None
        # an answer may repeat a result that is in none of these entries
        may_capture_answers = observed.lookup is None and content.may_capture_error()
        records = MemoryRecords(
            observed.entries(), content.may_capture_calls_of, may_capture_answers, content.capture.max_bytes
        )
        return records if len(records) else None

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        observed, agent = self._observed, self.run.agent_label
        labels: Attributes = {**agent, names.OPERATION_NAME: observed.operation}
        if self.error_type is not None:
            labels[names.ERROR_TYPE] = self.error_label()
        measurements: list[Measurement] = [(instruments.memory_duration, self.duration, labels)]
        for kind, messages in (
            (names.MESSAGES_READ, observed.messages_read),
            (names.MESSAGES_STORED, observed.messages_stored),
            (names.MESSAGES_LEFT_OUT, observed.messages_left_out),
        ):
            if messages:
                labels_of_kind: Attributes = {**agent, names.MEMORY_MESSAGES_KIND: kind}
                measurements.append((instruments.memory_messages, messages, labels_of_kind))
        if observed.conflicts:
            measurements.append((instruments.memory_conflicts, observed.conflicts, agent))
        return measurements


class CompactionScope(MemoryStageScope):
    """One attempt to send the model less of a conversation: `compact_memory`."""

    has_events = True
    openinference = names.COMPACT_MEMORY_SPAN.openinference
    _type = names.COMPACT_MEMORY_SPAN
    _follows_compaction = False

    def __init__(self, run: RunTelemetry, observed: CompactionObservation) -> None:
        super().__init__(run, observed.iteration)
        self._observed = observed
        self._trigger = safe_person_name(observed.trigger)

    def __enter__(self) -> Self:
        # A model call in here makes a summary: only a later one is sent the compacted conversation.
        self._follows_compaction, self.run.is_compacted = self.run.is_compacted, False
        return super().__enter__()

    def close(self, error: BaseException | None, elapsed: int) -> None:
        """End the span; if the conversation was compacted, the run's next model call says so."""
        self.run.is_compacted = self._follows_compaction or self._observed.outcome == "compacted"
        super().close(error, elapsed)

    def failed(self) -> None:
        """Record that a strategy failed and that the run goes on."""
        self.error_type = self._observed.error_type

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        name, kind, attributes = super()._opening()
        put(attributes, names.COMPACTION_TRIGGER, self._trigger)
        return name, kind, attributes

    def _final_attributes(self) -> Attributes:
        observed = self._observed
        attributes: Attributes = {names.COMPACTION_OUTCOME: observed.outcome}
        put(attributes, names.COMPACTION_STRATEGY, self._strategy())
        if observed.outcome == "compacted":
            attributes[names.COMPACTION_COVERED] = observed.covered
            put(attributes, names.COMPACTION_TOKENS_BEFORE, observed.tokens_before)
            put(attributes, names.COMPACTION_TOKENS_AFTER, observed.tokens_after)
            if observed.estimated:
                attributes[names.COMPACTION_TOKENS_ESTIMATED] = True
        return attributes

    def _strategy(self) -> str | None:
        return None if self._observed.strategy is None else safe_person_name(self._observed.strategy)

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        observed, strategy = self._observed, self._strategy()
        labels: Attributes = {**self.run.agent_label}
        if strategy:
            labels[names.COMPACTION_STRATEGY] = self._limited(names.COMPACTION_STRATEGY, strategy)
        outcome_labels = {**labels, names.COMPACTION_OUTCOME: observed.outcome}
        if self._trigger:
            outcome_labels[names.COMPACTION_TRIGGER] = self._limited(names.COMPACTION_TRIGGER, self._trigger)
        measurements: list[Measurement] = [(instruments.compactions, 1, outcome_labels)]
        if observed.tokens_before is not None and observed.tokens_after is not None:
            saved = max(0, observed.tokens_before - observed.tokens_after)
            measurements.append((instruments.compaction_tokens_saved, saved, labels))
        return measurements

    def _limited(self, label: str, name: str) -> str:
        return limit_cardinality(label, self.run.agent_in_metrics, name)

    def _emit(self, logger: ApiLogger) -> None:
        if self._observed.outcome in ("compacted", "failed"):
            logger.emit(names.MEMORY_COMPACTION_EVENT, self._context, self._ended)

    def _ended(self) -> Attributes:
        error: Attributes = {} if self.error_type is None else {names.ERROR_TYPE: self.error_type}
        return {**self.run.identity_on_events(), **self._opening()[2], **self._final_attributes(), **error}


def count_memory_failure(run: RunTelemetry, operation: MemoryOperation, error: BaseException) -> None:
    """Count a failed operation of memory after which the run goes on without it."""
    kind = limit_cardinality(names.ERROR_TYPE, operation, error_type(error))
    labels: Attributes = {**run.agent_label, names.OPERATION_NAME: operation, names.ERROR_TYPE: kind}
    run.record(lambda instruments: [(instruments.memory_failures, 1, labels)])
