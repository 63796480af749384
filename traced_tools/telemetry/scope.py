"""A span that is current while a block runs, and the clock that tells whose time is whose.

A scope restores the OpenTelemetry context by value and not by token: whoever ends a block early (an abandoned stream,
the garbage collector) may do so in another context, where a token would be refused with an error in the log.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter_ns, time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from opentelemetry import context as otel_context
from opentelemetry.trace import Span, SpanKind, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.status import StatusCode

from traced_tools.errors import Abandoned
from traced_tools.telemetry import names

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.util.types import AttributeValue

    from traced_tools.telemetry.metrics import Instruments
    from traced_tools.telemetry.run import RunTelemetry

Attributes = dict[str, "AttributeValue"]

_LOG = logging.getLogger(__name__)
_CANCELLATIONS = (asyncio.CancelledError, Abandoned, GeneratorExit)


def error_type(error: BaseException) -> str:
    """Return what `error.type` says of an error: the bare name of a built-in, else `module.QualName`."""
    if isinstance(error, _CANCELLATIONS):
        return names.CANCELLED
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class SelfClock:
    """Tells advisors' own time from what is downstream of them; one for each flow of control.

    Attributes:
        elsewhere: nanoseconds that the innermost open scope has so far spent downstream.
    """

    __slots__ = ("elsewhere",)

    def __init__(self) -> None:
        self.elsewhere = 0


class Scope:
    """One span of a run, current while the block runs and ended exactly once.

    Subclasses say what to start (`_opening`), what to add at the end (`_final_attributes`), what to count (`_record`).
    `duration` is the span's own duration, so both signals tell the same number. A scope that is not `traced` has no
    span and is counted all the same. One that has a `clock` is downstream of the scope around it on that clock.
    """

    traced = True
    recording = False
    duration = 0.0
    self_time = 0.0
    error_type: str | None = None
    clock: SelfClock | None = None
    _span: Span | None = None
    _context: Context | None = None

    run: RunTelemetry

    def pass_by(self) -> None:
        """Emit a span that begins and ends here: nothing runs in it, so it is never made current."""
        self._began = perf_counter_ns()
        try:
            if self.run.tracer is not None and self.traced:
                name, kind, attributes = self._opening()
                self._started = time_ns()
                self._context = otel_context.get_current()
                span = self.run.tracer.start_span(name, self._context, kind, attributes, start_time=self._started)
                elapsed = perf_counter_ns() - self._began
                span.end(self._started + elapsed)
            else:
                elapsed = perf_counter_ns() - self._began
            self.duration = elapsed / 1_000_000_000
            if self.run.instruments is not None:
                self._record(self.run.instruments)
        except Exception as error:
            self.run.telemetry_failed(error)

    def __enter__(self) -> Self:
        if self.clock is not None:
            self._elsewhere, self.clock.elsewhere = self.clock.elsewhere, 0
        self._began = perf_counter_ns()
        if self.run.tracer is not None and self.traced:
            try:
                self._start(self.run.tracer)
            except Exception as error:
                self.run.telemetry_failed(error)
        return self

    def _start(self, tracer: Tracer) -> None:
        name, kind, attributes = self._opening()
        self._outer = outer = otel_context.get_current()
        self._started = started = time_ns()
        self._span = span = tracer.start_span(name, outer, kind, attributes, start_time=started)
        self.recording = span.is_recording()
        self._context = context = set_span_in_context(span, outer)
        otel_context.attach(context)

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        """Return the span's name and kind, and the attributes a sampler may need."""
        raise NotImplementedError("every scope names its span")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        elapsed = perf_counter_ns() - self._began
        self.duration = elapsed / 1_000_000_000
        if self.clock is not None:
            self.self_time = (elapsed - self.clock.elsewhere) / 1_000_000_000
            self.clock.elsewhere = self._elsewhere + elapsed
        if error is not None and self.error_type is None:
            self.error_type = self._type_of(error)
        if self._span is not None:
            self.run.guarded(self._end, self._span, elapsed)
        if self.run.instruments is not None:
            self.run.guarded(self._record, self.run.instruments)

    def _type_of(self, error: BaseException) -> str:
        """Return what `error.type` says of an error that leaves the scope."""
        return error_type(error)

    def _end(self, span: Span, elapsed: int) -> None:
        current = otel_context.get_current()
        if current is self._context:
            otel_context.attach(self._outer)
        elif get_current_span(current) is span:  # something else, such as baggage, was attached meanwhile: it stays
            otel_context.attach(set_span_in_context(get_current_span(self._outer), current))
        try:
            if self.recording:
                attributes = self._final_attributes()
                if self.error_type is not None:
                    attributes[names.ERROR_TYPE] = self.error_type
                    span.set_status(StatusCode.ERROR)
                if attributes:
                    span.set_attributes(attributes)
        finally:
            span.end(self._started + elapsed)

    def _final_attributes(self) -> Attributes:
        """Return what is known only at the end; asked for when the span records, and not otherwise."""
        return {}

    def _record(self, instruments: Instruments) -> None:
        """Record this scope's metrics."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} recording={self.recording}>"


class NoScope:
    """Stands for every scope while nothing listens: notes nothing, costs nothing."""

    __slots__ = ()
    trace_id = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def ignore(self, *_: object) -> None:
        """Take a note and forget it."""

    chunk = streaming = answered = requested = ended = ignore
    started = stopped = waited = repaired = retrying = late = ran = decided = ignore


OFF: Any = NoScope()


_reported: set[str] = set()


def report_failure(error: Exception) -> None:
    """Tell the log, once for each type of error, that telemetry was lost; the error's text may quote content."""
    kind = error_type(error)
    if kind not in _reported:
        _reported.add(kind)
        _LOG.warning("telemetry was lost: the application's set-up raised %s; this is said once, and counted", kind)


def copy_set(source: object, fields: tuple[tuple[str, str], ...], attributes: Attributes) -> None:
    """Add those of `fields` (attribute of `source`, telemetry name) that are set."""
    for field, name in fields:
        value = getattr(source, field, None)
        if value is not None:
            attributes[name] = value
