"""The fast path records a span as the SDK's tracer does: what is exported is the same."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.environment_variables import OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    Span,
    SpanLimits,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    Tracer,
    TracerProvider,
    _Span,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    AlwaysRecordSampler,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    StaticSampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as ApiSpan

from tests.fast_path.paths import captured_log, path
from tests.sweeps import sweep
from tests.waiting import PATIENCE
from traced_tools.fast_path.tracer import FastSpan, FastTracer, is_known_tracer
from traced_tools.observe.attributes import Attributes
from traced_tools.observe.providers import tracing_of
from traced_tools.observe.tracer import ApiTracer

BEGAN, ENDED = 1_000_000_000, 2_000_000_000
"""Unix times, in nanoseconds."""


class CountedIds(IdGenerator):
    """Ids that count from 1.

    Args:
        random: whether the trace ids claim to be random.
    """

    def __init__(self, random: bool = True) -> None:
        self._last = 0
        self._random = random

    def generate_span_id(self) -> int:
        self._last += 1
        return self._last

    def generate_trace_id(self) -> int:
        return self.generate_span_id()

    def is_trace_id_random(self) -> bool:
        return self._random


class Adding(SpanProcessor):
    """Adds attributes to each span when it starts and when it ends."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attribute("started.under", str(parent_context is not None))
        span.add_event("started", timestamp=BEGAN)

    def _on_ending(self, span: Span) -> None:
        assert not span.is_recording()

    def on_end(self, span: ReadableSpan) -> None:
        assert span.end_time is not None and not hasattr(span, "set_attribute")


