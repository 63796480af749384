"""The span processors of a tracer provider, by what they take part in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from traced_tools.fast_path.known_sdk import are_original

_IDLE: Final = {
    method
    for kind in (SpanProcessor, BatchSpanProcessor, SimpleSpanProcessor)
    for method in (kind.on_start, kind._on_ending)
    if are_original(method)
}
"""Methods that do nothing."""
_BY_BATCH: Final = BatchSpanProcessor.on_end if are_original(BatchSpanProcessor.on_end) else None


class Watchers:
    """The processors that do something when a span starts, and just before it ends. Most only export ended spans.

    Args:
        processors: all processors. The SDK replaces this tuple if one is added.
    """

    def __init__(self, processors: tuple[SpanProcessor, ...]) -> None:
        self.processors = processors
        self.of_starts = [processor for processor in processors if _does_something(processor, "on_start")]
        self.of_ends = [processor for processor in processors if _does_something(processor, "_on_ending")]
        self._exports = [(processor, _get_emit(processor)) for processor in processors]

    def take_ended(self, span: ReadableSpan) -> None:
        """Give all processors an ended span that is known to be sampled, which a batch processor would check again."""
        for processor, emit in self._exports:
            # Instrumentation may have replaced `on_end` since, of this processor or of the class.
            if emit is None or "on_end" in processor.__dict__ or BatchSpanProcessor.on_end is not _BY_BATCH:
                processor.on_end(span)
            else:
                emit(span)


def _does_something(processor: SpanProcessor, method: str) -> bool:
    """Return whether a method does something. One that is missing raises when it is called, as in the SDK."""
    function = getattr(getattr(processor, method, None), "__func__", None)
    return function not in _IDLE


def _get_emit(processor: SpanProcessor) -> Callable[[ReadableSpan], object] | None:
    """Return what a batch processor of the SDK does with a sampled span; None for any other processor."""
    if isinstance(processor, BatchSpanProcessor) and type(processor).on_end is _BY_BATCH:
        return processor._batch_processor.emit
    return None
