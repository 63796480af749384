"""Providers that take everything and do nothing: what telemetry costs with them is the package's own part."""

from __future__ import annotations

from typing import Any

from opentelemetry.metrics import Meter, MeterProvider, NoOpMeter
from opentelemetry.trace import Span, SpanContext, TraceFlags, Tracer, TracerProvider

_CONTEXT = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class SilentSpan(Span):
    """Says that it records, and does not."""

    def get_span_context(self) -> SpanContext:
        return _CONTEXT

    def is_recording(self) -> bool:
        return True

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    end = set_attribute = set_attributes = set_status = update_name = _ignore
    add_event = record_exception = _ignore


class SilentTracer(Tracer):
    """Makes silent spans."""

    def start_span(self, *_: Any, **__: Any) -> Span:
        return SilentSpan()

    def start_as_current_span(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the package makes its spans current itself")


class SilentTracerProvider(TracerProvider):
    """Gives a silent tracer."""

    def get_tracer(self, *_: Any, **__: Any) -> Tracer:
        return SilentTracer()


class SilentInstrument:
    """Stands for a histogram or a counter."""

    def record(self, value: float, attributes: Any = None, context: Any = None) -> None:
        """Do nothing."""

    add = record


class SilentMeter(NoOpMeter):
    """Makes silent instruments; it is no meter of the API's own, which would be left out."""

    def _made(self, *_: Any, **__: Any) -> Any:
        return SilentInstrument()

    create_histogram = create_counter = create_up_down_counter = _made


class SilentMeterProvider(MeterProvider):
    """Gives a silent meter."""

    def get_meter(self, *_: Any, **__: Any) -> Meter:
        return SilentMeter("silent")