class Setup:
    """A tracer provider with what it exports.

    Args:
        fast: whether the package's spans take the fast path.
        options: arguments of the provider.
    """

    def __init__(self, *, fast: bool, processors: tuple[SpanProcessor, ...] = (), **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(
            resource=Resource({"service.name": "x"}),
            shutdown_on_exit=False,
            **{"id_generator": CountedIds(), "sampler": ALWAYS_ON, **options},
        )
        for processor in (*processors, SimpleSpanProcessor(self.exporter)):
            self.provider.add_span_processor(processor)
        with path(fast=fast):
            tracer = tracing_of(self.provider).tracer
        assert tracer is not None
        self.tracer = tracer
        self.application = self.provider.get_tracer("application")

    def exported(self) -> list[Any]:
        """The spans as OTLP has them."""
        return comparable(MessageToDict(encode_spans(self.exporter.get_finished_spans())))


def comparable(data: Any) -> Any:
    """Return OTLP without times, and with attributes in order."""
    if isinstance(data, dict):
        return {key: comparable(value) for key, value in data.items() if not key.endswith("UnixNano")}
    if isinstance(data, list):
        items = [comparable(each) for each in data]
        return sorted(items, key=lambda item: item["key"]) if items and "key" in items[0] else items
    return data


def both(record: Callable[[Setup], object], **options: Any) -> tuple[Any, Any]:
    """Record with each path, and return what is exported and logged."""
    found = []
    for fast in (True, False):
        made = {name: value() if callable(value) else value for name, value in options.items()}
        with captured_log() as log:
            setup = Setup(fast=fast, **made)
            record(setup)
        found.append((setup.exported(), log.texts))
    return found[0], found[1]


# The methods of a span.


def _raise_in(span: ApiSpan) -> None:
    with pytest.raises(KeyError), span:
        raise KeyError("x")


OTHER = SpanContext(7, 7, is_remote=True)
OPERATIONS: dict[str, Callable[[Any], object]] = {
    "set a list": lambda span: span.set_attribute("a.list", ["x", "y"]),
    "set a number": lambda span: span.set_attribute("gen_ai.tool.name", 1.5),
    "set an object": lambda span: span.set_attribute("an.object", object),
    "set no key": lambda span: span.set_attribute("", "x"),
    "set several": lambda span: span.set_attributes({"b": 1, "c": {"d": [b"bytes", None]}, "long": "x" * 300}),
    "add an event": lambda span: span.add_event("event", {"e": 1, "f": "y"}, timestamp=BEGAN),
    "add a link": lambda span: span.add_link(OTHER, {"g": 1, "h": 2}),
    "add a link to nothing": lambda span: span.add_link(SpanContext(0, 0, is_remote=True)),
    "rename": lambda span: span.update_name("renamed"),
    "set an error": lambda span: span.set_status(StatusCode.ERROR, "why"),
    "set a status": lambda span: span.set_status(Status(StatusCode.OK)),
    "unset the status": lambda span: span.set_status(StatusCode.UNSET),
    "leave it by an exception": _raise_in,
    "end it": lambda span: span.end(ENDED),
}
LIMITS = st.sampled_from([None, 0, 1, 2, 3, 128])


@st.composite
def limits(draw: st.DrawFn) -> SpanLimits:
    """Limits of spans; `SpanLimits.UNSET` means that there is none."""
    most = [SpanLimits.UNSET if (each := draw(LIMITS)) is None else each for _ in range(5)]
    return SpanLimits(
        max_span_attributes=most[0],
        max_events=most[1],
        max_links=most[2],
        max_event_attributes=most[3],
        max_link_attributes=most[4],
    )


ATTRIBUTES = st.dictionaries(
    st.sampled_from(["gen_ai.tool.name", "b", "traced_tools.tool.batch_index", "d", "e"]),
    st.one_of(st.text(max_size=5), st.integers(-9, 9), st.floats(allow_nan=False), st.booleans(), st.just(("x", "y"))),
)


@given(
    limits=limits(),
    start=ATTRIBUTES,
    operations=st.lists(st.sampled_from([*OPERATIONS]), max_size=5),
    final=ATTRIBUTES,
    error=st.sampled_from([None, "timeout"]),
    after=st.lists(st.sampled_from([*OPERATIONS]), max_size=2),
    is_watched=st.booleans(),
)
def test_a_span_is_exported_as_the_sdk_exports_it(
    limits: SpanLimits,
    start: Attributes,
    operations: list[str],
    final: Attributes,
    error: str | None,
    after: list[str],
    is_watched: bool,
) -> None:
    def record(setup: Setup) -> None:
        outer = setup.application.start_span("outer", start_time=BEGAN)
        context = set_span_in_context(outer)
        span = setup.tracer.start("inner", context, SpanKind.CLIENT, {**start}, BEGAN)
        for each in operations:
            OPERATIONS[each](span)
        below = setup.application.start_span("below", set_span_in_context(span), start_time=BEGAN)
        below.end(ENDED)
        setup.tracer.end(span, {**final}, error, ENDED)
        for each in after:
            OPERATIONS[each](span)
        outer.end(ENDED)

    processors = (Adding(),) if is_watched else ()
    fast, by_sdk = both(record, span_limits=limits, processors=processors)
    assert fast == by_sdk


def start_below(setup: Setup, parent: ApiSpan | None, **attributes: Any) -> ApiSpan:
    context = Context() if parent is None else set_span_in_context(parent, Context())
    return setup.tracer.start("inner", context, SpanKind.INTERNAL, attributes, BEGAN)


def test_a_child_of_a_sampled_span_takes_the_fast_path_and_is_a_span_of_the_sdk() -> None:
    setup = Setup(fast=True)
    span = start_below(setup, setup.application.start_span("outer"))
    assert type(span) is FastSpan and isinstance(span, Span | ReadableSpan)
    assert type(start_below(setup, span)) is FastSpan and isinstance(span, _Span)
    assert not isinstance(start_below(Setup(fast=False), span), FastSpan)


# The sampler's decision.


class Naming(Sampler):
    """Adds an attribute to each span and changes the trace state."""

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *rest: Any, **more: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE, {"sampled": name}, TraceState([("k", "v")]))

    def get_description(self) -> str:
        return "Naming"


class Doubting(ParentBased):
    """Asks its root for each span."""

    def should_sample(self, *arguments: Any, **more: Any) -> SamplingResult:
        return self._root.should_sample(*arguments, **more)


SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "always": lambda: ALWAYS_ON,
    "never": lambda: ALWAYS_OFF,
    "record only": lambda: StaticSampler(Decision.RECORD_ONLY),
    "as the parent": lambda: ParentBased(ALWAYS_ON),
    "as the parent, a root never": lambda: ParentBased(ALWAYS_OFF),
    "as the parent, a child never": lambda: ParentBased(ALWAYS_ON, local_parent_sampled=ALWAYS_OFF),
    "as the parent, a child as named": lambda: ParentBased(ALWAYS_ON, local_parent_sampled=Naming()),
    "half, then as the parent": lambda: ParentBasedTraceIdRatio(0.5),
    "half": lambda: TraceIdRatioBased(0.5),
    "record always": lambda: AlwaysRecordSampler(ALWAYS_OFF),
    "named": Naming,
    "a subclass": lambda: Doubting(ALWAYS_OFF),
}
PARENTS: dict[str, Callable[[Setup], ApiSpan | None]] = {
    "none": lambda setup: None,
    "sampled": lambda setup: NonRecordingSpan(SpanContext(5, 6, False, TraceFlags(1))),
    "sampled, random id": lambda setup: NonRecordingSpan(SpanContext(5, 6, False, TraceFlags(3))),
    "sampled, other flags": lambda setup: NonRecordingSpan(SpanContext(5, 6, False, TraceFlags(0x85))),
    "with a trace state": lambda setup: NonRecordingSpan(
        SpanContext(5, 6, False, TraceFlags(1), TraceState([("a", "b")]))
    ),
    "not sampled": lambda setup: NonRecordingSpan(SpanContext(5, 6, False, TraceFlags(2))),
    "remote": lambda setup: NonRecordingSpan(SpanContext(5, 6, True, TraceFlags(1))),
    "remote, not sampled": lambda setup: NonRecordingSpan(SpanContext(5, 6, True, TraceFlags(0))),
    "invalid": lambda setup: NonRecordingSpan(SpanContext(0, 6, False, TraceFlags(1))),
    "of the application": lambda setup: setup.application.start_span("outer", start_time=BEGAN),
}


@sweep(sampler=SAMPLERS, parent=PARENTS, random=[True, False])
def test_each_span_is_sampled_as_the_sdk_samples_it(sampler: str, parent: str, random: bool) -> None:
    contexts = []

    def record(setup: Setup) -> None:
        outer = start_below(setup, PARENTS[parent](setup), a=1)
        inner = start_below(setup, outer, b=2)
        for span in (inner, outer):
            contexts.append((span.get_span_context(), span.is_recording()))
            setup.tracer.end(span, {"c": 3}, None, ENDED)

    fast, by_sdk = both(record, sampler=SAMPLERS[sampler], id_generator=lambda: CountedIds(random))
    assert fast == by_sdk
    assert contexts[:2] == contexts[2:]
    assert [repr(each) for each in contexts[:2]] == [repr(each) for each in contexts[2:]]


def test_a_sampler_set_later_decides() -> None:
    def record(setup: Setup) -> None:
        outer = setup.application.start_span("outer", start_time=BEGAN)
        tracer = setup.tracer.tracer
        assert isinstance(tracer, Tracer)
        tracer.sampler = Naming()
        setup.tracer.end(start_below(setup, outer), {}, None, ENDED)

    fast, by_sdk = both(record)
    assert fast == by_sdk and fast[0]["resourceSpans"]


