"""A pool of threads for parallel blocking calls, and an event loop for coroutines of blocking runs.

The threads are daemons. `concurrent.futures` joins its threads when the interpreter exits, so one stuck tool would keep
Ctrl-C from ending the program.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from traced_tools.core.checks import expect_whole
from traced_tools.core.fork import on_fork
from traced_tools.errors import NeedsEventLoop

T = TypeVar("T")
_IN_WORKER: ContextVar[bool] = ContextVar("traced_tools_in_worker", default=False)
_ON_PORTAL: ContextVar[bool] = ContextVar("traced_tools_on_portal", default=False)
_BLOCKS_PORTAL: ContextVar[bool] = ContextVar("traced_tools_blocks_portal", default=False)


class _Wakeup:
    """Wakes, from any thread, the task that awaits it.

    asyncio awaits every object with these methods as a future. With a future of its own, a task would go on only in the
    turn of the loop after the turn that completes the future.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancelled_with", "_context", "_loop", "_resume")

    def __init__(self) -> None:
        self._asyncio_future_blocking = False
        self._cancelled_with: tuple[object, ...] | None = None
        self._loop = asyncio.get_running_loop()
        self._resume: Callable[[_Wakeup], object] | None = None

    def wake(self, _: object = None) -> None:
        """Wake the task. It must await this object before the next turn of its loop."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake)

    def wake_after(self, seconds: float) -> asyncio.TimerHandle:
        """Wake the task after a time, unless the caller, on the task's loop, cancels the timer."""
        return self._loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        resume, self._resume = self._resume, None  # once: the task may have been cancelled before this turn of the loop
        if resume is not None:
            self._context.run(resume, self)

    def __await__(self) -> Generator[Any, Any, None]:
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the task."""
        return self._loop

    def add_done_callback(self, resume: Callable[[_Wakeup], object], *, context: Context) -> None:
        """Set the method that resumes the task."""
        self._resume = resume
        self._context = context

    def cancel(self, msg: object = None) -> bool:
        """Cancel the waiting of the task."""
        self._cancelled_with = () if msg is None else (msg,)
        self._loop.call_soon(self._wake)
        return True

    def result(self) -> None:
        """Raise the cancellation, if there is one."""
        if self._cancelled_with is not None:
            raise asyncio.CancelledError(*self._cancelled_with)


class _AwaitedJob(Generic[T]):
    """The result of a job that a coroutine awaits, for `WorkerPool.start`: a future without locks and conditions."""

    __slots__ = ("_error", "_result", "_tickets", "wakeup")

    _result: T

    def __init__(self) -> None:
        self.wakeup = _Wakeup()
        self._tickets = [None]  # `pop` is atomic: only one of the worker and the coroutine has the ticket
        self._error: BaseException | None = None

    def cancel(self) -> bool:
        """Return whether the job has not begun, and now never begins."""
        return self.set_running_or_notify_cancel()

    def set_running_or_notify_cancel(self) -> bool:
        """Return whether the job may begin."""
        try:
            self._tickets.pop()
        except IndexError:
            return False
        return True

    def set_result(self, result: T) -> None:
        """Set the result and wake the coroutine."""
        self._result = result
        self.wakeup.wake()

    def set_exception(self, error: BaseException) -> None:
        """Set the error and wake the coroutine."""
        self._error = error
        self.wakeup.wake()

    def result(self) -> T:
        """Return the result of the job that has ended, or raise its error; called once."""
        error, self._error = self._error, None  # the frames in its traceback refer to this object
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # breaks the reference cycle between the error and this frame in its traceback


JobFuture = Future[Any] | _AwaitedJob[Any]
Job = tuple[JobFuture, Callable[[], Any]]


class _Thread(threading.Thread):
    """A thread of a worker pool or a portal."""


class WorkerPool:
    """A pool of daemon threads for blocking work. Threads start when needed and stay when idle.

    Args:
        size: the maximum number of threads. Jobs that a busy worker may wait for can start threads beyond it. Threads
            of abandoned jobs do not count.
    """

    def __init__(self, size: int = 64) -> None:
        expect_whole("size", size, 1)
        self._size = size
        self._reset()
        on_fork(self._reset)

    def _reset(self) -> None:
        """Reset threads and jobs, also in a forked child, because it has none of its parent's threads."""
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0  # idle threads, less the jobs in the queue
        self._unfinished: set[JobFuture] = set()  # without the abandoned ones

    def submit(self, function: Callable[[], T], *, beyond: bool = False) -> Future[T]:
        """Run `function` in a thread, in a copy of the caller's context, and return its future.

        Args:
            function: the blocking function.
            beyond: whether to start a thread beyond the pool's size if all are busy.
        """
        future: Future[T] = Future()
        self.start(future, function, beyond=beyond)
        return future

    def start(self, future: JobFuture, function: Callable[[], Any], *, beyond: bool) -> None:
        """Run `function` in a thread, in a copy of the caller's context, and settle `future`; see `submit`."""
        context = copy_context()
        context.run(_IN_WORKER.set, True)  # in the copy: code that the job starts on an event loop inherits it, too
        job = (future, partial(context.run, function))
        with self._lock:  # as in `_leaves`: no job is queued for a thread that has just decided to leave
            if self._waiting <= 0 and (self._threads < self._size or beyond):
                self._start_thread(job)
            else:
                self._waiting -= 1
                self._jobs.put(job)
            self._unfinished.add(future)

    def _start_thread(self, job: Job) -> None:
        # In a list, which the thread empties: a thread keeps its arguments as long as it lives.
        _Thread(target=self._work, args=([job],), name="traced_tools-worker", daemon=True).start()
        self._threads += 1

    def give_up(self, future: JobFuture) -> bool:
        """Abandon a future, and return whether its job had not ended.

        A job that has not begun never begins; otherwise its thread leaves the pool and ends with the job.
        """
        if future.cancel():
            return True
        with self._lock:
            if future not in self._unfinished:
                return False
            self._unfinished.remove(future)
            self._threads -= 1
            # The job leaves a place. If more jobs are queued than threads are idle, `get` does not block.
            if self._waiting < 0 and self._threads < self._size:
                self._waiting += 1
                self._start_thread(self._jobs.get())
            return True

    def _work(self, first: list[Job]) -> None:
        jobs = self._jobs
        future, job = first.pop()
        while True:
            settle = _outcome(future, job) if future.set_running_or_notify_cancel() else None
            # Before others learn of the end: the next job of a run that waits for this one comes to this thread.
            leaves = jobs is not self._jobs or self._leaves(future)  # the job has forked, and this is the child
            if settle is not None:
                settle()
            if leaves:
                return
            del future, job, settle  # an idle thread keeps neither the result nor the context of its last job
            future, job = jobs.get()

    def _leaves(self, future: JobFuture) -> bool:
        """Return whether the thread of `future` leaves the pool, as abandoned or surplus; otherwise it is now idle."""
        with self._lock:
            if future not in self._unfinished:
                return True
            self._unfinished.remove(future)
            # While more jobs are queued than threads are idle, even a surplus thread takes one: a busy worker may wait
            # for that job.
            if self._threads > self._size and self._waiting >= 0:
                self._threads -= 1
                return True
            self._waiting += 1
            return False


