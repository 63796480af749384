"""What happens to trails when the process forks.

An SQLite connection must not be carried over a fork, not even to be closed there: SQLite keeps in memory which locks
the process holds, and the child holds none of them. So writers are at rest while the process forks, without a
connection to SQLite; the child leaves its parent's other connections alone, and never frees them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from traced_tools.audit.writer import Writer

_PATIENCE: Final = 2.0
"""Seconds a fork waits for the writers' transactions, all in all."""
_LATE: Final = -10
"""Has trails of such a child closed when its queues and its own children are done, which may still record."""
_running: Final[set[Writer]] = set()
_paused: Final[list[Writer]] = []
_closing: Final[list[Callable[[], None]]] = []
_told: Final[set[int]] = set()
"""The process that will close its trails as a child of `multiprocessing`."""


def add(writer: Writer) -> None:
    """Take note of a writer whose thread starts."""
    _running.add(writer)
    _have_closed()


def discard(writer: Writer) -> None:
    """Forget a writer whose thread has ended."""
    _running.discard(writer)


def running() -> tuple[Writer, ...]:
    """Return the writers whose threads run."""
    return tuple(_running)


def at_end_of_child(action: Callable[[], None]) -> None:
    """Have something done where a child of `multiprocessing` ends, which does not do what `atexit` was told."""
    _closing.append(action)


def _have_closed() -> None:
    """Tell `multiprocessing`, in a child of its own: what it was told before it has forgotten."""
    util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
    if util is None or process is None or process.parent_process() is None or os.getpid() in _told:
        return
    _told.clear()
    _told.add(os.getpid())
    for action in _closing:
        util.Finalize(None, action, exitpriority=_LATE)


def _before() -> None:
    deadline = time.monotonic() + _PATIENCE
    _paused.extend(each for each in running() if each.pause(max(0.0, deadline - time.monotonic())))


def _in_parent() -> None:
    while _paused:
        _paused.pop().resume()


def _in_child() -> None:
    for each in running():
        if (connection := each.abandoned()) is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _paused.clear()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
