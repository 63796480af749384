"""Flows, steps and drivers: how a loop is written once and runs four ways.

A *flow* is an `async def` that decides and never waits. Whatever has to be waited for, it awaits as a *step*:

    async def advise(request, call_next):              a flow
        answer = await CallModel(model, request)       a step: a model is asked
        await perform(store.save, answer)              a step: any other blocking or async function
        return answer

Awaiting a step suspends the flow and hands the step itself to whoever drives the flow. The *driver* performs the step
its own way and resumes the flow with the result, or throws the error in where the flow awaits:

    driver      performs a step by    gives chunks    used by
    call        step.run()            no              spec.call()
    acall       await step.arun()     no              await spec.acall()
    Stream      step.stream()         as they come    for chunk in spec.stream()
    AsyncStream step.astream()        as they come    async for chunk in spec.astream()

and a user may take the steps one by one (`Execution`). Nothing else in the package knows how it is being run.

*Context.* An `Execution` has one `contextvars.Context`, copied when it is made. The flow is resumed inside it and each
step is performed inside it, coroutines and chunks included (`inside` drives them there, whichever task pulls). So what
a flow makes current, such as a span, is current for the model and the tools and never for the consumer, who sees a
chunk only between two steps.

*Awaiting something else.* What is not a step came from an asyncio library; under asyncio it is handed to the event
loop. In a blocking run there is no loop to hand it to: `NeedsEventLoop` is thrown in at that line.

*StopIteration.* In some kinds of coroutine it, or `StopAsyncIteration`, would look like a normal end. So in all modes a
flow gets, and raises, a `RuntimeError` with the original as its cause, as Python itself does in most of them.

*Leaving early.* A consumer that goes away has `Abandoned` thrown into the flow, whose `finally` blocks run and whose
last steps are still performed; when nothing can be performed any more (garbage collection) they get `Abandoned` too.
"""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from traced_tools.core.tracebacks import is_debugging, shorten_traceback
from traced_tools.errors import Abandoned, NeedsEventLoop
from traced_tools.flow.deferred import in_finalizer, is_in_finalizer

T = TypeVar("T")
C = TypeVar("C")
Flow = Coroutine[Any, Any, T]


class Step(Generic[T]):
    """Something a flow waits for. Awaiting it hands it to the driver. Subclasses say how it is performed."""

    __slots__ = ()

    def __await__(self) -> Generator[Step[T], T, T]:
        if isinstance(sys.exception(), GeneratorExit) and is_in_finalizer():
            raise GeneratorExit  # the collector closes the coroutine, which must not await any more
        return (yield self)

    def run(self) -> T:
        """Perform the step, blocking."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to run it")

    async def arun(self) -> T:
        """Perform the step on asyncio."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to run it on asyncio")


class StreamingStep(Step[T], Generic[T, C]):
    """A step that can also be performed piece by piece; `result` is there when the last chunk has been given."""

    __slots__ = ()
    result: T

    def stream(self) -> Iterator[C]:
        """Perform the step, blocking, and give the chunks."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to stream it")

    def astream(self) -> AsyncIterator[C]:
        """Perform the step on asyncio and give the chunks."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to stream it on asyncio")


class Foreign(Step[Any]):
    """Something a flow awaited that is no step: it belongs to an asyncio library."""

    __slots__ = ("_awaited",)

    def __init__(self, awaited: object) -> None:
        self._awaited = awaited

    def run(self) -> Any:
        raise _needs_event_loop(self._awaited)

    async def arun(self) -> Any:
        return await _to_event_loop(self._awaited)


