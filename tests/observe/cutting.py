"""Runs with many points at which they can be cancelled, ways to cancel them there, and checks of the result."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator, Iterator
from typing import Any, Generic, Self, TypeVar

from opentelemetry import trace

from tests.captured import SpanCounter, Telemetry, total
from tests.observe.closed_list import assert_consistent
from tests.observe.runs import USAGE
from tests.waiting import until
from traced_tools import Advisor, BaseAdvisor, ChatClient, ChatClientRequest, ChatClientResponse, ToolCall
from traced_tools.flow import perform
from traced_tools.flow.workers import Job, WorkerPool
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatChunk, ChatRequest, ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

T = TypeVar("T")
CUT = ("cancelled", "cancelled")


class CutAt(Generic[T]):
    """Awaits a coroutine as a task would, and lets the task be cancelled at some of the points where it waits.

    Args:
        coroutine: what is awaited.
        points: which of them, from 1.
        closes: whether the coroutine is closed there instead, as Python does when its event loop is gone.

    Attributes:
        seen: how many points there were.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], points: Collection[int], *, closes: bool = False) -> None:
        self._coroutine = coroutine
        self._points = points
        self._closes = closes
        self.seen = 0

    def __await__(self) -> Generator[Any, Any, T | None]:
        send, value = self._coroutine.send, None
        while True:
            try:
                waits_for = send(value)  # type: ignore[arg-type]
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            self.seen += 1
            if self.seen in self._points:
                if self._closes:
                    self._coroutine.close()
                    return None
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                send, value = self._coroutine.send, (yield waits_for)
            except BaseException as error:
                send, value = self._coroutine.throw, error  # type: ignore[assignment]


def nothing() -> None:
    """Let a run pass."""


class Pausing(ScriptedChatModel):
    """Waits before it answers, before each chunk and, if it `tidies` up, after the last one; calls `trip` likewise."""

    trip: Callable[[], None] = staticmethod(nothing)
    tidies = True

    def call(self, request: ChatRequest) -> ChatResponse:
        self.trip()
        return super().call(request)

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        for chunk in super().stream(request):
            self.trip()
            yield chunk

    async def acall(self, request: ChatRequest) -> ChatResponse:
        await asyncio.sleep(0)
        return self.call(request)

    async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
        try:
            for chunk in self.stream(request):
                await asyncio.sleep(0)
                yield chunk
        finally:
            if self.tidies:
                await asyncio.sleep(0)


class Performing(Advisor):
    """Has `trip` performed on the way in and on the way out, and waits on asyncio where there is a loop."""

    name, order = "performing", 400

    def __init__(self, trip: Callable[[], None], *, waits: bool) -> None:
        self._trip = trip
        self._waits = waits

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        await perform(self._trip)
        try:
            return await call_next(request)
        finally:
            if self._waits:
                await asyncio.sleep(0)
            await perform(self._trip)


class Tripping(BaseAdvisor):
    """Calls `trip` in both hooks outside the loop."""

    name, order = "tripping", 100

    def __init__(self, trip: Callable[[], None]) -> None:
        self._trip = trip

    def before(self, request: ChatClientRequest) -> ChatClientRequest:
        self._trip()
        return request

    def after(self, response: ChatClientResponse) -> ChatClientResponse:
        self._trip()
        return response


