"""Background threads: each has a queue, is closed within a deadline, and starts anew in a forked child."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from traced_tools.core.fork import on_fork, register_exit_handler
from traced_tools.flow.deferred import defer, is_in_finalizer, run_deferred

T = TypeVar("T")
EXIT_TIMEOUT: Final = 5.0
"""Seconds that the exit of the process waits for background threads, for all of them together."""
LONGEST_WAIT: Final = 1_000_000.0
"""Seconds; a longer wait would overflow."""


def deadline_in(timeout: float) -> float:
    """Return a time of `time.monotonic()`; a `timeout` that is not a number is 0 seconds."""
    return time.monotonic() + (min(max(timeout, 0.0), LONGEST_WAIT) if timeout == timeout else 0.0)


def seconds_until(deadline: float) -> float:
    """Return the seconds until a time of `time.monotonic()`; 0 if it is over."""
    return max(0.0, deadline - time.monotonic())


class Clock:
    """The time in seconds, and waiting for a signal; tests replace it."""

    def now(self) -> float:
        """Return the time."""
        return time.monotonic()

    def wait(self, signals: SimpleQueue[None], timeout: float | None) -> None:
        """Wait for a signal; raises `queue.Empty` after `timeout` seconds."""
        signals.get(timeout=timeout)


class Closing(Protocol):
    """Something with a background thread that is closed in two steps, so that several can be closed side by side."""

    def begin_close(self, timeout: float) -> None:
        """Request a close within `timeout` seconds; does not wait."""

    def end_close(self, deadline: float) -> None:
        """Wait for the close until a time of `time.monotonic()`, and count the items that are lost."""


class BackgroundWorker(Generic[T]):
    """A queue of items and the daemon thread that takes them; the thread starts with the first item.

    To queue an item, append it to `items` and call `notify`. Neither takes a lock, so signal handlers and finalizers
    may queue items too. How many items may wait is the owner's rule, because a full queue costs each owner something
    else. In a forked child the queue is empty and there is no thread.

    Args:
        name: the thread's name.
        run: runs in the thread; takes `items` and calls `wait` when there are none.
        closing: is closed at the exit of the process once the thread was started; None if its owner sees to that.
        clock: the time.

    Attributes:
        items: what waits, in order.
        clock: the time.
    """

    def __init__(
        self, name: str, run: Callable[[], None], *, closing: Closing | None = None, clock: Clock | None = None
    ) -> None:
        self.items: Final[deque[T]] = deque()
        self.clock: Final = clock or Clock()
        self._name = name
        self._run = run
        self._closing = closing
        self._reset()
        on_fork(self._reset)

    def _reset(self) -> None:
        self.items.clear()
        self._signals: SimpleQueue[None] = SimpleQueue()  # whose `put` may interrupt itself
        self._wake_count = math.inf
        self._claims: dict[str, threading.Thread] = {}  # at most one, since `setdefault` is atomic

    @property
    def started(self) -> bool:
        """Whether there has been an item in this process."""
        return bool(self._claims or self.items)

    @property
    def is_current(self) -> bool:
        """Whether this is the worker's thread, which cannot wait for itself."""
        return self._claims.get("thread") is threading.current_thread()

    def notify(self) -> bool:
        """Wake the thread if it waits for no more items than there are.

        Returns False if there is no thread and none can be started.
        """
        if len(self.items) >= self._wake_count:
            self._wake_count = math.inf
            self._signals.put(None)
        return bool(self._claims) or self.start()

    def wake(self) -> bool:
        """Wake the thread, however many items there are. Returns as `notify`."""
        self._signals.put(None)
        return bool(self._claims) or self.start()

    def start(self) -> bool:
        """Start the thread; return False if no thread can be started: Python 3.12 starts none while it shuts down.

        In a finalizer, which may have interrupted the start of a thread, the start is deferred.
        """
        if is_in_finalizer():
            defer(self.start)
            return True
        if self._closing is not None:
            _open.add(self._closing)
            register_exit_handler(_close_open)
        thread = threading.Thread(target=self._claim_and_run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._claims.setdefault("thread", thread)
        return True

    def _claim_and_run(self) -> None:
        """Run, unless another thread does: two callers may start one, or one whose call was interrupted."""
        thread = threading.current_thread()
        if self._claims.setdefault("thread", thread) is thread:
            self._run()
            self._forget_closing()

    def join(self, deadline: float) -> bool:
        """Wait until the thread has ended, and return whether it has by a time of `time.monotonic()`.

        The exit of the process does not wait for it again. The thread itself does not wait.
        """
        try:
            if (thread := self._claims.get("thread")) is not None and not self.is_current:
                thread.join(seconds_until(deadline))
        finally:
            self._forget_closing()
        return thread is None or not thread.is_alive()

    def _forget_closing(self) -> None:
        if self._closing is not None:
            _open.discard(self._closing)

    def wait(self, count: float = 1, timeout: float | None = None) -> bool:
        """Wait in the thread, and return False if the time is over.

        Args:
            count: how many items end the waiting; `wake` ends it in any case.
            timeout: seconds to wait.
        """
        self._wake_count = count
        try:
            if len(self.items) < count:  # after the assignment, so that no item comes unnoticed
                self.clock.wait(self._signals, None if timeout is None else min(max(timeout, 0.0), LONGEST_WAIT))
        except Empty:
            return False
        finally:
            self._wake_count = math.inf
        return True


class Task:
    """A function that a background thread calls.

    Args:
        action: the function; returns whether it succeeded.
        expires: a time of `time.monotonic()` after which it is not called.
    """

    def __init__(self, action: Callable[[], bool], expires: float = math.inf) -> None:
        self._action = action
        self._expires = expires
        self._completion = threading.Event()
        self._succeeded = False

    def run(self) -> None:
        """Call the function. Whatever it raises is a failure, because it must not end the thread."""
        with suppress(BaseException):
            if time.monotonic() < self._expires:
                self._succeeded = self._action()
        self._completion.set()

    def wait(self, deadline: float) -> bool:
        """Wait until a time of `time.monotonic()`, and return whether the function was called and succeeded."""
        return self._completion.wait(seconds_until(deadline)) and self._succeeded


class TaskWorker:
    """Runs tasks one after another in a background thread, which ends with the process.

    Args:
        name: the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._worker: BackgroundWorker[Task] = BackgroundWorker(name, self._run)
        self.start: Final = self._worker.start

    def submit(self, task: Task) -> bool:
        """Queue a task; return False and drop it if there is no thread for it."""
        self._worker.items.append(task)
        if self._worker.notify():
            return True
        self._worker.items.clear()  # for each of them there was no thread
        return False

    def _run(self) -> None:
        while True:
            self._worker.wait()
            while self._worker.items:
                self._worker.items.popleft().run()


_open: Final[set[Closing]] = set()


def close_all(closing: Iterable[Closing], timeout: float) -> None:
    """Close several side by side, within `timeout` seconds for all of them together."""
    deadline = deadline_in(timeout)
    workers = [*closing]
    for worker in workers:
        worker.begin_close(seconds_until(deadline))
    for worker in workers:
        worker.end_close(deadline)


def _close_open() -> None:
    run_deferred()
    close_all(_open, EXIT_TIMEOUT)


on_fork(_open.clear)
register_exit_handler(_close_open)
