"""The environment variables of telemetry that the OpenTelemetry SDK does not read itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from os import environ
from typing import Final, TypeVar

from traced_tools.core.enums import CAPTURE_MODES, CONVENTIONS, DETAILS, CaptureMode, Conventions, Detail
from traced_tools.core.tracebacks import ON
from traced_tools.core.variables import DETAIL as DETAIL
from traced_tools.core.variables import DEV as DEV
from traced_tools.core.variables import GENAI_CONVENTIONS as GENAI_CONVENTIONS
from traced_tools.core.variables import OPENINFERENCE as OPENINFERENCE
from traced_tools.core.variables import PSEUDONYM_KEY as PSEUDONYM_KEY
from traced_tools.errors import ConfigurationError

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
RELEASED: Final[Conventions] = "v0.1.0"
EARLIER: Final[Conventions] = "v1.41.0"
_LEAST_KEY: Final = 16
CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def read_conventions() -> Conventions:
    """Return the GenAI conventions that name what model calls emit: v0.1.0, unless the environment keeps v1.41.0.

    An unknown value is logged once, and v0.1.0 applies. `OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental`
    asks for the names that apply anyway, so it is not read.
    """
    if GENAI_CONVENTIONS not in environ:  # asked first: this is on the way of every run
        return RELEASED
    return read_or_warn(_read_conventions, f"the names are those of {RELEASED}") or RELEASED


def _read_conventions() -> Conventions | None:
    value = environ.get(GENAI_CONVENTIONS, "").strip().lower()
    for conventions in CONVENTIONS:
        if value == conventions:
            return conventions
    if not value:
        return None
    raise ConfigurationError(f"{GENAI_CONVENTIONS} must be one of {', '.join(CONVENTIONS)}")


def read_capture_mode() -> CaptureMode | None:
    """Return the content capture mode that the environment sets, or None.

    Raises:
        ConfigurationError: the variable has a value that is not a `CaptureMode`.
    """
    value = environ.get(CAPTURE_CONTENT, "").strip().upper()
    for mode in CAPTURE_MODES:
        if value == mode:
            return mode
    if value in ("", "FALSE"):
        return None
    raise ConfigurationError(f"{CAPTURE_CONTENT} must be one of {', '.join(CAPTURE_MODES)}")


def read_detail() -> Detail | None:
    """Return the amount of spans that the environment sets, or None.

    Raises:
        ConfigurationError: the variable has a value that is not a `Detail`.
    """
    value = environ.get(DETAIL, "").strip().lower()
    for detail in DETAILS:
        if value == detail:
            return detail
    if not value:
        return None
    raise ConfigurationError(f"{DETAIL} must be one of {', '.join(DETAILS)}")


def read_openinference() -> bool | None:
    """Return whether the environment enables OpenInference span kinds, or None if it doesn't say.

    Raises:
        ConfigurationError: the variable is not `true`, `1`, `false` or `0`.
    """
    value = environ.get(OPENINFERENCE, "").strip().lower()
    if value not in ("", *ON, "false", "0"):
        raise ConfigurationError(f"{OPENINFERENCE} must be true or false, or 1 or 0")
    return value in ON if value else None


def read_dev() -> bool:
    """Return whether the environment enables development mode.

    Raises:
        ConfigurationError: the variable is not `true`, `1`, `false` or `0`.
    """
    value = environ.get(DEV, "").strip().lower()
    if value not in ("", *ON, "false", "0"):
        raise ConfigurationError(f"{DEV} must be true or false, or 1 or 0")
    return value in ON


def read_pseudonym_key() -> bytes | None:
    """Return the key for pseudonyms that the environment sets, or None.

    Raises:
        ConfigurationError: the key is shorter than 16 bytes.
    """
    key = environ.get(PSEUDONYM_KEY, "").strip().encode(errors="surrogateescape")
    if key and len(key) < _LEAST_KEY:
        raise ConfigurationError(f"{PSEUDONYM_KEY} must have at least {_LEAST_KEY} bytes, it has {len(key)}")
    return key or None


def read_or_warn(read: Callable[[], T | None], otherwise: str) -> T | None:
    """Return the value of an environment variable; if it is invalid, log a warning once and return None.

    Args:
        read: reads the variable; raises `ConfigurationError` if it is invalid.
        otherwise: the consequence of ignoring the variable, for the log.
    """
    try:
        return read()
    except ConfigurationError as error:
        text = f"{error}; {otherwise}"
        if text not in _warned:
            _warned.add(text)
            _LOG.warning("%s", text)
        return None


_warned: set[str] = set()
