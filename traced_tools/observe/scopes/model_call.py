"""The scopes of calls to models: a chat, an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from opentelemetry.trace import SpanKind

from traced_tools.core.messages import Usage, encodable
from traced_tools.core.prices import cost_of
from traced_tools.errors import ModelError, RateLimited
from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, copy_present_fields, put
from traced_tools.observe.failures import error_type
from traced_tools.observe.genai_messages import conversation_makers
from traced_tools.observe.off import OFF
from traced_tools.observe.run_telemetry import RunTelemetry
from traced_tools.observe.sanitize import (
    drop_invalid_counts,
    drop_oversized_ints,
    has_invalid_counts,
    known_finish_reason,
    limit_cardinality,
    safe_identifier,
)
from traced_tools.observe.scopes.scope import Scope

if TYPE_CHECKING:
    from traced_tools.core.enums import Conventions
    from traced_tools.observe.content import Makers
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.logger import ApiLogger
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.names.registry_types import EventType, SpanType
    from traced_tools.observe.stages.subjects import (
        EmbeddingAnswer,
        ModelAnswer,
        ModelInput,
        ModelReport,
        ObservedModel,
    )
    from traced_tools.observe.time_ledger import TimeLedger

_REQUEST = (
    ("temperature", names.REQUEST_TEMPERATURE),
    ("top_p", names.REQUEST_TOP_P),
    ("max_tokens", names.REQUEST_MAX_TOKENS),
    ("stop", names.REQUEST_STOP_SEQUENCES),
    ("seed", names.REQUEST_SEED),
    ("reasoning_effort", names.REQUEST_REASONING_LEVEL),
)
_INPUT_USAGE = (("input_tokens", names.USAGE_INPUT_TOKENS),)
_USAGE = (
    *_INPUT_USAGE,
    ("output_tokens", names.USAGE_OUTPUT_TOKENS),
    ("cache_read_tokens", names.USAGE_CACHE_READ_TOKENS),
    ("reasoning_tokens", names.USAGE_REASONING_TOKENS),
)
_USAGE_BY: Final[Mapping[Conventions, tuple[tuple[str, str], ...]]] = {
    "v0.1.0": (*_USAGE, ("cache_write_tokens", names.USAGE_CACHE_WRITE_TOKENS)),
    "v1.41.0": (*_USAGE, ("cache_write_tokens", names.USAGE_CACHE_CREATION_TOKENS)),
}

R = TypeVar("R", bound="ModelReport")

_OF_CALL: ContextVar[ModelScope[Any] | None] = ContextVar("traced_tools_model_call", default=None)


class ModelScope(Scope, Generic[R]):
    """One call of a model: `{operation} {model}`.

    Args:
        run: the telemetry of the run it belongs to.
        model: the model that is called.
        labels: what every metric of calls to it carries.

    Attributes:
        cost: US dollars; None before the answer, or if the price table does not know.
    """

    has_events = True
    cost: float | None = None
    _operation: str
    _type: SpanType
    _usage: tuple[tuple[str, str], ...]
    _response: R | None = None
    _usage_reported: Usage | None = None
    _resent = 0

    def __init__(self, run: RunTelemetry, model: ObservedModel, labels: Attributes) -> None:
        self.run = run
        self._model = model
        self._labels = labels

    def __enter__(self) -> Self:
        super().__enter__()
        self._around = _OF_CALL.get()
        _OF_CALL.set(self)
        return self

    def close(self, error: BaseException | None, elapsed: int) -> None:
        """End the call; the call around it, if any, is the current one again."""
        if _OF_CALL.get() is self:  # not in a context of the garbage collector's
            _OF_CALL.set(self._around)
        super().close(error, elapsed)

    def failed(self, failure: ModelError, wait: float | None) -> None:
        """Count a request to the provider that failed.

        Args:
            failure: what happened.
            wait: seconds until the request is sent again; None if it is not.
        """
        if self.run.instruments is not None:
            self.run.guarded(self._count_failure, self.run.instruments, failure, wait)

    def sent_again(self) -> None:
        """Record that a failed request is sent again."""
        self._resent += 1

    def _count_failure(self, instruments: Instruments, failure: ModelError, wait: float | None) -> None:
        if isinstance(failure, RateLimited):
            instruments.model_rate_limits.add(1, self._labels, self._context)
        if wait is None:
            return
        labels = {
            **self._labels,
            names.ERROR_TYPE: limit_cardinality(names.ERROR_TYPE, self._owner(), error_type(failure)),
        }
        status = failure.status_code
        if status is not None and limit_cardinality(names.RESPONSE_STATUS, self._owner(), str(status)) != names.OTHER:
            labels[names.RESPONSE_STATUS] = status
        instruments.model_retries.add(1, labels, self._context)
        instruments.model_retry_wait.add(wait, labels, self._context)

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        kind = SpanKind.INTERNAL if self._model.server_address is None else SpanKind.CLIENT
        attributes = self._labels.copy()
        put(attributes, names.AGENT_NAME, self.run.agent)
        return self._type.named(encodable(self._model.model)).rstrip(), kind, attributes

    def answered(self, response: R, cost: float | None = None) -> None:
        """Record what the model answered, and what the answer cost in US dollars, if that is known."""
        self._response, self.cost = response, cost
        self._usage_reported = usage = response.usage
        if usage is not None and has_invalid_counts(usage):
            self.run.telemetry_failed(ValueError(), "a model that reported tokens nobody can have counted")
            self._usage_reported = drop_invalid_counts(usage)

    def _final_attributes(self) -> Attributes:
        attributes: Attributes = {}
        if self._resent:
            attributes[names.RESEND_COUNT] = self._resent
        if self._response is not None:
            self._describe(self._response, attributes)
        return attributes

    def _describe(self, response: R, attributes: Attributes) -> None:
        put(attributes, names.RESPONSE_MODEL, self._answering_model(response.model or ""))
        copy_present_fields(self._reported(), self._usage, attributes)

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        labels, usage = self._ended_labels(), self._reported()
        error = {} if self.error_type is None else {names.ERROR_TYPE: self.error_label()}
        labels_with_error = {**labels, **error} if error else labels
        models = instruments.models
        measurements: list[Measurement] = [(models.duration(self._operation), self.own_time, labels_with_error)]
        if usage is not None:
            measurements += models.tokens(usage, labels, labels_with_error)
            if self.run.options.prices is not None:
                measurements.append(self._cost_measurement(instruments, usage))
        return measurements

    def _is_own(self, error: BaseException) -> bool:
        return not self.run.is_of_listener(error)

    def _reported(self) -> Usage | None:
        """Return the usage that the model reported, without invalid counts."""
        return self._usage_reported

    def _cost_measurement(self, instruments: Instruments, usage: Usage) -> Measurement:
        labels = {name: self._labels[name] for name in names.USAGE_COST.attributes if name in self._labels}
        if self.cost is None:
            return instruments.unpriced_tokens, usage.total_tokens or 0, labels
        return instruments.usage_cost, self.cost, labels

    def _emit(self, logger: ApiLogger) -> None:
        if self.failure is not None:
            self._emit_exception(logger, self._exception_event())

    def _exception_event(self) -> EventType:
        """Return the event of an exception that ends the call."""
        return names.OPERATION_EXCEPTION_EVENT

    def _answering_model(self, model: str) -> str:
        return model if model == self._model.model else safe_identifier(model)

    def _answer_label(self, model: str) -> str:
        if model == self._model.model:
            return model
        return limit_cardinality(names.RESPONSE_MODEL, self._owner(), safe_identifier(model))

    def _owner(self) -> str:
        return f"{self._operation} {self._model.model}"

    def _ended_labels(self) -> Attributes:
        labels, response = self._labels.copy(), self._response
        if response is not None and response.model:
            labels[names.RESPONSE_MODEL] = self._answer_label(response.model)
        return labels


class ChatScope(ModelScope["ModelAnswer"]):
    """One call of a chat model: `chat {model}`."""

    content_names = names.CHAT_SPAN.content
    openinference = names.CHAT_SPAN.openinference
    _operation, _type = names.CHAT, names.CHAT_SPAN
    kind = "model"
    _requested_at = 0  # when an answer in chunks was requested; 0 for an answer as a whole
    _first_chunk: float | None = None
    _waiting_since = 0
    _chunk_ns = _reader_ns = 0  # booked at the end, because each chunk adds to them

    def __init__(
        self, run: RunTelemetry, model: ObservedModel, model_input: ModelInput, ledger: TimeLedger | None = None
    ) -> None:
        super().__init__(run, model, run.chat_labels(model))
        self.ledger: TimeLedger = run.ledger if ledger is None else ledger
        self._usage = _USAGE_BY[run.conventions]
        self._model_input = model_input
        self._follows_compaction, run.is_compacted = run.is_compacted, False
        if run.content is not None:
            run.guarded(run.content.register_tools, model_input.tools)

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        name, kind, attributes = super()._opening()
        put(attributes, names.CONVERSATION_ID, self.run.conversation_id)
        if self._follows_compaction:
            attributes[names.CONVERSATION_COMPACTED] = True
        if self._model_input.iteration:
            attributes[names.ITERATION_INDEX] = self._model_input.iteration
        return name, kind, attributes

    def close(self, error: BaseException | None, elapsed: int) -> None:
        """Book the time of the advisors and the reader that received the answer, and end the call."""
        if self._chunk_ns:
            self.ledger.book_downstream("chunk", self._chunk_ns)
        if self._reader_ns:
            self.ledger.book_downstream("reader", self._reader_ns)
        super().close(error, elapsed)

    def streaming(self, now: int) -> None:
        """Record that the answer is requested in chunks."""
        self._requested_at = now

    def chunk(self, now: int) -> None:
        """Record that a chunk of a streamed answer has arrived."""
        if self._first_chunk is None:
            self._first_chunk = (now - self._requested_at) / 1_000_000_000
        elif self.run.instruments is not None:
            seconds = (now - self._waiting_since) / 1_000_000_000
            record = self.run.instruments.models.time_per_output_chunk.record
            self.run.guarded(record, seconds, self._labels, self._context)

    def delivered(self, arrived: int, reader_since: int) -> None:
        """Record that advisors have had a chunk until `reader_since`, and then the reader of the stream until now.

        If an advisor failed, `reader_since` is 0, and no reader has had the chunk.
        """
        self._waiting_since = now = perf_counter_ns()
        reader_since = reader_since or now
        self._reader_ns += now - reader_since
        self._chunk_ns += reader_since - arrived

    def held_back(self, began: int) -> None:
        """Record that the caller that drives the run has let the call wait since `began`."""
        self._reader_ns += perf_counter_ns() - began

    def _final_attributes(self) -> Attributes:
        attributes = super()._final_attributes()
        if self._requested_at:
            attributes[names.REQUEST_STREAM] = True
        if self._reader_ns:
            attributes[names.STREAM_READER_WAIT] = self._reader_ns / 1_000_000_000
        if self._first_chunk is not None:
            attributes[names.RESPONSE_TIME_TO_FIRST_CHUNK] = self._first_chunk
        if self._model_input.options.model_fields_set:
            copy_present_fields(self._model_input.options, _REQUEST, attributes)
            if self._model_input.options.output_schema is not None:
                attributes[names.OUTPUT_TYPE] = names.OUTPUT_JSON
            attributes = drop_oversized_ints(attributes)
        return attributes

    def _describe(self, response: ModelAnswer, attributes: Attributes) -> None:
        super()._describe(response, attributes)
        put(attributes, names.RESPONSE_ID, safe_identifier(response.id or ""))
        if response.finish_reason is not None:
            attributes[names.RESPONSE_FINISH_REASONS] = (known_finish_reason(response.finish_reason),)

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        measurements = super()._measurements(instruments)
        if self._first_chunk is not None:
            measurements.append((instruments.models.time_to_first_chunk, self._first_chunk, self._ended_labels()))
        return measurements

    def _makers(self) -> Makers:
        assert self.run.content is not None
        return {**super()._makers(), **conversation_makers(self._model_input, self._response, self.run.content)}

    def _emit(self, logger: ApiLogger) -> None:
        super()._emit(logger)
        if self.run.content is not None and self.run.content.capture.on_events:
            logger.emit(names.INFERENCE_DETAILS_EVENT, self._context, self._details)

    def _exception_event(self) -> EventType:
        return names.INFERENCE_EXCEPTION_EVENT if self.run.conventions == "v0.1.0" else super()._exception_event()

    def _details(self) -> Attributes:
        error: Attributes = {} if self.error_type is None else {names.ERROR_TYPE: self.error_type}
        attributes = {**self._opening()[2], **self._final_attributes(), **error}
        return {**attributes, **self.event_content(names.INFERENCE_DETAILS_EVENT)}


class EmbeddingsScope(ModelScope["EmbeddingAnswer"]):
    """One call of an embedding model: `embeddings {model}`. An embedding has input tokens only."""

    content_names = names.EMBEDDINGS_SPAN.content
    openinference = names.EMBEDDINGS_SPAN.openinference
    _operation, _type, _usage = names.EMBEDDINGS, names.EMBEDDINGS_SPAN, _INPUT_USAGE

    def __init__(self, run: RunTelemetry, model: ObservedModel) -> None:
        super().__init__(run, model, run.model_labels(self._operation, model))

    def answered(self, response: EmbeddingAnswer, cost: float | None = None) -> None:
        """Record what the model answered, and ask the price table what it cost."""
        super().answered(response)
        prices, usage = self.run.options.prices, self._reported()
        if prices is not None and usage is not None:
            models = (response.model, self._model.model)
            self.cost = cost_of(prices, self._model.provider, models, usage, self.run.telemetry_failed)

    def _reported(self) -> Usage | None:
        usage = super()._reported()
        return None if usage is None else Usage(input_tokens=usage.input_tokens)

    def _describe(self, response: EmbeddingAnswer, attributes: Attributes) -> None:
        super()._describe(response, attributes)
        attributes[names.EMBEDDINGS_DIMENSION_COUNT] = len(response.embeddings[0])


def call_here() -> ModelScope[Any]:
    """Return the scope of the model call in progress in this context; outside a call, a no-op scope."""
    return _OF_CALL.get() or OFF


def embeddings_scope(run: RunTelemetry, model: ObservedModel) -> EmbeddingsScope:
    """Return the scope of one call of an embedding model."""
    return EmbeddingsScope(run, model) if run.enabled else OFF