class Proxy:
    """Stands for a sampler, whose methods its class does not have."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def test_a_sampler_behind_a_proxy_decides() -> None:
    fast, by_sdk = both(lambda setup: start_below(setup, None).end(ENDED), sampler=lambda: Proxy(ALWAYS_ON))
    assert fast == by_sdk and fast[0]["resourceSpans"]


@pytest.mark.parametrize("kind", [StaticSampler, ParentBased], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_of_object", [False, True], ids=["class", "object"])
def test_a_sampler_that_was_patched_decides(kind: Any, is_of_object: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = StaticSampler(Decision.RECORD_AND_SAMPLE)
    if kind is ParentBased:
        sampler = ParentBased(sampler)  # type: ignore[assignment]
    monkeypatch.setattr(sampler if is_of_object else kind, "should_sample", patched)
    assert type(Setup(fast=True, sampler=sampler).tracer) is ApiTracer


class Nowhere(NonRecordingSpan):
    """A span of the application that has no context."""

    def get_span_context(self) -> Any:
        return None


def test_a_span_below_one_without_a_context_is_a_root() -> None:
    parent = Nowhere(SpanContext(1, 1, is_remote=False))
    fast, by_sdk = both(lambda setup: setup.tracer.end(start_below(setup, parent), {}, None, ENDED))
    assert fast == by_sdk and fast[0]["resourceSpans"]


# What surrounds a span.


def test_a_resource_set_later_is_exported() -> None:
    def record(setup: Setup) -> None:
        setup.provider._update_resource(Resource({"process.pid": 7}))
        setup.tracer.end(start_below(setup, setup.application.start_span("outer")), {}, None, ENDED)

    fast, by_sdk = both(record)
    assert fast == by_sdk and "process.pid" in str(fast)


def test_the_metrics_of_the_sdk_about_itself_count_each_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED, "true")
    counts = []
    for fast in (True, False):
        reader = InMemoryMetricReader()
        setup = Setup(fast=fast, meter_provider=MeterProvider([reader], shutdown_on_exit=False))
        outer = setup.application.start_span("outer")
        ended, live = start_below(setup, outer), start_below(setup, outer)
        setup.tracer.end(ended, {}, None, ENDED)
        assert live.is_recording()
        counts.append(
            [
                (metric.name, point.attributes, point.value)
                for resource in _of(reader).resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
                for point in metric.data.data_points
            ]
        )
    assert counts[0] == counts[1]
    assert [value for name, _, value in counts[0] if name == "otel.sdk.span.live"] == [2]


def _of(reader: InMemoryMetricReader) -> Any:
    return reader.get_metrics_data()


def test_an_invalid_span_is_not_made_while_the_tracer_is_disabled() -> None:
    setup = Setup(fast=True)
    outer = setup.application.start_span("outer")
    setup.provider._set_tracer_configurator(tracer_configurator=lambda scope: _disabled())
    assert not start_below(setup, outer).is_recording()


def _disabled() -> Any:
    from opentelemetry.sdk.trace import _TracerConfig

    return _TracerConfig(is_enabled=False)


# Which tracers take the fast path.


class OwnTracer(Tracer):
    """A tracer of the application."""


def patched(*arguments: Any, **more: Any) -> Any:
    raise NotImplementedError


def test_a_tracer_of_the_sdk_is_supported() -> None:
    assert isinstance(Setup(fast=True).tracer, FastTracer)


@pytest.mark.parametrize("method", ["start_span", "_is_enabled"])
def test_a_tracer_whose_class_was_patched_is_not_supported(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tracer, method, patched)
    assert type(Setup(fast=True).tracer) is ApiTracer


@pytest.mark.parametrize("method", ["__init__", "start", "end", "_readable_span", "set_attributes", "set_status"])
def test_a_tracer_whose_spans_were_patched_is_not_supported(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Span, method, patched)
    assert type(Setup(fast=True).tracer) is ApiTracer


@pytest.mark.parametrize("method", ["on_start", "_on_ending", "on_end"])
def test_a_tracer_whose_processors_are_called_by_a_patch_is_not_supported(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SynchronousMultiSpanProcessor, method, patched)
    assert type(Setup(fast=True).tracer) is ApiTracer


def test_a_tracer_of_a_module_with_spans_of_another_class_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentelemetry.sdk.trace._Span", Span)
    assert type(Setup(fast=True).tracer) is ApiTracer


def seeing(seen: list[str], name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a patch that notes each call."""

    def patch(*arguments: Any, **more: Any) -> Any:
        seen.append(name)
        return original(*arguments, **more)

    return patch


