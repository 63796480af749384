"""The two drivers that give chunks as they arrive; no queue and no task stands between the model and the consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from traced_tools.errors import Abandoned
from traced_tools.flow.flow import Execution, Flow, StreamingStep, aadvance, advance, drive_in_context, fail_afterwards

C = TypeVar("C")

_END: Any = object()


class _Alone:
    """Lets one caller in at a time; entered for each chunk, so it is no generator."""

    __slots__ = ("_busy",)

    def __init__(self) -> None:
        self._busy = False

    def __enter__(self) -> None:
        if self._busy:
            raise RuntimeError("somebody else waits for this stream: let them have their chunk, or cancel them, first")
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False


class _Streaming:
    """A flow under way whose steps give chunks."""

    _chunks: Any = None

    def __init__(self, flow: Flow[Any] | Callable[[], Flow[Any]]) -> None:
        self._execution = Execution(flow)
        self._alone = _Alone()

    @property
    def returned(self) -> bool:
        """Whether the flow has returned, so that there is a result."""
        return self._execution.returned

    @property
    def result(self) -> Any:
        """What the flow returned; there when the last chunk has been given."""
        return self._execution.result

    def _ended(self, step: StreamingStep[Any, Any]) -> Any:
        """Give the flow what the chunks of `step` amount to."""
        self._chunks = None
        if not hasattr(step, "result"):  # somebody, such as an event loop that ended, closed the chunks behind our back
            return self._failed(RuntimeError("the model's stream was closed before its end"))
        self._execution.resume(step.result)
        return _END

    def _failed(self, failure: BaseException) -> Any:
        """Throw into the flow what the stream of its step raised."""
        self._chunks = None
        fail_afterwards(self._execution, failure)
        return _END

    def _leave(self, reason: BaseException) -> None:
        """Throw `reason` into the flow; what it then still waits for is left to perform."""
        execution = self._execution
        if execution.finished or not execution.started:
            execution.discard()
        else:
            execution.fail(reason)


class Stream(_Streaming, Generic[C]):
    """Runs a flow, blocking, and gives the chunks of its streaming steps as they come."""

    def __iter__(self) -> Iterator[C]:
        return self

    def __next__(self) -> C:
        execution = self._execution
        with self._alone:
            execution.start()
            while not execution.finished:
                if not isinstance(execution.step, StreamingStep):
                    advance(execution)
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
            return chunk if chunk is not _END else self._ended(step)  # type: ignore[no-any-return]
        return self._failed(failure)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Leave the stream: close the model's stream, let the flow clean up, end its spans."""
        with self._alone:
            chunks, self._chunks = self._chunks, None
            reason: BaseException = Abandoned()
            try:
                if isinstance(chunks, Generator):
                    self._execution.context.run(chunks.close)
            except BaseException as error:
                reason = error
            try:
                self._leave(reason)
                while not self._execution.finished:
                    advance(self._execution)
            except Abandoned:
                pass


class AsyncStream(_Streaming, Generic[C]):
    """Runs a flow on asyncio and gives the chunks of its streaming steps as they come; any task may pull."""

    def __aiter__(self) -> AsyncIterator[C]:
        return self

    async def __anext__(self) -> C:
        execution = self._execution
        with self._alone:
            execution.start()
            while not execution.finished:
                if not isinstance(execution.step, StreamingStep):
                    await aadvance(execution)
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
        except GeneratorExit:  # the task's event loop is gone: nothing can be performed any more
            self._chunks = None
            execution.discard()
            raise
        except BaseException as error:
            failure = error
        if failure is not None:
            return self._failed(failure)  # type: ignore[no-any-return]
        return chunk if chunk is not _END else self._ended(step)

    async def aclose(self) -> None:
        """Leave the stream: close the model's stream, let the flow clean up, end its spans."""
        with self._alone:
            chunks, self._chunks = self._chunks, None
            reason: BaseException = Abandoned()
            try:
                if chunks is not None and hasattr(chunks, "aclose"):
                    await drive_in_context(self._execution, chunks.aclose())
            except BaseException as error:
                reason = error
            try:
                self._leave(reason)
                while not self._execution.finished:
                    await aadvance(self._execution)
            except Abandoned:
                pass
