"""Log records of the OpenTelemetry SDK whose attributes need no check, and which are cheap to copy.

The SDK checks each attribute, and its batch processor copies each record with `copy.copy`, which asks a class for the
way to pickle it unless the class can copy itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, TypeGuard

from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import Logger, ReadWriteLogRecord

from traced_tools.fast_path.attributes import valid_attributes
from traced_tools.fast_path.known_sdk import are_original
from traced_tools.observe.logger import SEVERITIES, ApiLogger

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from traced_tools.observe.attributes import Attributes
    from traced_tools.observe.names.registry_types import EventType

_EMIT = Logger.emit
_UNCHANGED: Final = {str, int, float, bool}
"""Types of values that the SDK leaves as they are."""


class FastLogger(ApiLogger):
    """Emits events as the SDK's logger does.

    Args:
        logger: the SDK's logger, which `is_known_logger` accepts.
    """

    logger: Logger

    def __init__(self, logger: Logger) -> None:
        super().__init__(logger)
        self._most_attributes = logger._log_record_limits.max_log_record_attributes

    def send(
        self, event: EventType, context: Context | None, attributes: Attributes, body: str, timestamp: int
    ) -> None:
        """Emit an event that the logger is enabled for; the arguments are those of `ApiLogger.send`."""
        most, logger = self._most_attributes, self.logger
        is_valid = {*map(type, attributes.values())} <= _UNCHANGED and (most is None or len(attributes) <= most)
        if not is_valid or Logger.emit is not _EMIT:
            super().send(event, context, attributes, body, timestamp)
            return
        record = FastLogRecord(
            timestamp=timestamp,
            context=context,
            severity_number=SEVERITIES[event.severity],
            severity_text=event.severity,
            body=body,
            attributes=valid_attributes(attributes, most),
            event_name=event.name,
        )
        emitted = ReadWriteLogRecord.__new__(ReadWriteLogRecord)  # its `__post_init__` checks the attributes
        emitted.log_record = record
        emitted.resource = logger._resource
        emitted.instrumentation_scope = logger._instrumentation_scope
        emitted.limits = logger._log_record_limits
        logger._logger_metrics.emit_log()
        logger._multi_log_record_processor.on_emit(emitted)


class FastLogRecord(LogRecord):
    """A log record that copies itself."""

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied


def is_known_logger(logger: object) -> TypeGuard[Logger]:
    """Return whether the fast path can stand in for a logger: it is the SDK's own, with no limit of text."""
    return (
        type(logger) is Logger
        and "emit" not in vars(logger)
        and are_original(Logger.emit)
        and logger._log_record_limits.max_log_record_attribute_length is None
    )
