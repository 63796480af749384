"""Log-based events, built only when somebody listens."""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns
from typing import TYPE_CHECKING

from opentelemetry._logs import SeverityNumber

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.context import Context

    from traced_tools.observe.names.registry_types import EventType
    from traced_tools.observe.scope import Attributes

_SEVERITIES = {"DEBUG": SeverityNumber.DEBUG, "INFO": SeverityNumber.INFO, "WARN": SeverityNumber.WARN}


def emit(logger: Logger, event: EventType, context: Context | None, attributes: Callable[[], Attributes]) -> None:
    """Emit an event of the table.

    Args:
        logger: where to.
        event: which.
        context: holds the span it belongs to; None for the current context.
        attributes: makes its attributes; not called unless the logger wants such an event.
    """
    severity = _SEVERITIES[event.severity]
    if logger.enabled(context=context, severity_number=severity, event_name=event.name):
        logger.emit(
            timestamp=time_ns(),
            context=context,
            severity_number=severity,
            severity_text=event.severity,
            body=event.name,  # back ends that do not know OTLP's event name show the body alone
            attributes=attributes(),
            event_name=event.name,
        )