class UnboundedPool(WorkerPool):
    """A pool with a thread for each job, for functions that wait for people and would fill any other pool."""

    def __init__(self) -> None:
        super().__init__(1)

    def start(self, future: JobFuture, function: Callable[[], Any], *, beyond: bool = True) -> None:
        """Run `function` in a thread at once; see `WorkerPool.submit`."""
        super().start(future, function, beyond=True)


def _outcome(future: JobFuture, job: Callable[[], Any]) -> Callable[[], None]:
    """Run `job`, and return a function that settles `future` with its result or error."""
    try:
        return partial(future.set_result, job())
    except asyncio.CancelledError:  # asyncio would take it for a cancellation of the waiting task
        return partial(future.set_exception, cancelled_from_inside())
    except BaseException as error:
        return partial(future.set_exception, error)


def cancelled_from_inside() -> CancelledError:
    """Return an ordinary error for a cancellation that the waiting caller did not request."""
    return CancelledError("the function was cancelled from inside")


async def wait_until_done(future: Future[Any], seconds: float | None = None) -> None:
    """Wait on asyncio until `future` is done, or the time is over.

    Unlike `asyncio.wrap_future` this copies no exception into asyncio, which logs the text of an unretrieved one.
    """
    wakeup = _Wakeup()
    future.add_done_callback(wakeup.wake)
    if seconds is None:
        await wakeup
        return
    timer = wakeup.wake_after(seconds)
    try:
        await wakeup
    finally:
        timer.cancel()


async def finished_future(begin: Callable[[], Awaitable[T]]) -> Future[T]:
    """Await `begin()` and return a finished future with its result or exception.

    A failed task whose exception is never retrieved would log the exception's text. A task cancelled before it starts
    never calls `begin`.
    """
    future: Future[T] = Future()
    try:
        future.set_result(await begin())
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        future.set_exception(error)
    return future