class Execution(Generic[T]):
    """A flow under way: its context, the step it waits for, and in the end its result.

    Args:
        flow: the flow, or better a function that makes it when the execution starts: the context is then that of the
            code that starts the execution, not of the code that creates it.
    """

    __slots__ = ("__weakref__", "_flow", "_make", "_running", "context", "finished", "result", "started", "step")

    def __init__(self, flow: Flow[T] | Callable[[], Flow[T]]) -> None:
        self._make = flow if callable(flow) else None
        if not callable(flow):
            self._flow: Flow[T] = flow
        self._running = False
        self.context = copy_context()
        self.started = False
        self.finished = False
        self.step: Step[Any] | None = None
        self.result: T

    @property
    def returned(self) -> bool:
        """Whether the flow has returned; False for one that raised or was abandoned, too."""
        return hasattr(self, "result")

    def resume(self, value: Any = None) -> None:
        """Send `value` to the flow and let it run to its next step or its end."""
        self._advance(self._flow.send, value)

    def fail(self, error: BaseException) -> None:
        """Throw `error` into the flow where it waits."""
        self._advance(self._flow.throw, _passable(error))

    def start(self) -> None:
        """Let the flow run to its first step, unless it has begun already."""
        if not self.started:
            if self._make is not None:
                self._flow, self.context = self._make(), copy_context()
            self.resume()

    def _advance(self, action: Callable[[Any], Any], value: Any) -> None:
        self.started = self._running = True
        try:
            step = self.context.run(action, value)
            self.step = step if isinstance(step, Step) else Foreign(step)
        except StopIteration as done:
            self.finished, self.step, self.result = True, None, done.value
        except BaseException as error:
            if isinstance(error, RuntimeError) and str(error).startswith("cannot enter context"):
                raise  # another thread performs the step: the flow has not been touched
            self.finished, self.step = True, None
            if isinstance(error, Exception) and not is_debugging():
                shorten_traceback(error)
            if isinstance(error, RuntimeError):
                _explain(error)
            if isinstance(error, StopAsyncIteration):
                raise _passable(error) from error
            raise
        finally:
            self._running = False

    def discard(self) -> None:
        """End the flow without performing anything any more."""
        if not self.started and self._make is not None:
            self.started = self.finished = True
            return
        for _ in range(100):  # a flow that awaits in each of many nested `finally` blocks is thrown out of each
            if self.finished or self._running:
                return
            try:
                if _is_torn(self._flow):
                    self._close()
                else:
                    self.fail(Abandoned())
            except BaseException:
                return

    def _close(self) -> None:
        """Close a flow of which the garbage collector has closed an inner part, through which nothing can be thrown."""
        self._running = True
        try:
            with suppress(RuntimeError):  # it awaits something in a `finally` block, and can be thrown out of that
                self.context.run(self._flow.close)
        finally:
            self._running = False
            self.finished = getattr(self._flow, "cr_frame", None) is None

    def __del__(self) -> None:
        if not self.finished:
            with in_finalizer():
                self.discard()


def _is_torn(flow: Any) -> bool:
    """Whether a coroutine awaits one that has been closed; the collector closes those of a cycle in any order."""
    while isinstance(inner := getattr(flow, "cr_await", None), types.CoroutineType):
        if inner.cr_frame is None:
            return True
        flow = inner
    return False


def call(flow: Flow[T]) -> T:
    """Run a flow to its end, blocking, and return its result."""
    return drive(Execution(flow))


def drive(execution: Execution[T]) -> T:
    """Run the rest of a flow, blocking."""
    try:
        execution.start()
        while not execution.finished:
            advance(execution)
        return execution.result
    finally:
        if not execution.finished:
            execution.discard()


def advance(execution: Execution[Any]) -> None:
    """Perform the step a flow waits for, blocking, and resume the flow."""
    assert execution.step is not None
    try:
        result = execution.context.run(execution.step.run)
    except BaseException as error:
        failure = error
    else:
        execution.resume(result)
        return
    fail_afterwards(execution, failure)


def performed(execution: Execution[Any], step: Callable[[], Any]) -> Callable[[], None]:
    """Perform the step a flow waits for, blocking; return what resumes the flow with its result or its error."""
    try:
        result = step()
    except BaseException as error:
        failure = error
    else:
        return partial(execution.resume, result)
    return partial(fail_afterwards, execution, failure)


def fail_afterwards(execution: Execution[Any], failure: BaseException) -> None:
    """Throw a step's error into the flow, after the driver's `except` and not from inside it.

    Whatever the flow raises later would else carry the error as its context, and with it texts that must not travel.
    """
    try:
        execution.fail(failure)
    finally:
        del failure  # or the traceback of the error would hold the error


