"""Where the time of a run goes: the kinds add up to its duration, and each has what took it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captured import Telemetry, total
from tests.clock import SECOND, Clock
from tests.modes import MODES, run
from traced_tools import (
    Advisor,
    ApprovalRequest,
    Approve,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ToolCall,
    ToolResult,
    tool,
)
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import CallModel, ChatRequest, ChatResponse
from traced_tools.observe import Event, names
from traced_tools.observe.time_ledger import TimeLedger
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext


class Slow(Advisor):
    """Takes time in each of its methods, from 1 to 32 seconds."""

    name, order = "slow", 400

    def __init__(self, clock: Clock) -> None:
        self._take = clock.take

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self._take(1)
        return await call_next(request)

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        self._take(2)
        return await call_next(call)

    def decide_approval(self, request: ApprovalRequest) -> Approve:
        self._take(4)
        return Approve()

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        self._take(8 if chunk.text else 0)
        return chunk

    def on_event(self, event: Event) -> None:
        self._take(32 if event.type in ("model_responded", "tool_finished") else 0)


def ledger(telemetry: Telemetry) -> dict[str, float]:
    """The kinds of the only run, with their seconds."""
    (span,) = [each for each in telemetry.spans if each.name.startswith("invoke_agent")]
    attributes: Any = span.attributes
    return {kind: attributes[name] for kind, name in names.TIME_BY_KIND.items() if name in attributes}


@pytest.mark.parametrize("mode", MODES)
def test_each_kind_has_the_time_of_what_took_it(mode: str, clock: Clock) -> None:
    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        clock.take(64)
        return "paid"

    def ask(request: ChatRequest) -> ToolCall:
        clock.take(128)
        return ToolCall("pay")

    telemetry = Telemetry()
    client = ChatClient(
        ScriptedChatModel([ask, "done"]), tools=[pay], advisors=[Slow(clock)], telemetry=telemetry.options
    )
    run(mode, client.prompt("?"))
    chunks = {"chunk": 8} if "stream" in mode else {}
    advisors = 1 + 2 + 32 + 32 + 1 + 32  # for the call and for the answer
    assert ledger(telemetry) == {"model": 128, "tool": 64, "hook": advisors, "approval": 4, **chunks}
    (models,) = [each for each in telemetry.metric(names.INFERENCE_DURATION.name) if total(each) > 0]
    assert total(models) == 128
    assert [total(tools) for tools in telemetry.metric(names.EXECUTE_TOOL_DURATION.name)] == [64]
    recorded = {point.attributes[names.TIME_KIND]: total(point) for point in telemetry.metric(names.RUN_TIME.name)}
    assert recorded == ledger(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_lasts_until_its_listeners_have_received_its_end(mode: str, clock: Clock) -> None:
    class Slow(Advisor):
        name, order = "slow", 400

        def on_event(self, event: Event) -> None:
            clock.take(8 if event.type == "run_finished" else 0)

    def ask(request: ChatRequest) -> str:
        clock.take(1)
        return "done"

    telemetry = Telemetry()
    run(mode, ChatClient(ScriptedChatModel([ask]), advisors=[Slow()], telemetry=telemetry.options).prompt("?"))
    assert ledger(telemetry) == {"model": 1, "hook": 8}
    assert_adds_up(telemetry)
    (duration,) = telemetry.metric(names.INVOKE_AGENT_DURATION.name)
    assert total(duration) == 9


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_the_reader_of_a_stream_is_not_the_model(mode: str, clock: Clock) -> None:
    telemetry = Telemetry()
    prompt = ChatClient(ScriptedChatModel(["one two three"]), telemetry=telemetry.options).prompt("?")

    async def read() -> None:
        async with prompt.astream() as chunks:
            async for _ in chunks:
                clock.take(1)

    if mode == "astream":
        asyncio.run(read())
    else:
        with prompt.stream() as chunks:
            for _ in chunks:
                clock.take(1)
    waited = ledger(telemetry)["reader"]
    assert waited >= 1
    assert ledger(telemetry) == {"reader": waited}
    assert (telemetry.one("chat scripted").attributes or {})[names.STREAM_READER_WAIT] == waited
    assert [total(each) for each in telemetry.metric(names.INFERENCE_DURATION.name)] == [0]
    assert [total(each) for each in telemetry.metric(names.INFERENCE_TIME_PER_OUTPUT_CHUNK.name)] in ([0], [])


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_the_hooks_for_the_text_of_an_advisor_are_chunks(mode: str, clock: Clock) -> None:
    class Cached(Advisor):
        name, order = "cached", 500

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            answer = await call_next(request)
            return answer.replace(chat_response=ChatResponse(AssistantMessage("another text")))

    telemetry = Telemetry()
    advisors = [Slow(clock), Cached()]
    client = ChatClient(ScriptedChatModel([""]), advisors=advisors, telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    assert ledger(telemetry) == {"hook": 1 + 32, "chunk": 8}


def test_the_code_that_drives_a_run_is_not_the_model_and_not_the_tool(clock: Clock) -> None:
    def add() -> str:
        """Add."""
        clock.take(64)
        return "2"

    telemetry = Telemetry()
    model = ScriptedChatModel([ToolCall("add"), "x"])
    driven = ChatClient(model, tools=[add], telemetry=telemetry.options).prompt("?").start()
    while step := driven.next():
        clock.take(1 if isinstance(step, CallModel) else 8)
        driven.perform(step)
    assert ledger(telemetry) == {"reader": 10, "tool": 64}


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_run_in_parallel_share_the_time_of_their_batch(mode: str) -> None:
    def wait() -> str:
        """Wait."""
        return "done"

    telemetry = Telemetry()
    model = ScriptedChatModel([[ToolCall("wait"), ToolCall("wait"), ToolCall("wait")], "x"])
    loop = ToolCallingManager(max_concurrency=1)
    client = ChatClient(
        model, tools=[wait], telemetry=telemetry.options, tool_calling_advisor=ToolCallingAdvisor(manager=loop)
    )
    run(mode, client.prompt("?"))
    assert ledger(telemetry).keys() >= {"tool", "queue"}
    assert_adds_up(telemetry)


def assert_adds_up(telemetry: Telemetry) -> None:
    """Check that the kinds of each run add up to its duration, within a millionth."""
    for span in telemetry.spans:
        if span.name.startswith("invoke_agent"):
            attributes: Any = span.attributes
            kinds = sum(attributes.get(name, 0.0) for name in names.TIME_BY_KIND.values())
            assert kinds == pytest.approx(((span.end_time or 0) - (span.start_time or 0)) / SECOND, rel=1e-6)


class Interferes(Advisor):
    """Does what a drawn list says at each of its hooks: it passes on, repeats, answers itself, or fails."""

    order = 400

    def __init__(self, actions: Iterator[str], name: str) -> None:
        self._actions = actions
        self.name = name

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        match next(self._actions, "pass"):
            case "fail":
                raise LookupError
            case "repeat":
                await call_next(request)
        return await call_next(request)

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        match next(self._actions, "pass"):
            case "fail":
                raise LookupError
            case "repeat":
                await call_next(call)
            case "refuse":
                return call.denied("no")
        return await call_next(call)

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        if next(self._actions, "pass") == "fail":
            raise LookupError
        return chunk

    def on_event(self, event: Event) -> None:
        if next(self._actions, "pass") == "fail":
            raise LookupError


ACTIONS = st.lists(st.sampled_from(["pass", "pass", "pass", "repeat", "refuse", "fail"]), max_size=40)


@given(
    mode=st.sampled_from(MODES),
    actions=ACTIONS,
    answers=st.lists(st.integers(0, 4), max_size=3),
    tool_of=st.lists(st.sampled_from(["works", "fails", "asks", "none"]), min_size=4, max_size=4),
)
def test_the_kinds_of_random_runs_add_up(mode: str, actions: list[str], answers: list[int], tool_of: list[str]) -> None:
    telemetry = Telemetry()

    def works() -> str:
        """Work."""
        return "done"

    def fails() -> str:
        """Fail."""
        raise LookupError

    def asks() -> str:
        """Ask another agent."""
        return ChatClient(ScriptedChatModel(["inner"]), telemetry=telemetry.options).prompt("?").call().content

    script: list[Any] = [[ToolCall(name) for name in tool_of[:count]] or "x" for count in answers]
    model = ScriptedChatModel([*script, *["x"] * 50])
    pending = iter(actions)
    advisors = [Interferes(pending, "outer"), Interferes(pending, "inner")]
    client = ChatClient(model, tools=[works, fails, asks], advisors=advisors, telemetry=telemetry.options)
    with suppress(LookupError):
        run(mode, client.prompt("?"))
    assert_adds_up(telemetry)


def booked(*kinds: tuple[Any, int]) -> TimeLedger:
    ledger = TimeLedger()
    for kind, nanoseconds in kinds:
        ledger.book(kind, nanoseconds)
    return ledger


@pytest.mark.parametrize(
    ("ledgers", "expected"),
    [
        ([], {"tool": 90}),
        ([booked()], {"tool": 90}),
        ([booked(("tool", 10), ("queue", 20)), booked(("tool", 15))], {"tool": 50, "queue": 40}),
        ([booked(("approval", 7)), booked(("hook", 7)), booked(("tool", 7))], {"approval": 30, "hook": 30, "tool": 30}),
    ],
)
def test_the_time_of_flows_is_divided_in_proportion(ledgers: list[TimeLedger], expected: dict[str, int]) -> None:
    whole = TimeLedger()
    whole.book_parallel(90, ledgers, otherwise="tool")
    assert {kind: share for kind, share in whole.booked_ns.items() if share} == expected
    assert whole.downstream_ns == 90