def test_patches_of_the_sdk_see_the_spans_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = SimpleSpanProcessor(InMemorySpanExporter())
    setup = Setup(fast=True, processors=(processor,))
    outer, seen = setup.application.start_span("outer"), []
    before = start_below(setup, outer)
    for owner, method in ((Tracer, "start_span"), (Span, "end"), (processor, "on_end")):
        monkeypatch.setattr(owner, method, seeing(seen, method, getattr(owner, method)))
    setup.tracer.end(before, {"a": 1}, "timeout", ENDED)
    setup.tracer.end(start_below(setup, outer), {}, None, ENDED)
    assert seen == ["end", "on_end", "start_span", "end", "on_end"]
    ended = setup.exporter.get_finished_spans()[0]
    assert dict(ended.attributes or {}) == {"a": 1} and ended.status.description == "timeout"


BEFORE_THE_FIRST_RUN = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, set_span_in_context

seen = []
SimpleSpanProcessor.on_start = lambda self, span, parent_context=None: seen.append("started")
BatchSpanProcessor.on_end = lambda self, span: seen.append("ended")

from traced_tools.observe.providers import tracing_of

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
outer = set_span_in_context(provider.get_tracer("x").start_span("outer"))
seen.clear()
tracer = tracing_of(provider).tracer
tracer.end(tracer.start("inner", outer, SpanKind.INTERNAL, {}, 1), {}, None, 2)
assert type(tracer).__name__ == "FastTracer" and seen == ["started", "ended"], (tracer, seen)
"""


def test_processors_whose_classes_were_patched_before_the_first_run_are_called() -> None:
    subprocess.run([sys.executable, "-c", BEFORE_THE_FIRST_RUN], check=True, timeout=60)


class Duck:
    """A processor that has only what the specification names."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        pass


def test_a_span_starts_although_a_processor_lacks_a_method() -> None:
    setup = Setup(fast=True)
    duck: Any = Duck()
    setup.provider.add_span_processor(duck)
    span = start_below(setup, setup.application.start_span("outer"))
    with pytest.raises(AttributeError, match="_on_ending"):
        setup.tracer.end(span, {}, None, ENDED)


@given(attributes=ATTRIBUTES)
def test_an_ended_span_has_the_attributes_of_the_sdk_in_it(attributes: Attributes) -> None:
    found = []
    for fast in (True, False):
        setup = Setup(fast=fast)
        setup.tracer.end(start_below(setup, setup.application.start_span("outer"), **attributes), {}, None, ENDED)
        (span,) = setup.exporter.get_finished_spans()
        inside = copy.deepcopy(span)._attributes
        assert isinstance(inside, BoundedAttributes) and span.attributes == attributes
        found.append((inside._dict, inside.maxlen, inside.max_value_len, inside.dropped, inside._immutable))
        found.append((json.loads(span.to_json())["attributes"],))
    assert found[:2] == found[2:]


def test_a_thread_reads_the_items_of_attributes_while_another_adds_some() -> None:
    setup = Setup(fast=True)
    span: Any = start_below(setup, setup.application.start_span("outer"), a=1, b=2)
    for key, _ in span.attributes.items():
        span.set_attribute(f"{key}.more", 1)
    assert set(span.attributes) == {"a", "b", "a.more", "b.more"}


def test_threads_that_first_ask_for_the_events_of_a_span_get_the_same_list() -> None:
    setup = Setup(fast=True)
    span: Any = start_below(setup, setup.application.start_span("outer"))
    start, threads = threading.Barrier(4), []
    found: list[Any] = []

    def ask() -> None:
        start.wait(PATIENCE)
        found.append(span._events)

    for _ in range(4):
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [each is span._events for each in found] == [True] * 4


def test_a_tracer_that_was_patched_itself_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer("x")
    assert is_known_tracer(tracer)
    monkeypatch.setattr(tracer, "start_span", patched)
    assert not is_known_tracer(tracer)


