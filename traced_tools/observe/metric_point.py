"""A metric as a person or a test reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opentelemetry.util.types import AttributeValue


@dataclass(frozen=True)
class MetricPoint:
    """One series of a metric: a number, or the count and sum of a histogram."""

    name: str
    attributes: Mapping[str, AttributeValue]
    unit: str
    value: float | None = None
    count: int | None = None
    sum: float | None = None

    def plus(self, more: MetricPoint) -> MetricPoint:
        """Return this series with what was added to it since."""
        if more.value is not None:
            return replace(self, value=(self.value or 0) + more.value)
        return replace(self, count=(self.count or 0) + (more.count or 0), sum=(self.sum or 0) + (more.sum or 0))
