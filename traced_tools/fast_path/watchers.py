"""The span processors of a tracer provider, by what they take part in."""

from __future__ import annotations

from typing import Final

from opentelemetry.sdk._shared_internal import BatchProcessor
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
        self._exports = [(processor, _get_batch(processor)) for processor in processors]

    def take_ended(self, span: ReadableSpan) -> None:
        """Give all processors an ended span that is known to be sampled, which a batch processor would check again."""
        for processor, batch in self._exports:
            # Instrumentation may have replaced `on_end` since, of this processor or of the class.
            if batch is None or "on_end" in processor.__dict__ or BatchSpanProcessor.on_end is not _BY_BATCH:
                processor.on_end(span)
            elif batch._shutdown or len(batch._queue) == batch._max_queue_size:
                batch.emit(span)
            else:
                # What `emit` does, without asking the system for the process's id: the SDK's hook has emptied the
                # queue of a forked child already.
                batch._queue.appendleft(span)
                if len(batch._queue) >= batch._max_export_batch_size and not batch._worker_awaken.is_set():
                    batch._worker_awaken.set()


def _does_something(processor: SpanProcessor, method: str) -> bool:
    """Return whether a method does something. One that is missing raises when it is called, as in the SDK."""
    function = getattr(getattr(processor, method, None), "__func__", None)
    return function not in _IDLE


def _get_batch(processor: SpanProcessor) -> BatchProcessor[ReadableSpan] | None:
    """Return what queues the spans of a batch processor of the SDK; None for any other processor."""
    if not isinstance(processor, BatchSpanProcessor) or type(processor).on_end is not _BY_BATCH:
        return None
    batch: BatchProcessor[ReadableSpan] = processor._batch_processor
    is_original = type(batch) is BatchProcessor and are_original(BatchProcessor.emit) and "emit" not in vars(batch)
    return batch if is_original else None
