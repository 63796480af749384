"""What the table of telemetry names is made of: declarations of attributes, spans and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AttributeType = Literal["string", "int", "double", "boolean", "string[]"]


@dataclass(frozen=True)
class Attribute:
    """A span attribute or metric label."""

    name: str
    type: AttributeType
    brief: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class SpanType:
    """A span: its name pattern (`{…}` is filled in), kind and the attributes it may carry."""

    name: str
    kind: Literal["internal", "client"]
    brief: str
    attributes: tuple[str, ...]


@dataclass(frozen=True)
class Metric:
    """A metric: its instrument, unit, labels and, for histograms, bucket boundaries."""

    name: str
    instrument: Literal["histogram", "counter", "updowncounter", "gauge"]
    unit: str
    brief: str
    attributes: tuple[str, ...]
    boundaries: tuple[float, ...] = ()
