"""Defers work of finalizers that needs locks until it can run safely.

The garbage collector can run at any point, even in a thread that holds a lock. A finalizer that takes the same lock
deadlocks. Work that takes locks is therefore queued with `defer` and done outside a finalizer, by whatever comes
first: a thread of an exporter of events, which is woken for it, a collection of metrics, a flush, the next run.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from traced_tools.core.fork import on_fork

# `SimpleQueue.put` is reentrant: a finalizer may interrupt it and call it again
Actions = SimpleQueue[Callable[[], object]]


class _Here(threading.local):
    """State of this thread."""

    depth = 0
    collecting = False


_here = _Here()
_measurements: Actions = SimpleQueue()
_others: Actions = SimpleQueue()
_wakers: set[Callable[[], object]] = set()


@contextmanager
def in_finalizer() -> Iterator[None]:
    """Mark the code of the block, in this thread, as run by a finalizer."""
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1


def is_in_finalizer() -> bool:
    """Return whether a finalizer or the garbage collector runs in this thread."""
    return _here.depth > 0 or _here.collecting


def _follow_collector(phase: str, _: Mapping[str, Any]) -> None:
    """Record whether the collector runs: it also closes coroutines, which calls no finalizer of this package."""
    _here.collecting = phase == "start"  # a flag, because one missed call would falsify a count forever


gc.callbacks.append(_follow_collector)


def defer(action: Callable[[], object], *, is_measurement: bool = False) -> None:
    """Queue `action` to run outside the finalizer.

    Args:
        action: the function to call.
        is_measurement: whether it only records a metric, so that it may run while its provider collects metrics.
    """
    (_measurements if is_measurement else _others).put(action)
    for wake in [*_wakers]:
        wake()


def add_waker(wake: Callable[[], object]) -> None:
    """Call `wake` after each `defer`. It runs in the finalizer, so it must not take a lock."""
    _wakers.add(wake)


def remove_waker(wake: Callable[[], object]) -> None:
    """Undo `add_waker`."""
    _wakers.discard(wake)


def run_deferred() -> None:
    """Run the deferred actions."""
    run_deferred_measurements()
    _do_all(_others)


def run_deferred_measurements() -> None:
    """Record the deferred measurements."""
    _do_all(_measurements)


def _do_all(actions: Actions) -> None:
    while not (actions.empty() or is_in_finalizer()):
        try:
            action = actions.get_nowait()
        except Empty:  # another thread was faster
            return
        action()


def _forget() -> None:
    """Drop the deferred actions in a forked child; the parent runs them, and its threads are woken for them."""
    global _measurements, _others
    _wakers.clear()
    _measurements, _others = SimpleQueue(), SimpleQueue()


on_fork(_forget)
