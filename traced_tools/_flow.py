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
step is performed inside it, coroutines and chunks included (`_inside` drives them there, whichever task pulls). So what
a flow makes current, such as a span, is current for the model and the tools and never for the consumer, who sees a
chunk only between two steps.

*Awaiting something else.* What is not a step came from an asyncio library; under asyncio it is handed to the event
loop. In a blocking run there is no loop to hand it to: `NeedsEventLoop` is thrown in at that line.

*Leaving early.* A consumer that goes away has `Abandoned` thrown into the flow, whose `finally` blocks run and whose
last steps are still performed; when nothing can be performed any more (garbage collection) they get `Abandoned` too.
"""

from __future__ import annotations

import traceback
import types
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from traced_tools.errors import Abandoned, NeedsEventLoop

T = TypeVar("T")
C = TypeVar("C")
Flow = Coroutine[Any, Any, T]

_END: Any = object()


class Step(ABC, Generic[T]):
    """Something a flow waits for. Awaiting it hands it to the driver."""

    __slots__ = ()

    def __await__(self) -> Generator[Step[T], T, T]:
        return (yield self)

    @abstractmethod
    def run(self) -> T:
        """Perform the step, blocking."""

    @abstractmethod
    async def arun(self) -> T:
        """Perform the step on asyncio."""


class StreamingStep(Step[T], Generic[T, C]):
    """A step that can also be performed piece by piece; `result` is there when the last chunk has been given."""

    __slots__ = ()
    result: T

    @abstractmethod
    def stream(self) -> Iterator[C]:
        """Perform the step, blocking, and give the chunks."""

    @abstractmethod
    def astream(self) -> AsyncIterator[C]:
        """Perform the step on asyncio and give the chunks."""


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
    """A flow under way: its context, the step it waits for, and in the end its result."""

    __slots__ = ("__weakref__", "_flow", "_running", "context", "finished", "result", "started", "step")

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self._running = False
        self.context = copy_context()
        self.started = False
        self.finished = False
        self.step: Step[Any] | None = None
        self.result: T

    def resume(self, value: Any = None) -> None:
        """Send `value` to the flow and let it run to its next step or its end."""
        self._advance(self._flow.send, value)

    def fail(self, error: BaseException) -> None:
        """Throw `error` into the flow where it waits."""
        self._advance(self._flow.throw, error)

    def start(self) -> None:
        """Let the flow run to its first step, unless it has begun already."""
        if not self.started:
            self.resume()

    def _advance(self, action: Callable[[Any], Any], value: Any) -> None:
        self.started = self._running = True
        try:
            step = self.context.run(action, value)
            self.step = step if isinstance(step, Step) else Foreign(step)
        except StopIteration as done:
            self.finished, self.step, self.result = True, None, done.value
        except BaseException:
            self.finished, self.step = True, None
            raise
        finally:
            self._running = False

    def discard(self) -> None:
        """End the flow without performing anything any more."""
        for _ in range(100):  # a flow that awaits in each of many nested `finally` blocks is thrown out of each
            if self.finished or self._running:
                return
            try:
                self.fail(Abandoned())
            except BaseException:
                return

    def __del__(self) -> None:
        if not self.finished:
            self.discard()


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
    except RuntimeError as error:
        _explain(error)
        raise
    finally:
        execution.discard()


def advance(execution: Execution[Any]) -> None:
    """Perform the step a flow waits for, blocking, and resume the flow."""
    assert execution.step is not None
    try:
        result = execution.context.run(execution.step.run)
    except BaseException as error:
        execution.fail(error)
    else:
        execution.resume(result)


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
        execution.discard()


async def aadvance(execution: Execution[Any]) -> None:
    """Perform the step a flow waits for on asyncio, and resume the flow."""
    assert execution.step is not None
    try:
        result = await _inside(execution, execution.step.arun())
    except BaseException as error:
        execution.fail(error)
    else:
        execution.resume(result)


class Stream(Generic[C]):
    """Runs a flow, blocking, and gives the chunks of its streaming steps as they come."""

    def __init__(self, flow: Flow[Any]) -> None:
        self._execution = Execution(flow)
        self._chunks: Iterator[C] | None = None

    @property
    def result(self) -> Any:
        """What the flow returned; there when the last chunk has been given."""
        return self._execution.result

    def __iter__(self) -> Iterator[C]:
        return self

    def __next__(self) -> C:
        execution = self._execution
        try:
            execution.start()
            while not execution.finished:
                if not isinstance(execution.step, StreamingStep):
                    advance(execution)
                elif (chunk := self._pull(execution.step)) is not _END:
                    return chunk
        except RuntimeError as error:
            _explain(error)
            raise
        raise StopIteration

    def _pull(self, step: StreamingStep[Any, C]) -> C:
        run = self._execution.context.run
        try:
            if self._chunks is None:
                self._chunks = iter(run(step.stream))
            chunk = run(next, self._chunks, _END)
        except BaseException as error:
            self._chunks = None
            self._execution.fail(error)
            return _END  # type: ignore[no-any-return]
        if chunk is _END:
            self._chunks = None
            self._execution.resume(step.result)
        return chunk

    def close(self) -> None:
        """Leave the stream: close the model's stream, let the flow clean up, end its spans."""
        chunks, self._chunks = self._chunks, None
        execution = self._execution
        if isinstance(chunks, Generator):
            execution.context.run(chunks.close)
        if execution.finished or not execution.started:
            execution.discard()
            return
        try:
            execution.fail(Abandoned())
            while not execution.finished:
                advance(execution)
        except Abandoned:
            pass


