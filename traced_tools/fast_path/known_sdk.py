"""Decides whether the fast path knows the OpenTelemetry SDK that is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from opentelemetry.sdk.version import __version__

KNOWN_VERSIONS: Final = frozenset({"1.45.0", "1.45.1", "1.45.2"})
"""The releases of the SDK whose exports the tests compare with those of the fast path."""


def is_known_version() -> bool:
    """Return whether the tests cover the installed release of the SDK."""
    return __version__ in KNOWN_VERSIONS


def are_original(*functions: Callable[..., Any]) -> bool:
    """Return whether functions are the SDK's own. Instrumentation can replace them at run time to see each call."""
    return all(
        type(function) is FunctionType and function.__globals__ is _get_globals(function) for function in functions
    )


def _get_globals(function: Callable[..., Any]) -> dict[str, Any] | None:
    module = sys.modules.get(function.__module__)
    is_of_sdk = function.__module__.startswith("opentelemetry.sdk.")
    return vars(module) if module is not None and is_of_sdk else None
