"""Flows, steps and drivers: a loop that is written once runs blocking, on asyncio, and streamed in both.

A *flow* is an `async def` that makes decisions and never waits itself. It awaits everything that takes time as a
*step*:

    async def advise(request, call_next):              a flow
        answer = await CallModel(model, request)       a step: call a model
        await perform(store.save, answer)              a step: any other blocking or async function
        return answer

Awaiting a step suspends the flow and passes the step to the flow's *driver*. The driver performs the step in its own
way and resumes the flow with the result, or throws the step's error into the flow:

    driver      performs a step by    yields chunks   used by
    call        step.run()            no              spec.call()
    acall       await step.arun()     no              await spec.acall()
    Stream      step.stream()         yes             for chunk in spec.stream()
    AsyncStream step.astream()        yes             async for chunk in spec.astream()

A user can also perform the steps one by one (`Execution`). No other code in the package depends on the driver.

*Context.* An `Execution` has one `contextvars.Context`, copied from its caller. The flow and all its steps run in
it, including coroutines and streams (see `drive_in_context`). So a span that a flow makes current is current for the
model and the tools, but not for the consumer, which runs only between two steps.

*Awaiting something else.* An awaitable that isn't a step belongs to an asyncio library. On asyncio it is passed to the
event loop. In a blocking run there is no event loop, so `NeedsEventLoop` is raised at the `await`.

*StopIteration.* In some kinds of coroutines, `StopIteration` or `StopAsyncIteration` would look like a normal end. In
all modes, a flow therefore receives and raises a `RuntimeError` with the original as its cause, as Python itself does
for most coroutines.

*Leaving early.* If the consumer stops, `Abandoned` is thrown into the flow. Its `finally` blocks run, and steps they
await are still performed. If no step can be performed anymore (garbage collection), these steps raise `Abandoned`.
"""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from traced_tools.core.tracebacks import is_debugging, shorten_traceback
from traced_tools.errors import Abandoned, NeedsEventLoop
from traced_tools.flow.deferred import in_finalizer, is_in_finalizer

T = TypeVar("T")
C = TypeVar("C")
Flow = Coroutine[Any, Any, T]
_StepTypes: TypeAlias = "type[Step[Any]] | tuple[()]"


class Step(Generic[T]):
    """An operation that a flow awaits, which passes it to the driver. Subclasses implement how it is performed."""

    __slots__ = ()

    def __await__(self) -> Generator[Step[T], T, T]:
        if isinstance(sys.exception(), GeneratorExit) and is_in_finalizer():
            raise GeneratorExit  # the garbage collector is closing the coroutine, which must not await anymore
        return (yield self)

    def run(self) -> T:
        """Perform the step, blocking."""
        raise NotImplementedError(f"{type(self).__name__} does not implement run()")

    async def arun(self) -> T:
        """Perform the step on asyncio."""
        raise NotImplementedError(f"{type(self).__name__} does not implement arun()")


class StreamingStep(Step[T], Generic[T, C]):
    """A step that can also be performed in chunks; `result` is set after the last chunk."""

    __slots__ = ()
    result: T

    def stream(self) -> Iterator[C]:
        """Perform the step, blocking, and yield the chunks."""
        raise NotImplementedError(f"{type(self).__name__} does not implement stream()")

    def astream(self) -> AsyncIterator[C]:
        """Perform the step on asyncio and yield the chunks."""
        raise NotImplementedError(f"{type(self).__name__} does not implement astream()")


class ForeignAwaitable(Step[Any]):
    """Wraps an awaitable of an asyncio library that a flow awaited directly."""

    __slots__ = ("_awaited",)

    def __init__(self, awaited: object) -> None:
        self._awaited = awaited

    def run(self) -> Any:
        """Perform the step, blocking."""
        raise _needs_event_loop(self._awaited)

    async def arun(self) -> Any:
        """Perform the step on asyncio."""
        return await _yield_to_event_loop(self._awaited)


