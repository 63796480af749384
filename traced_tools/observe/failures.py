"""The error types that telemetry records, and the log line for lost telemetry."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Literal

from traced_tools.errors import Abandoned, LoopLimitExceeded
from traced_tools.observe import names
from traced_tools.observe.sanitize import safe_identifier

if TYPE_CHECKING:
    from traced_tools.core.enums import StopReason

_LOG = logging.getLogger(__name__)
CANCELLATIONS: Final = (asyncio.CancelledError, Abandoned, GeneratorExit)


def error_type(error: BaseException) -> str:
    """Return the `error.type` of an error: the bare name of a built-in, else `module.QualName`."""
    return type_name(type(error))


def type_name(kind: type[BaseException]) -> str:
    """Return the `error.type` of errors of a class; see `error_type`."""
    if issubclass(kind, CANCELLATIONS):
        return names.CANCELLED
    try:
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    except Exception:  # a class may do as it likes with its own name
        return names.OTHER
    return safe_identifier(name)


def unfinished(error: BaseException | None) -> Literal["cancelled", "error"]:
    """Return the outcome of a tool whose end the run did not wait for, by the error that ended the call."""
    return "cancelled" if isinstance(error, (*CANCELLATIONS, KeyboardInterrupt)) else "error"


def stop_reason_of(error: BaseException) -> StopReason:
    """Return why a run ended that raised `error`."""
    if isinstance(error, LoopLimitExceeded):
        return error.limit
    return "cancelled" if error_type(error) == names.CANCELLED else "error"


SDK: Final = "the OpenTelemetry set-up"
_reported: set[tuple[str, str]] = set()


def report_failure(error: Exception, what: str) -> None:
    """Log that telemetry was lost, once for each source and error type, and without the error's text."""
    kind = error_type(error)
    if (what, kind) not in _reported:
        _reported.add((what, kind))
        _LOG.warning(
            "telemetry lost: %s raised %s; logged once per source and error type, every loss is counted", what, kind
        )
