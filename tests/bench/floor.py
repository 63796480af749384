"""The floor: the telemetry of one pass of the loop, taken from a real run and replayed with the bare SDK.

A span processor and a meter of our own see what a run emits, in order: which spans with which attributes at their start
and at their end, and which values each instrument is given under which span. What happens from the start of one
`iteration` span to the start of the next is one pass; anything else is captured from its beginning to its end. The
replay does just that by hand: start a span, make it current if something happens under it, record, emit log events, set
the rest of the attributes at once, end it. So the floor follows the instrumentation by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import time_ns
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry._logs import LogRecord
from opentelemetry.context import Context
from opentelemetry.metrics import Meter, MeterProvider, NoOpMeter
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, StatusCode, get_current_span, set_span_in_context

from tests.bench.workload import Sdk, prompt, repeated
from traced_tools import TelemetryOptions
from traced_tools.observe import names

NO_SPAN = -1


@dataclass
class SpanStep:
    """One span of a pass: what it is given, and what happens until it ends."""

    number: int
    name: str
    kind: SpanKind
    start: dict[str, Any]
    final: dict[str, Any] = field(default_factory=dict)
    failed: bool = False
    current: bool = False
    steps: list[Any] = field(default_factory=list)


@dataclass
class RecordStep:
    """One value given to an instrument; `span` is the number of the span whose context came with it."""

    instrument: str
    value: float
    attributes: dict[str, Any] | None
    span: int


@dataclass
class EventStep:
    """One log event; `span` is the number of the span it belongs to."""

    name: str | None
    severity: Any
    body: Any
    attributes: dict[str, Any]
    span: int


@dataclass
class Capture:
    """What was emitted: the steps, outermost first, and the arguments each instrument was made with."""

    steps: list[Any] = field(default_factory=list)
    instruments: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    spans: list[SpanStep] = field(default_factory=list)
    records: list[RecordStep] = field(default_factory=list)
    events: list[EventStep] = field(default_factory=list)


class Recorder(SpanProcessor):
    """Notes what is emitted, while pass `index` of a run is under way or, with None, all the time."""

    def __init__(self, index: int | None) -> None:
        self.capture = Capture()
        self._index = index
        self._listening = index is None
        self._numbers: dict[int, int] = {}
        self._open: list[SpanStep] = []

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        """Note a span with the attributes it starts with."""
        if self._index is not None and span.name == names.ITERATION_SPAN.name:
            assert not self._open, "a pass began before the one before had ended"
            self._listening = span.attributes[names.ITERATION_INDEX] == self._index
        if not self._listening:
            return
        step = SpanStep(len(self.capture.spans), span.name, span.kind, dict(span.attributes))
        assert not self._open or span.parent.span_id in self._numbers, "a span of the pass has its parent outside"
        self._numbers[span.context.span_id] = step.number
        if self._open:
            self._open[-1].current = True
        self.note(step)
        self.capture.spans.append(step)
        self._open.append(step)

    def on_end(self, span: ReadableSpan) -> None:
        """Note what a span was given until its end."""
        if self._listening and self._open:
            step = self._open.pop()
            assert self._numbers[span.context.span_id] == step.number, "spans of one pass must be nested"
            step.name = span.name
            step.final = {key: value for key, value in span.attributes.items() if step.start.get(key) != value}
            step.failed = span.status.status_code is StatusCode.ERROR

    def note(self, step: SpanStep | RecordStep | EventStep) -> None:
        """Put `step` where it happened: in the innermost open span."""
        (self._open[-1].steps if self._open else self.capture.steps).append(step)

    def record(self, instrument: str, value: float, attributes: Any, context: Context | None) -> None:
        """Note a value given to an instrument."""
        if self._listening:
            span_id = 0 if context is None else get_current_span(context).get_span_context().span_id
            span = self._under(span_id)
            step = RecordStep(instrument, value, None if attributes is None else dict(attributes), span)
            self.note(step)
            self.capture.records.append(step)

    def event(self, record: Any) -> None:
        """Note a log event."""
        if self._listening:
            attributes, span = dict(record.attributes or {}), self._under(record.span_id)
            step = EventStep(record.event_name, record.severity_number, record.body, attributes, span)
            self.note(step)
            self.capture.events.append(step)

    def _under(self, span_id: int | None) -> int:
        """Return the number of a span that something happens under, which must have been current."""
        number = self._numbers.get(span_id or 0, NO_SPAN)
        if number != NO_SPAN:
            self.capture.spans[number].current = True
        return number


class RecordingInstrument:
    """Stands for a histogram or a counter."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def record(self, value: float, attributes: Any = None, context: Context | None = None) -> None:
        """Note the value."""
        self._recorder.record(self._name, value, attributes, context)

    add = record