def test_processors_that_run_at_once_are_left_to_the_sdk() -> None:
    assert type(Setup(fast=True, active_span_processor=ConcurrentMultiSpanProcessor(2)).tracer) is ApiTracer


class Own(BatchSpanProcessor):
    """A batch processor of the application, which sees each span that ends."""

    def on_end(self, span: ReadableSpan) -> None:
        super().on_end(span)


@pytest.mark.parametrize("how", ["by a subclass", "by a patch of the class", "by a patch of the object"])
def test_a_batch_processor_that_is_not_the_sdks_gets_each_ended_span(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def on_end(processor: Any, span: ReadableSpan) -> None:
        ended.append(span.name)

    if how == "by a patch of the class":
        monkeypatch.setattr(BatchSpanProcessor, "on_end", on_end)
    processor = (Own if how == "by a subclass" else BatchSpanProcessor)(InMemorySpanExporter())
    if how == "by a subclass":
        monkeypatch.setattr(Own, "on_end", on_end)
    elif how == "by a patch of the object":
        monkeypatch.setattr(processor, "on_end", lambda span: on_end(processor, span))
    setup = Setup(fast=True, processors=(processor,))
    span = start_below(setup, setup.application.start_span("outer"))
    assert type(span) is FastSpan
    setup.tracer.end(span, {}, None, ENDED)
    assert ended == ["inner"]
    processor.shutdown()


def test_a_batch_processor_exports_spans_and_instants() -> None:
    exporter = InMemorySpanExporter()
    setup = Setup(fast=True, processors=(BatchSpanProcessor(exporter),))
    context = set_span_in_context(setup.application.start_span("outer"))
    setup.tracer.end(setup.tracer.start("a span", context, SpanKind.INTERNAL, {}, BEGAN), {}, None, ENDED)
    setup.tracer.instant("an instant", context, SpanKind.INTERNAL, {}, BEGAN, ENDED)
    assert setup.provider.force_flush()
    assert [span.name for span in exporter.get_finished_spans()] == ["a span", "an instant"]
    setup.provider.shutdown()


def test_a_processor_added_later_sees_the_next_span() -> None:
    def record(setup: Setup) -> None:
        outer = setup.application.start_span("outer", start_time=BEGAN)
        setup.tracer.end(start_below(setup, outer, a=1), {}, None, ENDED)
        setup.provider.add_span_processor(Adding())
        setup.tracer.end(start_below(setup, outer, b=2), {}, None, ENDED)

    fast, by_sdk = both(record)
    assert fast == by_sdk and "started.under" in str(fast)


@given(attributes=ATTRIBUTES, limits=limits(), is_watched=st.booleans(), is_sampled=st.booleans())
def test_an_instant_is_exported_as_a_span_that_ends_at_once(
    attributes: Attributes, limits: SpanLimits, is_watched: bool, is_sampled: bool
) -> None:
    def record(setup: Setup) -> None:
        parent = NonRecordingSpan(SpanContext(5, 6, False, TraceFlags(is_sampled)))
        context = set_span_in_context(parent, Context())
        setup.tracer.instant("instant", context, SpanKind.INTERNAL, {**attributes}, BEGAN, ENDED)

    processors = (Adding(),) if is_watched else ()
    fast, by_sdk = both(record, span_limits=limits, processors=processors, sampler=ParentBased(ALWAYS_ON))
    assert fast == by_sdk


def test_a_limit_of_the_length_of_attributes_is_left_to_the_sdk() -> None:
    assert type(Setup(fast=True, span_limits=SpanLimits(max_span_attribute_length=5)).tracer) is ApiTracer


def test_a_tracer_of_a_subclass_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentelemetry.sdk.trace.Tracer", OwnTracer)
    assert type(Setup(fast=True).tracer) is ApiTracer


def test_a_release_of_the_sdk_that_is_not_known_is_not_supported() -> None:
    assert type(Setup(fast=False).tracer) is ApiTracer
