"""Emits log-based events through the OpenTelemetry API."""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns
from typing import TYPE_CHECKING, Final

from opentelemetry._logs import SeverityNumber

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.context import Context

    from traced_tools.observe.attributes import Attributes
    from traced_tools.observe.names.registry_types import EventType

SEVERITIES: Final = {"DEBUG": SeverityNumber.DEBUG, "INFO": SeverityNumber.INFO, "WARN": SeverityNumber.WARN}


class ApiLogger:
    """Emits events with a logger of any implementation.

    Args:
        logger: the logger.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def emit(
        self,
        event: EventType,
        context: Context | None,
        attributes: Callable[[], Attributes],
        body: Callable[[], str] | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Emit an event. Its body and attributes are built only if the logger is enabled for it.

        Args:
            event: the definition of the event in the telemetry registry.
            context: the context with the event's span; None for the current context.
            attributes: builds the attributes.
            body: builds the body; None for the event's name, for back ends that show the body and ignore the name.
            timestamp: the Unix time in nanoseconds; None for now.
        """
        if self.logger.enabled(context=context, severity_number=SEVERITIES[event.severity], event_name=event.name):
            text = event.name if body is None else body()
            self.send(event, context, attributes(), text, time_ns() if timestamp is None else timestamp)

    def send(
        self, event: EventType, context: Context | None, attributes: Attributes, body: str, timestamp: int
    ) -> None:
        """Emit an event that the logger is enabled for; the arguments are those of `emit`, already built."""
        self.logger.emit(
            timestamp=timestamp,
            context=context,
            severity_number=SEVERITIES[event.severity],
            severity_text=event.severity,
            body=body,
            attributes=attributes,
            event_name=event.name,
        )
