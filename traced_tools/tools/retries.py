"""Decides whether and when a failed tool is run again."""

from __future__ import annotations

import logging
import time
from typing import Final

from traced_tools.core.jitter import jittered
from traced_tools.core.tool_definition import ToolMetadata
from traced_tools.errors import InvalidArguments, NestedRunWaits

_LOG: Final = logging.getLogger(__name__)
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
_NEVER = (InvalidArguments, NestedRunWaits)
"""Failures after which another attempt fails as well."""


def is_expected(error: Exception | None, metadata: ToolMetadata) -> bool:
    """Return whether a failure is one of `retry_on`. A function that fails counts as no, and is logged."""
    expected = metadata.retry_on
    if error is None:
        return False
    if isinstance(expected, tuple):
        return isinstance(error, expected)
    try:
        return expected(error) is True
    except Exception as failure:  # its text may quote arguments
        _LOG.warning("a function of retry_on failed with %s; the call is not retried", type(failure).__name__)
        return False


class Retries:
    """The retries of one call.

    Args:
        metadata: the tool's settings: how many retries, and after which exceptions.
        deadline: when the run's time ends, on the clock of `time.monotonic()`; None without a limit.
    """

    __slots__ = ("_deadline", "_left", "_metadata", "_pause")

    def __init__(self, metadata: ToolMetadata, deadline: float | None) -> None:
        self._left = metadata.retries
        self._metadata = metadata
        self._deadline = deadline
        self._pause = FIRST_PAUSE

    def pause_after(self, error: Exception | None) -> float | None:
        """Return the seconds to wait before another attempt, or None if there is none.

        The pause doubles each time up to 5 s and is reduced by up to a quarter at random, so that tools that failed
        together do not retry together.
        """
        if not self._left or isinstance(error, _NEVER) or not is_expected(error, self._metadata):
            return None
        self._left -= 1
        pause, self._pause = jittered(self._pause, 0.75), min(self._pause * 2, LONGEST_PAUSE)
        too_late = self._deadline is not None and time.monotonic() + pause >= self._deadline
        return None if too_late else pause