class AsyncStream(Generic[C]):
    """Runs a flow on asyncio and gives the chunks of its streaming steps as they come; any task may pull."""

    def __init__(self, flow: Flow[Any]) -> None:
        self._execution = Execution(flow)
        self._chunks: AsyncIterator[C] | None = None

    @property
    def result(self) -> Any:
        """What the flow returned; there when the last chunk has been given."""
        return self._execution.result

    def __aiter__(self) -> AsyncIterator[C]:
        return self

    async def __anext__(self) -> C:
        execution = self._execution
        execution.start()
        while not execution.finished:
            if not isinstance(execution.step, StreamingStep):
                await aadvance(execution)
            elif (chunk := await self._pull(execution.step)) is not _END:
                return chunk
        raise StopAsyncIteration

    async def _pull(self, step: StreamingStep[Any, C]) -> C:
        execution = self._execution
        try:
            if self._chunks is None:
                self._chunks = aiter(execution.context.run(step.astream))
            chunk: C = await _inside(execution, anext(self._chunks, _END))
        except BaseException as error:
            self._chunks = None
            execution.fail(error)
            return _END  # type: ignore[no-any-return]
        if chunk is _END:
            self._chunks = None
            execution.resume(step.result)
        return chunk

    async def aclose(self) -> None:
        """Leave the stream: close the model's stream, let the flow clean up, end its spans."""
        chunks, self._chunks = self._chunks, None
        execution = self._execution
        if chunks is not None and hasattr(chunks, "aclose"):
            await _inside(execution, chunks.aclose())
        if execution.finished or not execution.started:
            execution.discard()
            return
        try:
            execution.fail(Abandoned())
            while not execution.finished:
                await aadvance(execution)
        except Abandoned:
            pass


@types.coroutine
def _inside(execution: Execution[Any], awaitable: Awaitable[T]) -> Generator[Any, Any, T]:
    """Drive `awaitable` inside the execution's context; what it yields goes to the event loop of the current task."""
    run = execution.context.run
    steps: Any = awaitable.__await__()
    try:
        waits_for = run(steps.send, None)
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = run(steps.throw, error)
            else:
                waits_for = run(steps.send, value)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


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
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "asyncio" not in frame.filename]
        raise _needs_event_loop(None, f" at {frames[-1].filename}:{frames[-1].lineno}") from error
