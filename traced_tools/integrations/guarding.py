"""Conversions of what a framework passes, which never fail the framework's run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from traced_tools.observe.failures import report_failure

T = TypeVar("T")
_WHAT: Final = "the conversion of a framework's message"


def guarded(otherwise: T, convert: Callable[..., T], *arguments: Any) -> T:
    """Return what `convert` returns; if it raises, log that, without its text, and return `otherwise`."""
    try:
        return convert(*arguments)
    except Exception as error:
        report_failure(error, _WHAT)
        return otherwise
