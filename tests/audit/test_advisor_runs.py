"""The audit advisor distinguishes runs side by side, and forgets runs that have ended."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from tests.audit.draft_trails import RAN, KeptTrail, assert_reconciled, auditing, client_of
from tests.captured import Telemetry
from tests.modes import MODES, arun, run
from tests.observe.runs import Broken, adds
from tests.recorder import Recorder
from tests.sample_tools import add, fail
from tests.waiting import PATIENCE, patiently
from traced_tools import Advisor, ChatClient, ChatClientRequest, ChatClientResponse, ToolCall, tool
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.audit.records import Draft
from traced_tools.core import ToolErrors
from traced_tools.loop.advisor import AdviseNext
from traced_tools.observe import Event
from traced_tools.observe.typed_events.types import Delta
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools


@pytest.fixture
def trail() -> KeptTrail:
    return KeptTrail()


def notes_of(advisor: AuditAdvisor) -> object:
    """What the advisor still knows of runs."""
    return advisor._runs


@pytest.mark.parametrize("mode", MODES)
def test_runs_side_by_side_share_an_advisor_and_are_distinguished(trail: KeptTrail, mode: str) -> None:
    advisor = auditing(trail)
    calls = [adds(1, 1), ToolCall("fail", ""), ToolCall("nobody"), adds(2, 2)]
    clients = [
        ChatClient(ScriptedChatModel([calls, "x"]), name=f"agent-{n}", tools=[add, fail], advisors=[advisor])
        for n in range(40)
    ]
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda client: run(mode, client.prompt("?")), clients))
    story = [RAN, ["intent fail", "allowed", "error"], ["intent _unknown", "unknown_tool"], RAN]
    assert trail.stories() == story * 40
    agents = {each.subject.run_id: each.subject.agent for each in trail.drafts if each.subject is not None}
    assert agents == {response.run_id: f"agent-{n}" for n, response in enumerate(responses)}
    assert notes_of(advisor) == {}


def test_runs_side_by_side_on_one_event_loop_are_distinguished(trail: KeptTrail) -> None:
    advisor = auditing(trail)

    async def runs() -> None:
        specs = [
            ChatClient(ScriptedChatModel([[adds(n, 1), adds(n, 2)], "x"]), tools=[add], advisors=[advisor]).prompt("?")
            for n in range(30)
        ]
        await asyncio.gather(*[arun(mode, spec) for spec, mode in zip(specs, ["acall", "astream"] * 15, strict=True)])

    asyncio.run(patiently(runs()))
    assert trail.stories() == [RAN, RAN] * 30
    assert notes_of(advisor) == {}


class Waiting:
    """A tool that waits for ever."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)

    @tool
    async def wait(self) -> None:
        """Wait on the event loop."""
        self.begun.release()
        await asyncio.Event().wait()


@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_a_tool_that_is_cancelled_is_on_record_as_cancelled(trail: KeptTrail, mode: str) -> None:
    telemetry, tools, advisor = Telemetry(), Waiting(), auditing(trail)
    model = ScriptedChatModel([[ToolCall("wait", ""), ToolCall("wait", ""), ToolCall("nobody")]])
    client = ChatClient(model, tools=tools, advisors=[advisor], telemetry=telemetry.options)

    async def cancelled() -> None:
        task = asyncio.ensure_future(arun(mode, client.prompt("?")))
        for _ in range(2):
            assert await asyncio.to_thread(tools.begun.acquire, timeout=PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(cancelled()))
    story = ["intent wait", "allowed", "cancelled"]
    assert trail.stories() == [story, story, ["intent _unknown", "unknown_tool"]]
    assert all("result" not in each.contents for each in trail.of("outcome"))
    assert_reconciled(trail, telemetry)
    assert notes_of(advisor) == {}


class Cache(Advisor):
    """Answers from what the model answered before."""

    name, order = "cache", 500

    def __init__(self) -> None:
        self._kept: dict[int, ChatClientResponse] = {}

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        if request.iteration not in self._kept:
            self._kept[request.iteration] = await call_next(request)
        return self._kept[request.iteration]


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_a_run_whose_answers_all_come_from_advice_inside_the_loop_is_recorded(trail: KeptTrail, mode: str) -> None:
    client = client_of(trail, [adds(1, 1), "x"], Cache())
    for _ in range(2):
        assert run(mode, client.prompt("?")).content == "x"
    assert trail.stories() == [RAN, RAN]


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_no_piece_of_an_answer_is_made_an_event_for_it(trail: KeptTrail, mode: str) -> None:
    received: list[Event] = []

    class Listening(AuditAdvisor):
        def on_event(self, event: Event) -> None:
            received.append(event)
            super().on_event(event)

    advisor = Listening(cast(Any, trail))
    client = ChatClient(ScriptedChatModel([["Adding", " ...", adds(1, 1)], "x"]), tools=[add], advisors=[advisor])
    run(mode, client.prompt("?"))
    assert trail.stories() == [RAN]
    assert [event.type for event in received if isinstance(event, Delta)] == []


