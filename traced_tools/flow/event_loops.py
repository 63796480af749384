"""Warns of blocking runs that hold up the event loop of their thread."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_PACKAGE: Final = __name__.partition(".")[0]
_MOST_PLACES: Final = 100
_warned: Final[set[tuple[str, int]]] = set()
"""The places that the log has: file and line."""


def warn_if_blocking_loop(method: str, instead: str) -> None:
    """Log that a blocking run holds up the event loop that runs in this thread, once for each place in the code.

    In a notebook, nothing is logged: its loop waits for each cell anyway.

    Args:
        method: the method that blocks.
        instead: the method to use on an event loop.
    """
    if asyncio._get_running_loop() is None or "ipykernel" in sys.modules:  # which raises nothing, so it costs little
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    place = (frame.f_code.co_filename, frame.f_lineno)
    if place in _warned or len(_warned) >= _MOST_PLACES:
        return
    _warned.add(place)
    _LOG.warning(
        "%s() in %s, line %d, blocks the event loop of its thread until the run ends: await %s() instead, or call "
        "%s() in a worker thread; logged once for each place",
        *(method, *place, instead, method),
    )