class _ThreadGroup:
    """The portal futures of a group of threads that run in parallel."""

    def __init__(self) -> None:
        self._futures: set[Future[Any]] = set()
        self._interrupted = False

    def add(self, future: Future[Any]) -> None:
        self._futures.add(future)
        # After `add`: `cancel` sets the flag before it reads the futures, so this thread or that one cancels.
        if self._interrupted:
            future.cancel()

    def cancel(self) -> None:
        self._interrupted = True
        for future in list(self._futures):
            future.cancel()


_GROUP: ContextVar[_ThreadGroup | None] = ContextVar("traced_tools_group", default=None)


@contextmanager
def cancel_group_on_error(cancel: Callable[[], None]) -> Iterator[None]:
    """If an error leaves the block, call `cancel` and cancel the portal futures of all threads in the block."""
    outer, group = _GROUP.get(), _ThreadGroup()
    _GROUP.set(group)
    try:
        yield
    except BaseException:
        cancel()
        group.cancel()
        raise
    finally:
        _GROUP.set(outer)


class Canceller:
    """Cancels, from any thread, what a task awaits in a `with` block; the task continues after the block.

    Attributes:
        task_is_cancelled: whether the task itself was cancelled during the last block.
    """

    def __init__(self) -> None:
        self._inside: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled = False
        self._cancelled_before = 0
        self.task_is_cancelled = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._cancelled = False
        self._cancelled_before = task.cancelling()  # a task may continue after a cancellation, which still counts
        self._inside = task.get_loop(), task

    def __exit__(self, *_: object) -> None:
        assert self._inside is not None
        task, self._inside = self._inside[1], None
        # only the cancellation of `_cancel` is taken back; one by the application still counts
        cancelled = task.uncancel() if self._cancelled else task.cancelling()
        self.task_is_cancelled = cancelled > self._cancelled_before

    def cancel(self) -> None:
        """Cancel what the block awaits now, if anything."""
        if (loop_and_task := self._inside) is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop_and_task[0].call_soon_threadsafe(self._cancel, loop_and_task)

    def _cancel(self, loop_and_task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]) -> None:
        # By now, the block may have ended, and another block of the same task may have begun: each has its own tuple.
        if self._inside is loop_and_task:
            self._cancelled = True
            loop_and_task[1].cancel()


