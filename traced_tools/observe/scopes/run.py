"""The scopes of a run, of its iterations, and of its advisors' hooks."""

from __future__ import annotations

from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Self

from opentelemetry.context import Context, get_current
from opentelemetry.trace import Span, SpanKind, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, copy_present_fields, put
from traced_tools.observe.genai_messages import conversation_makers
from traced_tools.observe.run_telemetry import RunTelemetry
from traced_tools.observe.sanitize import drop_invalid_counts, known_finish_reason
from traced_tools.observe.scopes.scope import Scope

if TYPE_CHECKING:
    from traced_tools.core.enums import Hook, TimeKind
    from traced_tools.observe.content import Makers
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.logger import ApiLogger
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.stages.iteration import IterationObservation
    from traced_tools.observe.stages.run import RunObservation
    from traced_tools.observe.time_ledger import TimeLedger

_W3C = TraceContextTextMapPropagator()
_LIMITS = (
    ("max_iterations", names.LIMIT_MAX_ITERATIONS),
    ("max_tool_calls", names.LIMIT_MAX_TOOL_CALLS),
    ("max_tokens", names.LIMIT_MAX_TOKENS),
    ("max_seconds", names.LIMIT_MAX_SECONDS),
)
_USAGE = (("input_tokens", names.USAGE_INPUT_TOKENS), ("output_tokens", names.USAGE_OUTPUT_TOKENS))