class Watched(WorkerPool):
    """Remembers its work: what runs beside the tool that is interrupted goes on, since no thread can be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._started = 0
        self._ended: list[threading.Thread] = []

    def _start_thread(self, job: Job) -> None:
        self._started += 1
        super()._start_thread(job)

    def _work(self, first: list[Job]) -> None:
        super()._work(first)
        self._ended.append(threading.current_thread())

    def settle(self) -> None:
        """Wait for tasks that are still running: until all threads are idle or have ended."""
        until(lambda: self._started - len(self._ended) == self._waiting)


class CutRun:
    """One run to be cut: tools at once, one that asks a client of its own, and advisors around them."""

    def __init__(self, *, waits: bool, tidies: bool = True, trip: Callable[[], None] = nothing) -> None:
        self.counting = SpanCounter()
        self.telemetry = Telemetry()
        self.telemetry.tracer_provider.add_span_processor(self.counting)
        self._tidies, self._trip = tidies, trip
        self.workers = Watched()
        inner = ChatClient(self._model(["inner answer"]), name="inner", telemetry=self.telemetry.options)

        async def awaited() -> str:
            await asyncio.sleep(0)
            trip()
            await asyncio.sleep(0)
            return "waited"

        def blocking() -> str:
            trip()
            return "blocked"

        async def nested() -> str:
            return (await inner.prompt("?").acall()).content

        def nested_blocking() -> str:
            return inner.prompt("?").call().content

        # alone, what blocks runs in the calling thread: a run in another one would go on when this one is interrupted
        batches = [[awaited, blocking, nested]] if waits else [[awaited, blocking], [nested_blocking]]
        asking: list[Any] = [["let me see", *(ToolCall(tool.__name__) for tool in batch)] for batch in batches]
        tools = [tool for batch in batches for tool in batch]
        self.spec = ChatClient(
            self._model([*asking, "all done"]),
            tools=tools,
            advisors=[Tripping(trip), Performing(trip, waits=waits)],
            tool_calling_advisor=ToolCallingAdvisor(ToolCallingManager(workers=self.workers)),
            telemetry=self.telemetry.options,
        ).prompt("?", conversation_id="c-1")

    def _model(self, turns: list[Any]) -> Pausing:
        model = Pausing(turns, usage=USAGE)
        model.trip, model.tidies = self._trip, self._tidies
        return model

    def check(self, *endings: tuple[str, str | None]) -> str:
        """Check the telemetry against the contract; return how the run ended, which must be one of `endings`."""
        assert self.counting.begun == self.counting.ended, "a span has not ended, or not once"
        assert set(self.counting.ended.values()) <= {1}
        assert_consistent(self.telemetry)
        assert not trace.get_current_span().get_span_context().is_valid
        for metric in (names.RUN_ACTIVE, names.TOOL_ACTIVE, names.RUN_OLDEST_ACTIVE):
            assert all(total(point) == 0 for point in self.telemetry.metric(metric.name)), metric.name
        (root,) = self.telemetry.children(None)
        assert root.name == "invoke_agent assistant"
        attributes = root.attributes or {}
        ended = (str(attributes[names.LOOP_STOP_REASON]), attributes.get(names.ERROR_TYPE))
        assert ended in endings, ended
        self._check_events(len(self.telemetry.named(root.name)), ended[0])
        return ended[0]

    def _check_events(self, runs: int, reason: str) -> None:
        """Check that the run has one stop event, and each call that ran a decision followed by an outcome."""
        stops = self.telemetry.events_named(names.LOOP_STOP_EVENT.name)
        outer = [each for each in stops if each.attributes[names.AGENT_NAME] == "assistant"]
        assert [each.attributes[names.LOOP_STOP_REASON] for each in outer] == [reason] * runs
        outcomes = self.telemetry.events_named(names.TOOL_OUTCOME_EVENT.name)
        ran = [span for span in self.telemetry.spans if span.name.startswith("execute_tool")]
        assert len(outcomes) == len(ran)
        assert len(self.telemetry.events_named(names.TOOL_DECISION_EVENT.name)) >= len(ran)


class Silence(logging.Handler):
    """Keeps what OpenTelemetry, asyncio and the package say at any level.

    The chatter of asyncio's debugging is none, nor is the line of a tool that fails, as those of the scenario do.

    Attributes:
        said: what was said.
        but_for: a text of Python's own; what holds it is not kept.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.but_for: str | None = None
        self.said: list[str] = []
        self._loggers = [logging.getLogger(name) for name in ("opentelemetry", "asyncio", "traced_tools")]

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        is_chatter = record.name == "asyncio" and record.levelno <= logging.DEBUG
        is_chatter = is_chatter or record.name == "traced_tools.tools"
        if not is_chatter and (self.but_for is None or self.but_for not in text):
            self.said.append(text)

    def __enter__(self) -> Self:
        self._levels = [logger.level for logger in self._loggers]
        for logger in self._loggers:
            logger.addHandler(self)
            logger.setLevel(logging.DEBUG)
        return self

    def __exit__(self, *error: object) -> None:
        for logger, level in zip(self._loggers, self._levels, strict=True):
            logger.removeHandler(self)
            logger.setLevel(level)
