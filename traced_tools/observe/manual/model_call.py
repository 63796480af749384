"""A call of a model that the application makes itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from opentelemetry import context as otel_context

from traced_tools.core.checks import expect
from traced_tools.core.messages import AssistantMessage, Message
from traced_tools.core.options import NO_OPTIONS, ChatOptions
from traced_tools.errors import Abandoned
from traced_tools.models.base import ChatResponse
from traced_tools.observe.manual.place import RunPlace
from traced_tools.observe.observations import observe_model_call
from traced_tools.observe.time_ledger import TimeLedger
from traced_tools.tools.toolset import NO_TOOLS, ToolSet

if TYPE_CHECKING:
    from traced_tools.observe.manual.call_times import CallTimes
    from traced_tools.observe.stages.subjects import ModelChunk
    from traced_tools.run.context import RunContext

C = TypeVar("C")


@dataclass(frozen=True)
class ManualModel:
    """The model that is called, and the server that is asked."""

    model: str = ""
    provider: str = ""
    server_address: str | None = None
    server_port: int | None = None


@dataclass(frozen=True)
class ManualQuestion:
    """What a run or a model is asked."""

    messages: Sequence[Message] = field(default=(), repr=False)
    tools: ToolSet = NO_TOOLS
    options: ChatOptions = NO_OPTIONS
    iteration: int = 0


class ManualModelCall:
    """A call of a model, as a `with` block around it; an exception that leaves the block ends the call as failed.

    `ManualRun.model_call` makes them.

    Attributes:
        response: the answer, with an id on each call; None before `answered`.
    """

    def __init__(
        self,
        run: RunContext,
        model: ManualModel,
        question: ManualQuestion,
        place: RunPlace | None,
        answered: Callable[[ChatResponse, ToolSet], None],
        open_calls: set[ManualModelCall],
        times: CallTimes,
    ) -> None:
        self._ledger = TimeLedger()
        self._times = times
        self.response: ChatResponse | None = None
        self._open_calls = open_calls
        self._on_left: Callable[[], object] | None = None
        self._run = run
        self._model = model
        self._question = question
        self._place = place
        self._report = answered

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._place is not None:
                stack.enter_context(self._place)
            self._run.totals.inference_calls += 1
            self._times.begin()
            stack.callback(self._times.end, "model", [self._ledger])
            observed = observe_model_call(self._run, self._model, self._question, self._ledger)
            self._observed = stack.enter_context(observed)
            self._stack = stack.pop_all()
        self._open_calls.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._open_calls.remove(self)
        except KeyError:  # it has ended with its iteration or its run
            return
        self._stack.__exit__(kind, error, traceback)

    @property
    def is_open(self) -> bool:
        """Whether the call has begun and not ended."""
        return self in self._open_calls

    @property
    def iteration(self) -> int:
        """The iteration that the call belongs to, from 1; 0 for none."""
        return self._question.iteration

    def leave(self) -> None:
        """End the call as cancelled, because its iteration or its run ends, unless its answer has arrived after all."""
        if self._on_left is not None:
            self._on_left()
        error = Abandoned()
        if self._place is None:  # what the call has made current here is current no longer
            self.__exit__(Abandoned, error, None)
        else:
            self.end(error)

    def answered(self, answer: str | AssistantMessage | ChatResponse) -> ChatResponse:
        """Record the answer, once, inside the block.

        Args:
            answer: the answer: its text, its message with the calls that the model asks for, or a `ChatResponse` with
                the tokens, the finish reason, the provider's id and the model that answered.

        Returns:
            The answer with an id on each call; `execute` knows the calls by these ids.

        Raises:
            TypeError: for anything else.
            RuntimeError: if the call has an answer already, or its block has ended.
        """
        expect("answer", answer, (str, AssistantMessage, ChatResponse), "a str, an AssistantMessage or a ChatResponse")
        if self.response is not None or not self.is_open:
            problem = "has ended" if self.response is None else "has its answer"
            raise RuntimeError(f"the model call {problem}: report one answer, in the block `with run.model_call()`")
        if isinstance(answer, str):
            answer = AssistantMessage(answer)
        response = answer if isinstance(answer, ChatResponse) else ChatResponse(answer)
        self.response = response = response.with_call_ids()
        cost = self._run.cost_of(self._model, response)
        self._run.totals.add(response.usage, cost)
        self._report(response, self._question.tools)
        self._observed.answered(response, cost)
        return response

    def begin(self, on_left: Callable[[], object] | None = None) -> Self:
        """Begin the call without making it current here, for code that calls `end` in another context.

        Args:
            on_left: called if the call is open when its iteration or its run ends, before it is cancelled.
        """
        self._on_left = on_left
        copy_context().run(self._enter)
        return self

    def _enter(self) -> None:
        self.__enter__()
        self._context = otel_context.get_current()

    def end(self, error: BaseException | None = None) -> None:
        """End a call that `begin` has begun; with an error, as failed."""
        copy_context().run(self.__exit__, None if error is None else type(error), error, None)

    def place(self) -> AbstractContextManager[object]:
        """Return a `with` block whose code belongs to a call that `begin` has begun, such as the request."""
        return RunPlace(self._run, self._context)

    def chunks(self, stream: Iterator[C], *, read: Callable[[C], ModelChunk | None] | None = None) -> Iterator[C]:
        """Yield the chunks of a streamed answer, and record when each arrives.

        Args:
            stream: the stream of the provider's client.
            read: returns what observers read of a chunk; None for nothing.
        """
        self.streaming()
        for chunk in stream:
            self.arrived(None if read is None else partial(read, chunk))
            try:
                yield chunk
            finally:
                self.delivered()

    async def achunks(
        self, stream: AsyncIterator[C], *, read: Callable[[C], ModelChunk | None] | None = None
    ) -> AsyncIterator[C]:
        """Yield the chunks of a streamed answer on asyncio, and record when each arrives; see `chunks`."""
        self.streaming()
        async for chunk in stream:
            self.arrived(None if read is None else partial(read, chunk))
            try:
                yield chunk
            finally:
                self.delivered()

    def streaming(self) -> None:
        """Record that the answer is requested in chunks, for code that can't use `chunks`."""
        self._observed.timer.streaming(perf_counter_ns())

    def arrived(self, read: Callable[[], ModelChunk | None] | None = None) -> None:
        """Record that a chunk has arrived.

        Args:
            read: returns what observers read of it; None for nothing.
        """
        self._arrived_at = perf_counter_ns()
        self._observed.timer.chunk(self._arrived_at)
        if self._observed.deltas is not None and read is not None and (delta := read()) is not None:
            self._observed.deltas(delta)
        self._reader_since = perf_counter_ns()

    def delivered(self) -> None:
        """Record that the reader of the last chunk is done with it."""
        self._observed.timer.delivered(self._arrived_at, self._reader_since)

    def __repr__(self) -> str:
        return f"<ManualModelCall of {self._model.model}>"