def test_a_call_that_is_cancelled_while_its_intent_is_written_has_no_decision(trail: KeptTrail) -> None:
    writing, telemetry, advisor = asyncio.Event(), Telemetry(), auditing(trail)

    class Slow(KeptTrail):
        def write(self, draft: Draft, timeout: float | None = None) -> Any:
            async def forever() -> None:
                trail.submit(draft)
                writing.set()
                await asyncio.Event().wait()

            return forever()

    advisor = AuditAdvisor(cast(Any, Slow()))
    client = ChatClient(ScriptedChatModel([adds(1, 1)]), tools=[add], advisors=[advisor], telemetry=telemetry.options)

    async def cancelled() -> None:
        task = asyncio.ensure_future(client.prompt("?").acall())
        await writing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(cancelled()))
    assert trail.stories() == [["intent add"]]
    assert_reconciled(trail, telemetry)
    assert notes_of(advisor) == {}


def test_calls_that_nobody_came_to_have_their_intents(trail: KeptTrail) -> None:
    @tool(sequential=True)
    def break_off() -> None:
        """Interrupt the run."""
        raise KeyboardInterrupt

    telemetry = Telemetry()
    client = client_of(
        trail, [[ToolCall("break_off", ""), adds(1, 1)]], tools=[break_off, add], telemetry=telemetry.options
    )
    with pytest.raises(KeyboardInterrupt):
        client.prompt("?").call()
    assert trail.stories() == [["intent break_off", "allowed", "cancelled"], ["intent add"]]
    assert_reconciled(trail, telemetry)


@pytest.mark.parametrize("end", ["close", "collect"])
@pytest.mark.parametrize("mode", ["start", "stream"])
def test_a_run_that_is_left_is_forgotten(trail: KeptTrail, mode: str, end: str) -> None:
    telemetry, advisor = Telemetry(), auditing(trail)
    client = ChatClient(
        ScriptedChatModel([[adds(1, 1), ToolCall("no")], "and on"]),
        tools=[add],
        advisors=[advisor],
        telemetry=telemetry.options,
    )

    def leave() -> None:
        if mode == "stream":
            stream = client.prompt("?").stream()
            next(iter(stream))
            left: Any = stream
        else:
            left = client.prompt("?").start()
            for _ in range(2):
                left.perform(left.next())
            assert left.next() is not None
        assert notes_of(advisor) != {}
        if end == "close":
            left.close()

    leave()
    gc.collect()
    ChatClient(ScriptedChatModel(["x"])).prompt("?").call()  # which does what was put off
    assert trail.stories() == [RAN, ["intent _unknown", "unknown_tool"]]
    assert notes_of(advisor) == {}


def test_a_run_that_is_left_before_its_tools_have_run_has_no_records(trail: KeptTrail) -> None:
    telemetry, advisor = Telemetry(), auditing(trail)
    client = ChatClient(ScriptedChatModel([adds(1, 1)]), tools=[add], advisors=[advisor], telemetry=telemetry.options)
    with client.prompt("?").start() as left:
        left.perform(left.next())
        assert isinstance(left.next(), ExecuteTools)
    assert trail.drafts == []
    assert_reconciled(trail, telemetry)
    assert notes_of(advisor) == {}


def test_a_tool_that_outlives_its_interrupted_run_is_recorded_as_cancelled_with_the_run(trail: KeptTrail) -> None:
    begun, go_on, threads, advisor = threading.Event(), threading.Event(), [threading.current_thread()], auditing(trail)

    def hold() -> None:
        """Interrupt the run in its own thread, once the other thread holds."""
        if threading.current_thread() is threads[0]:
            assert begun.wait(PATIENCE)
            raise KeyboardInterrupt
        threads.append(threading.current_thread())
        begun.set()
        assert go_on.wait(PATIENCE)

    model = ScriptedChatModel([[ToolCall("hold", ""), ToolCall("hold", "")]])
    with pytest.raises(KeyboardInterrupt):
        ChatClient(model, tools=[hold], advisors=[advisor]).prompt("?").call()
    stories = trail.stories()
    assert stories == [["intent hold", "allowed", "cancelled"]] * 2
    assert notes_of(advisor) == {}
    go_on.set()
    threads[1].join(PATIENCE)
    assert trail.stories() == stories


def test_nothing_stays_behind_of_runs_that_fail(trail: KeptTrail) -> None:
    advisor = auditing(trail)
    turns: list[Any] = [RuntimeError("no"), [ToolCall("fail", ""), adds(1, 1)]]
    for turn, others in ((turns[0], []), (turns[1], [Broken("advise", 450)]), (turns[1], [Recorder()])):
        model = ScriptedChatModel([turn])
        client = ChatClient(
            model, tools=[add, fail], advisors=[advisor, *others], tool_errors=ToolErrors(always_raise=True)
        )
        with pytest.raises(Exception):  # noqa: B017
            client.prompt("?").call()
    assert notes_of(advisor) == {}
