"""The fast path records values as the SDK's instruments do: each reader collects the same."""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    Counter,
    ExemplarFilter,
    Histogram,
    Meter,
    MeterProvider,
    SimpleFixedSizeExemplarReservoir,
    TraceBasedExemplarFilter,
)
from opentelemetry.sdk.metrics._internal.aggregation import _SumAggregation
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    SumAggregation,
    View,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

from tests.fast_path.paths import captured_log, path
from tests.waiting import PATIENCE
from traced_tools.fast_path import meter as fast_meter
from traced_tools.fast_path.meter import FastInstrument
from traced_tools.flow.deferred import in_finalizer
from traced_tools.observe import names
from traced_tools.observe.instruments import Instruments
from traced_tools.observe.providers import instruments_of, tracing_of

INVALID = SpanContext(0, 0, is_remote=False)
DELTA = AggregationTemporality.DELTA
DURATION, DECISIONS = names.ADVISOR_DURATION.name, names.TOOL_DECISIONS.name


def fast_span_context() -> Context:
    """A context whose span took the fast path."""
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = tracing_of(provider).tracer
    assert tracer is not None
    sampled = NonRecordingSpan(SpanContext(5, 6, False, TraceFlags(1)))
    span = tracer.start("x", set_span_in_context(sampled, Context()), SpanKind.INTERNAL, {}, 1)
    return set_span_in_context(span, Context())


CONTEXTS: dict[str, Context | None] = {
    "none": None,
    "empty": Context(),
    "fast": fast_span_context(),
    "sampled": set_span_in_context(NonRecordingSpan(SpanContext(1, 2, False, TraceFlags(1))), Context()),
    "not sampled": set_span_in_context(NonRecordingSpan(SpanContext(3, 4, False, TraceFlags(0))), Context()),
}
VIEWS: dict[str, Callable[[], list[View]]] = {
    "none": list,
    "other buckets": lambda: [
        View(instrument_name=DURATION, aggregation=ExplicitBucketHistogramAggregation((1, 2), record_min_max=False))
    ],
    "exponential": lambda: [View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())],
    "two of one": lambda: [
        View(instrument_name=DURATION),
        View(instrument_name=DURATION, name="again", attribute_keys={names.ADVISOR_HOOK}),
    ],
    "few labels": lambda: [View(instrument_name="*", attribute_keys={names.AGENT_NAME})],
    "no labels": lambda: [View(instrument_name="*", attribute_keys=set())],
    "dropped": lambda: [View(instrument_name="*", aggregation=DropAggregation())],
    "sampled exemplars": lambda: [
        View(
            instrument_name=DURATION,
            exemplar_reservoir_factory=lambda _: lambda **more: SimpleFixedSizeExemplarReservoir(3),
        )
    ],
}
if "aggregation_cardinality_limit" in signature(View).parameters:  # which the oldest SDK does not have
    VIEWS["few series"] = lambda: [View(instrument_name="*", aggregation_cardinality_limit=2)]
FILTERS: dict[str, Callable[[], ExemplarFilter]] = {
    "by trace": TraceBasedExemplarFilter,
    "all": AlwaysOnExemplarFilter,
    "none": AlwaysOffExemplarFilter,
}
LABELS = [
    {},
    {names.AGENT_NAME: "a"},
    {names.AGENT_NAME: "a", names.ADVISOR_HOOK: "before"},
    {names.AGENT_NAME: "a", names.ADVISOR_NAME: "before"},
    {names.ADVISOR_HOOK: "before", names.AGENT_NAME: "a"},
    {names.AGENT_NAME: "b", names.RESPONSE_STATUS: 429},
]


class Setup:
    """A meter provider with readers.

    Args:
        fast: whether the package's values take the fast path.
        views: the views of the provider.
        exemplars: the filter of exemplars.
    """

    def __init__(self, *, fast: bool, views: str = "none", exemplars: str = "by trace") -> None:
        self.readers = [InMemoryMetricReader(), InMemoryMetricReader({Histogram: DELTA, Counter: DELTA})]
        self.provider = MeterProvider(
            self.readers, shutdown_on_exit=False, views=VIEWS[views](), exemplar_filter=FILTERS[exemplars]()
        )
        with path(fast=fast):
            instruments = instruments_of(self.provider)
        assert instruments is not None
        self.instruments: Instruments = instruments

    def record(self, name: str, amount: float, labels: int, context: str) -> None:
        """Record a value in an instrument."""
        arguments: Any = (amount, {**LABELS[labels]}, CONTEXTS[context])
        if name == DURATION:
            self.instruments.advisor_duration.record(*arguments)
        else:
            self.instruments.tool_decisions.add(*arguments)

    def collect(self, reader: int) -> list[Any]:
        """What a reader collects of the two instruments, without times."""
        data = self.readers[reader].get_metrics_data()
        return sorted(
            (
                (metric.name, metric.unit, _comparable(point))
                for resource in (data.resource_metrics if data else ())
                for scope in resource.scope_metrics
                for metric in scope.metrics
                if metric.name in (DURATION, DECISIONS, "again")
                for point in metric.data.data_points
            ),
            key=repr,
        )


