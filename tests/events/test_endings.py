"""An advisor outside the loop receives the start and the end of a run, however the run ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.captured import Telemetry, context_of, total
from tests.events.watching import Watching, check_sequence
from tests.modes import MODES, arun, run
from tests.sample_tools import add
from tests.waiting import PATIENCE, patiently
from traced_tools import (
    Advisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    LoopLimitExceeded,
    LoopLimits,
    ToolCall,
    ToolExecutionError,
    Usage,
    tool,
)
from traced_tools.core import ToolErrors
from traced_tools.loop.advisor import AdviseNext
from traced_tools.observe import Event, IterationFinished, RunFinished, ToolFinished, names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallbackProvider


class Mine(Exception):
    """An error of the application's."""


@tool(return_direct=True)
def direct() -> str:
    """Answer."""
    return "at once"


def fail() -> str:
    """Fail."""
    raise Mine("no")


class Answering(Advisor):
    """Answers itself."""

    name, order = "answering", 310

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        return ChatClientResponse(request.run)


class Failing(Advisor):
    """Fails, in the middle of a pass."""

    name, order = "failing", 310

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        await call_next(request)
        raise Mine


class NoTools(ToolCallbackProvider):
    """Fails when it is asked for its tools."""

    def tool_callbacks(self) -> Any:
        raise Mine


class Ending(NamedTuple):
    """A run, and how it ends."""

    turns: list[Any]
    settings: dict[str, Any]
    stop_reason: str
    error_type: str | None = None


CALL = ToolCall("add", {"a": 1, "b": 1})
ANOTHER = ToolCall("add", {"a": 2, "b": 2})
OURS = "tests.events.test_endings.Mine"
ERRORS = "traced_tools.errors"


def limited(reason: str, on_limit: str, turns: list[Any], limits: dict[str, Any]) -> Ending:
    settings = {"limits": LoopLimits(on_limit=on_limit, **limits)}  # type: ignore[arg-type]
    return Ending([*turns, "x"], settings, reason, f"{ERRORS}.LoopLimitExceeded" if on_limit == "raise" else None)


LIMITS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "max_iterations": ([CALL, ANOTHER], {"max_iterations": 2}),
    "max_tool_calls": ([[CALL, ANOTHER]], {"max_tool_calls": 1}),
    "max_calls_per_tool": ([[CALL, ANOTHER]], {"max_calls_per_tool": 1}),
    "repeated_call": ([CALL, CALL], {"max_repeated_calls": 1}),
    "token_budget": ([CALL], {"max_tokens": 1}),
    "deadline": ([], {"max_seconds": 1e-9}),
    "consecutive_errors": ([ToolCall("invented")], {"max_consecutive_errors": 1}),
}
RAISING = {"tool_errors": ToolErrors(always_raise=True)}
ENDINGS = {
    "answered": Ending([CALL, "2"], {}, "answered"),
    "return_direct": Ending([ToolCall("direct")], {}, "return_direct"),
    "advisor": Ending([], {"advisors": [Answering()]}, "advisor"),
    "model error": Ending([Mine()], {}, "error", OURS),
    "tool error": Ending([ToolCall("fail")], RAISING, "error", f"{ERRORS}.ToolExecutionError"),
    "hook error": Ending(["x"], {"advisors": [Failing()]}, "error", OURS),
    "no tools": Ending(["x"], {"tools": [NoTools()]}, "error", OURS),
    **{
        f"{reason} {how}": limited(reason, how, turns, limits)
        for reason, (turns, limits) in LIMITS.items()
        for how in ("conclude", "stop", "raise")
    },
}


def check(outside: Watching, inside: Watching, stop_reason: str, error_type: str | None = None) -> RunFinished:
    """Assert the events that both advisors received, and return how the run ended."""
    assert outside.types == ["run_started", "run_finished"]
    check_sequence(inside.events)
    assert (inside.types[0], inside.types[-1]) == ("run_started", "run_finished")
    for kind in ("run", "iteration", "tool"):
        assert inside.types.count(f"{kind}_started") == inside.types.count(f"{kind}_finished")
    finished = outside.events[-1]
    assert finished == inside.events[-1]
    assert isinstance(finished, RunFinished)
    assert (finished.stop_reason, finished.error_type) == (stop_reason, error_type)
    return finished


def client_for(ending: Ending, outside: Watching, inside: Watching, telemetry: Telemetry) -> ChatClient:
    settings = {"tools": [add, direct, fail], **ending.settings}
    settings["advisors"] = [outside, inside, *settings.get("advisors", ())]
    model = ScriptedChatModel(ending.turns, usage=Usage(input_tokens=8, output_tokens=2))
    return ChatClient(model, telemetry=telemetry.options, **settings)


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_every_ending_of_a_run_emits_run_finished(mode: str, ending: Ending) -> None:
    outside, inside, telemetry = Watching(100), Watching(), Telemetry()
    client = client_for(ending, outside, inside, telemetry)
    if ending.error_type is None:
        response = run(mode, client.prompt("?"))
        assert response.stop_reason == ending.stop_reason
    else:
        with pytest.raises((Mine, ToolExecutionError, LoopLimitExceeded)):
            run(mode, client.prompt("?"))
    finished = check(outside, inside, ending.stop_reason, ending.error_type)
    attributes = telemetry.one("invoke_agent assistant").attributes or {}
    assert finished.iterations == inside.types.count("iteration_started") == attributes[names.LOOP_ITERATIONS]
    assert finished.tool_calls == inside.types.count("tool_intended") == attributes[names.LOOP_TOOL_CALLS]


