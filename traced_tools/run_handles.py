"""Runs in progress: streams of chunks, and runs that the caller drives step by step."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Final, Generic, Self

from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import Abandoned
from traced_tools.flow.flow import (
    Execution,
    Flow,
    ForeignAwaitable,
    Step,
    StreamingStep,
    aperform_step,
    drive_in_context,
    fail_afterwards,
    perform_step,
)
from traced_tools.flow.streams import AsyncStream, Stream
from traced_tools.flow.workers import Canceller
from traced_tools.loop.exchange import ChatClientResponse, OutputT
from traced_tools.models.step import CallModel
from traced_tools.tools.batch import ExecuteTools

RunFlow = Callable[[], Flow[ChatClientResponse[OutputT]]]
_END: Final[Any] = object()


def _response(
    stream: Stream[ChatClientResponse[OutputT]] | AsyncStream[ChatClientResponse[OutputT]],
) -> ChatClientResponse[OutputT]:
    if not stream.returned:
        raise RuntimeError("the stream has not been read to its end, so there is no aggregated response yet")
    response: ChatClientResponse[OutputT] = stream.result
    return response


class ChatStream(Generic[OutputT]):
    """Iterates over the chunks of a blocking run as they arrive; use it in a `with` block.

    Leaving the block early closes the model's stream and ends every span. A chunk's `.text` is the text that arrived.
    After the last chunk, `.response` is the aggregated response.

    An error of the run raises from the request for the next chunk, after the chunks that arrived before it. The stream
    has then ended, and has no response. A `ModelError` has `streamed`, whether a part of the answer had arrived.
    """

    def __init__(self, flow: RunFlow[OutputT]) -> None:
        self._stream: Stream[ChatClientResponse[OutputT]] = Stream(flow)

    @property
    def response(self) -> ChatClientResponse[OutputT]:
        """The aggregated response; raises `RuntimeError` before the stream has been read to its end."""
        return _response(self._stream)

    def __iter__(self) -> Iterator[ChatClientResponse[OutputT]]:
        return self

    def __next__(self) -> ChatClientResponse[OutputT]:
        return next(self._stream)

    def close(self) -> None:
        """Close the stream. If the run has not finished, it ends as cancelled."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncChatStream(Generic[OutputT]):
    """Iterates over the chunks of a run on asyncio as they arrive; use it in an `async with` block.

    Leaving the block early closes the model's stream and ends every span. Different tasks may request chunks. Errors of
    the run raise as from a `ChatStream`.
    """

    def __init__(self, flow: RunFlow[OutputT]) -> None:
        self._stream: AsyncStream[ChatClientResponse[OutputT]] = AsyncStream(flow)

    @property
    def response(self) -> ChatClientResponse[OutputT]:
        """The aggregated response; raises `RuntimeError` before the stream has been read to its end."""
        return _response(self._stream)

    def __aiter__(self) -> AsyncIterator[ChatClientResponse[OutputT]]:
        return self

    async def __anext__(self) -> ChatClientResponse[OutputT]:
        return await anext(self._stream)

    async def aclose(self) -> None:
        """Close the stream. If the run has not finished, it ends as cancelled."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class ChatRun(Generic[OutputT]):
    """A run that the caller drives: it goes forward only when the caller performs a step.

        run = client.prompt("...", tools=[...]).start()
        while step := run.next():
            run.perform(step)
        print(run.response.content)

    A `CallModel` step calls the model, an `ExecuteTools` step runs tools. Advisors may add other steps. To read the
    model's answer as it arrives, iterate over `run.stream(step)` instead of calling `run.perform(step)`.
    """

    def __init__(self, flow: RunFlow[OutputT]) -> None:
        self._execution = Execution(flow)
        self._canceller = Canceller()
        self._cancelled = self._ending = False
        self._waits_since = 0  # since when the run waits for its caller, by perf_counter_ns(); 0 while a step goes on

    def next(self) -> Step[Any] | None:
        """Return the step that the run waits for; None when the run has ended.

        Until that step is performed, each call returns the same step. After `cancel`, only clean-up steps follow.
        """
        if not self._end() and not self._execution.started:
            self._execution.start()
            self._waits_since = perf_counter_ns()
        return self._execution.step

    def perform(self, step: Step[Any]) -> None:
        """Perform `step`, blocking, and advance the run to its next step."""
        self._check_performable(step)
        self._begin(step)
        if not self._end():
            self._go_on(perform_step(self._execution, partial(self._execution.context.run, step.run)))

    async def aperform(self, step: Step[Any]) -> None:
        """Perform `step` on asyncio and advance the run to its next step."""
        self._check_performable(step)
        self._begin(step)
        await self._aperform_next()
        await self._aperform_foreign()

    def stream(self, step: Step[Any]) -> Generator[ChatClientResponse[OutputT]]:
        """Perform `step`, blocking, yield its chunks as they arrive, and advance the run to its next step.

        The step is performed while the caller iterates; only steps that call a model have chunks. If the caller stops
        early, the model's stream is closed and the run still waits for the step.
        """
        self._check(step)
        if not isinstance(step, StreamingStep):
            return self.perform(step)
        self._begin(step)
        enter, failure = self._execution.context.run, None
        chunks: Any = enter(step.stream)
        try:
            for chunk in iter(partial(enter, next, chunks, _END), _END):
                yield chunk
                if self._is_to_end:
                    break
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
        finally:
            enter(chunks.close)
        self._finish(step, failure)

    async def astream(self, step: Step[Any]) -> AsyncGenerator[ChatClientResponse[OutputT]]:
        """Perform `step` on asyncio, yield its chunks as they arrive, and advance the run to its next step.

        See `stream`. To stop early, iterate in a `contextlib.aclosing` block, which closes the model's stream at once.
        """
        self._check(step)
        if not isinstance(step, StreamingStep):
            await self.aperform(step)
            return
        self._begin(step)
        execution, failure = self._execution, None
        chunks: Any = execution.context.run(step.astream)
        try:
            while True:
                with self._canceller:
                    if self._is_to_end:  # checked in the block: from here on, `cancel` cancels what is awaited
                        break
                    chunk = await drive_in_context(execution, chunks.__anext__())
                yield chunk
        except StopAsyncIteration:
            pass
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
        finally:
            await drive_in_context(execution, chunks.aclose())
        self._finish(step, failure, task_is_cancelled=self._canceller.task_is_cancelled)
        await self._aperform_foreign()

    def _finish(
        self, step: StreamingStep[Any, Any], failure: BaseException | None, *, task_is_cancelled: bool = False
    ) -> None:
        """Resume the run with the result of a step whose chunks have been yielded, or with its error."""
        if not self._is_to_end:
            self._check(step)  # the caller may have performed it otherwise between two chunks
        if failure is None:
            self._go_on(lambda: self._execution.resume(step.result))
        else:
            self._go_on(partial(fail_afterwards, self._execution, failure), task_is_cancelled=task_is_cancelled)

    async def _aperform_foreign(self) -> None:
        while isinstance(self._execution.step, ForeignAwaitable):
            await self._aperform_next()

    async def _aperform_next(self) -> None:
        resume: Callable[[], object] = bool
        with self._canceller:
            if not self._is_to_end:  # checked in the block: from here on, `cancel` cancels what is awaited
                resume = await aperform_step(self._execution)
        # if the task itself is cancelled, that cancellation must reach its caller
        self._go_on(resume, task_is_cancelled=self._canceller.task_is_cancelled)

    def _go_on(self, resume: Callable[[], object], *, task_is_cancelled: bool = False) -> None:
        if task_is_cancelled or not self._end():
            with suppress(Abandoned):  # the clean-up of a cancelled run is over
                resume()
        self._waits_since = perf_counter_ns()

    def cancel(self) -> None:
        """Cancel the run, from any thread or task. It ends as `cancelled` in the code that drives it.

        Only clean-up steps follow; `next` returns them. On asyncio the step in progress is cancelled. A blocking step
        cannot be stopped: the run waits for it and drops a model's answer; tools can check `ToolContext.cancelled`.
        A run that has not begun emits nothing. `cancel` does not change a run that has ended.
        """
        if self._cancelled:
            return
        self._cancelled = True
        if isinstance(step := self._execution.step, ExecuteTools):
            step.cancel()
        self._canceller.cancel()

    @property
    def _is_to_end(self) -> bool:
        """Whether the run was cancelled and the cancellation has not reached its flow yet."""
        return self._cancelled and not self._ending

    def _end(self) -> bool:
        """If the run was cancelled, throw that into its flow once; return whether this call did so."""
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
        """Resume the run with `result` as the result of `step`, without a model call or a tool call.

        Tool results from the caller have the decision `answered`: each call has a span and an audit record, and no tool
        runs. If the caller has performed the step itself, such as with `step.run()`, its calls are recorded already.

        Args:
            step: the step that the run waits for.
            result: a `ChatResponse` for `CallModel`, a list of `ToolResult`s in call order for `ExecuteTools`, or the
                return value of the call that the step stands for.
        """
        self._check(step)
        if isinstance(step, ExecuteTools):
            results = self._checked_results(step, result)
            if step.is_performed:
                self._go_on(partial(self._execution.resume, results))
                return
            for index, tool_result in enumerate(results):
                step.refuse(index, "answered", tool_result.content, tool_result.value)
            self.perform(step)
        else:
            accepted = step.normalize_response(result) if isinstance(step, CallModel) else result
            self._go_on(partial(self._execution.resume, accepted))

    def _checked_results(self, step: ExecuteTools, results: object) -> list[ToolResult]:
        items = results if isinstance(results, Sequence) else ()
        tool_results = [item for item in items if isinstance(item, ToolResult)]
        if [tool_result.call_id for tool_result in tool_results] != [call.id for call in step.calls]:
            raise ValueError("the answer to ExecuteTools must be one ToolResult per call, in call order")
        return tool_results

    def _begin(self, step: Step[Any]) -> None:
        """Record how long the run has waited for its caller before the step."""
        if self._waits_since and isinstance(step, CallModel | ExecuteTools):
            step.held_back_since(self._waits_since)
        self._waits_since = 0

    def _check_performable(self, step: Step[Any]) -> None:
        self._check(step)
        if isinstance(step, ExecuteTools):
            step.check_unperformed()

    def _check(self, step: Step[Any]) -> None:
        if step is not self._execution.step:
            raise ValueError("the run does not wait for this step: pass the step that run.next() returns")

    @property
    def response(self) -> ChatClientResponse[OutputT]:
        """The run's response; raises `RuntimeError` before the run has ended."""
        if not self._execution.finished:
            raise RuntimeError("the run has not ended: perform the steps that run.next() returns until it returns None")
        if not self._execution.returned:
            raise RuntimeError("the run ended without a response: it failed, was cancelled or was closed")
        return self._execution.result

    def close(self) -> None:
        """Abandon the run: its spans end as cancelled."""
        self._execution.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
