"""Histograms and counters of the OpenTelemetry SDK whose values wait in a queue and are aggregated together.

The SDK copies, checks, sorts and hashes the labels of each value on its way to the aggregation of their series. Here
each combination of labels finds its aggregations once. A value waits in a queue with its time and the ids of its span
until a reader collects, or the queue is long. Then the SDK's own aggregations take it, so views, temporality,
cardinality limits and exemplars are the SDK's.

A reader cannot see a difference: the package has an observable instrument, and a collection calls it before it reads
any aggregation.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from contextlib import nullcontext
from math import inf
from random import random
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from opentelemetry.context import Context, get_current
from opentelemetry.sdk.metrics import Meter
from opentelemetry.sdk.metrics._internal._view_instrument_match import _hash_attributes, _ViewInstrumentMatch
from opentelemetry.sdk.metrics._internal.aggregation import (
    _DropAggregation,
    _ExplicitBucketHistogramAggregation,
    _ExponentialBucketHistogramAggregation,
    _LastValueAggregation,
    _SumAggregation,
)
from opentelemetry.sdk.metrics._internal.exemplar import (
    AlignedHistogramBucketExemplarReservoir,
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    SimpleFixedSizeExemplarReservoir,
    TraceBasedExemplarFilter,
)
from opentelemetry.sdk.metrics._internal.instrument import Counter, Histogram
from opentelemetry.sdk.metrics._internal.measurement import Measurement as SdkMeasurement
from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer
from opentelemetry.sdk.metrics._internal.metric_reader_storage import MetricReaderStorage
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, get_current_span
from opentelemetry.trace.propagation import _SPAN_KEY

from traced_tools.core.fork import on_fork
from traced_tools.fast_path.known_sdk import are_original
from traced_tools.fast_path.tracer import FastSpan
from traced_tools.flow.deferred import is_in_finalizer
from traced_tools.observe.meter import ApiMeter, CounterRecorder, HistogramRecorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.trace import SpanContext

    from traced_tools.observe.attributes import Attributes
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.names.registry_types import Metric

_FILTERS: Final = (TraceBasedExemplarFilter, AlwaysOnExemplarFilter, AlwaysOffExemplarFilter)
_AGGREGATIONS: Final = (
    _DropAggregation,
    _ExplicitBucketHistogramAggregation,
    _ExponentialBucketHistogramAggregation,
    _LastValueAggregation,
    _SumAggregation,
)
_RESERVOIRS: Final = (AlignedHistogramBucketExemplarReservoir, SimpleFixedSizeExemplarReservoir)
_MAX_WAITING: Final = 256
_MAX_SERIES: Final = 2048
"""Combinations of labels that an instrument remembers; above that it starts anew. The SDK has limits of its own."""
_NEW: Final = object()
_RECORD, _ADD = Histogram.record, Counter.add
_Cache: TypeAlias = "tuple[Mapping[MetricReader, MetricReaderStorage], dict[tuple[Any, ...], object], _Targets]"
"""The storages of the readers, and the series and targets in them.

