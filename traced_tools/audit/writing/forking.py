"""Keeps the stores of audit trails safe while the process forks.

A child must not use an SQLite connection of its parent, not even to close it: SQLite records in memory which locks the
process holds, and the child holds none of them. So all stores are paused during a fork, and no SQLite connection is
open. The child neither uses nor frees other connections of its parent.
"""

from __future__ import annotations

import ctypes
from typing import Final, Protocol

from traced_tools.core.fork import on_fork
from traced_tools.flow.background import deadline_in, seconds_until

_PATIENCE: Final = 2.0
"""Seconds that a fork waits for all transactions together."""


class Pausable(Protocol):
    """Something that writes to a store."""

    def pause(self, timeout: float) -> bool:
        """Keep the store idle until `resume`; return whether it is idle within `timeout` seconds."""

    def resume(self) -> None:
        """Continue after `pause`."""

    def abandoned(self) -> object:
        """Return the object that a forked child must neither use nor free; None if there is none."""


_writing: Final[set[Pausable]] = set()
_paused: Final[list[Pausable]] = []


def add(writer: Pausable) -> None:
    """Pause `writer` at forks from now on."""
    _writing.add(writer)


def discard(writer: Pausable) -> None:
    """No longer pause `writer` at forks."""
    _writing.discard(writer)


def _before() -> None:
    deadline = deadline_in(_PATIENCE)
    _paused.extend(writer for writer in tuple(_writing) if writer.pause(seconds_until(deadline)))


def _in_parent() -> None:
    while _paused:
        _paused.pop().resume()


def _in_child() -> None:
    for writer in tuple(_writing):
        if (connection := writer.abandoned()) is not None:
            # Never released, so that the child does not free the connection, which is the parent's.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _paused.clear()
    _writing.clear()


on_fork(_in_child, before=_before, in_parent=_in_parent)
