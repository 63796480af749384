"""The scopes of what is waited for: a model call, an embedding, a tool call."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Generic, TypeVar

from opentelemetry.trace import Span, SpanKind

from traced_tools.telemetry import names
from traced_tools.telemetry.run import RunTelemetry, bounded_error_type, model_labels
from traced_tools.telemetry.scope import OFF, Attributes, Scope, copy_set

if TYPE_CHECKING:
    from traced_tools.messages import ToolCall
    from traced_tools.models.base import ChatModel, ChatResponse
    from traced_tools.models.embedding import EmbeddingModel, EmbeddingResponse
    from traced_tools.options import ChatOptions
    from traced_tools.telemetry.metrics import Instruments
    from traced_tools.tools.callback import ToolCallback
    from traced_tools.tools.result import ToolResult

_REQUEST = (
    ("temperature", names.REQUEST_TEMPERATURE),
    ("top_p", names.REQUEST_TOP_P),
    ("max_tokens", names.REQUEST_MAX_TOKENS),
    ("stop", names.REQUEST_STOP_SEQUENCES),
    ("seed", names.REQUEST_SEED),
)
_USAGE = (
    ("input_tokens", names.USAGE_INPUT_TOKENS),
    ("output_tokens", names.USAGE_OUTPUT_TOKENS),
    ("cache_read_tokens", names.USAGE_CACHE_READ_TOKENS),
    ("cache_write_tokens", names.USAGE_CACHE_WRITE_TOKENS),
    ("reasoning_tokens", names.USAGE_REASONING_TOKENS),
)
_TOKENS = (("input_tokens", names.TOKEN_INPUT), ("output_tokens", names.TOKEN_OUTPUT))

R = TypeVar("R", bound="ChatResponse | EmbeddingResponse")


class ModelScope(Scope, Generic[R]):
    """One call of a model: `{operation} {model}`.

    Args:
        run: the telemetry of the run it belongs to.
        model: the model that is called.
        labels: what every metric of calls to it carries.
    """

    _operation: str
    _usage: tuple[tuple[str, str], ...]
    _tokens: tuple[tuple[str, str], ...]
    _response: R | None = None

    def __init__(self, run: RunTelemetry, model: ChatModel | EmbeddingModel, labels: Attributes) -> None:
        self.run = run
        self._model = model
        self._labels = labels

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        kind = SpanKind.INTERNAL if self._model.server_address is None else SpanKind.CLIENT
        return f"{self._operation} {self._model.model}", kind, self._labels.copy()

    def answered(self, response: R) -> None:
        """Note what the model answered."""
        self._response = response

    def _final_attributes(self) -> Attributes:
        attributes: Attributes = {}
        if self._response is not None:
            self._describe(self._response, attributes)
        return attributes

    def _describe(self, response: R, attributes: Attributes) -> None:
        if response.model is not None:
            attributes[names.RESPONSE_MODEL] = response.model
        copy_set(response.usage, self._usage, attributes)

    def _record(self, instruments: Instruments) -> None:
        labels, response = self._ended_labels(), self._response
        instruments.operation_duration.record(self.duration, labels, self._context)
        if response is None or response.usage is None:
            return
        for field, kind in self._tokens:
            if (count := getattr(response.usage, field)) is not None:
                instruments.token_usage.record(count, {**labels, names.TOKEN_TYPE: kind}, self._context)

    def _ended_labels(self) -> Attributes:
        labels, response = self._labels.copy(), self._response
        if response is not None and response.model is not None:
            labels[names.RESPONSE_MODEL] = response.model
        if self.error_type is not None:
            labels[names.ERROR_TYPE] = self.error_type
        return labels


class ChatScope(ModelScope["ChatResponse"]):
    """One call of a chat model: `chat {model}`."""

    _operation, _usage, _tokens = names.CHAT, _USAGE, _TOKENS
    _streamed = False
    _first_chunk: float | None = None
    _last_chunk = 0

    def __init__(self, run: RunTelemetry, model: ChatModel, options: ChatOptions, iteration: int) -> None:
        super().__init__(run, model, run.chat_labels(model))
        self.clock = run.clock
        self._options = options
        self._iteration = iteration

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        name, kind, attributes = super()._opening()
        attributes[names.AGENT_NAME] = self.run.agent
        if self.run.conversation_id is not None:
            attributes[names.CONVERSATION_ID] = self.run.conversation_id
        if self._iteration:
            attributes[names.ITERATION_INDEX] = self._iteration
        return name, kind, attributes

    def streaming(self) -> None:
        """Note that the answer is asked for in chunks."""
        self._streamed = True

    def chunk(self) -> None:
        """Note that a chunk of a streamed answer arrived now."""
        now = perf_counter_ns()
        if self._first_chunk is None:
            self._first_chunk = (now - self._began) / 1_000_000_000
        elif self.run.instruments is not None:
            seconds = (now - self._last_chunk) / 1_000_000_000
            record = self.run.instruments.time_per_output_chunk.record
            self.run.guarded(record, seconds, self._labels, self._context)
        self._last_chunk = now

    def _final_attributes(self) -> Attributes:
        attributes = super()._final_attributes()
        if self._streamed:
            attributes[names.REQUEST_STREAM] = True
        if self._first_chunk is not None:
            attributes[names.RESPONSE_TIME_TO_FIRST_CHUNK] = self._first_chunk
        if self._options.model_fields_set:
            copy_set(self._options, _REQUEST, attributes)
        return attributes

    def _describe(self, response: ChatResponse, attributes: Attributes) -> None:
        super()._describe(response, attributes)
        if response.id is not None:
            attributes[names.RESPONSE_ID] = response.id
        if response.finish_reason is not None:
            attributes[names.RESPONSE_FINISH_REASONS] = (response.finish_reason,)

    def _record(self, instruments: Instruments) -> None:
        super()._record(instruments)
        if self._first_chunk is not None:
            instruments.time_to_first_chunk.record(self._first_chunk, self._ended_labels(), self._context)


class EmbeddingsScope(ModelScope["EmbeddingResponse"]):
    """One call of an embedding model: `embeddings {model}`. Embeddings write no tokens, they only read."""

    _operation, _usage, _tokens = names.EMBEDDINGS, _USAGE[:1], _TOKENS[:1]

    def __init__(self, run: RunTelemetry, model: EmbeddingModel) -> None:
        super().__init__(run, model, model_labels(self._operation, model))

    def _describe(self, response: EmbeddingResponse, attributes: Attributes) -> None:
        super()._describe(response, attributes)
        attributes[names.EMBEDDINGS_DIMENSION_COUNT] = len(response.embeddings[0])


class ToolScope(Scope):
    """One requested tool call: `execute_tool {tool}` when it ran, `refuse_tool {tool}` when it was refused.

    Args:
        run: the run's telemetry.
        call: what the model asked for.
        tool: the tool of that name, None when there is none.
        here: the pass of the loop (0 outside one), and (position, size) among the calls asked for at once.
        queued: seconds waited for a turn in the batch.
        may_refuse: whether advice stands between here and the tool. The operation is then named when the tool starts,
            since a refused call executes nothing.
        refused: whether it is refused already.
    """

    _attempts = 0
    _outcome: str | None = None
    _result: ToolResult | None = None
    _repairs: tuple[str, ...] = ()

    def __init__(
        self,
        run: RunTelemetry,
        call: ToolCall,
        tool: ToolCallback | None,
        here: tuple[int, tuple[int, int]],
        queued: float,
        may_refuse: bool,
        refused: bool,
    ) -> None:
        self.run = run
        self._call = call
        self._tool = names.UNKNOWN_TOOL if tool is None else tool.definition.name
        self._source = names.LOCAL if tool is None else tool.metadata.source
        self._iteration, self._place = here
        self._queued = queued
        self._may_refuse = may_refuse
        self._refused = refused

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        run = self.run
        attributes: Attributes = {
            names.TOOL_NAME: self._tool,
            names.TOOL_TYPE: names.FUNCTION,
            names.TOOL_CALL_ID: self._call.id or "",
            names.AGENT_NAME: run.agent,
        }
        if not self._may_refuse and not self._refused:
            attributes[names.OPERATION_NAME] = names.EXECUTE_TOOL
        if run.conversation_id is not None:
            attributes[names.CONVERSATION_ID] = run.conversation_id
        if self._iteration:
            attributes[names.ITERATION_INDEX] = self._iteration
        operation = names.REFUSE_TOOL if self._refused else names.EXECUTE_TOOL
        return f"{operation} {self._tool}", SpanKind.INTERNAL, attributes

    def started(self) -> None:
        """Note that the tool itself starts now; once per attempt."""
        self._attempts += 1
        if self._may_refuse and self._attempts == 1 and self._span is not None:
            self._span.set_attribute(names.OPERATION_NAME, names.EXECUTE_TOOL)
        if self.run.instruments is not None:
            self.run.guarded(self.run.instruments.tool_active.add, 1, self.run.agent_label)

    def stopped(self) -> None:
        """Note that the attempt is over."""
        if self.run.instruments is not None:
            self.run.guarded(self.run.instruments.tool_active.add, -1, self.run.agent_label)

    def waited(self, seconds: float) -> None:
        """Note that an attempt waited so long for a free worker."""
        self._queued += seconds

    def repaired(self, repairs: tuple[str, ...]) -> None:
        """Note what was mended before the arguments fitted."""
        self._repairs = repairs

    def retrying(self, error_type: str) -> None:
        """Note that an attempt failed and another one follows."""
        if self.run.instruments is not None:
            kind = bounded_error_type(self._tool, error_type)
            labels: Attributes = {names.TOOL_NAME: self._tool, names.ERROR_TYPE: kind}
            self.run.guarded(self.run.instruments.tool_retries.add, 1, labels, self._context)

    def late(self) -> None:
        """Note that an attempt ended after it had been given up; its result is dropped."""
        if self.run.instruments is not None:
            labels: Attributes = {names.TOOL_NAME: self._tool}
            self.run.guarded(self.run.instruments.tool_late_results.add, 1, labels, self._context)

    def ran(self, result: ToolResult) -> None:
        """Note what came of the last attempt, whatever advice makes of it."""
        self._outcome = result.outcome
        kind = result.error_type
        self.error_type = None if kind is None else bounded_error_type(self._tool, kind)

    def decided(self, result: ToolResult) -> None:
        """Note what became of the call."""
        self._result = result
        if not self._attempts:
            self.error_type = result.error_type

    def _type_of(self, error: BaseException) -> str:
        return bounded_error_type(self._tool, super()._type_of(error))

    def _end(self, span: Span, elapsed: int) -> None:
        if not self._attempts and not self._refused:
            span.update_name(f"{names.REFUSE_TOOL} {self._tool}")
        super()._end(span, elapsed)

    def _final_attributes(self) -> Attributes:
        result = self._result
        index, size = self._place
        attributes: Attributes = {
            names.TOOL_BATCH_INDEX: index,
            names.TOOL_BATCH_SIZE: size,
            names.TOOL_SOURCE: self._source,
            names.TOOL_QUEUE_TIME: self._queued,
            names.TOOL_ARGUMENTS_SIZE: len(self._call.arguments.encode()),
        }
        if self._decision is not None:
            attributes[names.TOOL_DECISION] = self._decision
        if self._repairs:
            attributes[names.TOOL_ARGUMENTS_REPAIRS] = self._repairs
        if result is not None:
            attributes[names.TOOL_RESULT_SIZE] = result.size
            if result.cut:
                attributes[names.TOOL_RESULT_CUT] = True
        if self._attempts:
            attributes[names.TOOL_ATTEMPTS] = self._attempts
            attributes[names.TOOL_OUTCOME] = self._outcome or _unfinished(self.error_type)
        return attributes

    @property
    def _decision(self) -> str | None:
        """What was decided; of a call that an advisor's error ended before the tool ran, nothing was."""
        if self._result is not None:
            return self._result.decision
        return "allowed" if self._attempts else None

    def _record(self, instruments: Instruments) -> None:
        if self._attempts:
            labels: Attributes = {
                names.TOOL_NAME: self._tool,
                names.TOOL_TYPE: names.FUNCTION,
                names.AGENT_NAME: self.run.agent,
            }
            if self.error_type is not None:
                labels[names.ERROR_TYPE] = self.error_type
            instruments.execute_tool_duration.record(self.duration, labels, self._context)
        if self._decision is None:
            return
        decision: Attributes = {names.TOOL_NAME: self._tool, names.TOOL_DECISION: self._decision}
        if self._result is not None and self._result.advisor is not None:
            decision[names.ADVISOR_NAME] = self._result.advisor
        instruments.tool_decisions.add(1, decision, self._context)


def _unfinished(error_type: str | None) -> str:
    """Return the outcome of a tool whose end nobody saw: the run was left or failed meanwhile."""
    return "cancelled" if error_type == names.CANCELLED else "error"


def chat_scope(run: RunTelemetry, model: ChatModel, options: ChatOptions, iteration: int) -> ChatScope:
    """Return the scope of a model call."""
    return ChatScope(run, model, options, iteration) if run.enabled else OFF


def embeddings_scope(run: RunTelemetry, model: EmbeddingModel) -> EmbeddingsScope:
    """Return the scope of one call of an embedding model."""
    return EmbeddingsScope(run, model) if run.enabled else OFF
