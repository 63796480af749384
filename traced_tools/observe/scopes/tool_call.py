"""The scope of a requested tool call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from opentelemetry.trace import Span, SpanKind

from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, put
from traced_tools.observe.content import recorded_person
from traced_tools.observe.genai_messages import from_json
from traced_tools.observe.run_telemetry import RunTelemetry
from traced_tools.observe.sanitize import limit_cardinality, reason_code_label
from traced_tools.observe.scopes.scope import Scope

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from traced_tools.core.policy_verdict import PolicyVerdict
    from traced_tools.observe.content import Makers, RunContent
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.logger import ApiLogger
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.stages.tool_call import ToolCallObservation
    from traced_tools.observe.tracer import ApiTracer


class ToolScope(Scope):
    """One requested tool call: `execute_tool {tool}` if it ran, `refuse_tool {tool}` if it was refused.

    If advisors stand between here and the tool, the operation is named when the tool starts: a refused call executes
    nothing.

    Args:
        run: the run's telemetry.
        observed: the call.
    """

    has_events = True
    content_names = (names.TOOL_REQUESTED_NAME, *names.EXECUTE_TOOL_SPAN.content)
    openinference = names.EXECUTE_TOOL_SPAN.openinference
    kind = "tool"

    def __init__(self, run: RunTelemetry, observed: ToolCallObservation) -> None:
        self.run = run
        self.ledger = observed.ledger
        self._observed = observed
        self._tool = observed.name

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        run, observed = self.run, self._observed
        attributes: Attributes = {
            names.TOOL_NAME: self._tool,
            names.TOOL_TYPE: names.FUNCTION,
        }
        put(attributes, names.TOOL_CALL_ID, observed.call_id)
        put(attributes, names.AGENT_NAME, run.agent)
        if observed.executes:
            attributes[names.OPERATION_NAME] = names.EXECUTE_TOOL
        put(attributes, names.CONVERSATION_ID, run.conversation_id)
        if observed.iteration:
            attributes[names.ITERATION_INDEX] = observed.iteration
        span = names.REFUSE_TOOL_SPAN if observed.refused else names.EXECUTE_TOOL_SPAN
        return span.named(self._tool), SpanKind.INTERNAL, attributes

    def __enter__(self) -> Self:
        super().__enter__()
        if self.run.logger is not None:
            self.run.guarded(self.run.logger.emit, names.TOOL_INTENT_EVENT, self._context, self._intended)
        return self

    def advised(self) -> None:
        """Record that the arguments may have changed."""
        self._contents = None  # which the intent was recorded with

    def started(self) -> None:
        """Record that an attempt starts."""
        self.error_type = self.failure = None  # those of an execution that an advisor did not accept
        if self._observed.attempts == 1:
            self._started_first()
        if self.run.instruments is not None:
            self.run.instruments.active_tools.begin(self, self.run.agent_in_metrics, self._tool)

    def _started_first(self) -> None:
        if self._observed.may_refuse and self._span is not None:
            self._span.set_attribute(names.OPERATION_NAME, names.EXECUTE_TOOL)
        if self.run.logger is not None:
            self.run.guarded(self._emit_decision, self.run.logger)

    def stopped(self) -> None:
        """Record that the attempt is over."""
        if self.run.instruments is not None:
            self.run.instruments.active_tools.end(self)

    def retrying(self, error_type: str) -> None:
        """Record that an attempt failed and another one follows."""
        count_tool_retry(self.run, self._tool, error_type, self._context)

    def late(self) -> None:
        """Record that an attempt ended after it was given up; its result is dropped."""
        if self.run.instruments is not None:
            labels: Attributes = {**self.run.agent_label, names.TOOL_NAME: self._tool}
            self.run.guarded(self.run.instruments.tool_late_results.add, 1, labels, self._context)

    def finished(self) -> None:
        """Record what came of the last attempt."""
        kind = self._observed.error_type
        self.error_type = None if kind is None else limit_cardinality(names.ERROR_TYPE, self._owner(), kind)
        self.failure = self._observed.failure

    def captured_traceback(self) -> str | None:
        """Return the traceback of the tool's error as content capture allows it; None if it does not."""
        content = self.run.content
        if content is None or not (content.capture.on_spans or content.capture.on_events):
            return None
        return self.contents.text(names.EXCEPTION_STACKTRACE)

    @property
    def viewed_names(self) -> tuple[str, ...]:
        """The contents that the viewer of development mode gets: those of the span, and the traceback of the tool."""
        return *self.content_names, names.EXCEPTION_STACKTRACE

    def decided(self) -> None:
        """Record what became of a call whose tool did not run."""
        self.error_type, self.failure = self._observed.error_type, self._observed.failure

    def fails_run(self, error: BaseException) -> None:
        """Record that the run ends with `error`, which is raised because of this call."""
        self.run.guarded(self.record_failure, error)

    def step(self) -> str:
        """Return the name of the span."""
        span = names.EXECUTE_TOOL_SPAN if self._observed.executes else names.REFUSE_TOOL_SPAN
        return span.named(self._tool)

    @property
    def own_time(self) -> float:
        """The seconds without the advisors around the tool, listeners, and the wait for an approval."""
        return self.duration if self.ledger is None else self.ledger.booked_ns["tool"] / 1_000_000_000

    def _is_own(self, error: BaseException) -> bool:
        return not self.run.is_of_listener(error)

    def _find_error_type(self, error: BaseException) -> str:
        return limit_cardinality(names.ERROR_TYPE, self._owner(), super()._find_error_type(error))

    def _owner(self) -> str:
        return _owner(self._tool)

    def _end(self, tracer: ApiTracer, span: Span, elapsed: int) -> None:
        if not self._observed.executes and not self._observed.refused:
            span.update_name(self.step())
        super()._end(tracer, span, elapsed)

    def _final_attributes(self) -> Attributes:
        observed, result = self._observed, self._observed.result
        attributes: Attributes = {
            names.TOOL_BATCH_INDEX: observed.batch_index,
            names.TOOL_BATCH_SIZE: observed.batch_size,
            names.TOOL_QUEUE_TIME: observed.queued,
            names.TOOL_ARGUMENTS_SIZE: len(observed.call.arguments.encode()),
        }
        put(attributes, names.TOOL_SOURCE, observed.source)
        if not observed.iteration:  # without a loop, there is no span of a run to record the principal
            attributes.update(self.run.who(self.run.content_on_spans()))
        if (decision := observed.decision) is not None:
            attributes[names.TOOL_DECISION] = decision
            self._add_who_and_why(attributes, self.run.content_on_spans())
        if evaluations := observed.evaluations(decision):
            attributes |= _evaluation(evaluations[-1])
        if observed.repairs:
            attributes[names.TOOL_ARGUMENTS_REPAIRS] = observed.repairs
        if result is not None:
            attributes[names.TOOL_RESULT_SIZE] = result.size
            if result.cut:
                attributes[names.TOOL_RESULT_CUT] = True
        if observed.executes:
            attributes[names.TOOL_ATTEMPTS] = observed.attempts
            attributes[names.TOOL_OUTCOME] = observed.outcome
        return attributes

    def _add_who_and_why(self, attributes: Attributes, content: RunContent | None) -> None:
        """Add the advisor, the reason code, the rule and the person or service of the decision, if they are known."""
        observed = self._observed
        if observed.result is not None:
            put(attributes, names.ADVISOR_NAME, observed.result.advisor)
        put(attributes, names.REASON_CODE, observed.reason_code)
        put(attributes, names.POLICY_RULE, observed.rule)
        put(attributes, names.POLICY_DIGEST, observed.policy_digest)
        put(attributes, names.APPROVAL_BY, recorded_person(observed.by, observed.tool, content))

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        measurements: list[Measurement] = []
        observed, result = self._observed, self._observed.result
        if observed.attempts:
            labels: Attributes = {
                **self.run.agent_label,
                names.TOOL_NAME: self._tool,
                names.TOOL_TYPE: names.FUNCTION,
            }
            if self.error_type is not None:
                labels[names.ERROR_TYPE] = self.error_type
            measurements.append((instruments.execute_tool_duration, self.own_time, labels))
        if result is not None:
            labels_of_result: Attributes = {**self.run.agent_label, names.TOOL_NAME: self._tool}
            if result.cut:
                labels_of_result[names.TOOL_RESULT_CUT] = True
            measurements.append((instruments.tool_result_size, result.size, labels_of_result))
        decision = observed.decision
        for evaluation in observed.evaluations(decision):
            measurements.append((instruments.policy_evaluations, 1, self._evaluation_labels(evaluation)))
        if decision is None:
            return measurements
        labels_of_decision: Attributes = {
            **self.run.version_label,
            names.TOOL_NAME: self._tool,
            names.TOOL_DECISION: decision,
        }
        if result is not None and result.advisor:
            labels_of_decision[names.ADVISOR_NAME] = limit_cardinality(names.ADVISOR_NAME, self._tool, result.advisor)
        if code := observed.reason_code:
            labels_of_decision[names.REASON_CODE] = reason_code_label(code, self._tool)
        if rule := observed.rule:
            labels_of_decision[names.POLICY_RULE] = limit_cardinality(names.POLICY_RULE, self._tool, rule)
        measurements.append((instruments.tool_decisions, 1, labels_of_decision))
        return measurements

    def _evaluation_labels(self, verdict: PolicyVerdict) -> Attributes:
        labels: Attributes = {
            **self.run.agent_label,
            names.TOOL_NAME: self._tool,
            names.EVALUATED_ADVISOR: limit_cardinality(names.EVALUATED_ADVISOR, self._tool, verdict.advisor),
            names.EVALUATED_DECISION: verdict.decision,
            names.EVALUATED_CODE: reason_code_label(verdict.reason_code, self._tool),
        }
        if verdict.rule:
            labels[names.EVALUATED_RULE] = limit_cardinality(names.EVALUATED_RULE, self._tool, verdict.rule)
        if verdict.changes:
            labels[names.EVALUATED_CHANGES] = True
        return labels

    def _may_capture_failure(self) -> bool:
        observed = self._observed  # of what the tool raised itself, the tool alone decides
        return self.failure is not None and observed.is_raised_by_tool and observed.may_capture

    def _emit(self, logger: ApiLogger) -> None:
        observed = self._observed
        if observed.attempts:
            logger.emit(names.TOOL_OUTCOME_EVENT, self._context, self._ended)
        elif observed.decision is not None:
            self._emit_decision(logger)
        if observed.returned is not None and observed.returned.outcome not in (None, "ok"):
            self._emit_exception(logger, names.TOOL_EXCEPTION_EVENT)

    def _emit_decision(self, logger: ApiLogger) -> None:
        logger.emit(names.TOOL_DECISION_EVENT, self._context, self._decided)
        for evaluation in self._observed.evaluations(self._observed.decision):
            logger.emit(names.POLICY_EVALUATION_EVENT, self._context, partial(self._evaluation_attributes, evaluation))

    def _evaluation_attributes(self, verdict: PolicyVerdict) -> Attributes:
        attributes = self._identity()
        put(attributes, names.TOOL_DECISION, self._observed.decision)
        return attributes | _evaluation(verdict)

    def _identity(self) -> Attributes:
        observed, attributes = self._observed, self.run.identity_on_events()
        if observed.iteration:
            attributes[names.ITERATION_INDEX] = observed.iteration
        attributes[names.TOOL_NAME] = self._tool
        attributes[names.TOOL_TYPE] = names.FUNCTION
        put(attributes, names.TOOL_CALL_ID, observed.call_id)
        put(attributes, names.TOOL_SOURCE, observed.source)
        return attributes

    def _intended(self) -> Attributes:
        attributes = self._identity()
        attributes[names.TOOL_BATCH_INDEX] = self._observed.batch_index
        attributes[names.TOOL_BATCH_SIZE] = self._observed.batch_size
        attributes[names.TOOL_ARGUMENTS_SIZE] = len(self._observed.call.arguments.encode())
        attributes.update(self.event_content(names.TOOL_INTENT_EVENT))
        return attributes

    def _decided(self) -> Attributes:
        attributes = self._identity()
        self._add_who_and_why(attributes, self.run.content_on_events())
        put(attributes, names.TOOL_DECISION, self._observed.decision)
        if self.error_type is not None:
            attributes[names.ERROR_TYPE] = self.error_type
        # The intent event has the arguments already, unless an advisor changed them.
        omitted_key = names.TOOL_CALL_ARGUMENTS if self._observed.changed_arguments is None else None
        attributes.update(self.event_content(names.TOOL_DECISION_EVENT, without=omitted_key))
        return attributes

    def _ended(self) -> Attributes:
        observed, attributes = self._observed, self._identity()
        attributes[names.TOOL_OUTCOME] = observed.outcome
        attributes[names.TOOL_ATTEMPTS] = observed.attempts
        if observed.result is not None:
            attributes[names.TOOL_RESULT_SIZE] = observed.result.size
        if self.error_type is not None:
            attributes[names.ERROR_TYPE] = self.error_type
        attributes.update(self.event_content(names.TOOL_OUTCOME_EVENT))
        return attributes

    def _makers(self) -> Makers:
        """Return the functions that make the contents; for a tool with capture disabled there are none."""
        observed, tool, call = self._observed, self._observed.tool, self._observed.call
        if tool is None:  # its arguments may be meant for a tool with capture disabled
            return {names.TOOL_REQUESTED_NAME: lambda: call.name}
        if not observed.may_capture:
            return {}
        return {
            **super()._makers(),
            names.TOOL_DESCRIPTION: lambda: tool.definition.description or None,
            names.TOOL_CALL_ARGUMENTS: lambda: from_json(observed.changed_arguments or call.arguments),
            names.TOOL_CALL_RESULT: lambda: None if observed.result is None else from_json(observed.result.content),
            names.INTENT: lambda: observed.intent,
        }


def _evaluation(verdict: PolicyVerdict) -> Attributes:
    attributes: Attributes = {
        names.POLICY_MODE: names.EVALUATED,
        names.EVALUATED_ADVISOR: verdict.advisor,
        names.EVALUATED_DECISION: verdict.decision,
        names.EVALUATED_CODE: verdict.reason_code,
        names.EVALUATED_DIGEST: verdict.policy_digest,
    }
    put(attributes, names.EVALUATED_RULE, verdict.rule)
    put(attributes, names.EVALUATED_BECOMES, verdict.becomes)
    if verdict.changes:
        attributes[names.EVALUATED_CHANGES] = True
    return attributes


def count_tool_retry(run: RunTelemetry, tool: str, error_type: str, context: Context | None = None) -> None:
    """Count an attempt that failed with an error of that type and is followed by another one."""
    if run.instruments is not None:
        kind = limit_cardinality(names.ERROR_TYPE, _owner(tool), error_type)
        labels: Attributes = {**run.agent_label, names.TOOL_NAME: tool, names.ERROR_TYPE: kind}
        run.guarded(run.instruments.tool_retries.add, 1, labels, context)


def _owner(tool: str) -> str:
    return f"{names.EXECUTE_TOOL} {tool}"
