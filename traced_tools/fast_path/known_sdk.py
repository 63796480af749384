"""Decides whether the fast path knows the OpenTelemetry SDK that is installed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, Final

from opentelemetry.sdk.version import __version__

KNOWN_VERSIONS: Final = frozenset({"1.45.0", "1.45.1", "1.45.2"})
"""The releases of the SDK whose exports the tests compare with those of the fast path."""

RELEASE: Final = __version__
"""The installed release of the SDK."""

_LOG: Final = logging.getLogger(__name__)


def is_known_version() -> bool:
    """Return whether the tests cover the installed release of the SDK."""
    return RELEASE in KNOWN_VERSIONS


def takes_part() -> bool:
    """Return whether the fast path takes part, which it does with a known release; log once if it does not."""
    if is_known_version():
        return True
    _log_unknown()
    return False


@cache
def _log_unknown() -> None:
    _LOG.warning("%s", unknown_release())


def unknown_release() -> str:
    """Return what follows if the fast path does not know the installed release, and what to do."""
    releases = ", ".join(sorted(KNOWN_VERSIONS))
    return (
        f"the fast path does not know opentelemetry-sdk {RELEASE}, so telemetry takes more processor time: upgrade "
        f"traced_tools, or install one of the releases {releases}"
    )


def are_original(*functions: Callable[..., Any]) -> bool:
    """Return whether functions are the SDK's own. Instrumentation can replace them at run time to see each call."""
    return all(
        type(function) is FunctionType and function.__globals__ is _get_globals(function) for function in functions
    )


def _get_globals(function: Callable[..., Any]) -> dict[str, Any] | None:
    module = sys.modules.get(function.__module__)
    is_of_sdk = function.__module__.startswith("opentelemetry.sdk.")
    return vars(module) if module is not None and is_of_sdk else None