def _comparable(point: Any) -> dict[str, Any]:
    found = {name: repr(getattr(point, name)) for name in vars(point) if not name.endswith("time_unix_nano")}
    if hasattr(point, "bucket_counts") and len(point.explicit_bounds) + 1 == len(point.bucket_counts):
        exemplars = [(each.value, each.trace_id, each.span_id, each.filtered_attributes) for each in point.exemplars]
    else:  # chosen at random
        exemplars = [len(point.exemplars)]
    return {**found, "attributes": dict(point.attributes), "exemplars": sorted(exemplars, key=repr)}


AMOUNTS = st.one_of(st.sampled_from([0, 1, 0.1, -1, -0.5, math.inf, math.nan]), st.floats(0, 20), st.integers(0, 10**6))
RECORD = st.tuples(
    st.just("record"),
    st.sampled_from([DURATION, DECISIONS]),
    AMOUNTS,
    st.integers(0, len(LABELS) - 1),
    st.sampled_from([*CONTEXTS]),
)
COLLECT = st.tuples(st.just("collect"), st.integers(0, 1))
CHANGE = st.tuples(st.sampled_from(["add a reader", "remove a reader"]))


@settings(deadline=None)
@given(
    steps=st.lists(st.one_of(RECORD, RECORD, RECORD, COLLECT, CHANGE), max_size=25),
    views=st.sampled_from([each for each in VIEWS if each != "sampled exemplars"]),
    exemplars=st.sampled_from([*FILTERS]),
)
def test_readers_collect_what_they_collect_of_the_sdk(steps: list[Any], views: str, exemplars: str) -> None:
    setups = [Setup(fast=fast, views=views, exemplars=exemplars) for fast in (True, False)]
    found: list[list[Any]] = []
    for setup in setups:
        with captured_log() as log:
            found.append([*_perform(setup, [*steps, ("collect", 0), ("collect", 1)]), log.texts])
    assert found[0] == found[1]


def _perform(setup: Setup, steps: list[Any]) -> list[Any]:
    found = []
    more: list[InMemoryMetricReader] = []
    for step, *arguments in steps:
        if step == "record":
            setup.record(*arguments)
        elif step == "collect":
            found.append(setup.collect(*arguments))
        elif step == "add a reader":
            more.append(InMemoryMetricReader())
            setup.provider.add_metric_reader(more[-1])
        elif more:
            setup.provider.remove_metric_reader(more.pop())
    for reader in more:
        setup.readers.append(reader)
        found.append(setup.collect(len(setup.readers) - 1))
    return found


def is_fast(instrument: object) -> bool:
    return isinstance(instrument, FastInstrument)


def test_the_package_records_by_the_fast_path() -> None:
    assert is_fast(Setup(fast=True).instruments.advisor_duration)
    assert not is_fast(Setup(fast=False).instruments.advisor_duration)


def test_many_values_are_aggregated_before_a_reader_collects() -> None:
    setup = Setup(fast=True)
    waiting = setup.instruments._meter.waiting  # type: ignore[attr-defined]  # of the fast path
    lengths = set()
    for _ in range(1000):
        setup.record(DURATION, 0.5, 0, "none")
        lengths.add(len(waiting))
    assert max(lengths) < 256
    assert setup.collect(0)[0][2]["count"] == "1000"


def test_values_of_a_finalizer_wait_until_it_is_over() -> None:
    setup = Setup(fast=True)
    setup.record(DURATION, 0.5, 0, "none")
    with in_finalizer():
        for _ in range(300):
            setup.record(DURATION, 0.5, 0, "none")
        setup.instruments.aggregate()
        assert len(setup.instruments._meter.waiting) == 300  # type: ignore[attr-defined]  # of the fast path
    assert setup.collect(0)[0][2]["count"] == "301"