class Execution(Generic[T]):
    """A flow with its context, the step it awaits, and finally its result.

    Args:
        flow: the flow, or preferably a function that creates it. With a function, the context is copied when the
            execution starts, not when it is created.
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
        """Whether the flow has returned; False if it raised an error or was abandoned."""
        return hasattr(self, "result")

    def resume(self, value: Any = None) -> None:
        """Send `value` to the flow and run it to its next step or its end."""
        self.context.run(self._advance, self._flow.send, value)

    def fail(self, error: BaseException) -> None:
        """Throw `error` into the flow at its current `await`."""
        self.context.run(self._advance, self._flow.throw, _without_stop_iteration(error))

    def start(self) -> None:
        """Run the flow to its first step, unless it has already started."""
        if not self.started:
            if self._make is not None:
                self._flow, self.context = self._make(), copy_context()
            self.resume()

    def run_steps(self, until: _StepTypes = ()) -> None:
        """Perform the flow's steps, blocking, until it ends or awaits a step of the type `until`."""
        self.context.run(self._run_steps, until)

    async def arun_steps(self, until: _StepTypes = ()) -> None:
        """Perform the flow's steps on asyncio until it ends or awaits a step of the type `until`."""
        try:
            await drive_in_context(self, self._arun_steps(until))
        except GeneratorExit:  # the task's event loop has ended, so no step can be performed anymore
            self.discard()
            raise

    # What follows runs in the execution's context. It is entered once for several steps, not for each of them.

    def _run_steps(self, until: _StepTypes) -> None:
        while (step := self.step) is not None and not isinstance(step, until):
            try:
                result = step.run()
            except BaseException as error:
                failure = error
            else:
                self._advance(self._flow.send, result)
                continue
            try:
                self._advance(self._flow.throw, _without_stop_iteration(failure))
            finally:
                del failure  # see `fail_afterwards`

    async def _arun_steps(self, until: _StepTypes) -> None:
        while (step := self.step) is not None and not isinstance(step, until):
            try:
                result = await step.arun()
            except GeneratorExit:  # see `arun_steps`
                raise
            except BaseException as error:
                failure = error
            else:
                self._advance(self._flow.send, result)
                continue
            try:
                self._advance(self._flow.throw, _without_stop_iteration(failure))
            finally:
                del failure  # see `fail_afterwards`

    def _advance(self, action: Callable[[Any], Any], value: Any) -> None:
        """Run the flow to its next step or its end."""
        self.started = self._running = True
        try:
            step = action(value)
            self.step = step if isinstance(step, Step) else ForeignAwaitable(step)
        except StopIteration as end:
            self.finished, self.step, self.result = True, None, end.value
        except BaseException as error:
            self.finished, self.step = True, None
            if isinstance(error, Exception) and not is_debugging():
                shorten_traceback(error)
            if isinstance(error, RuntimeError):
                _raise_if_no_event_loop(error)
            if isinstance(error, StopAsyncIteration):
                raise _without_stop_iteration(error) from error
            raise
        finally:
            self._running = False

    def discard(self) -> None:
        """End the flow without performing further steps."""
        if not self.started and self._make is not None:
            self.started = self.finished = True
            return
        for _ in range(100):  # a flow can await in each of many nested `finally` blocks
            if self.finished or self._running:
                return
            try:
                if _has_closed_inner_coroutine(self._flow):
                    self._close()
                else:
                    self.fail(Abandoned())
            except BaseException:
                return

    def _close(self) -> None:
        """Close a flow whose inner coroutine was closed by the garbage collector, so that nothing can be thrown in."""
        self._running = True
        try:
            with suppress(RuntimeError):  # raised if the flow awaits in a `finally` block; `discard` then tries again
                self.context.run(self._flow.close)
        finally:
            self._running = False
            self.finished = getattr(self._flow, "cr_frame", None) is None

    def __del__(self) -> None:
        if not self.finished:
            with in_finalizer():
                self.discard()


def _has_closed_inner_coroutine(flow: Any) -> bool:
    """Whether a coroutine awaits a closed one. The garbage collector closes the coroutines of a cycle in any order."""
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
        execution.run_steps()
        return execution.result
    finally:
        if not execution.finished:
            execution.discard()


def perform_step(execution: Execution[Any], step: Callable[[], Any]) -> Callable[[], None]:
    """Perform `step`, blocking; return a function that resumes the flow with its result or error."""
    try:
        result = step()
    except BaseException as error:
        failure = error
    else:
        return partial(execution.resume, result)
    return partial(fail_afterwards, execution, failure)


