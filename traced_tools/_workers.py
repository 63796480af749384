"""Where work runs that a driver cannot run itself: blocking calls beside others, and coroutines in a blocking run.

The threads are daemons. `concurrent.futures` joins its threads when the interpreter exits, so one stuck tool would keep
Ctrl-C from ending the program.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

from traced_tools._checks import expect_whole

T = TypeVar("T")
_ON_PORTAL: ContextVar[bool] = ContextVar("traced_tools_on_portal", default=False)
Job = tuple["Future[Any]", Callable[[], Any]]


class _Thread(threading.Thread):
    """A thread of ours. What it submits may get a thread beyond the pool's size: all others may wait for it."""


class WorkerPool:
    """Daemon threads that take blocking work; started as needed, kept when idle.

    Args:
        size: the most threads there may be. What a worker itself submits may have one more, since it waits for it, and
            a job that was given up does not count.
    """

    def __init__(self, size: int = 64) -> None:
        expect_whole("size", size, 1)
        self._size = size
        _POOLS.add(self)
        self.forget()

    def forget(self) -> None:
        """Begin anew without threads or work, as a forked child must: it has none of its parent's threads."""
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0
        self._given_up: set[Future[Any]] = set()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Queue `function` and return its future; it runs in the context of whoever submits it."""
        future: Future[T] = Future()
        context = copy_context()
        nested = isinstance(threading.current_thread(), _Thread)
        with self._lock:
            self._waiting -= 1
            grow = self._waiting < 0 and (self._threads < self._size or nested)
            self._threads += grow
            self._waiting += grow
        self._jobs.put((future, lambda: context.run(function)))
        if grow:
            _Thread(target=self._work, name="traced_tools-worker", daemon=True).start()
        return future

    def give_up(self, future: Future[Any]) -> None:
        """Wait for `future` no more: it never begins, or its thread leaves the pool and ends with it."""
        with self._lock:
            if not future.cancel() and not future.done():
                self._given_up.add(future)
                self._threads -= 1

    def _work(self) -> None:
        while True:
            future, job = self._jobs.get()
            if future.set_running_or_notify_cancel():
                _settle(future, job)
            with self._lock:
                if future in self._given_up:
                    self._given_up.remove(future)
                    return
                self._waiting += 1
            del future, job


def _settle(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        result = job()
    except StopIteration as error:  # asyncio's futures cannot hold one: the waiting task would never wake
        future.set_exception(_as_runtime_error(error))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _as_runtime_error(error: StopIteration) -> RuntimeError:
    """Say it as Python does of a StopIteration that leaves a coroutine (PEP 479)."""
    told = RuntimeError("a blocking function raised StopIteration")
    told.__cause__ = error
    return told


class Portal:
    """An event loop in a daemon thread, for the coroutines of blocking runs; opened on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the portal's loop, in the caller's context, and wait for it."""
        if (
            _ON_PORTAL.get()
        ):  # a coroutine of ours calls blocking code that needs a loop, and blocks the portal meanwhile
            return workers().submit(lambda: asyncio.run(coroutine)).result()
        context = copy_context()
        context.run(_ON_PORTAL.set, True)
        future = context.run(asyncio.run_coroutine_threadsafe, coroutine, self._open())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _open(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = _Thread(target=self._loop.run_forever, name="traced_tools-portal", daemon=True)
                self._thread.start()
            return self._loop


_POOLS: WeakSet[WorkerPool] = WeakSet()
_pool = WorkerPool()
_portal = Portal()
_CHOSEN: ContextVar[WorkerPool | None] = ContextVar("traced_tools_workers", default=None)


def workers() -> WorkerPool:
    """Return the pool in use here: one that was chosen, or the one all share."""
    return _CHOSEN.get() or _pool


@contextmanager
def using(pool: WorkerPool | None) -> Iterator[None]:
    """Let what is begun in the block use `pool`; None for no choice."""
    outer = _CHOSEN.get()
    _CHOSEN.set(pool or outer)
    try:
        yield
    finally:
        _CHOSEN.set(outer)


def _forget_threads() -> None:
    global _portal
    _portal = Portal()
    for pool in list(_POOLS):
        pool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` to its end on the portal's loop, from blocking code."""
    return _portal.run(coroutine)


async def in_thread(function: Callable[[], T]) -> T:
    """Run blocking `function` in a worker thread, in the caller's context."""
    return await asyncio.wrap_future(workers().submit(function))


def run_all(jobs: Sequence[Callable[[], T]], limit: int = sys.maxsize) -> list[T | BaseException]:
    """Run blocking jobs side by side and return, in order, what each returned or raised.

    The calling thread takes part until no job is left to begin. So a job that runs jobs of its own never waits for a
    worker that waits for it, and a full pool slows down but cannot lock up.

    Args:
        jobs: what to run.
        limit: how many may run at once.
    """
    futures: list[Future[T]] = [Future() for _ in jobs]
    waiting = deque(zip(futures, jobs, strict=True))
    others = min(len(jobs), limit) - 1
    lanes = [workers().submit(partial(_run_waiting, waiting, _settle)) for _ in range(others)]
    try:
        _run_waiting(waiting, _settle_here)
        wait(futures)
    finally:
        waiting.clear()
        for lane in lanes:
            lane.cancel()
    return [future.exception() or future.result() for future in futures]


def _run_waiting(waiting: deque[Any], settle: Callable[[Any, Any], None]) -> None:
    while True:
        try:
            future, job = waiting.popleft()
        except IndexError:
            return
        settle(future, job)


def _settle_here(future: Future[Any], job: Callable[[], Any]) -> None:
    """Run `job` in this thread; an interrupt of this thread is nobody's result and leaves at once."""
    _settle(future, job)
    error = future.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
