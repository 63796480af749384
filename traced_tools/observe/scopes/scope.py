"""The scope of a stage: a span that is current while a block runs, its metrics and its log-based events.

A scope restores the OpenTelemetry context by value and not by token. A block may end early, in another context: an
abandoned stream, or the garbage collector. OpenTelemetry refuses a token there and logs an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter_ns, time_ns
from traceback import format_exception
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opentelemetry import context as otel_context
from opentelemetry.trace import Span, SpanKind, get_current_span, set_span_in_context

from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes
from traced_tools.observe.content import LazyContent, Makers
from traced_tools.observe.failures import CANCELLATIONS, error_type
from traced_tools.observe.sanitize import limit_cardinality
from traced_tools.observe.viewer import current_viewer

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from traced_tools.core.enums import OpenInferenceKind, TimeKind
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.logger import ApiLogger
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.names.registry_types import EventType
    from traced_tools.observe.run_telemetry import RunTelemetry
    from traced_tools.observe.time_ledger import TimeLedger
    from traced_tools.observe.tracer import ApiTracer

_FRAMES = -20  # the innermost ones


class Scope:
    """One span of a run, current while the block runs and ended exactly once.

    A subclass implements `_opening` (the span's name and first attributes), `_final_attributes`, `_measurements`
    (metrics) and `_emit` (log-based events) if it sets `has_events`.

    Attributes:
        traced: whether the scope has a span. Without a span, metrics are recorded as usual, and a notable end
            (`_is_notable`) gets a span after all.
        recording: whether the span records.
        duration: the duration in seconds that span and metrics share.
        self_time: the duration without the time of downstream code, in seconds; 0 without a ledger.
        error_type: the type of `failure`, as recorded.
        failure: the exception that ended the stage, if any.
        is_origin: whether the exception arose here and not in a scope inside.
        ledger: where the scope books its own time; None for a scope whose time is that of the scope around it.
        kind: the kind of the time that it books.
        content_names: the contents that the span can have.
    """

    traced = True
    recording = False
    has_events = False
    duration = 0.0
    self_time = 0.0
    error_type: str | None = None
    failure: BaseException | None = None
    is_origin = False
    ledger: TimeLedger | None = None
    kind: TimeKind = "own"
    content_names: tuple[str, ...] = ()
    openinference: OpenInferenceKind
    _contents: LazyContent | None = None
    _span: Span | None = None
    _context: Context | None = None

    run: RunTelemetry

    def __enter__(self) -> Self:
        if self.ledger is not None:
            self._outer_downstream_ns, self.ledger.downstream_ns = self.ledger.downstream_ns, 0
        self._began = perf_counter_ns()
        if self.run.tracer is not None:
            try:
                self._outer = self._context = otel_context.get_current()
                if self.traced:
                    self._started = time_ns()
                    self._start(self.run.tracer)
                    otel_context.attach(self._context)
            except Exception as error:
                self.run.telemetry_failed(error)
        return self

    def _start(self, tracer: ApiTracer) -> None:
        name, kind, attributes = self._attributed_opening()
        self._span = span = tracer.start(name, self._outer, kind, attributes, self._started)
        self.recording = span.is_recording()
        self._context = set_span_in_context(span, self._outer)

    def _attributed_opening(self) -> tuple[str, SpanKind, Attributes]:
        """Return `_opening` with the kind of OpenInference, if spans carry it."""
        opening = self._opening()
        if self.run.openinference:
            opening[2][names.OPENINFERENCE_KIND] = self.openinference
        return opening

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        """Return the span's name and kind, and the attributes a sampler may need."""
        raise NotImplementedError("every scope names its span")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(error, perf_counter_ns() - self._began)

    def close(self, error: BaseException | None, elapsed: int) -> None:
        """End the span, record the metrics, and emit the log-based events.

        Args:
            error: the exception that leaves the block; None if there is none.
            elapsed: how long the block took, in nanoseconds.
        """
        self.duration = elapsed / 1_000_000_000
        if (ledger := self.ledger) is not None:
            own_ns = elapsed - ledger.downstream_ns
            self.self_time = own_ns / 1_000_000_000
            ledger.downstream_ns = self._outer_downstream_ns + elapsed
            ledger.booked_ns[self.kind] += own_ns
        if error is not None and self._is_own(error):
            if self.error_type is None:
                self.error_type, self.failure = self._find_error_type(error), error
            self.run.guarded(self.record_failure, error)
        try:  # guarded here and not by `guarded`: every span of every run comes this way
            if (tracer := self.run.tracer) is not None:
                if self._span is None and self._is_notable():
                    self._started = time_ns() - elapsed
                    self._start(tracer)
                if self._span is not None:
                    self._end(tracer, self._span, elapsed)
        except Exception as problem:
            self.run.telemetry_failed(problem)
        self.run.record(self._measurements, self._context)
        if self.has_events and self.run.logger is not None:
            self.run.guarded(self._emit, self.run.logger)
        self.failure = None  # its traceback holds this scope

    @property
    def own_time(self) -> float:
        """The seconds without what is downstream; all of them if the scope has no ledger, so that nothing is."""
        return self.duration if self.ledger is None else self.self_time

    def _is_own(self, error: BaseException) -> bool:
        """Return whether an error that leaves the block is an error of this stage."""
        return True

    def record_failure(self, error: BaseException) -> None:
        """Record that `error` leaves this step of the run, and whether it arose here."""
        self.is_origin = self.run.failed_at(error, self.step, self.error_type) or self.is_origin

    def _find_error_type(self, error: BaseException) -> str:
        """Return the `error.type` of an error that leaves the scope."""
        return error_type(error)

    def _is_notable(self) -> bool:
        """Whether a scope that is not `traced` gets a span when it ends. Such a span has no children."""
        return False

    def step(self) -> str:
        """Return the name of the step for `traced_tools.failed_step`."""
        return self._owner()

    def error_label(self) -> str:
        """Return `error_type` as a metric label. The number of error types per owner is limited."""
        return limit_cardinality(names.ERROR_TYPE, self._owner(), self.error_type or names.OTHER)

    def _owner(self) -> str:
        """Return the owner of the scope's errors, whose error types are limited together."""
        return self.run.agent_in_metrics

    def _end(self, tracer: ApiTracer, span: Span, elapsed: int) -> None:
        current = otel_context.get_current()
        if current is self._context:
            otel_context.attach(self._outer)
        elif get_current_span(current) is span:  # something else, such as baggage, was attached meanwhile: it stays
            otel_context.attach(set_span_in_context(get_current_span(self._outer), current))
        attributes: Attributes = {}
        try:
            if self.recording:
                attributes = self._final_attributes()
                if self.run.content is not None:
                    if self.captures_on_spans:
                        attributes.update(self.contents.on_span(self.content_names))
                    elif (viewer := current_viewer()) is not None:
                        viewer.keep(span.get_span_context(), self.contents.on_event(self.viewed_names))
                if self.error_type is not None:
                    attributes[names.ERROR_TYPE] = self.error_type
        finally:
            tracer.end(span, attributes, self.error_type, self._started + elapsed)

    def _final_attributes(self) -> Attributes:
        """Return the attributes that are known only at the end; called only if the span records."""
        return {}

    def _measurements(self, instruments: Instruments) -> Iterable[Measurement]:
        """Return what is measured of this scope, once its block has ended."""
        return ()

    def _emit(self, logger: ApiLogger) -> None:
        """Emit the events of this scope's end."""

    def _emit_exception(self, logger: ApiLogger, event: EventType) -> None:
        if self.failure is not None and not isinstance(self.failure, CANCELLATIONS):
            kind = error_type(self.failure)
            logger.emit(event, self._context, lambda: {names.EXCEPTION_TYPE: kind, **self.event_content(event)})

    @property
    def viewed_names(self) -> tuple[str, ...]:
        """The contents that the viewer of development mode gets."""
        return self.content_names

    @property
    def captures_on_spans(self) -> bool:
        """Whether spans of this run carry content."""
        return self.run.content is not None and self.run.content.capture.on_spans

    def event_content(self, event: EventType, *, without: str | None = None) -> Attributes:
        """Return the content that an event carries; empty unless content is captured on events.

        `without` is the attribute that the event does not have this time, if there is one.
        """
        if self.run.content is None or not self.run.content.capture.on_events:
            return {}
        return self.contents.on_event(name for name in event.content if name != without)

    @property
    def contents(self) -> LazyContent:
        """The contents of this scope, made when they are first captured."""
        if self._contents is None:
            assert self.run.content is not None
            self._contents = LazyContent(self.run.content, self._makers())
        return self._contents

    def _makers(self) -> Makers:
        """Return the functions that make the contents."""
        return {names.EXCEPTION_MESSAGE: self._message, names.EXCEPTION_STACKTRACE: self._stacktrace}

    def _message(self) -> str | None:
        return str(self.failure) or None if self._may_capture_failure() else None

    def _stacktrace(self) -> str | None:
        return "".join(format_exception(self.failure, limit=_FRAMES)) if self._may_capture_failure() else None

    def _may_capture_failure(self) -> bool:
        """Whether the text of the failure may be captured."""
        if self.failure is None or isinstance(self.failure, CANCELLATIONS):
            return False
        return self.run.content is not None and self.run.content.may_capture_error()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} recording={self.recording}>"
