"""Decides whether and when a failed tool is run again."""

from __future__ import annotations

import time

from traced_tools.core.jitter import jittered
from traced_tools.core.tool_definition import ToolMetadata
from traced_tools.errors import InvalidArguments, NestedRunWaits

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
_NEVER = (InvalidArguments, NestedRunWaits)
"""Failures of which another attempt fails as well."""


class Retries:
    """The retries of one call.

    Args:
        metadata: the tool's settings: how many retries, and after which exceptions.
        deadline: when the run's time ends, on the clock of `time.monotonic()`; None without a limit.
    """

    __slots__ = ("_deadline", "_left", "_pause", "_worth_it")

    def __init__(self, metadata: ToolMetadata, deadline: float | None) -> None:
        self._left = metadata.retries
        self._worth_it = metadata.retry_on
        self._deadline = deadline
        self._pause = FIRST_PAUSE

    def pause_after(self, error: Exception | None) -> float | None:
        """Return the seconds to wait before another attempt, or None if there is none.

        The pause doubles each time up to 5 s and is reduced by up to a quarter at random, so that tools that failed
        together do not retry together.
        """
        if not self._left or not isinstance(error, self._worth_it) or isinstance(error, _NEVER):
            return None
        self._left -= 1
        pause, self._pause = jittered(self._pause, 0.75), min(self._pause * 2, LONGEST_PAUSE)
        too_late = self._deadline is not None and time.monotonic() + pause >= self._deadline
        return None if too_late else pause