def test_values_of_a_signal_handler_that_interrupts_an_aggregation_wait_and_none_is_lost() -> None:
    setup = Setup(fast=True)
    meter: Any = setup.instruments._meter

    class Interrupted(deque[Any]):
        """Lets a signal handler run while the last value is taken."""

        def popleft(self) -> Any:
            if len(self) == 1:
                meter.waiting = deque(self)
                setup.record(DURATION, 0.5, 0, "none")
                setup.instruments.aggregate()
            return meter.waiting.popleft() if len(self) == 1 else super().popleft()

    setup.record(DURATION, 0.5, 0, "none")
    meter.waiting = Interrupted()
    for _ in range(3):
        setup.record(DURATION, 0.5, 0, "none")
    setup.instruments.aggregate()
    assert [point["count"] for _, _, point in setup.collect(0)] == ["5"]


def test_an_exception_while_values_are_aggregated_loses_no_value_of_other_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(fast=True)
    for _ in range(2):
        for labels in (0, 1, 5):
            setup.record(DURATION, 0.5, labels, "none")
    with monkeypatch.context() as patch:
        patch.setattr(fast_meter, "bisect_left", interrupted)
        with pytest.raises(KeyboardInterrupt):
            setup.instruments.aggregate()
    assert sorted(point["count"] for _, _, point in setup.collect(0)) == ["1", "2", "2"]


def interrupted(*_: object) -> int:
    raise KeyboardInterrupt


def test_each_value_of_a_sum_is_as_likely_to_be_the_exemplar() -> None:
    setup, chosen = Setup(fast=True, exemplars="all"), list[float]()
    setup.record(DECISIONS, 1, 1, "sampled")  # by the SDK, because the series is new
    random.seed(7)
    for _ in range(400):
        setup.collect(1)
        for amount in (1, 2, 3, 4):
            setup.record(DECISIONS, amount, 1, "sampled")
        data = setup.readers[1].get_metrics_data()
        assert data is not None
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        (decisions,) = [metric for metric in metrics if metric.name == DECISIONS]
        chosen += [exemplar.value for exemplar in decisions.data.data_points[0].exemplars]
    assert len(chosen) == 400
    assert all(60 < chosen.count(amount) < 140 for amount in (1, 2, 3, 4))


class Raising(NonRecordingSpan):
    """A span of the application that fails."""

    def get_span_context(self) -> SpanContext:
        raise ValueError


def in_order_of_time(setup: Setup) -> list[Any]:
    """Series that a view makes one: the last value is the exemplar."""
    for labels, amount in ((1, 0.1), (5, 0.1), (1, 0.1), (5, 0.2), (1, 0.3)):
        setup.record(DURATION, amount, labels, "none")
    return setup.collect(0)


def first_come(setup: Setup) -> list[Any]:
    """Series of which there can be two: those of the first two values, after each collection of deltas."""
    setup.record(DECISIONS, 1, 1, "none")
    setup.record(DECISIONS, 1, 5, "none")
    found = setup.collect(1)
    for labels in (1, 5, 0):
        setup.record(DECISIONS, 1, labels, "none")
    return [found, setup.collect(1)]


def with_another_reader(setup: Setup) -> list[Any]:
    """Values that wait while a reader is added: those after it are aggregated after them."""
    setup.record(DURATION, 0.1, 0, "none")
    setup.record(DURATION, 0.2, 0, "none")
    setup.provider.add_metric_reader(InMemoryMetricReader())
    setup.record(DURATION, 0.3, 0, "none")
    return setup.collect(0)


def beside_a_failure(setup: Setup) -> list[Any]:
    """A value whose context has a span that raises is lost, and no other one."""
    for _ in range(3):
        for labels in (0, 1):
            setup.record(DURATION, 0.5, labels, "none")
        with suppress(ValueError):
            setup.instruments.advisor_duration.record(0.5, {}, set_span_in_context(Raising(INVALID), Context()))
    return setup.collect(0)


