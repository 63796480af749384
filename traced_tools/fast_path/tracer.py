"""Spans of the OpenTelemetry SDK that cost a fraction of what its tracer needs to make them.

The SDK's tracer asks the sampler about each span, copies and checks each attribute, and makes lists for events and
links that few spans have. A span of the package with a sampled local parent needs none of that: the sampler is known
to follow the parent, and the attributes are known to be valid. Any other span is made by the SDK's tracer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.trace import ReadableSpan, SynchronousMultiSpanProcessor, Tracer, _Span
from opentelemetry.sdk.trace._tracer_metrics import NoOpTracerMetrics
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, StaticSampler
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import SpanContext, TraceFlags, get_current_span
from opentelemetry.trace.propagation import _SPAN_KEY
from opentelemetry.trace.status import Status, StatusCode

from traced_tools.fast_path.attributes import valid_attributes
from traced_tools.fast_path.known_sdk import are_original
from traced_tools.fast_path.watchers import Watchers
from traced_tools.observe.tracer import ApiTracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context
    from opentelemetry.trace import Span as ApiSpan
    from opentelemetry.trace import SpanKind

    from traced_tools.observe.attributes import Attributes

_SAMPLED: Final = Decision.RECORD_AND_SAMPLE
_SAMPLED_FLAG: Final = int(TraceFlags.SAMPLED)
_INHERITED_FLAGS: Final = int(TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID)
_UNSET: Final = Status(StatusCode.UNSET)
_START_SPAN, _END = Tracer.start_span, _Span.end


class FastTracer(ApiTracer):
    """Starts and ends spans as the SDK's tracer does.

    Args:
        tracer: the SDK's tracer, which `is_known_tracer` accepts.
    """

    tracer: Tracer

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self._sampler = tracer.sampler
        self._most_attributes = tracer._span_limits.max_span_attributes
        self._counts_spans = not isinstance(tracer._tracer_metrics, NoOpTracerMetrics)
        self._watchers = Watchers(tracer.span_processor._span_processors)

    def start(self, name: str, context: Context, kind: SpanKind, attributes: Attributes, start_time: int) -> ApiSpan:
        """Start a span; the arguments are those of `ApiTracer.start`."""
        tracer, parent = self.tracer, self._sampled_parent(context, attributes)
        if parent is None:
            return super().start(name, context, kind, attributes, start_time)
        count_end = tracer._tracer_metrics.start_span(parent, _SAMPLED) if self._counts_spans else None
        span = FastSpan(tracer, name, self._make_child_context(parent), parent, kind, attributes, start_time, count_end)
        for watcher in self._current_watchers().of_starts:
            watcher.on_start(span, parent_context=context)
        return span

    def end(self, span: ApiSpan, attributes: Attributes, error_type: str | None, end_time: int) -> None:
        """End a span; the arguments are those of `ApiTracer.end`."""
        watchers = self._current_watchers()
        if (
            type(span) is not FastSpan
            or _Span.end is not _END
            or not span.try_end(attributes, error_type, end_time, watchers)
        ):
            super().end(span, attributes, error_type, end_time)

    def instant(
        self, name: str, context: Context, kind: SpanKind, attributes: Attributes, start_time: int, end_time: int
    ) -> None:
        """Emit a span in which nothing happens; the arguments are those of `ApiTracer.instant`."""
        watchers, parent = self._current_watchers(), self._sampled_parent(context, attributes)
        if parent is None or watchers.of_starts or watchers.of_ends or self._counts_spans:
            super().instant(name, context, kind, attributes, start_time, end_time)
            return
        tracer = self.tracer
        span = ReadableSpan(
            name,
            self._make_child_context(parent),
            parent,
            tracer.resource,
            attributes,
            (),
            (),
            kind,
            tracer.instrumentation_info,
            _UNSET,
            start_time,
            end_time,
            tracer._instrumentation_scope,
        )
        watchers.take_ended(span)

    def _sampled_parent(self, context: Context, attributes: Attributes) -> SpanContext | None:
        """Return the parent of a span that can take the fast path; None for any other."""
        outer, tracer = context.get(_SPAN_KEY), self.tracer
        if type(outer) is FastSpan:  # which is sampled and of this process
            parent = outer._context
        else:
            parent = get_current_span(context).get_span_context()
            if type(parent) is not SpanContext or not parent.is_valid or parent.is_remote:
                return None
            if not parent.trace_flags & _SAMPLED_FLAG:
                return None
        # An application can replace the sampler, disable the tracer or instrument the SDK at any time.
        is_fast = (
            tracer.sampler is self._sampler
            and (self._most_attributes is None or len(attributes) <= self._most_attributes)
            and tracer._tracer_config.is_enabled
            and Tracer.start_span is _START_SPAN
            and _Span.end is _END
        )
        return parent if is_fast else None

    def _make_child_context(self, parent: SpanContext) -> SpanContext:
        trace_id, _, _, flags, state, _ = parent
        if flags > _INHERITED_FLAGS:  # the SDK passes on these two flags and no others
            flags = TraceFlags(flags & _INHERITED_FLAGS)
        return SpanContext(trace_id, self.tracer.id_generator.generate_span_id(), False, flags, state)

    def _current_watchers(self) -> Watchers:
        processors = self.tracer.span_processor._span_processors
        if processors is not self._watchers.processors:
            self._watchers = Watchers(processors)
        return self._watchers


class _LazyList:
    """A list of a span that most spans do not need. Threads that ask for it at once get the same list.

    Args:
        limit: the name of the limit of its length.
    """

    def __init__(self, limit: str) -> None:
        self._limit = limit

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, span: FastSpan, owner: type) -> BoundedList[Any]:
        empty: BoundedList[Any] = BoundedList(getattr(span._limits, self._limit))
        # `setdefault` is atomic. It replaces a lock, which a fork could leave held.
        bounded_list: BoundedList[Any] = vars(span).setdefault(self._name, empty)
        return bounded_list


class FastSpan(_Span):
    """A span of the SDK, with all of its methods, whose attributes are valid from the start."""

    _attributes: BoundedAttributes
    _context: SpanContext
    _end_time: int | None = None
    _status = _UNSET
    _trace_config = None
    _record_exception = True
    _set_status_on_exception = True

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        kind: SpanKind,
        attributes: Attributes,
        start_time: int,
        count_end: Callable[[], None] | None,
    ) -> None:
        # What the SDK's `__init__` sets, without calling it.
        self._name = name
        self._context = context
        self._parent = parent
        self._kind = kind
        self._start_time = start_time
        self._resource = tracer.resource
        self._instrumentation_info = tracer.instrumentation_info
        self._instrumentation_scope = tracer._instrumentation_scope
        self._sampler = tracer.sampler
        self._span_processor = tracer.span_processor
        self._limits = tracer._span_limits
        self._lock = threading.Lock()
        self._record_end_metrics = count_end
        self._attributes = valid_attributes(attributes, tracer._span_limits.max_span_attributes)

    _events = _LazyList("max_events")
    _links = _LazyList("max_links")

    def try_end(self, attributes: Attributes, error_type: str | None, end_time: int, watchers: Watchers) -> bool:
        """Do what `set_status`, `set_attributes` and `end` do, for valid attributes; return False if it has ended."""
        bounded = self._attributes
        with self._lock:
            if self._end_time is not None:
                return False
            if error_type is not None and self._status.status_code is not StatusCode.OK:
                self._status = Status(StatusCode.ERROR, error_type)
            if bounded.maxlen is None or len(bounded._dict) + len(attributes) <= bounded.maxlen:
                bounded._dict.update(attributes)
            else:
                bounded._set_items(attributes)
            bounded._immutable = True
            self._end_time = end_time
        if self._record_end_metrics:
            self._record_end_metrics()
        for watcher in watchers.of_ends:
            watcher._on_ending(self)
        watchers.take_ended(self._readable_span())
        return True

    def _readable_span(self) -> ReadableSpan:
        instance_dict = self.__dict__  # reading `_events` or `_links` as attributes would create the lists
        return ReadableSpan(
            self._name,
            self._context,
            self._parent,
            self._resource,
            self._attributes,
            instance_dict.get("_events", ()),
            instance_dict.get("_links", ()),
            self._kind,
            self._instrumentation_info,
            self._status,
            self._start_time,
            self._end_time,
            self._instrumentation_scope,
        )


def is_known_tracer(tracer: object) -> TypeGuard[Tracer]:
    """Return whether the fast path can stand in for a tracer: it is the SDK's own and samples as the parent does."""
    return (
        type(tracer) is Tracer
        and "start_span" not in vars(tracer)
        and are_original(Tracer.start_span, Tracer._is_enabled)
        and sdk_trace._Span is _Span
        and are_original(_Span.__init__, _Span.start, _Span.end, _Span._readable_span, ReadableSpan.__init__)
        and are_original(_Span.set_attributes, _Span.set_status)
        and type(processors := tracer.span_processor) is SynchronousMultiSpanProcessor
        and are_original(type(processors).on_start, type(processors)._on_ending, type(processors).on_end)
        and tracer._span_limits.max_span_attribute_length is None
        and _follows_parent(tracer.sampler)
    )


def _follows_parent(sampler: Sampler) -> bool:
    """Return whether a sampler samples each child of a sampled local parent, and adds no attributes to it."""
    if _is_decided_by(ParentBased.should_sample, sampler):
        assert isinstance(sampler, ParentBased)
        sampler = sampler._local_parent_sampled
    return _is_decided_by(StaticSampler.should_sample, sampler) and _decision(sampler) is _SAMPLED


def _is_decided_by(method: Callable[..., object], sampler: Sampler) -> bool:
    """Return whether a sampler decides by a method of the SDK's own."""
    is_method = getattr(type(sampler), "should_sample", None) is method  # which a proxy's class may lack
    return is_method and are_original(method) and "should_sample" not in vars(sampler)


def _decision(sampler: Any) -> Decision:
    decision: Decision = sampler._decision
    return decision
