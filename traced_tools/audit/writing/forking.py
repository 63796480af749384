"""What happens to trails when the process forks, and when it ends.

An SQLite connection must not be carried over a fork, not even to be closed there: SQLite keeps in memory which locks
the process holds, and the child holds none of them. So writers are at rest while the process forks, without a
connection to SQLite; the child leaves its parent's other connections alone, and never frees them.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Final

from traced_tools.audit.writing import mirror
from traced_tools.core.fork import on_fork, register_exit_handler

if TYPE_CHECKING:
    from traced_tools.audit.writing.writer import Writer

_PATIENCE: Final = 2.0
"""Seconds a fork waits for the writers' transactions, all in all."""
_AT_EXIT: Final = 5.0
"""Seconds all open trails together have to write what waits when the process ends."""
_running: Final[set[Writer]] = set()
_paused: Final[list[Writer]] = []


def add(writer: Writer) -> None:
    """Take note of a writer whose thread starts."""
    _running.add(writer)
    register_exit_handler(_close_all)


def discard(writer: Writer) -> None:
    """Forget a writer whose thread has ended."""
    _running.discard(writer)


def running() -> tuple[Writer, ...]:
    """Return the writers whose threads run."""
    return tuple(_running)


def _close_all() -> None:
    writers = running()
    for writer in writers:
        writer.end(_AT_EXIT)
    deadline = time.monotonic() + _AT_EXIT
    for writer in writers:
        writer.close(max(0.0, deadline - time.monotonic()))
    if writers:
        mirror.flush(max(0.0, deadline - time.monotonic()))


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


on_fork(_in_child, before=_before, in_parent=_in_parent)
register_exit_handler(_close_all)