class Portal:
    """An event loop in a daemon thread, for the coroutines of blocking runs; opened on first use."""

    def __init__(self) -> None:
        self._reset()
        on_fork(self._reset_in_child)

    def _reset_in_child(self) -> None:
        if self._loop is not None:
            let_go(self._loop)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Await `begin()` on the portal's loop, in the caller's context, and block until it is done."""
        if _ON_PORTAL.get():  # blocking code called by a coroutine on the portal, so the portal is blocked
            end = finished_future(begin)
            context = copy_context()
            context.run(_BLOCKS_PORTAL.set, threading.current_thread() is self._thread)
            job = partial(context.run, asyncio.run, end)
            return workers().submit(job, beyond=True).result().result()
        future = self._submit(begin)
        if (group := _GROUP.get()) is not None:
            group.add(future)
        try:
            return future.result().result()
        except BaseException:
            future.cancel()
            raise

    def is_current(self) -> bool:
        """Return whether this is the thread of the portal."""
        return threading.current_thread() is self._thread

    async def join(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Await `begin()` on the portal's loop, in the caller's context, from a coroutine on any loop.

        Raises:
            NeedsEventLoop: if blocking code on the portal's loop waits for this call.
        """
        loop = self._open()
        if asyncio.get_running_loop() is loop:
            return await begin()
        if _BLOCKS_PORTAL.get():
            raise NeedsEventLoop(
                "an async tool of a blocking run blocks the event loop that this call needs: "
                "await acall() or astream() in the tool, instead of call() or stream()"
            )
        future = self._submit(begin)
        try:
            await wait_until_done(future)
        except BaseException:
            future.cancel()
            raise
        return future.result().result()

    def _submit(self, begin: Callable[[], Awaitable[T]]) -> Future[Future[T]]:
        context = copy_context()
        context.run(_ON_PORTAL.set, True)
        return context.run(asyncio.run_coroutine_threadsafe, finished_future(begin), self._open())

    def _open(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = _Thread(target=_serve, args=[loop], name="traced_tools-portal", daemon=True)
                self._thread.start()
                self._loop = loop  # only now, because an interrupt may prevent the start of the thread
            return self._loop


def let_go(loop: asyncio.AbstractEventLoop) -> None:
    """Release, in a forked child, the connections of its parent's loop and the selector that the loop waits with.

    Otherwise a connection that the parent closes stays open for as long as the child lives, and objects that the child
    frees could end a wait of the parent.
    """
    selector = getattr(loop, "_selector", None)  # asyncio has no public access to it; other loops have none
    if isinstance(selector, selectors.BaseSelector):
        descriptors = [key.fd for key in selector.get_map().values()]
        descriptors += [selector.fileno()] if hasattr(selector, "fileno") else []
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        with suppress(SystemExit, KeyboardInterrupt):  # asyncio stops at these; the waiting caller gets them
            loop.run_forever()


_pool = WorkerPool()
_portal = Portal()
_CURRENT_POOL: ContextVar[WorkerPool | None] = ContextVar("traced_tools_workers", default=None)


def workers() -> WorkerPool:
    """Return the current pool: the pool set by `UsePool`, or the shared pool."""
    return _CURRENT_POOL.get() or _pool


class UsePool:
    """A context manager that makes `pool` the current pool in its block.

    It is a class because `contextlib.contextmanager` sets the traceback of an error that leaves the block, which a
    frozen dataclass forbids.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def __enter__(self) -> None:
        self._outer = _CURRENT_POOL.get()
        _CURRENT_POOL.set(self._pool)

    def __exit__(self, *_: object) -> None:
        _CURRENT_POOL.set(self._outer)


def run_async(begin: Callable[[], Awaitable[T]]) -> T:
    """Await `begin()` on the portal's loop, from blocking code."""
    return _portal.run(begin)


def is_on_portal() -> bool:
    """Return whether this is the thread of the portal, so that blocking code here blocks the portal."""
    return _portal.is_current()


async def join_portal(begin: Callable[[], Awaitable[T]]) -> T:
    """Await `begin()` on the portal's loop, from a coroutine on any loop; see `Portal.join`."""
    return await _portal.join(begin)


async def in_thread(function: Callable[[], T]) -> T:
    """Run blocking `function` in a worker thread, in the caller's context; abandon it if this call is cancelled."""
    pool, future = workers(), _AwaitedJob[T]()
    pool.start(future, function, beyond=is_in_worker())
    try:
        await future.wakeup
    except BaseException:
        pool.give_up(future)
        raise
    return future.result()


def is_in_worker() -> bool:
    """Return whether a worker may be waiting for this code, so that it must not wait for a free worker."""
    return _IN_WORKER.get() or isinstance(threading.current_thread(), _Thread)


def run_all(jobs: Sequence[Callable[[], T]], limit: int = sys.maxsize) -> list[T | BaseException]:
    """Run blocking jobs in parallel and return, in order, the result or exception of each.

    The calling thread runs jobs as well until none is left to start. So a job that runs nested jobs never waits for a
    worker that waits for it, and a full pool is slower but cannot deadlock.

    Args:
        jobs: the functions to run.
        limit: how many jobs may run at once.
    """
    pool = workers()
    futures: list[Future[T]] = [Future() for _ in jobs]
    waiting = deque(zip(futures, jobs, strict=True))
    lane_count = min(len(jobs), limit) - 1
    lanes: list[Future[None]] = []
    try:
        # `+=` appends one by one, so after an interrupt `lanes` has all that were submitted.
        lanes += (pool.submit(partial(_run_waiting, waiting, _settle)) for _ in range(lane_count))
        _run_waiting(waiting, _settle_here)
        wait(futures)
    except BaseException:
        waiting.clear()
        for lane in lanes:
            pool.give_up(lane)
        raise
    for lane in lanes:
        lane.cancel()  # a lane that still waits for a thread would find no job
    return [future.exception() or future.result() for future in futures]


def run_within(jobs: Sequence[Callable[[], object]], seconds: float) -> None:
    """Run blocking jobs in parallel threads, and wait at most `seconds` for all of them together.

    Args:
        jobs: the functions to run. Their results and exceptions are dropped.
        seconds: how long to wait. A job that takes longer continues in its thread, which leaves the pool.
    """
    pool = workers()
    futures: list[Future[object]] = []
    try:
        for job in jobs:
            futures.append(pool.submit(job, beyond=True))
        wait(futures, seconds)
    finally:  # an interrupt of this thread ends the waiting
        for future in futures:
            pool.give_up(future)


def _run_waiting(waiting: deque[Any], settle: Callable[[Any, Any], None]) -> None:
    while True:
        try:
            future, job = waiting.popleft()
        except IndexError:
            return
        settle(future, job)


def _settle(future: Future[Any], job: Callable[[], Any]) -> None:
    _outcome(future, job)()


def _settle_here(future: Future[Any], job: Callable[[], Any]) -> None:
    """Run `job` in this thread; raise an interrupt of this thread at once instead of storing it as a result."""
    _settle(future, job)
    error = future.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
