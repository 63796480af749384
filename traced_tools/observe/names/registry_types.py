"""The types of the telemetry registry: definitions of attributes, spans, metrics and events."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from traced_tools.core.enums import Conventions, OpenInferenceKind
from traced_tools.core.frozen import frozen

AttributeType = Literal["string", "int", "double", "boolean", "string[]", "any"]
"""`any` is JSON text on a span, and the value itself on an event."""


@frozen
class Attribute:
    """An attribute of spans, metrics or events.

    Args:
        name: the attribute's name.
        type: the type of its value.
        brief: its meaning in one sentence.
        values: the closed list of its values; empty if any value is allowed.
        only: the conventions that have the attribute; None for both.
    """

    name: str
    type: AttributeType
    brief: str
    values: tuple[str, ...] = ()
    only: Conventions | None = None


@frozen
class SpanType:
    """A type of span.

    Args:
        name: the pattern of its name; `{…}` is a placeholder.
        kind: its OpenTelemetry span kind.
        brief: its meaning.
        attributes: the attributes that it may carry.
        content: the attributes that it carries only if content is captured.
        openinference: its kind in the OpenInference conventions.
    """

    name: str
    kind: Literal["internal", "client", "server"]
    brief: str
    attributes: tuple[str, ...]
    content: tuple[str, ...] = ()
    openinference: OpenInferenceKind = "CHAIN"
    _prefix: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_prefix", self.name.partition("{")[0])

    def named(self, value: str) -> str:
        """Return the name of a span whose placeholders, which end the pattern, have this value."""
        return self._prefix + value


@frozen
class EventType:
    """A type of log-based event.

    Args:
        name: the event's name.
        severity: its severity text.
        brief: its meaning.
        attributes: the attributes that it may carry.
        content: the attributes that it carries only if content is captured.
        only: the conventions that have the event; None for both.
    """

    name: str
    severity: Literal["DEBUG", "INFO", "WARN"]
    brief: str
    attributes: tuple[str, ...]
    content: tuple[str, ...] = ()
    only: Conventions | None = None


@frozen
class Metric:
    """A metric.

    Args:
        name: the metric's name.
        instrument: the instrument that records it.
        unit: its unit in UCUM notation.
        brief: its meaning.
        attributes: its labels.
        boundaries: the bucket boundaries of a histogram.
        only: the conventions that have the metric; None for both.
    """

    name: str
    instrument: Literal["histogram", "counter", "updowncounter", "gauge"]
    unit: str
    brief: str
    attributes: tuple[str, ...]
    boundaries: tuple[float, ...] = ()
    only: Conventions | None = None
