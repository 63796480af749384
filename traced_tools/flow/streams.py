"""The two drivers that yield chunks as they arrive, without a queue or task between the model and the consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from traced_tools.errors import Abandoned
from traced_tools.flow.flow import Execution, Flow, StreamingStep, drive_in_context, fail_afterwards

C = TypeVar("C")

_END: Any = object()


class _SingleConsumer:
    """Allows one caller at a time. Entered for each chunk, so it is a class and not a slower generator."""

    __slots__ = ("_busy",)

    def __init__(self) -> None:
        self._busy = False

    def __enter__(self) -> None:
        if self._busy:
            raise RuntimeError("another thread or task waits for this stream: let it get its chunk or cancel it")
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False


class _ChunkDriver:
    """The common part of both drivers: a flow whose steps can yield chunks."""

    _chunks: Any = None

    def __init__(self, flow: Flow[Any] | Callable[[], Flow[Any]]) -> None:
        self._execution = Execution(flow)
        self._single_consumer = _SingleConsumer()

    @property
    def returned(self) -> bool:
        """Whether the flow has returned, so that `result` is set."""
        return self._execution.returned

    @property
    def result(self) -> Any:
        """The flow's result; set after the last chunk."""
        return self._execution.result

    def _finish_step(self, step: StreamingStep[Any, Any]) -> Any:
        """Resume the flow with the result of `step`, all of whose chunks have been yielded."""
        self._chunks = None
        if not hasattr(step, "result"):  # other code, such as an event loop that ended, closed the stream
            return self._fail_step(RuntimeError("the model's stream was closed before its end"))
        self._execution.resume(step.result)
        return _END

    def _fail_step(self, failure: BaseException) -> Any:
        """Throw into the flow the error that the stream of its step raised."""
        self._chunks = None
        fail_afterwards(self._execution, failure)
        return _END

    def _stop_flow(self, reason: BaseException) -> None:
        """Throw `reason` into the flow. The caller performs the steps that the flow then awaits."""
        execution = self._execution
        if execution.finished or not execution.started:
            execution.discard()
        else:
            execution.fail(reason)


class Stream(_ChunkDriver, Generic[C]):
    """Runs a flow, blocking, and yields the chunks of its streaming steps as they arrive."""

    def __iter__(self) -> Iterator[C]:
        return self

    def __next__(self) -> C:
        execution = self._execution
        with self._single_consumer:
            execution.start()
            while not execution.finished:
                if not isinstance(execution.step, StreamingStep):
                    execution.run_steps(StreamingStep)
                elif (chunk := self._pull(execution.step)) is not _END:
                    return chunk
        raise StopIteration

    def _pull(self, step: StreamingStep[Any, C]) -> C:
        run = self._execution.context.run
        try:
            if self._chunks is None:
                self._chunks = iter(run(step.stream))
            chunk = run(next, self._chunks, _END)
        except BaseException as error:
            failure = error
        else:
            return chunk if chunk is not _END else self._finish_step(step)  # type: ignore[no-any-return]
        return self._fail_step(failure)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop early: close the model's stream and let the flow clean up and end its spans."""
        with self._single_consumer:
            chunks, self._chunks = self._chunks, None
            reason: BaseException = Abandoned()
            try:
                if isinstance(chunks, Generator):
                    self._execution.context.run(chunks.close)
            except BaseException as error:
                reason = error
            try:
                self._stop_flow(reason)
                self._execution.run_steps()
            except Abandoned:
                pass


class AsyncStream(_ChunkDriver, Generic[C]):
    """Runs a flow on asyncio and yields the chunks of its streaming steps as they arrive. Any task may iterate."""

    def __aiter__(self) -> AsyncIterator[C]:
        return self

    async def __anext__(self) -> C:
        execution = self._execution
        with self._single_consumer:
            execution.start()
            while not execution.finished:
                if not isinstance(execution.step, StreamingStep):
                    await execution.arun_steps(StreamingStep)
                elif (chunk := await self._pull(execution.step)) is not _END:
                    return chunk
        raise StopAsyncIteration

    async def _pull(self, step: StreamingStep[Any, C]) -> C:
        execution = self._execution
        failure: BaseException | None = None
        try:
            if self._chunks is None:
                self._chunks = aiter(execution.context.run(step.astream))
            chunk: C = await drive_in_context(execution, self._chunks.__anext__())
        except StopAsyncIteration:
            chunk = _END
        except GeneratorExit:  # the task's event loop has ended, so no step can be performed anymore
            self._chunks = None
            execution.discard()
            raise
        except BaseException as error:
            failure = error
        if failure is not None:
            return self._fail_step(failure)  # type: ignore[no-any-return]
        return chunk if chunk is not _END else self._finish_step(step)

    async def aclose(self) -> None:
        """Stop early: close the model's stream and let the flow clean up and end its spans."""
        with self._single_consumer:
            chunks, self._chunks = self._chunks, None
            reason: BaseException = Abandoned()
            try:
                if chunks is not None and hasattr(chunks, "aclose"):
                    await drive_in_context(self._execution, chunks.aclose())
            except BaseException as error:
                reason = error
            try:
                self._stop_flow(reason)
                await self._execution.arun_steps()
            except Abandoned:
                pass