@pytest.mark.parametrize(
    ("record", "views"),
    [
        (in_order_of_time, "no labels"),
        (first_come, "few series"),
        (with_another_reader, "none"),
        (beside_a_failure, "none"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_values_are_aggregated_in_the_order_in_which_they_were_recorded(
    record: Callable[[Setup], list[Any]], views: str
) -> None:
    if views not in VIEWS:
        pytest.skip("the oldest SDK has no limit of series")
    exemplars = "by trace" if record is beside_a_failure else "all"
    fast, by_sdk = (record(Setup(fast=fast, views=views, exemplars=exemplars)) for fast in (True, False))
    assert fast == by_sdk


def test_an_aggregation_of_the_application_gets_each_value_at_once() -> None:
    aggregated: list[Any] = []

    class Own(_SumAggregation):
        """Keeps the measurements."""

        def aggregate(self, measurement: Any, should_sample_exemplar: bool = True) -> None:
            aggregated.append((measurement, measurement.value, measurement.instrument))
            super().aggregate(measurement, should_sample_exemplar)

    class Choice(SumAggregation):
        """Makes these aggregations."""

        def _create_aggregation(self, *arguments: Any) -> Any:
            made: Any = super()._create_aggregation(*arguments)
            made.__class__ = Own
            return made

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False, views=[View(instrument_name="*", aggregation=Choice())])
    instruments = instruments_of(provider)
    assert instruments is not None
    for amount in (1, 2, 3):
        instruments.tool_decisions.add(amount, {}, None)
    assert [amount for _, amount, _ in aggregated] == [1, 2, 3]
    assert [measurement.value for measurement, _, _ in aggregated] == [1, 2, 3]


@pytest.mark.parametrize("kind", [Histogram, Counter], ids=lambda kind: kind.__name__)
def test_a_patch_of_an_instrument_sees_each_value_after_it(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(fast=True)
    name = DURATION if kind is Histogram else DECISIONS
    setup.record(name, 1, 0, "none")
    seen: list[float] = []
    monkeypatch.setattr(kind, "record" if kind is Histogram else "add", lambda self, amount, *_: seen.append(amount))
    setup.record(name, 2, 0, "none")
    assert seen == [2]


def test_an_instrument_remembers_a_limited_number_of_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_meter, "_MAX_SERIES", 2)
    setup = Setup(fast=True)
    for _ in range(2):
        for labels in range(len(LABELS)):
            setup.record(DURATION, 0.5, labels, "none")
    assert {point["count"] for _, _, point in setup.collect(0)} == {"2", "4"}  # two of the labels are the same set


def test_a_meter_that_is_disabled_records_nothing() -> None:
    setup = Setup(fast=True)
    setup.record(DURATION, 0.5, 0, "none")
    meter: Any = setup.instruments._meter
    from opentelemetry.sdk.metrics._internal import _MeterConfig

    meter._meter._set_meter_config(_MeterConfig(is_enabled=False))
    setup.record(DURATION, 0.5, 0, "none")
    meter._meter._set_meter_config(_MeterConfig(is_enabled=True))
    assert [point["count"] for _, _, point in setup.collect(0)] == ["1"]


def test_a_reservoir_of_the_application_is_offered_each_value_at_once() -> None:
    offered: list[float] = []

    class Own(SimpleFixedSizeExemplarReservoir):
        """Keeps the values that are offered."""

        def offer(self, value: float, *rest: Any) -> None:
            offered.append(value)

    provider = MeterProvider(
        [InMemoryMetricReader()],
        shutdown_on_exit=False,
        views=[View(instrument_name=DURATION, exemplar_reservoir_factory=lambda _: lambda **more: Own())],
        exemplar_filter=AlwaysOnExemplarFilter(),
    )
    instruments = instruments_of(provider)
    assert instruments is not None
    instruments.advisor_duration.record(0.5, {}, None)
    assert offered == [0.5]


def test_values_recorded_in_many_threads_while_readers_collect_are_counted_once() -> None:
    setup, threads, each = Setup(fast=True), 4, 2000
    start = threading.Barrier(threads + 1)

    def record() -> None:
        start.wait(PATIENCE)
        for _ in range(each):
            setup.record(DECISIONS, 1, 0, "none")

    running = [threading.Thread(target=record) for _ in range(threads)]
    for thread in running:
        thread.start()
    start.wait(PATIENCE)
    counted = 0
    while any(thread.is_alive() for thread in running):
        counted += sum(int(point["value"]) for _, _, point in setup.collect(1))
    counted += sum(int(point["value"]) for _, _, point in setup.collect(1))
    assert counted == threads * each
    assert [point["value"] for _, _, point in setup.collect(0)] == [str(threads * each)]


# Which meters take the fast path.


class OwnFilter(AlwaysOnExemplarFilter):
    """A filter of the application."""


class OwnMeter(Meter):
    """A meter of the application."""


def patched(*arguments: Any, **more: Any) -> None:
    """Stands for an instrumentation of the SDK."""


def test_a_filter_of_the_application_is_left_to_the_sdk() -> None:
    instruments = instruments_of(MeterProvider(shutdown_on_exit=False, exemplar_filter=OwnFilter()))
    assert instruments is not None and not is_fast(instruments.advisor_duration)


def test_a_meter_of_a_subclass_is_left_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentelemetry.sdk.metrics._internal.Meter", OwnMeter)
    assert not is_fast(Setup(fast=True).instruments.advisor_duration)


@pytest.mark.parametrize("kind", [Histogram, Counter], ids=lambda kind: kind.__name__)
def test_an_instrument_whose_class_was_patched_is_left_to_the_sdk(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "record" if kind is Histogram else "add", patched)
    assert not is_fast(Setup(fast=True).instruments.advisor_duration)
