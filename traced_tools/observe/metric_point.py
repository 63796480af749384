"""One metric point, as tests and the demo read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opentelemetry.util.types import AttributeValue


@dataclass(frozen=True)
class MetricPoint:
    """The current value of one series of a metric.

    Args:
        name: the metric's name.
        attributes: the labels of the series.
        unit: the metric's unit.
        value: the number; None for a histogram.
        count: the number of values in a histogram, else None.
        sum: the sum of the values in a histogram, else None.
    """

    name: str
    attributes: Mapping[str, AttributeValue]
    unit: str
    value: float | None = None
    count: int | None = None
    sum: float | None = None

    def plus(self, more: MetricPoint) -> MetricPoint:
        """Return the sum of this point and a later delta of the same series."""
        if more.value is not None:
            return replace(self, value=(self.value or 0) + more.value)
        return replace(self, count=(self.count or 0) + (more.count or 0), sum=(self.sum or 0) + (more.sum or 0))