The SDK replaces the mapping of storages, never changes it, when a reader is added or removed.
"""


class FastMeter(ApiMeter):
    """Creates instruments whose values wait for `aggregate`.

    Args:
        meter: the SDK's meter, which `is_known_meter` accepts.

    Attributes:
        waiting: the values of all instruments that wait.
    """

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter)
        self._config = meter._meter_config
        self._consumer = _get_consumer(meter)
        self.exemplar_filter = self._consumer._sdk_config.exemplar_filter
        self.is_trace_based = isinstance(self.exemplar_filter, TraceBasedExemplarFilter)
        self._begin()
        on_fork(self._begin)  # the parent aggregates the values that wait in it

    def _begin(self) -> None:
        self.waiting: deque[_Value] = deque()  # appending takes no lock
        self._by_target: dict[_Target, list[_Value]] = {}
        self._lock = threading.RLock()
        self._is_aggregating = False

    def histogram(self, metric: Metric) -> HistogramRecorder:
        """Create a histogram."""
        histogram = super().histogram(metric)
        assert isinstance(histogram, Histogram)
        return FastInstrument(histogram, self, self._consumer)

    def counter(self, metric: Metric) -> CounterRecorder:
        """Create a counter."""
        counter = super().counter(metric)
        assert isinstance(counter, Counter)
        return FastInstrument(counter, self, self._consumer)

    def record(self, measurements: Iterable[Measurement], context: Context | None) -> None:
        """Record values that belong to the same span: they share their time and the span of their exemplars."""
        span = None if context is None else context.get(_SPAN_KEY)
        if type(span) is not FastSpan or not self.is_trace_based or self.is_left_to_sdk:
            super().record(measurements, context)
            return
        waiting, time, exemplar = self.waiting, time_ns(), span._context
        storages = self._consumer._reader_storages
        keyed: Attributes | None = None
        key: tuple[Any, ...] = ()
        instrument: Any  # a FastInstrument, since this meter has created it
        for instrument, amount, labels in measurements:
            if labels is not keyed:  # consecutive measurements often share their labels
                keyed, key = labels, (*labels, *labels.values())
            known_storages, series_by_labels, _ = instrument.cache
            series = series_by_labels.get(key)
            if type(series) is _Series and known_storages is storages and 0 <= amount < inf:
                waiting.append((series, amount, time, exemplar))
            else:
                instrument.record(amount, labels, context)
        if len(waiting) >= _MAX_WAITING:
            self.aggregate()

    @property
    def is_left_to_sdk(self) -> bool:
        """Whether the SDK has to record each value: the meter is disabled, or the SDK was instrumented meanwhile."""
        return not self._config.is_enabled or Histogram.record is not _RECORD or Counter.add is not _ADD

    def aggregate(self) -> None:
        """Aggregate the values that wait for it.

        In a finalizer, and in a signal handler that interrupts this function, the values keep waiting: the interrupted
        code may hold the locks.
        """
        if is_in_finalizer():
            return
        with self._lock:  # another thread that collects meanwhile has to wait for the last value
            if self._is_aggregating:
                return
            self._is_aggregating = True
            try:
                self._aggregate()
            finally:
                self._is_aggregating = False

    def _aggregate(self) -> None:
        """Aggregate the values by target. If an exception ends it, the next call goes on."""
        while self.waiting:
            value = self.waiting.popleft()
            for target in value[0].targets:
                self._by_target.setdefault(target, []).append(value)
        while self._by_target:
            target = next(iter(self._by_target))
            target.aggregate(self._by_target.pop(target))


class FastInstrument:
    """A histogram or a counter that finds the series of each combination of labels once.

    Args:
        instrument: the SDK's instrument.
        meter: has the queue of values.
        consumer: the SDK's consumer of values, which has the storages of the readers.
    """

    def __init__(
        self,
        instrument: Histogram | Counter,
        meter: FastMeter,
        consumer: SynchronousMeasurementConsumer,
    ) -> None:
        self._instrument = instrument
        self._meter = meter
        self._consumer = consumer
        self._start_cache()

    def _start_cache(self) -> _Cache:
        self.cache: _Cache = self._consumer._reader_storages, {}, {}
        return self.cache

    def record(self, amount: float, attributes: Attributes | None = None, context: Context | None = None) -> None:
        """Record a value, with its labels and the context that has the span it belongs to."""
        meter = self._meter
        if not 0 <= amount < inf or meter.is_left_to_sdk:
            self._record_by_sdk(amount, attributes, context)
            return
        storages, series_by_labels, targets = self.cache
        if storages is not self._consumer._reader_storages or len(series_by_labels) > _MAX_SERIES:
            storages, series_by_labels, targets = self._start_cache()
        labels = attributes or {}
        key = (*labels, *labels.values())  # not sorted: labels in another order are a series with the same targets
        series = series_by_labels.get(key, _NEW)
        if type(series) is _Series:
            time, context = time_ns(), context or get_current()
            span = context.get(_SPAN_KEY)
            exemplar: SpanContext | None = None
            if meter.is_trace_based and type(span) is FastSpan:  # which is sampled
                exemplar = span._context
            elif meter.exemplar_filter.should_sample(amount, time, series.labels, context):
                exemplar = get_current_span(context).get_span_context()
            meter.waiting.append((series, amount, time, exemplar))
            if len(meter.waiting) >= _MAX_WAITING:
                meter.aggregate()
            return
        self._record_by_sdk(amount, attributes, context)
        if series is _NEW:  # the SDK has made the aggregations
            series_by_labels[key] = _Series.find(self._instrument, labels, storages.values(), targets)

    def _record_by_sdk(self, amount: float, attributes: Attributes | None, context: Context | None) -> None:
        """Record a value that the fast path does not take, after those that wait, which are older."""
        self._meter.aggregate()
        instrument = self._instrument
        record = instrument.record if isinstance(instrument, Histogram) else instrument.add
        record(amount, attributes, context)

    add = record


_Value: TypeAlias = "tuple[_Series, float, int, SpanContext | None]"
"""A series, an amount, the Unix time in nanoseconds when it was recorded, and the span of a possible exemplar.

