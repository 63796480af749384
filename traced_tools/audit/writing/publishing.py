"""Delivers checkpoints outside the store: in order, from one thread, retried until accepted."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from typing import Any, Final, Protocol

from traced_tools.core.fork import on_fork
from traced_tools.flow.background import LONGEST_WAIT, BackgroundWorker

Line = Mapping[str, Any]
Publish = Callable[[Line], object]

MOST_WAITING: Final = 1000
"""Maximum number of pending lines. A further line replaces the oldest one, because it covers all earlier records."""
_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before further attempts; the last value repeats."""
_log = logging.getLogger("traced_tools.audit")


class Losses(Protocol):
    """Counts failed attempts and lost lines. Its methods must not raise."""

    def failed(self, error: BaseException) -> None:
        """Count a failed attempt."""

    def lost(self, lines: int) -> None:
        """Count lost lines."""


class Publisher:
    """Delivers lines in order from a background thread, which starts with the first line.

    A line may be delivered twice, if `publish` raises after it has stored the line.

    Args:
        publish: stores a line, which is durable when the function returns. If the function returns an awaitable or a
            generator, the attempt has failed, because nothing is stored yet.
        name: the name of the trail's store, for the log.
        losses: counts failed attempts and lost lines.
    """

    def __init__(self, publish: Publish, name: str, losses: Losses) -> None:
        self._publish = publish
        self._name = name
        self._losses = losses
        self._worker: BackgroundWorker[tuple[int, Line]] = BackgroundWorker("traced_tools-audit-checkpoints", self._run)
        self._lines = self._worker.items
        self._reset()
        on_fork(self._reset)

    def _reset(self) -> None:
        """Start without lines. A forked child calls this method, because the pending lines belong to its parent."""
        self._condition = threading.Condition()
        self._delivering = False
        self._put = self._delivered = 0
        self._failures = 0
        self._overflowing = False
        self._closed = False
        self.problem: str | None = None
        """The class of the error that the last attempt failed with; None if it succeeded."""

    def put(self, line: Line) -> None:
        """Queue a line without waiting. If no thread can start, deliver the line in the calling thread."""
        with self._condition:
            self._put += 1
            if self._closed:
                self._give_up(1)
                return
            if len(self._lines) >= MOST_WAITING:
                self._lines.popleft()
                self._overflow()
            self._lines.append((self._put, line))
        if not self._worker.notify():
            while self._lines and self._deliver(*self._lines[0]):
                self._lines.popleft()

    def wait(self, timeout: float) -> bool:
        """Wait until all lines put so far are delivered, and return whether they are after `timeout` seconds.

        A line that failed is retried immediately.
        """
        with self._condition:
            target = self._put
            if self._failures:
                self._worker.wake()
            self._condition.wait_for(lambda: self._delivered >= target or self._closed, min(timeout, LONGEST_WAIT))
            return self._delivered >= target

    def close(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the lines put so far, then count the remaining lines as lost.

        A line that `publish` is still storing at that moment counts as lost, although it may be stored later: if the
        process ends first, nothing else would report the loss.
        """
        self.wait(timeout)
        with self._condition:
            remaining = len(self._lines) + self._delivering if not self._closed else 0
            self._closed = True
            self._lines.clear()
            self._condition.notify_all()
            if remaining:
                self._give_up(remaining)
        if self._worker.started:
            self._worker.wake()

    def _overflow(self) -> None:
        if not self._overflowing:
            text = "%s: more than %d checkpoints wait to be kept outside the store; the oldest are lost"
            _log.error(text, self._about(), MOST_WAITING)
        self._overflowing = True
        self._losses.lost(1)

    def _give_up(self, lines: int) -> None:
        problem = self.problem or "it takes too long"
        _log.error("%s: closed before %d checkpoints were kept outside the store (%s)", self._about(), lines, problem)
        self._losses.lost(lines)

    def _about(self) -> str:
        return f"audit trail {self._name}"

    # In the thread.

    def _run(self) -> None:
        while not self._closed:
            self._worker.wait()
            if (numbered := self._next()) is not None:
                while not self._closed and not self._deliver(*numbered):
                    self._worker.wait(math.inf, _PAUSES[min(self._failures, len(_PAUSES)) - 1])

    def _next(self) -> tuple[int, Line] | None:
        with self._condition:
            self._delivering = bool(self._lines)
            return self._lines.popleft() if self._lines else None

    def _deliver(self, number: int, line: Line) -> bool:
        """Try to deliver a line, and return whether that succeeded."""
        try:
            _expect_done(self._publish(line))
        except BaseException as error:  # no error may end the thread
            self._failed(error)
            return False
        with self._condition:
            if self._failures:
                _log.warning("%s: checkpoints are kept outside the store again", self._about())
            self._failures, self.problem, self._overflowing = 0, None, False
            self._delivered, self._delivering = number, False
            self._condition.notify_all()
        return True

    def _failed(self, error: BaseException) -> None:
        self.problem = type(error).__name__
        self._failures += 1
        if self._failures == 1:
            text = "%s: a checkpoint cannot be kept outside the store (%s); it is retried: check checkpoints="
            _log.error(text, self._about(), self.problem)
        self._losses.failed(error)


def _expect_done(returned: object) -> None:
    """Raise `TypeError` for an awaitable or a generator: the function that returned it has stored nothing yet."""
    if isinstance(returned, Awaitable | Generator | AsyncGenerator):
        if callable(close := getattr(returned, "close", None)):
            close()  # otherwise Python warns that it was never awaited
        raise TypeError("the function of checkpoints= must store the line before it returns")
