"""Starts and ends spans through the OpenTelemetry API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.trace.status import StatusCode

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Tracer

    from traced_tools.observe.attributes import Attributes


class ApiTracer:
    """Starts and ends spans of a tracer of any implementation.

    Args:
        tracer: the tracer.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def start(self, name: str, context: Context, kind: SpanKind, attributes: Attributes, start_time: int) -> Span:
        """Start a span.

        Args:
            name: the span's name.
            context: the context with the parent.
            kind: the span's kind.
            attributes: the attributes that a sampler may need. The span takes over this dict.
            start_time: Unix time in nanoseconds.
        """
        return self.tracer.start_span(name, context, kind, attributes, start_time=start_time)

    def end(self, span: Span, attributes: Attributes, error_type: str | None, end_time: int) -> None:
        """Add the last attributes to a span, and end it.

        Args:
            span: a span that `start` returned.
            attributes: the attributes that are known only at the end.
            error_type: the type of the error that the span ends with, as the description of its status; else None.
            end_time: Unix time in nanoseconds.
        """
        try:
            if error_type is not None:
                span.set_status(StatusCode.ERROR, error_type)
            if attributes:
                span.set_attributes(attributes)
        finally:
            span.end(end_time)

    def instant(
        self, name: str, context: Context, kind: SpanKind, attributes: Attributes, start_time: int, end_time: int
    ) -> None:
        """Emit a span in which nothing happens, so that it is never the current one.

        Args:
            name: the span's name.
            context: the context with the parent.
            kind: the span's kind.
            attributes: its attributes. The span takes over this dict.
            start_time: Unix time in nanoseconds.
            end_time: Unix time in nanoseconds.
        """
        self.start(name, context, kind, attributes, start_time).end(end_time)
