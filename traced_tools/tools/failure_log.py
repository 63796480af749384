"""The log line of a tool that failed in a way that may be a bug: without one, only the model reads of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from traceback import format_exception, format_tb
from typing import Final

from traced_tools.core.tool_result import ToolResult
from traced_tools.core.tracebacks import DEBUG, is_debugging, traceback_of
from traced_tools.observe.scope import error_type

_LOG = logging.getLogger("traced_tools.tools")
_MOST_LOGGED: Final = 1_000
"""The most pairs of a tool and an error type that are logged: an application can make tools and classes at run time."""
_logged: set[tuple[str, str]] = set()


def log_failure(result: ToolResult, captured: Callable[[], str | None], *, may_quote: bool) -> None:
    """Log that a tool failed: once per tool and error type, or each time while debugging.

    Args:
        result: how the last attempt ended; it has an error.
        captured: returns the traceback as content capture allows it; None if nothing of the tool is captured.
        may_quote: whether debugging may log the exception's text. Otherwise, it logs the frames of the traceback only.
    """
    error = result.error
    assert error is not None
    if not _LOG.isEnabledFor(logging.WARNING):
        return
    kind, debugging = error_type(error), is_debugging()
    if not debugging:
        if (result.name, kind) in _logged or len(_logged) >= _MOST_LOGGED:
            return
        _logged.add((result.name, kind))
    traceback = captured()
    if traceback is None and debugging:
        traceback = _formatted(error, may_quote)
    what = f"the tool {result.name} failed with {kind}; the model gets the error and the run goes on"
    if traceback is None:
        _LOG.warning("%s; logged once per tool and error type, %s=1 logs each with its traceback", what, DEBUG)
    else:
        _LOG.warning("%s\n%s", what, traceback.rstrip())


def _formatted(error: Exception, may_quote: bool) -> str:
    if may_quote:
        with suppress(Exception):  # of the error's class, such as one of odd notes
            return "".join(format_exception(error))
    return "".join(format_tb(traceback_of(error)))
