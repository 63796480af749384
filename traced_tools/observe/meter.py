"""Creates instruments from the telemetry registry through the OpenTelemetry API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from opentelemetry.metrics import CallbackOptions, Counter, Meter, Observation

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from traced_tools.observe.attributes import Attributes
    from traced_tools.observe.names.registry_types import Metric

Observe = Callable[[CallbackOptions], Iterable[Observation]]


class HistogramRecorder(Protocol):
    """A histogram."""

    def record(self, amount: float, attributes: Attributes, context: Context | None) -> None:
        """Record a value, with its labels and the context that has the span it belongs to."""


class CounterRecorder(Protocol):
    """A counter."""

    def add(self, amount: float, attributes: Attributes | None = None, context: Context | None = None) -> None:
        """Add to the sum, with the labels and the context that has the span it belongs to."""


Measurement: TypeAlias = "tuple[HistogramRecorder | CounterRecorder, float, Attributes]"
"""An instrument, a value for it, and the labels of the value."""


class ApiMeter:
    """Creates the instruments of a meter of any implementation.

    Args:
        meter: the meter.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def histogram(self, metric: Metric) -> HistogramRecorder:
        """Create a histogram."""
        return self._meter.create_histogram(
            metric.name, metric.unit, metric.brief, explicit_bucket_boundaries_advisory=metric.boundaries
        )

    def counter(self, metric: Metric) -> CounterRecorder:
        """Create a counter."""
        return self._meter.create_counter(metric.name, metric.unit, metric.brief)

    def observe_counter(self, metric: Metric, observe: Observe) -> None:
        """Create a counter that a function observes at each collection."""
        self._meter.create_observable_counter(metric.name, [observe], metric.unit, metric.brief)

    def observe_up_down_counter(self, metric: Metric, observe: Observe) -> None:
        """Create an up-down counter that a function observes at each collection."""
        self._meter.create_observable_up_down_counter(metric.name, [observe], metric.unit, metric.brief)

    def observe_gauge(self, metric: Metric, observe: Observe) -> None:
        """Create a gauge that a function observes at each collection."""
        self._meter.create_observable_gauge(metric.name, [observe], metric.unit, metric.brief)

    def record(self, measurements: Iterable[Measurement], context: Context | None) -> None:
        """Record values that belong to the same span, which the context has."""
        for instrument, amount, labels in measurements:
            record = instrument.add if isinstance(instrument, Counter) else cast("HistogramRecorder", instrument).record
            record(amount, labels, context)

    def aggregate(self) -> None:
        """Aggregate the values that wait for it; those of an instrument of the API never wait."""