class AgentScope(Scope):
    """One run: `invoke_agent {agent}`."""

    has_events = True
    content_names = names.AGENT_SPAN.content
    openinference = names.AGENT_SPAN.openinference

    def __init__(self, run: RunTelemetry, observed: RunObservation, resumes: str | None = None) -> None:
        self.run = run
        self.ledger = run.ledger
        self._observed = observed
        self._resumes = resumes

    def __enter__(self) -> Self:
        super().__enter__()
        if self._resumes is not None and self._span is not None:
            self.run.guarded(self._link, self._span, self._resumes)
        if self.run.instruments is not None:
            self.run.instruments.active_runs.begin(self, self.run.agent_in_metrics)
        return self

    def close(self, error: BaseException | None, elapsed: int) -> None:
        """End the run's span; the run is no longer active.

        The run lasts until its listeners have received its end, because whoever started it waits for them, too.
        """
        try:
            super().close(error, perf_counter_ns() - self._began)
        finally:  # an interrupt in there must not leave the run under way for good
            self.run.forget_failures()
            if self.run.instruments is not None:
                self.run.instruments.active_runs.end(self)

    def step(self) -> str:
        """Return the name of the run's span."""
        return names.AGENT_SPAN.named(self.run.agent)

    def _link(self, span: Span, traceparent: str) -> None:
        """Link the span to the run that it resumes."""
        context = _W3C.extract({"traceparent": traceparent}, Context())
        span.add_link(get_current_span(context).get_span_context())

    @property
    def trace_id(self) -> str | None:
        """The trace's id in hex; None if nothing is traced."""
        context = None if self._span is None else self._span.get_span_context()
        return f"{context.trace_id:032x}" if context is not None and context.is_valid else None

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the span; None if nothing is traced."""
        carrier: dict[str, str] = {}
        if self._span is not None:
            _W3C.inject(carrier, set_span_in_context(self._span, Context()))
        return carrier.get("traceparent")

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        run = self.run
        attributes: Attributes = {names.OPERATION_NAME: names.INVOKE_AGENT, **run.identity()}
        put(attributes, names.AGENT_VERSION, run.version)
        put(attributes, names.AGENT_ID, run.agent_id)
        put(attributes, names.REQUEST_MODEL, self._observed.model.model)
        if run.attributes:
            attributes.update(run.attributes)
        return self.step(), SpanKind.INTERNAL, attributes

    def _totals_attributes(self) -> Attributes:
        totals = self._observed.totals
        attributes: Attributes = {
            names.LOOP_ITERATIONS: totals.iterations,
            names.LOOP_TOOL_CALLS: totals.tool_calls,
            names.LOOP_STOP_REASON: self._observed.stop_reason,
        }
        put(attributes, names.LOOP_COST, totals.cost)
        if (step := self.run.failed_step(self.failure)) is not None:
            attributes[names.FAILED_STEP] = step
        copy_present_fields(drop_invalid_counts(totals.usage.total), _USAGE, attributes)
        return attributes

    def _final_attributes(self) -> Attributes:
        attributes = self._totals_attributes()
        answer = self._observed.answer
        if answer is not None and answer.finish_reason is not None:
            attributes[names.RESPONSE_FINISH_REASONS] = (known_finish_reason(answer.finish_reason),)
        put(attributes, names.REQUEST_MODEL, self._observed.model.model)  # a run by hand may not know it before
        attributes.update(self.run.who(self.run.content_on_spans()))
        copy_present_fields(self._observed.limits, _LIMITS, attributes)
        for kind, seconds in self.run.ledger.seconds().items():
            attributes[names.TIME_BY_KIND[kind]] = seconds
        if (digests := self._observed.digests) is not None:
            put(attributes, names.AGENT_VERSION, self.run.version)
            put(attributes, names.INSTRUCTIONS_DIGEST, digests.instructions)
            put(attributes, names.TOOLS_DIGEST, digests.tools)
            put(attributes, names.AGENT_POLICY_DIGEST, digests.policy)
        return attributes

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        agent, version, totals = self.run.agent_label, self.run.version_label, self._observed.totals
        labels: Attributes = {**version}
        put(labels, names.REQUEST_MODEL, self._observed.model.model)
        if self.error_type is not None:
            labels[names.ERROR_TYPE] = self.error_label()
        reason: Attributes = {**version, names.LOOP_STOP_REASON: self._observed.stop_reason}
        measurements: list[Measurement] = [
            (instruments.invoke_agent_duration, self.duration, labels),
            (instruments.inference_calls, totals.inference_calls, agent),
            (instruments.tool_calls, totals.tool_calls, agent),
            (instruments.loop_iterations, totals.iterations, reason),
        ]
        if totals.cost is not None:
            measurements.append((instruments.loop_cost, totals.cost, reason))
        for kind, seconds in self.run.ledger.seconds().items():
            measurements.append((instruments.run_time, seconds, {**agent, names.TIME_KIND: kind}))
        for (hook, advisor), nanoseconds in self.run.listener_ns.items():
            listener: Attributes = {**agent, names.ADVISOR_NAME: advisor, names.ADVISOR_HOOK: hook}
            measurements.append((instruments.advisor_duration, nanoseconds / 1_000_000_000, listener))
        return measurements

    def _makers(self) -> Makers:
        observed, content = self._observed, self.run.content
        if content is None or not observed.knows_tools:
            return super()._makers()
        return {**super()._makers(), **conversation_makers(observed.asked, observed.answer_to_capture, content)}

    def _emit(self, logger: ApiLogger) -> None:
        logger.emit(names.LOOP_STOP_EVENT, self._context, self._stop)

    def _stop(self) -> Attributes:
        attributes = {**self.run.identity_on_events(), **self._totals_attributes()}
        put(attributes, names.AGENT_VERSION, self.run.version)
        put(attributes, names.AGENT_ID, self.run.agent_id)
        put(attributes, names.REQUEST_MODEL, self._observed.model.model)
        if self.error_type is not None:
            attributes[names.ERROR_TYPE] = self.error_type
        return attributes


class IterationScope(Scope):
    """One iteration of the loop: `iteration`."""

    content_names = names.ITERATION_SPAN.content
    openinference = names.ITERATION_SPAN.openinference

    def __init__(self, run: RunTelemetry, observed: IterationObservation) -> None:
        self.run = run
        self.traced = run.traces_iterations
        run.forget_failures()
        self._observed = observed

    def step(self) -> str:
        """Return the name of the span."""
        return names.ITERATION_SPAN.name

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        return names.ITERATION_SPAN.name, SpanKind.INTERNAL, {names.ITERATION_INDEX: self._observed.index}

    def _final_attributes(self) -> Attributes:
        return {names.ITERATION_TOOL_CALLS: self._observed.tool_calls}

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        labels: Attributes = {**self.run.agent_label, names.ITERATION_OUTCOME: self._observed.outcome}
        return [(instruments.iteration_duration, self.duration, labels)]


class HookScope(Scope):
    """One hook of one advisor: `{hook} {advisor}`."""

    content_names = names.HOOK_SPAN.content
    openinference = names.HOOK_SPAN.openinference

    def __init__(
        self,
        run: RunTelemetry,
        hook: Hook,
        name: str,
        order: int,
        iteration: int,
        ledger: TimeLedger | None = None,
        kind: TimeKind = "hook",
    ) -> None:
        self.run = run
        self._hook = hook
        self._name = name
        self._order = order
        self._iteration = iteration
        self.traced = run.traces_hooks
        self.ledger = ledger
        self.kind = kind

    def _is_notable(self) -> bool:
        """Whether the hook itself failed or was slow. What it wraps has its own spans."""
        slow = self.run.options.slow_hook
        return not self.traced and (self.is_origin or (slow is not None and self.own_time >= slow))

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        attributes = _hook_attributes(self._hook, self._name, self._order, self._iteration)
        return names.HOOK_SPAN.named(f"{self._hook} {self._name}"), SpanKind.INTERNAL, attributes

    def _owner(self) -> str:
        return f"{self._hook} {self._name}"

    def _final_attributes(self) -> Attributes:
        return {names.ADVISOR_SELF_TIME: self.self_time} if self._hook == "advise" else {}

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        labels = _hook_labels(self.run, self._hook, self._name)
        if self.error_type is not None:
            labels[names.ERROR_TYPE] = self.error_label()
        return [(instruments.advisor_duration, self.own_time, labels)]


def report_idle_hook(run: RunTelemetry, hook: Hook, name: str, order: int, iteration: int) -> None:
    """Emit what a hook emits that an advisor leaves as it is. Nothing runs in its span, so it is never current.

    Args:
        run: the run's telemetry.
        hook: which hook.
        name: the advisor's name.
        order: the advisor's order.
        iteration: the iteration of the loop, from 1; 0 outside the iterations.
    """
    began, elapsed = perf_counter_ns(), 0
    context: Context | None = None
    try:
        if run.tracer is not None:
            context = get_current()
            if run.traces_hooks:
                started = time_ns()
                attributes = _hook_attributes(hook, name, order, iteration)
                if run.openinference:
                    attributes[names.OPENINFERENCE_KIND] = HookScope.openinference
                span, elapsed = names.HOOK_SPAN.named(f"{hook} {name}"), perf_counter_ns() - began
                run.tracer.instant(span, context, SpanKind.INTERNAL, attributes, started, started + elapsed)
    except Exception as error:
        run.telemetry_failed(error)
    seconds, labels = (elapsed or perf_counter_ns() - began) / 1_000_000_000, _hook_labels(run, hook, name)
    run.record(lambda instruments: ((instruments.advisor_duration, seconds, labels),), context)


def _hook_attributes(hook: Hook, name: str, order: int, iteration: int) -> Attributes:
    attributes: Attributes = {names.ADVISOR_NAME: name, names.ADVISOR_HOOK: hook, names.ADVISOR_ORDER: order}
    if iteration:
        attributes[names.ITERATION_INDEX] = iteration
    return attributes


def _hook_labels(run: RunTelemetry, hook: Hook, name: str) -> Attributes:
    return {**run.agent_label, names.ADVISOR_NAME: name, names.ADVISOR_HOOK: hook}


def report_failed_listener(
    run: RunTelemetry, hook: Hook, name: str, order: int, iteration: int, error: Exception, began: int
) -> None:
    """Report that `on_chunk` or `on_event` of an advisor raised an error; calls without an error have no span.

    Args:
        run: the run's telemetry.
        hook: which of them.
        name: the advisor's name.
        order: the advisor's order.
        iteration: the iteration of the loop, from 1; 0 outside the iterations.
        error: what it raised.
        began: when it was called, by `perf_counter_ns()`.
    """
    if run.enabled:
        run.listener_failed(error)
        scope = HookScope(run, hook, name, order, iteration)
        scope.traced, scope.is_origin = False, True  # the call is over: its span is made now, with the time it began
        scope.__enter__()
        scope.close(error, perf_counter_ns() - began)


def report_missing_results(run: RunTelemetry, not_run: int, unknown: int, iteration: int) -> None:
    """Count tool calls that an interrupted run left without results, and emit the event that they were answered."""
    counts = {names.RESULTS_NOT_RUN: not_run, names.RESULTS_UNKNOWN: unknown}

    def measure(instruments: Instruments) -> list[Measurement]:
        return [
            (instruments.missing_results, calls, {**run.agent_label, names.MISSING_RESULTS_KIND: kind})
            for kind, calls in counts.items()
            if calls
        ]

    def attributes() -> Attributes:
        attributes_of_event = run.identity_on_events()
        if iteration:
            attributes_of_event[names.ITERATION_INDEX] = iteration
        return {**attributes_of_event, names.MISSING_RESULTS_NOT_RUN: not_run, names.MISSING_RESULTS_UNKNOWN: unknown}

    run.record(measure)
    if run.logger is not None:
        run.guarded(run.logger.emit, names.MISSING_RESULTS_EVENT, None, attributes)
