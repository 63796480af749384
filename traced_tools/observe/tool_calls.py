"""The scope of a requested tool call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from opentelemetry.trace import Span, SpanKind

from traced_tools.observe import names
from traced_tools.observe.content import may_capture
from traced_tools.observe.genai_messages import from_json
from traced_tools.observe.log_events import emit
from traced_tools.observe.run_telemetry import RunTelemetry
from traced_tools.observe.sanitize import limit_cardinality, reason_code_label, safe_identifier, safe_person_name
from traced_tools.observe.scope import Attributes, Scope, put, unfinished

if TYPE_CHECKING:
    from opentelemetry._logs import Logger

    from traced_tools.core.messages import ToolCall
    from traced_tools.core.tool_definition import ToolCallback
    from traced_tools.core.tool_result import ToolResult
    from traced_tools.observe.content import Makers
    from traced_tools.observe.metrics import Instruments


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

    has_events = True
    content_names = (names.TOOL_REQUESTED_NAME, *names.EXECUTE_TOOL_SPAN.content)
    openinference = names.EXECUTE_TOOL_SPAN.openinference
    _attempts = 0
    _approved = False
    _approved_by: str | None = None
    _intent: str | None = None
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
        self._callback = tool
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
        }
        put(attributes, names.TOOL_CALL_ID, safe_identifier(self._call.id or ""))
        put(attributes, names.AGENT_NAME, run.agent)
        if self._executes:
            attributes[names.OPERATION_NAME] = names.EXECUTE_TOOL
        put(attributes, names.CONVERSATION_ID, run.conversation_id)
        if self._iteration:
            attributes[names.ITERATION_INDEX] = self._iteration
        operation = names.REFUSE_TOOL if self._refused else names.EXECUTE_TOOL
        return f"{operation} {self._tool}", SpanKind.INTERNAL, attributes

    def __enter__(self) -> Self:
        super().__enter__()
        if self.run.logger is not None:
            self.run.guarded(emit, self.run.logger, names.TOOL_INTENT_EVENT, self._context, self._intended)
        return self

    def approved(self, by: str | None) -> None:
        """Record that the call is approved, and by which person or service if the application named one."""
        self._approved = True
        self._approved_by = by

    def intended(self, reason: str | None) -> None:
        """Note the reason the model gave."""
        self._intent = reason

    def started(self) -> None:
        """Note that the tool itself starts now; once per attempt."""
        self._attempts += 1
        if self._attempts == 1:
            self._started_first()
        if self.run.instruments is not None:
            self.run.instruments.active_tools.begin(self, self.run.agent_in_metrics, self._tool)

    def _started_first(self) -> None:
        if self._may_refuse and self._span is not None:
            self._span.set_attribute(names.OPERATION_NAME, names.EXECUTE_TOOL)
        if self.run.logger is not None:
            self.run.guarded(emit, self.run.logger, names.TOOL_DECISION_EVENT, self._context, self._decided)

    def stopped(self) -> None:
        """Note that the attempt is over."""
        if self.run.instruments is not None:
            self.run.instruments.active_tools.end(self)

    def waited(self, seconds: float) -> None:
        """Note that an attempt waited so long for a free worker."""
        self._queued += seconds

    def repaired(self, repairs: tuple[str, ...]) -> None:
        """Record what was repaired before the arguments fitted; an advisor or a further attempt may bring new ones."""
        self._repairs += tuple(each for each in repairs if each not in self._repairs) if self._repairs else repairs

    def retrying(self, error_type: str) -> None:
        """Note that an attempt failed and another one follows."""
        if self.run.instruments is not None:
            kind = limit_cardinality(names.ERROR_TYPE, self._owner(), error_type)
            labels: Attributes = {**self.run.agent_label, names.TOOL_NAME: self._tool, names.ERROR_TYPE: kind}
            self.run.guarded(self.run.instruments.tool_retries.add, 1, labels, self._context)

    def late(self) -> None:
        """Note that an attempt ended after it had been given up; its result is dropped."""
        if self.run.instruments is not None:
            labels: Attributes = {**self.run.agent_label, names.TOOL_NAME: self._tool}
            self.run.guarded(self.run.instruments.tool_late_results.add, 1, labels, self._context)

    def ran(self, result: ToolResult) -> None:
        """Note what came of the last attempt, whatever advice makes of it."""
        self._outcome = result.outcome
        kind = result.error_type
        self.error_type = None if kind is None else limit_cardinality(names.ERROR_TYPE, self._owner(), kind)
        self.failure = result.error

    def captured_traceback(self) -> str | None:
        """Return the traceback of the tool's error as the run may tell it; None if no content of it is captured."""
        return None if self.run.content is None else self.contents.text(names.EXCEPTION_STACKTRACE)

    def decided(self, result: ToolResult) -> None:
        """Note what became of the call."""
        self._result = result
        if not self._attempts:
            self.error_type, self.failure = result.error_type, result.error

    def fails_run(self, error: BaseException) -> None:
        """Record that the run ends with `error`, which is raised because of this call."""
        self.run.guarded(self.run.failed_at, error, self)

    def step(self) -> str:
        """Return the name of the span."""
        return f"{names.EXECUTE_TOOL if self._executes else names.REFUSE_TOOL} {self._tool}"

    def _type_of(self, error: BaseException) -> str:
        return limit_cardinality(names.ERROR_TYPE, self._owner(), super()._type_of(error))

    def _owner(self) -> str:
        return f"{names.EXECUTE_TOOL} {self._tool}"

    def _end(self, span: Span, elapsed: int) -> None:
        if not self._executes and not self._refused:
            span.update_name(self.step())
        super()._end(span, elapsed)

    def _final_attributes(self) -> Attributes:
        result = self._result
        index, size = self._place
        attributes: Attributes = {
            names.TOOL_BATCH_INDEX: index,
            names.TOOL_BATCH_SIZE: size,
            names.TOOL_QUEUE_TIME: self._queued,
            names.TOOL_ARGUMENTS_SIZE: len(self._call.arguments.encode()),
        }
        put(attributes, names.TOOL_SOURCE, self._source)
        if self._decision is not None:
            attributes[names.TOOL_DECISION] = self._decision
            attributes.update(self._who_and_why())
        if self._repairs:
            attributes[names.TOOL_ARGUMENTS_REPAIRS] = self._repairs
        if result is not None:
            attributes[names.TOOL_RESULT_SIZE] = result.size
            if result.cut:
                attributes[names.TOOL_RESULT_CUT] = True
        if self._executes:
            attributes[names.TOOL_ATTEMPTS] = self._attempts
            attributes[names.TOOL_OUTCOME] = self._outcome or unfinished(self.failure)
        return attributes

    @property
    def _executes(self) -> bool:
        """Whether the span is that of an execution: the tool has started, or nothing could have kept it from it."""
        return self._attempts > 0 or not (self._may_refuse or self._refused)

    @property
    def _decision(self) -> str | None:
        """What was decided; of a call that an advisor's error ended before the tool ran, nothing was."""
        if self._result is not None:
            return self._result.decision
        if not self._executes:
            return None
        return "approved" if self._approved else "allowed"

    def _who_and_why(self) -> Attributes:
        """Return the advisor, the reason code and the person or service of the decision, as far as they are known."""
        result = self._result
        by = self._approved_by if result is None else result.by
        attributes: Attributes = {}
        if result is not None:
            put(attributes, names.ADVISOR_NAME, result.advisor)
            put(attributes, names.REASON_CODE, result.reason_code and safe_identifier(result.reason_code))
        put(attributes, names.APPROVAL_BY, by and safe_person_name(by))
        return attributes

    def _record(self, instruments: Instruments) -> None:
        if self._attempts:
            labels: Attributes = {
                **self.run.agent_label,
                names.TOOL_NAME: self._tool,
                names.TOOL_TYPE: names.FUNCTION,
            }
            if self.error_type is not None:
                labels[names.ERROR_TYPE] = self.error_type
            instruments.execute_tool_duration.record(self.duration, labels, self._context)
        if self._decision is None:
            return
        decision: Attributes = {
            **self.run.agent_label,
            names.TOOL_NAME: self._tool,
            names.TOOL_DECISION: self._decision,
        }
        if self._result is not None and self._result.advisor:
            decision[names.ADVISOR_NAME] = limit_cardinality(names.ADVISOR_NAME, self._tool, self._result.advisor)
        if self._result is not None and self._result.reason_code:
            decision[names.REASON_CODE] = reason_code_label(self._result.reason_code, self._tool)
        instruments.tool_decisions.add(1, decision, self._context)

    def _is_silent(self) -> bool:
        return self.failure is None or self._outcome is None  # what the tool itself raised is its own

    def _emit(self, logger: Logger) -> None:
        if not self._attempts and self._decision is not None:
            emit(logger, names.TOOL_DECISION_EVENT, self._context, self._decided)
        if self._attempts:
            emit(logger, names.TOOL_OUTCOME_EVENT, self._context, self._ended)
        if self._outcome in ("error", "timeout"):
            self._emit_exception(logger, names.TOOL_EXCEPTION_EVENT)

    def _identity(self) -> Attributes:
        attributes = self.run.identity()
        if self._iteration:
            attributes[names.ITERATION_INDEX] = self._iteration
        attributes[names.TOOL_NAME] = self._tool
        attributes[names.TOOL_TYPE] = names.FUNCTION
        put(attributes, names.TOOL_CALL_ID, safe_identifier(self._call.id or ""))
        put(attributes, names.TOOL_SOURCE, self._source)
        return attributes

    def _intended(self) -> Attributes:
        index, size = self._place
        shape: Attributes = {
            names.TOOL_BATCH_INDEX: index,
            names.TOOL_BATCH_SIZE: size,
            names.TOOL_ARGUMENTS_SIZE: len(self._call.arguments.encode()),
        }
        return {**self._identity(), **shape, **self.told_on(names.TOOL_INTENT_EVENT)}

    def _decided(self) -> Attributes:
        attributes: Attributes = {**self._identity(), **self._who_and_why()}
        put(attributes, names.TOOL_DECISION, self._decision)
        if self.error_type is not None:
            attributes[names.ERROR_TYPE] = self.error_type
        return {**attributes, **self.told_on(names.TOOL_DECISION_EVENT)}

    def _ended(self) -> Attributes:
        attributes = self._identity()
        attributes[names.TOOL_OUTCOME] = self._outcome or unfinished(self.failure)
        attributes[names.TOOL_ATTEMPTS] = self._attempts
        if self._result is not None:
            attributes[names.TOOL_RESULT_SIZE] = self._result.size
        if self.error_type is not None:
            attributes[names.ERROR_TYPE] = self.error_type
        return {**attributes, **self.told_on(names.TOOL_OUTCOME_EVENT)}

    def _makers(self) -> Makers:
        """Return what makes the contents: nothing, for a tool that says so itself."""
        tool, call = self._callback, self._call
        if tool is None:  # it may be meant for one that is silent
            return {names.TOOL_REQUESTED_NAME: lambda: call.name}
        if not may_capture(tool):
            return {}
        return {
            **super()._makers(),
            names.TOOL_DESCRIPTION: lambda: tool.definition.description or None,
            names.TOOL_CALL_ARGUMENTS: lambda: from_json(call.arguments),
            names.TOOL_CALL_RESULT: lambda: None if self._result is None else from_json(self._result.content),
            names.INTENT: lambda: self._intent,
        }
