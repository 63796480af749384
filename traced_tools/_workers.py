"""Where work runs that a driver cannot run itself: blocking calls beside others, and coroutines in a blocking run.

The threads are daemons. `concurrent.futures` joins its threads when the interpreter exits, so one stuck tool would keep
Ctrl-C from ending the program.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_ON_PORTAL: ContextVar[bool] = ContextVar("traced_tools_on_portal", default=False)
Job = tuple["Future[Any]", Callable[[], Any]]


class _Thread(threading.Thread):
    """A thread of ours. What it submits may get a thread beyond the pool's size: all others may wait for it."""


class WorkerPool:
    """Daemon threads that take blocking work; started as needed, kept when idle.

    Args:
        size: the most threads there may be.

    """

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0

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

    def _work(self) -> None:
        while True:
            future, job = self._jobs.get()
            if future.set_running_or_notify_cancel():
                _settle(future, job)
            del future, job
            with self._lock:
                self._waiting += 1


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
            return _pool.submit(lambda: asyncio.run(coroutine)).result()
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


_pool = WorkerPool()
_portal = Portal()


def _forget_threads() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _portal
    _pool, _portal = WorkerPool(), Portal()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` to its end on the portal's loop, from blocking code."""
    return _portal.run(coroutine)


async def in_thread(function: Callable[[], T]) -> T:
    """Run blocking `function` in a worker thread, in the caller's context."""
    return await asyncio.wrap_future(_pool.submit(function))


def run_all(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run blocking jobs side by side and return their results in order; the first error in order is raised at the end.

    The calling thread takes part: it runs the first job, and then what no worker has begun. So a job that runs jobs of
    its own never waits for a worker that waits for it, and a full pool slows down but cannot lock up.
    """
    futures: list[Future[T]] = [_pool.submit(job) for job in jobs[1:]]
    try:
        futures.insert(0, _run_here(jobs[0]))
        for index in range(len(jobs) - 1, 0, -1):
            if futures[index].cancel():
                futures[index] = _run_here(jobs[index])
        wait(futures)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return [future.result() for future in futures]


def _run_here(job: Callable[[], T]) -> Future[T]:
    """Run `job` in this thread; an interrupt of this thread is nobody's result and leaves at once."""
    future: Future[T] = Future()
    _settle(future, job)
    error = future.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return future
