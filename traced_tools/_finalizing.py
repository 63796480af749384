"""What the garbage collector sets off, and what must not be done then.

The collector may strike anywhere, also in a thread that holds a lock of somebody's. Who takes the same lock in a
finalizer waits for itself. So what takes locks is put off until the next one comes by who is no finalizer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

_here = threading.local()
_put_off: SimpleQueue[Callable[[], object]] = SimpleQueue()  # whose `put` may be interrupted by itself


@contextmanager
def finalizing() -> Iterator[None]:
    """Tell those who are called inside that a finalizer calls them."""
    before, _here.active = is_finalizing(), True
    try:
        yield
    finally:
        _here.active = before


def is_finalizing() -> bool:
    """Whether a finalizer is at work in this thread."""
    return getattr(_here, "active", False)


def put_off(action: Callable[[], object]) -> None:
    """Have something done later, by whoever catches up first."""
    _put_off.put(action)


def catch_up() -> None:
    """Do what was put off."""
    while not (_put_off.empty() or is_finalizing()):
        try:
            action = _put_off.get_nowait()
        except Empty:  # somebody else was faster
            return
        action()
