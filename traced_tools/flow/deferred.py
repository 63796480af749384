"""Deferred work for finalizers.

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
    """What happens in this thread."""

    depth = 0
    collecting = False


_here = _Here()
_measurements: Actions = SimpleQueue()
_others: Actions = SimpleQueue()
_wakers: set[Callable[[], object]] = set()


@contextmanager
def in_finalizer() -> Iterator[None]:
    """Mark what runs in the block, in this thread, as called by a finalizer."""
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1


def is_in_finalizer() -> bool:
    """Whether a finalizer or the garbage collector is at work in this thread."""
    return _here.depth > 0 or _here.collecting


def _follow_collector(phase: str, _: Mapping[str, Any]) -> None:
    """Mark what the collector runs: it also closes coroutines by itself, which calls no finalizer of this package."""
    _here.collecting = phase == "start"  # no count, which one missed call would spoil for good


gc.callbacks.append(_follow_collector)


def defer(action: Callable[[], object], *, is_measurement: bool = False) -> None:
    """Queue `action` to be done outside the finalizer.

    Args:
        action: what to do.
        is_measurement: whether it records a metric and does nothing else, so that it may be done while the metrics of
            its provider are collected.
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
    """Record the metrics that were put off."""
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