@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_a_cancelled_run_emits_run_finished(mode: str) -> None:
    outside, inside = Watching(100), Watching()

    async def cancelled() -> None:
        begun = asyncio.Event()

        async def wait() -> None:
            """Wait for ever."""
            begun.set()
            await asyncio.Event().wait()

        client = ChatClient(ScriptedChatModel([ToolCall("wait")]), tools=[wait], advisors=[outside, inside])
        task = asyncio.ensure_future(arun(mode, client.prompt("?")))
        await patiently(begun.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    check(outside, inside, "cancelled", "cancelled")
    call, ended = inside.one("tool_finished"), inside.one("iteration_finished")
    assert isinstance(call, ToolFinished) and isinstance(ended, IterationFinished)
    assert (call.outcome, call.error_type, call.result_size) == ("cancelled", "cancelled", None)
    assert (ended.outcome, ended.error_type, ended.tool_calls) == ("error", "cancelled", 1)


def stream_of(outside: Watching, inside: Watching) -> Any:
    client = ChatClient(ScriptedChatModel(["one two three"]), tools=[add], advisors=[outside, inside])
    return client.prompt("?")


def leave(spec: Any) -> None:
    with spec.stream() as stream:
        next(stream)


async def aleave(spec: Any) -> None:
    async with spec.astream() as stream:
        await anext(stream)


def close_driver(spec: Any) -> None:
    with spec.start() as begun:
        assert begun.next()


@pytest.mark.parametrize(
    "way", [leave, lambda spec: asyncio.run(aleave(spec)), close_driver], ids=["stream", "astream", "driver"]
)
def test_a_run_whose_stream_is_closed_early_emits_run_finished(way: Callable[[Any], None]) -> None:
    outside, inside = Watching(100), Watching()
    way(stream_of(outside, inside))
    check(outside, inside, "cancelled", "cancelled")


def test_a_run_that_never_started_emits_no_event() -> None:
    outside, inside = Watching(100), Watching()
    stream_of(outside, inside).start().close()
    stream_of(outside, inside).stream().close()
    assert outside.events == inside.events == []


@pytest.fixture
def collected_by_hand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def forget(spec: Any) -> None:
    """Leave a stream behind that only the garbage collector finds."""
    stream = spec.stream()
    next(stream)
    cycle: list[Any] = [stream]
    cycle.append(cycle)


@pytest.mark.usefixtures("collected_by_hand")
def test_the_end_of_a_garbage_collected_run_is_emitted_with_the_next_run() -> None:
    telemetry = Telemetry()
    outside, inside = Watching(100), Watching()
    model = ScriptedChatModel(["one two three", "x"])
    client = ChatClient(model, tools=[add], advisors=[outside, inside], telemetry=telemetry.options)
    forget(client.prompt("?"))
    before = [*inside.events]
    gc.collect()
    assert inside.events == before  # locks of a watcher may be held here
    assert len(telemetry.named("invoke_agent assistant")) == 1
    client.prompt("?").call()
    first = inside.events[0].run_id
    of_first = [event for event in inside.events if event.run_id == first]
    check_sequence(of_first)
    assert [event.type for event in of_first[-2:]] == ["iteration_finished", "run_finished"]
    finished = of_first[-1]
    assert isinstance(finished, RunFinished)
    assert finished.stop_reason == "cancelled"
    (agent, *_) = telemetry.named("invoke_agent assistant")
    assert finished.span_id == f"{context_of(agent).span_id:016x}"
    assert [event for event in outside.events if event.run_id == first] == [of_first[0], of_first[-1]]


@pytest.mark.usefixtures("collected_by_hand")
def test_an_event_listener_error_during_garbage_collection_propagates_nowhere() -> None:
    def act(event: Event) -> None:
        if isinstance(event, RunFinished) and event.stop_reason == "cancelled":
            raise KeyError("mine")

    telemetry, watching = Telemetry(), Watching(400, act)
    model = ScriptedChatModel(["one two three", "x"])
    client = ChatClient(model, advisors=[watching], telemetry=telemetry.options)
    forget(client.prompt("?"))
    gc.collect()
    assert client.prompt("?").call().content == "x"
    (lost,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert total(lost) == 1


def test_a_tool_that_outlives_an_interrupted_run_ends_as_cancelled_with_the_run() -> None:
    outside, inside = Watching(100), Watching()
    released, begun, over = threading.Event(), threading.Event(), threading.Event()
    caller = threading.current_thread()

    def work() -> None:
        """Interrupt the caller's thread while another thread waits; either may begin first."""
        if threading.current_thread() is caller:
            assert begun.wait(PATIENCE)
            raise KeyboardInterrupt
        begun.set()
        assert released.wait(PATIENCE)
        over.set()

    model = ScriptedChatModel([[ToolCall("work"), ToolCall("work")]])
    client = ChatClient(model, tools=[work], advisors=[outside, inside])
    with pytest.raises(KeyboardInterrupt):
        client.prompt("?").call()
    assert outside.types == ["run_started", "run_finished"]
    before = list(inside.events)
    released.set()
    assert over.wait(PATIENCE)
    assert inside.events == before
    check_sequence(before)
    finished = [event for event in inside.events if isinstance(event, ToolFinished)]
    assert {event.call_id: event.outcome for event in finished} == {"call_1_1": "cancelled", "call_1_2": "cancelled"}
    assert {event.error_type for event in finished} == {"KeyboardInterrupt", "cancelled"}