The span's context stands for the span, which would keep the contents of its run in memory while the value waits.
"""
_Targets: TypeAlias = "dict[tuple[_ViewInstrumentMatch, object], _Target]"
"""The targets of an instrument. Series share one if a view drops the labels in which they differ."""


class _Series:
    """The aggregations of one combination of labels.

    Args:
        labels: the labels.
        targets: the aggregations of each reader and view.
    """

    __slots__ = ("labels", "targets")

    def __init__(self, labels: Attributes, targets: list[_Target]) -> None:
        self.labels = labels
        self.targets = targets

    @classmethod
    def find(
        cls,
        instrument: Histogram | Counter,
        labels: Attributes,
        storages: Iterable[MetricReaderStorage],
        known_targets: _Targets,
    ) -> _Series | None:
        """Return the series of an instrument, which has recorded a value with these labels.

        Return None for a series of which each value has to go by the SDK: code of the application takes part in its
        exemplars, or the SDK has too many series to tell this one from others.
        """
        labels = labels.copy()  # the series outlives this call, and the caller may change its dict
        matches = [
            view_match for storage in storages for view_match in storage._get_or_init_view_instrument_match(instrument)
        ]
        targets = []
        for match in matches:
            allowed_keys = match._view._attribute_keys
            key = _hash_attributes(
                {name: value for name, value in labels.items() if allowed_keys is None or name in allowed_keys}
            )
            targets.append(known_targets.setdefault((match, key), _Target(match, key)))
        return cls(labels, targets) if all(target.is_known for target in targets) else None


class _Target:
    """The aggregation of one combination of labels for one reader and view.

    Args:
        match: the SDK's pair of a view and an instrument.
        key: the SDK's key of the labels that the view keeps.
    """

    def __init__(self, match: _ViewInstrumentMatch, key: Any) -> None:
        self._match = match
        self._key = key
        is_replaced = getattr(match, "_reset_on_collect", False)  # by a reader of deltas, at each collection
        self._lock = match._lock if is_replaced else nullcontext()

    @property
    def is_known(self) -> bool:
        """Whether there is an aggregation of the SDK, whose exemplars are the SDK's."""
        aggregation: Any = self._match._attributes_aggregation.get(self._key)
        return type(aggregation) in _AGGREGATIONS and type(aggregation._reservoir) in _RESERVOIRS

    def aggregate(self, values: list[_Value]) -> None:
        """Add values to the aggregation."""
        with self._lock:
            aggregation = self._match._attributes_aggregation.get(self._key)
            if aggregation is not None:
                self._add(aggregation, values)
                return
        for series, amount, time, exemplar in values:  # the SDK makes the next aggregation
            context = _context_of(exemplar)
            measurement = SdkMeasurement(amount, time, self._match._instrument, context, series.labels)
            self._match.consume_measurement(measurement, exemplar is not None)

    def _add(self, aggregation: Any, values: list[_Value]) -> None:
        if (
            type(aggregation) is _ExplicitBucketHistogramAggregation
            and type(aggregation._reservoir) is AlignedHistogramBucketExemplarReservoir
        ):
            self._add_to_histogram(aggregation, values)
            return
        if type(aggregation) is _SumAggregation and type(aggregation._reservoir) is SimpleFixedSizeExemplarReservoir:
            self._add_to_sum(aggregation, values)
            return
        measurement = _Measurement()
        for series, measurement.value, measurement.time_unix_nano, exemplar in values:
            measurement.attributes, measurement.context = series.labels, _context_of(exemplar)
            aggregation.aggregate(measurement, exemplar is not None)

    def _add_to_histogram(self, histogram: Any, values: list[_Value]) -> None:
        """Do what `aggregate` of the histogram does for each value. Its reservoir keeps the last one of each bucket."""
        last: dict[int, _Value] = {}
        with histogram._lock:
            if histogram._value is None:
                histogram._value = histogram._get_empty_bucket_counts()
            for value in values:
                amount = value[1]
                bucket = bisect_left(histogram._boundaries, amount)
                histogram._value[bucket] += 1
                histogram._sum += amount
                if value[3] is not None:
                    last[bucket] = value
            if histogram._record_min_max:
                histogram._min = min(histogram._min, *(value[1] for value in values))
                histogram._max = max(histogram._max, *(value[1] for value in values))
        for series, amount, time, exemplar in last.values():
            histogram._reservoir.offer(amount, time, series.labels, _context_of(exemplar))

    def _add_to_sum(self, total: Any, values: list[_Value]) -> None:
        """Do what `aggregate` of the sum does for each value. Its reservoir keeps a random choice of all values.

        The SDK draws a place in the reservoir for each value, and a later value may take the place of an earlier one.
        """
        with total._lock:
            total._value = total._value or 0
            for value in values:  # one after the other, because `sum` rounds floats less often
                total._value += value[1]
        reservoir, value_at_place = total._reservoir, dict[int, _Value]()
        with reservoir._lock:
            for value in values:
                if value[3] is not None:
                    number = reservoir._measurements_seen = reservoir._measurements_seen + 1
                    place = number - 1 if number <= reservoir._size else int(random() * number)
                    if place < reservoir._size:
                        value_at_place[place] = value
            for place, (series, amount, time, exemplar) in value_at_place.items():
                reservoir._reservoir_storage[place].offer(amount, time, series.labels, _context_of(exemplar))