class RecordingMeter(NoOpMeter):
    """Makes instruments that note what they are given, and notes how they were made."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__("bench")
        self._recorder = recorder

    def _made(self, method: str, name: str, **arguments: Any) -> Any:
        self._recorder.capture.instruments[name] = (method, {"name": name, **arguments})
        return RecordingInstrument(self._recorder, name)

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        """Return a recording counter."""
        return self._made("create_counter", name, unit=unit, description=description)

    def create_up_down_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        """Return a recording up-down counter."""
        return self._made("create_up_down_counter", name, unit=unit, description=description)

    def create_histogram(self, name: str, unit: str = "", description: str = "", **advisory: Any) -> Any:
        """Return a recording histogram."""
        return self._made("create_histogram", name, unit=unit, description=description, **advisory)


class RecordingMeterProvider(MeterProvider):
    """Gives everybody the one recording meter."""

    def __init__(self, recorder: Recorder) -> None:
        self._meter = RecordingMeter(recorder)

    def get_meter(self, name: str, *args: Any, **kwargs: Any) -> Meter:
        """Return the recording meter."""
        return self._meter


class EventRecorder(LogRecordProcessor):
    """Hands log events to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_emit(self, log_record: Any) -> None:
        """Note an event."""
        self._recorder.event(log_record.log_record)

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing."""
        return True


def recording(recorder: Recorder, *, events: bool = False) -> Sdk:
    """Return providers that give what they are given to `recorder`."""
    tracer_provider, logger_provider = TracerProvider(shutdown_on_exit=False), None
    tracer_provider.add_span_processor(recorder)
    if events:
        logger_provider = LoggerProvider(shutdown_on_exit=False)
        logger_provider.add_log_record_processor(EventRecorder(recorder))
    return Sdk(tracer_provider, RecordingMeterProvider(recorder), logger_provider)


def capture(index: int = 2) -> Capture:
    """Run three passes once, blocking, and return what pass `index` emitted."""
    return capture_of(lambda options: prompt(3, options), index)


def capture_of(
    emit: Callable[[TelemetryOptions], object], index: int | None = None, *, events: bool = False
) -> Capture:
    """Return what `emit` emits, or of the run it makes what pass `index` does; a replay is checked to be the same."""
    recorder = Recorder(index)
    emit(recording(recorder, events=events).options)
    assert recorder.capture.spans and recorder.capture.records, "nothing was captured"
    lost = [each for each in recorder.capture.records if each.instrument == names.TELEMETRY_FAILURES.name]
    assert not lost, "telemetry was lost, so what is left of it is no measure"
    check_replay(recorder.capture, index)
    return recorder.capture


class Floor:
    """Replays what was captured on providers of the SDK.

    What is done is bound beforehand: attributes are dictionaries made once, instruments are methods. What the replay
    costs beside the SDK is a call a step, about 3 us a pass.
    """

    def __init__(self, captured: Capture, providers: Sdk) -> None:
        meter = providers.meter_provider.get_meter("floor")
        made = {name: getattr(meter, method)(**given) for name, (method, given) in captured.instruments.items()}
        self._tracer = providers.tracer_provider.get_tracer("floor")
        self._logger = None if providers.logger_provider is None else providers.logger_provider.get_logger("floor")
        self._contexts: list[Context | None] = [None] * (len(captured.spans) + 1)  # the last one stands for no span
        self._steps = [self._bound(step, made) for step in captured.steps]

    def _bound(self, step: SpanStep | RecordStep | EventStep, made: dict[str, Any]) -> Callable[[], None]:
        if isinstance(step, SpanStep):
            span = self._span if step.current else self._point
            return partial(span, step, [self._bound(inner, made) for inner in step.steps])
        if isinstance(step, EventStep):
            return partial(self._event, step)
        instrument = made[step.instrument]
        record = instrument.record if hasattr(instrument, "record") else instrument.add
        return partial(self._record, record, step.value, step.attributes, step.span)

    def _span(self, step: SpanStep, steps: list[Callable[[], None]]) -> None:
        span = self._tracer.start_span(step.name, kind=step.kind, attributes=step.start)
        context = self._contexts[step.number] = set_span_in_context(span)
        token = otel_context.attach(context)
        for inner in steps:
            inner()
        otel_context.detach(token)
        if step.final:
            span.set_attributes(step.final)
        if step.failed:
            span.set_status(StatusCode.ERROR)
        span.end()

    def _point(self, step: SpanStep, steps: list[Callable[[], None]]) -> None:
        """Replay a span that nothing happens under, which need not be current."""
        assert not steps
        span = self._tracer.start_span(step.name, kind=step.kind, attributes=step.start)
        if step.final:
            span.set_attributes(step.final)
        if step.failed:
            span.set_status(StatusCode.ERROR)
        span.end()

    def _event(self, step: EventStep) -> None:
        assert self._logger is not None
        self._logger.emit(
            LogRecord(
                timestamp=time_ns(),
                context=self._contexts[step.span],
                severity_number=step.severity,
                body=step.body,
                attributes=step.attributes,
                event_name=step.name,
            )
        )

    def _record(self, record: Callable[..., None], value: float, attributes: dict[str, Any] | None, span: int) -> None:
        record(value, attributes, self._contexts[span])

    def replay(self) -> None:
        """Replay it once."""
        for step in self._steps:
            step()

    def run(self, passes: int) -> None:
        """Replay it so many times under one span, as the passes of a run are."""
        with self.current_span():
            repeated(self.replay, passes)()

    @contextmanager
    def current_span(self) -> Iterator[None]:
        """Make a span of the floor's tracer the current one for the block."""
        root = self._tracer.start_span("run")
        token = otel_context.attach(set_span_in_context(root))
        yield
        otel_context.detach(token)
        root.end()


class DocumentedFloor(Floor):
    """Replays a pass the way the SDK's documentation shows it: `with tracer.start_as_current_span(...)`."""

    def _span(self, step: SpanStep, steps: list[Callable[[], None]]) -> None:
        with self._tracer.start_as_current_span(step.name, kind=step.kind, attributes=step.start) as span:
            self._contexts[step.number] = otel_context.get_current()
            for inner in steps:
                inner()
            if step.final:
                span.set_attributes(step.final)
            if step.failed:
                span.set_status(StatusCode.ERROR)


def check_replay(captured: Capture, index: int | None) -> None:
    """Raise `AssertionError` unless a replay emits just what was captured."""
    recorder = Recorder(index)
    floor = Floor(captured, recording(recorder, events=bool(captured.events)))
    if index is None:
        floor.replay()
    else:
        floor.run(1)
    again = recorder.capture
    assert again.steps == captured.steps, "the replay differs from the run"