def fail_afterwards(execution: Execution[Any], failure: BaseException) -> None:
    """Throw a step's error into the flow. Call this after the driver's `except` block, not inside it.

    Inside the block, the step's error would become the `__context__` of every error that the flow raises, together with
    texts that must not leave the process.
    """
    try:
        execution.fail(failure)
    finally:
        del failure  # breaks the reference cycle between the error and this frame in its traceback


def acall(flow: Flow[T]) -> Coroutine[Any, Any, T]:
    """Run a flow to its end on asyncio and return its result."""
    return adrive(Execution(flow))


async def adrive(execution: Execution[T]) -> T:
    """Run the rest of a flow on asyncio."""
    try:
        execution.start()
        await drive_in_context(execution, execution._arun_steps(()))
        return execution.result
    finally:
        if not execution.finished:
            execution.discard()


async def aperform_step(execution: Execution[Any]) -> Callable[[], None]:
    """Perform the step that the flow awaits on asyncio; return a function that resumes it with the result or error."""
    assert execution.step is not None
    try:
        result = await drive_in_context(execution, execution.step.arun())
    except GeneratorExit:  # the task's event loop has ended, so no step can be performed anymore
        execution.discard()
        raise
    except BaseException as error:
        failure = error
    else:
        return partial(execution.resume, result)
    return partial(fail_afterwards, execution, failure)


@types.coroutine
def drive_in_context(execution: Execution[Any], awaitable: Awaitable[T]) -> Generator[Any, Any, T]:
    """Run `awaitable` in the execution's context; futures it yields go to the event loop of the current task."""
    run = execution.context.run
    steps: Any = awaitable if isinstance(awaitable, types.CoroutineType) else awaitable.__await__()
    resume, value = steps.send, None
    try:
        while True:
            yielded = run(resume, value)
            try:
                resume, value = steps.send, (yield yielded)
            except GeneratorExit:
                with suppress(RuntimeError):  # a nested async generator cannot be closed while it awaits
                    run(steps.close)
                raise
            except BaseException as error:  # thrown in after this block, for the reason stated in `fail_afterwards`
                resume, value = steps.throw, error
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        del value  # breaks the reference cycle between an error and this frame in its traceback


@types.coroutine
def _yield_to_event_loop(awaited: Any) -> Generator[Any, Any, Any]:
    return (yield awaited)


def _needs_event_loop(awaited: object, location: str = "") -> NeedsEventLoop:
    type_name = "" if awaited is None else f" ({type(awaited).__name__})"
    return NeedsEventLoop(
        f"a blocking run cannot await an asyncio awaitable{type_name}{location}: "
        "run it with .acall() or .astream(), or wrap the call in `await perform(function, ...)`"
    )


def _raise_if_no_event_loop(error: RuntimeError) -> None:
    """Raise `NeedsEventLoop` if an asyncio function looked for a running event loop and found none."""
    if str(error) == "no running event loop":
        frames = traceback.walk_tb(error.__traceback__)
        frame, line = [(frame, line) for frame, line in frames if not _is_of_asyncio(frame)][-1]
        raise _needs_event_loop(None, f" at {frame.f_code.co_filename}:{line}") from error


def _is_of_asyncio(frame: types.FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith("asyncio.")


_CONVERTED_MESSAGES = frozenset(
    f"{kind} raised {error.__name__}"
    for kind in ("generator", "coroutine", "async generator")
    for error in (StopIteration, StopAsyncIteration)
)


def _without_stop_iteration(error: BaseException) -> BaseException:
    """Return `error`, or the `RuntimeError` into which Python turns a `StopIteration` or `StopAsyncIteration`."""
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    kind = StopIteration if isinstance(error, StopIteration) else StopAsyncIteration
    converted = RuntimeError(f"coroutine raised {kind.__name__}")
    converted.__cause__ = error
    return converted


def unwrap_stop_iteration(error: Exception) -> Exception:
    """Return the `StopIteration` or `StopAsyncIteration` that was converted to the `RuntimeError`, else `error`."""
    if type(error) is RuntimeError and isinstance(cause := error.__cause__, StopIteration | StopAsyncIteration):
        return cause if str(error) in _CONVERTED_MESSAGES else error
    return error
