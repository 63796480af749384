"""What the table of telemetry names is made of: declarations of attributes, spans, metrics and events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from traced_tools.core.enums import Conventions, OpenInferenceKind

AttributeType = Literal["string", "int", "double", "boolean", "string[]", "any"]
"""`any` is JSON text on a span, and the value itself on an event."""


@dataclass(frozen=True)
class Attribute:
    """An attribute of spans, metrics or events.

    `values` lists the only words it may hold, if there is such a list. `only` names the conventions it belongs to; None
    for both.
    """

    name: str
    type: AttributeType
    brief: str
    values: tuple[str, ...] = ()
    only: Conventions | None = None


@dataclass(frozen=True)
class SpanType:
    """A span: its name pattern (`{…}` is filled in), kind, the attributes it may carry, and those that are content.

    `openinference` is its kind in the OpenInference conventions.
    """

    name: str
    kind: Literal["internal", "client"]
    brief: str
    attributes: tuple[str, ...]
    content: tuple[str, ...] = ()
    openinference: OpenInferenceKind = "CHAIN"


@dataclass(frozen=True)
class EventType:
    """A log-based event: its name, severity, the attributes it may carry, and those that are content."""

    name: str
    severity: Literal["DEBUG", "INFO", "WARN"]
    brief: str
    attributes: tuple[str, ...]
    content: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metric:
    """A metric: its instrument, unit, labels and, for histograms, bucket boundaries.

    `only` names the conventions it belongs to; None for both.
    """

    name: str
    instrument: Literal["histogram", "counter", "updowncounter", "gauge"]
    unit: str
    brief: str
    attributes: tuple[str, ...]
    boundaries: tuple[float, ...] = ()
    only: Conventions | None = None
