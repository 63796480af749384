"""Runs under way: a stream of chunks, or a run whose driver is the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from traced_tools.advisors.exchange import ChatClientResponse
from traced_tools.errors import Abandoned
from traced_tools.flow.flow import Execution, Flow, ForeignAwaitable, Step, aperform_step, perform_step
from traced_tools.flow.streams import AsyncStream, Stream
from traced_tools.flow.workers import Canceller
from traced_tools.models.step import CallModel
from traced_tools.tools.manager import ExecuteTools

RunFlow = Callable[[], Flow[ChatClientResponse]]


def _response(stream: Stream[ChatClientResponse] | AsyncStream[ChatClientResponse]) -> ChatClientResponse:
    if not stream.returned:
        raise RuntimeError("the stream has not been read to its end, so there is no aggregated response yet")
    response: ChatClientResponse = stream.result
    return response


class ChatStream:
    """The chunks of a run, as they arrive; iterate over it, best in a `with` block.

    Leaving the block early closes the model's stream and ends every span. `.text` of a chunk is what arrived.
    `.response` is the aggregate, after the last chunk.
    """

    def __init__(self, flow: RunFlow) -> None:
        self._stream: Stream[ChatClientResponse] = Stream(flow)

    @property
    def response(self) -> ChatClientResponse:
        """The aggregated response; raises `RuntimeError` before the stream has been read to its end."""
        return _response(self._stream)

    def __iter__(self) -> Iterator[ChatClientResponse]:
        return self

    def __next__(self) -> ChatClientResponse:
        return next(self._stream)

    def close(self) -> None:
        """Leave the stream."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncChatStream:
    """The chunks of a run on asyncio, as they arrive; iterate over it, best in an `async with` block.

    Leaving the block early closes the model's stream and ends every span. Chunks may be pulled from different tasks.
    """

    def __init__(self, flow: RunFlow) -> None:
        self._stream: AsyncStream[ChatClientResponse] = AsyncStream(flow)

    @property
    def response(self) -> ChatClientResponse:
        """The aggregated response; raises `RuntimeError` before the stream has been read to its end."""
        return _response(self._stream)

    def __aiter__(self) -> AsyncIterator[ChatClientResponse]:
        return self

    async def __anext__(self) -> ChatClientResponse:
        return await anext(self._stream)

    async def aclose(self) -> None:
        """Leave the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class ChatRun:
    """A run whose driver is the caller: nothing happens but the steps the caller performs.

        run = client.prompt("...", tools=[...]).start()
        while step := run.next():
            run.perform(step)
        print(run.response.content)

    A `CallModel` step asks the model, an `ExecuteTools` step runs tools; advisors may add steps of their own.
    """

    def __init__(self, flow: RunFlow) -> None:
        self._execution = Execution(flow)
        self._canceller = Canceller()
        self._cancelled = self._ending = False

    def next(self) -> Step[Any] | None:
        """Return the step the run waits for, the same one until it is performed; None when the run has ended.

        The steps of a run that was cancelled are those of its clean-up.
        """
        if not self._end():
            self._execution.start()
        return self._execution.step

    def perform(self, step: Step[Any]) -> None:
        """Perform `step`, blocking, and let the run go on to its next one."""
        self._check(step)
        if not self._end():
            self._go_on(perform_step(self._execution, partial(self._execution.context.run, step.run)))

    async def aperform(self, step: Step[Any]) -> None:
        """Perform `step` on asyncio and let the run go on to its next one."""
        self._check(step)
        await self._aperform_next()
        while isinstance(self._execution.step, ForeignAwaitable):
            await self._aperform_next()

    async def _aperform_next(self) -> None:
        resume: Callable[[], object] = bool
        with self._canceller:
            if not self._is_to_end:  # asked in the block: who cancels from here on cancels what is awaited
                resume = await aperform_step(self._execution)
        # a task that is cancelled itself must not end as if only the run were
        self._go_on(resume, task_is_cancelled=self._canceller.task_is_cancelled)

    def _go_on(self, resume: Callable[[], object], *, task_is_cancelled: bool = False) -> None:
        if task_is_cancelled or not self._end():
            with suppress(Abandoned):  # the clean-up of a cancelled run is over
                resume()

    def cancel(self) -> None:
        """Cancel the run, from any thread or task; it ends as `cancelled` where it is driven, and at once if it waits.

        No further step is performed but those of its clean-up, which `next` gives. On asyncio the step in flight is
        cancelled. In a blocking run it cannot be stopped: a model's answer is dropped when it comes, and tools are told
        (`ToolContext.cancelled`) and waited for. A run that has not begun leaves nothing behind; one that has ended
        stays as it is.
        """
        if self._cancelled:
            return
        self._cancelled = True
        if isinstance(step := self._execution.step, ExecuteTools):
            step.cancel()
        self._canceller.cancel()

    @property
    def _is_to_end(self) -> bool:
        """Whether the run was cancelled, and its flow does not know yet."""
        return self._cancelled and not self._ending

    def _end(self) -> bool:
        """Throw a cancellation into the flow, the first time it is seen, and return whether that was now."""
        if not self._is_to_end:
            return False
        self._ending = True
        execution = self._execution
        if not execution.started or execution.finished:
            execution.discard()
        else:
            with suppress(Abandoned):
                execution.fail(Abandoned())
        return True

    def answer(self, step: Step[Any], result: object) -> None:
        """Go on as if `step` had given `result`: a `ChatResponse`, a list of `ToolResult`s, or what the call returns.

        Tool results given so count as `answered`: each leaves a span and a record, and no tool runs.
        """
        self._check(step)
        if isinstance(step, ExecuteTools):
            self._set_results(step, result)
            self.perform(step)
        else:
            accepted = step.normalize_response(result) if isinstance(step, CallModel) else result
            self._go_on(partial(self._execution.resume, accepted))

    def _set_results(self, step: ExecuteTools, results: object) -> None:
        if not isinstance(results, Sequence) or [getattr(each, "call_id", None) for each in results] != [
            call.id for call in step.calls
        ]:
            raise ValueError("the answer to ExecuteTools must be one ToolResult per call, in call order")
        for index, result in enumerate(results):
            step.refuse(index, "answered", result.content, result.value)

    def _check(self, step: Step[Any]) -> None:
        if step is not self._execution.step:
            raise ValueError("that is not the step the run waits for: take it from run.next()")

    @property
    def response(self) -> ChatClientResponse:
        """The run's response; raises `RuntimeError` before the run has ended."""
        if not self._execution.finished:
            raise RuntimeError("the run has not ended: perform what run.next() gives until it gives None")
        if not self._execution.returned:
            raise RuntimeError("the run ended without a response: it failed, was cancelled or was closed")
        return self._execution.result

    def close(self) -> None:
        """Give the run up: its spans end as cancelled."""
        self._execution.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