def _context_of(span: SpanContext | None) -> Context:
    """Return a context with the span of an exemplar, of which the SDK's reservoirs read the ids."""
    if span is None or span is INVALID_SPAN_CONTEXT:  # no span; one with invalid ids would become one with the ids 0
        return Context()
    return Context({_SPAN_KEY: NonRecordingSpan(span)})


class _Measurement:
    """What an aggregation reads of the SDK's `Measurement`. It keeps none, so one object serves for all values."""

    __slots__ = ("attributes", "context", "time_unix_nano", "value")

    attributes: Attributes
    value: float
    time_unix_nano: int
    context: Context


def is_known_meter(meter: object) -> TypeGuard[Meter]:
    """Return whether the fast path can stand in for a meter: it and what it calls are the SDK's own."""
    if type(meter) is not Meter or type(meter._measurement_consumer) is not SynchronousMeasurementConsumer:
        return False
    return type(_get_consumer(meter)._sdk_config.exemplar_filter) in _FILTERS and are_original(
        Histogram.record,
        Counter.add,
        SynchronousMeasurementConsumer.consume_measurement,
        MetricReaderStorage.consume_measurement,
        _ViewInstrumentMatch.consume_measurement,
        _ExplicitBucketHistogramAggregation.aggregate,
        AlignedHistogramBucketExemplarReservoir.offer,
        _SumAggregation.aggregate,
        SimpleFixedSizeExemplarReservoir.offer,
        SimpleFixedSizeExemplarReservoir._find_bucket_index,
    )


def _get_consumer(meter: Meter) -> SynchronousMeasurementConsumer:
    consumer = meter._measurement_consumer
    assert isinstance(consumer, SynchronousMeasurementConsumer)
    return consumer
