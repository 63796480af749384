"""Emitting of log-based events, whose attributes are built only if the logger is enabled."""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns
from typing import TYPE_CHECKING

from opentelemetry._logs import SeverityNumber

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.context import Context

    from traced_tools.observe.attributes import Attributes
    from traced_tools.observe.names.registry_types import EventType

_SEVERITIES = {"DEBUG": SeverityNumber.DEBUG, "INFO": SeverityNumber.INFO, "WARN": SeverityNumber.WARN}


def emit(logger: Logger, event: EventType, context: Context | None, attributes: Callable[[], Attributes]) -> None:
    """Emit a log-based event.

    Args:
        logger: the logger that emits the event.
        event: the definition of the event in the telemetry registry.
        context: the context with the event's span; None for the current context.
        attributes: builds the attributes; called only if the logger is enabled for this event.
    """
    severity = _SEVERITIES[event.severity]
    if logger.enabled(context=context, severity_number=severity, event_name=event.name):
        logger.emit(
            timestamp=time_ns(),
            context=context,
            severity_number=severity,
            severity_text=event.severity,
            body=event.name,  # for back ends that show the body and ignore the event name
            attributes=attributes(),
            event_name=event.name,
        )