async def acall(flow: Flow[T]) -> T:
    """Run a flow to its end on asyncio and return its result."""
    return await adrive(Execution(flow))


async def adrive(execution: Execution[T]) -> T:
    """Run the rest of a flow on asyncio."""
    try:
        execution.start()
        while not execution.finished:
            await aadvance(execution)
        return execution.result
    finally:
        if not execution.finished:
            execution.discard()


async def aadvance(execution: Execution[Any]) -> None:
    """Perform the step a flow waits for on asyncio, and resume the flow."""
    assert execution.step is not None
    try:
        result = await inside(execution, execution.step.arun())
    except GeneratorExit:  # the task's event loop is gone: nothing can be performed any more
        execution.discard()
        raise
    except BaseException as error:
        failure = error
    else:
        execution.resume(result)
        return
    fail_afterwards(execution, failure)


async def aperformed(execution: Execution[Any]) -> Callable[[], None]:
    """Perform the step a flow waits for on asyncio; return what resumes the flow with its result or its error."""
    assert execution.step is not None
    try:
        result = await inside(execution, execution.step.arun())
    except GeneratorExit:  # the task's event loop is gone: nothing can be performed any more
        execution.discard()
        raise
    except BaseException as error:
        failure = error
    else:
        return partial(execution.resume, result)
    return partial(fail_afterwards, execution, failure)


@types.coroutine
def inside(execution: Execution[Any], awaitable: Awaitable[T]) -> Generator[Any, Any, T]:
    """Drive `awaitable` inside the execution's context; what it yields goes to the event loop of the current task."""
    run = execution.context.run
    steps: Any = awaitable.__await__()
    resume, value = steps.send, None
    try:
        while True:
            waits_for = run(resume, value)
            try:
                resume, value = steps.send, (yield waits_for)
            except GeneratorExit:
                with suppress(RuntimeError):  # an async generator within another cannot be closed while it waits
                    run(steps.close)
                raise
            except BaseException as error:  # thrown in after this block, for the reason `fail_afterwards` gives
                resume, value = steps.throw, error
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        del value


@types.coroutine
def _to_event_loop(awaited: Any) -> Generator[Any, Any, Any]:
    return (yield awaited)


def _needs_event_loop(awaited: object, where: str = "") -> NeedsEventLoop:
    what = "" if awaited is None else f" ({type(awaited).__name__})"
    return NeedsEventLoop(
        f"a blocking run cannot await what only an event loop can finish{what}{where}: "
        "run it with .acall() or .astream(), or wrap the call in `await perform(function, ...)`"
    )


def _explain(error: RuntimeError) -> None:
    """Raise `NeedsEventLoop` for an asyncio function that looked for a loop before it awaited one."""
    if str(error) == "no running event loop":
        frames = traceback.walk_tb(error.__traceback__)
        frame, line = [each for each in frames if not each[0].f_globals.get("__name__", "").startswith("asyncio.")][-1]
        raise _needs_event_loop(None, f" at {frame.f_code.co_filename}:{line}") from error


_CONVERTED = frozenset(
    f"{kind} raised {error.__name__}"
    for kind in ("generator", "coroutine", "async generator")
    for error in (StopIteration, StopAsyncIteration)
)


def _passable(error: BaseException) -> BaseException:
    """Return `error`, or the `RuntimeError` that Python makes of one that would end an iteration."""
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    kind = StopIteration if isinstance(error, StopIteration) else StopAsyncIteration
    passable = RuntimeError(f"coroutine raised {kind.__name__}")
    passable.__cause__ = error
    return passable


def as_raised(error: Exception) -> Exception:
    """Return the `StopIteration` or `StopAsyncIteration` that a `RuntimeError` stands for; else `error` itself."""
    if type(error) is RuntimeError and isinstance(cause := error.__cause__, StopIteration | StopAsyncIteration):
        return cause if str(error) in _CONVERTED else error
    return error
