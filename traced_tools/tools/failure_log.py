"""Logs a tool failure that may be a bug; without the log line, only the model would learn of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from traceback import format_exception, format_tb
from typing import Final

from traced_tools.core.tool_result import ToolResult
from traced_tools.core.tracebacks import DEBUG, is_debugging, traceback_of
from traced_tools.observe.failures import error_type

_LOG = logging.getLogger("traced_tools.tools")
_MOST_LOGGED: Final = 1_000
"""The maximum number of logged pairs of tool and error type, because both can be created at run time."""
_logged: set[tuple[str, str]] = set()


def log_failure(result: ToolResult, captured: Callable[[], str | None], *, may_quote: bool) -> None:
    """Log that a tool failed: once per tool and error type, or each time while debugging.

    Args:
        result: the result of the last attempt, with an error.
        captured: returns the traceback as captured content, redacted if there is a redactor; None if the tool's content
            is not captured.
        may_quote: whether the exception's text may be logged while debugging. Otherwise, only the frames of the
            traceback are.
    """
    error = result.error
    assert error is not None
    if not _LOG.isEnabledFor(logging.WARNING):
        return
    kind, debugging = error_type(error), is_debugging()
    if not debugging:
        if (result.tool, kind) in _logged or len(_logged) >= _MOST_LOGGED:
            return
        _logged.add((result.tool, kind))
    traceback = captured()
    if traceback is None and debugging:
        traceback = _format(error, may_quote)
    summary = f"the tool {result.tool} failed with {kind}; the model gets an error, or the run fails"
    if traceback is None:
        _LOG.warning("%s; logged once per tool and error type, %s=1 logs each with its traceback", summary, DEBUG)
    else:
        _LOG.warning("%s\n%s", summary, traceback.rstrip())


def _format(error: Exception, may_quote: bool) -> str:
    if may_quote:
        with suppress(Exception):  # formatting may run code of the error's class
            return "".join(format_exception(error))
    return "".join(format_tb(traceback_of(error)))
