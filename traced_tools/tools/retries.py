"""When a failed tool is run again."""

from __future__ import annotations

import random
import time

from traced_tools.core.tool_definition import ToolMetadata
from traced_tools.errors import InvalidArguments

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Retries:
    """Counts the further attempts at one call.

    Args:
        metadata: how many there may be, and after what.
        deadline: when the run's time is over, on the clock of `time.monotonic()`.
    """

    __slots__ = ("_deadline", "_left", "_pause", "_worth_it")

    def __init__(self, metadata: ToolMetadata, deadline: float | None) -> None:
        self._left = metadata.retries
        self._worth_it = metadata.retry_on
        self._deadline = deadline
        self._pause = FIRST_PAUSE

    def pause_after(self, error: Exception | None) -> float | None:
        """Return the seconds to wait before another attempt, None when there is to be none.

        The pause doubles each time, less a random quarter, so that tools that failed together do not return together.
        """
        if not self._left or not isinstance(error, self._worth_it) or isinstance(error, InvalidArguments):
            return None
        self._left -= 1
        pause, self._pause = self._pause * random.uniform(0.75, 1.0), min(self._pause * 2, LONGEST_PAUSE)
        too_late = self._deadline is not None and time.monotonic() + pause >= self._deadline
        return None if too_late else pause
