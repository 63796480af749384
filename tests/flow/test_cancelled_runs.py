"""A run can be cancelled from any thread or task; it ends in the thread or task that drives it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.audit.draft_trails import KeptTrail, auditing
from tests.captured import Telemetry
from tests.events.watching import Watching, check_sequence
from tests.observe.closed_list import assert_consistent
from tests.observe.runs import adds
from tests.sample_tools import add
from tests.waiting import PATIENCE, in_time, patiently
from traced_tools import Advisor, AssistantMessage, ChatClient, ChatRun, ToolCall, ToolContext
from traced_tools.flow import perform
from traced_tools.flow.workers import Canceller
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.models import CallModel, ChatRequest, ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools

DRIVERS = ("perform", "aperform")


def drive(run: ChatRun, how: str, before: Callable[[Any], object] = id) -> list[str]:
    """Take all steps of a run and return what they were; `before` is called with each of them."""
    return in_time(lambda: asyncio.run(patiently(_drive(run, how, before))))


async def _drive(run: ChatRun, how: str, before: Callable[[Any], object]) -> list[str]:
    steps = []
    while step := run.next():
        steps.append(type(step).__name__)
        before(step)
        if how == "perform":
            run.perform(step)
        else:
            await run.aperform(step)
    return steps


class Observed:
    """A client whose telemetry, events and records are kept."""

    def __init__(self, *turns: Any, tools: Any = (add,), model: Any = None, extra: Any = (), **settings: Any) -> None:
        self.telemetry, self.watching, self.trail = Telemetry(), Watching(), KeptTrail()
        self.model = model or ScriptedChatModel(turns)
        advisors = [self.watching, auditing(self.trail), *extra]
        self.client = ChatClient(
            self.model, tools=tools, advisors=advisors, telemetry=self.telemetry.options, **settings
        )

    def check_cancelled(self, run: ChatRun) -> None:
        assert run.next() is None
        with pytest.raises(RuntimeError, match="was cancelled"):
            run.response  # noqa: B018
        span = self.telemetry.one("invoke_agent assistant")
        assert span.attributes is not None
        assert (span.attributes[names.ERROR_TYPE], span.attributes[names.LOOP_STOP_REASON]) == ("cancelled",) * 2
        check_sequence(self.watching.events)
        finished: Any = self.watching.events[-1]
        assert (finished.type, finished.stop_reason) == ("run_finished", "cancelled")
        assert_consistent(self.telemetry)


@pytest.mark.parametrize("how", DRIVERS)
def test_a_run_cancelled_between_two_steps_ends_at_the_next_one(how: str) -> None:
    observed = Observed(adds(1, 1), "never")
    run = observed.client.prompt("?").start()

    def cancel(step: Any) -> None:
        if isinstance(step, ExecuteTools):
            run.cancel()

    assert drive(run, how, cancel) == ["CallModel", "ExecuteTools"]
    observed.check_cancelled(run)
    assert len(observed.model.requests) == 1
    assert observed.trail.drafts == []


class Held(ScriptedChatModel):
    """Sets an event when it is asked, and answers once another event is set."""

    def __init__(self) -> None:
        super().__init__(["answer"])
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.was_cancelled = False

    def call(self, request: ChatRequest) -> ChatResponse:
        self.asked.set()
        assert self.may_answer.wait(PATIENCE)
        return super().call(request)

    async def acall(self, request: ChatRequest) -> ChatResponse:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        raise AssertionError("never reached")


@pytest.mark.parametrize("how", DRIVERS)
def test_another_thread_cancels_during_a_model_call(how: str) -> None:
    observed = Observed(model=Held())
    run = observed.client.prompt("?").start()

    def cancel() -> None:
        assert observed.model.asked.wait(PATIENCE)
        run.cancel()
        observed.model.may_answer.set()

    other = threading.Thread(target=cancel)
    other.start()
    assert drive(run, how) == ["CallModel"]
    other.join(PATIENCE)
    observed.check_cancelled(run)
    assert observed.model.was_cancelled == (how == "aperform")


def test_another_task_cancels_what_the_run_awaits_and_the_driver_goes_on() -> None:
    async def main() -> None:
        observed = Observed(model=Held())
        run = observed.client.prompt("?").start()
        step = run.next()
        assert isinstance(step, CallModel)
        asyncio.get_running_loop().call_later(0, run.cancel)
        await run.aperform(step)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        observed.check_cancelled(run)

    asyncio.run(patiently(main()))


def test_a_task_that_is_cancelled_as_well_stays_cancelled() -> None:
    async def main() -> None:
        observed = Observed(model=Held())
        run = observed.client.prompt("?").start()

        async def driven() -> None:
            while step := run.next():
                await run.aperform(step)

        task = asyncio.ensure_future(driven())
        await asyncio.sleep(0)
        task.cancel()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.next() is None
        observed.check_cancelled(run)

    asyncio.run(patiently(main()))


def test_a_task_that_was_cancelled_before_and_goes_on_drives_a_run_to_its_cancelled_end() -> None:
    cleaned: list[str] = []

    class Loop(ToolCallingAdvisor):
        async def finalize(self, response: Any) -> Any:
            await perform(cleaned.append, "blocking")
            await asyncio.sleep(0)
            cleaned.append("awaited")
            return response

    async def main() -> None:
        observed = Observed(model=Held(), tool_calling_advisor=Loop())
        run = observed.client.prompt("?").start()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0, run.cancel)
        while step := run.next():
            await run.aperform(step)
        assert task.cancelling() == 1
        assert cleaned == ["blocking", "awaited"]
        observed.check_cancelled(run)

    in_time(lambda: asyncio.run(main()))


def test_an_advisor_that_cancels_its_run_performs_no_further_step() -> None:
    runs: list[ChatRun] = []

    class Giving(Advisor):
        name, order = "giving", 350

        async def advise(self, request: Any, call_next: Any) -> Any:
            runs[0].cancel()
            await asyncio.Event().wait()

    observed = Observed("never", extra=[Giving()])
    runs.append(observed.client.prompt("?").start())
    drive(runs[0], "aperform")
    observed.check_cancelled(runs[0])


def test_a_cancellation_just_before_the_task_awaits_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(model=Held())
    run = observed.client.prompt("?").start()
    enter = Canceller.__enter__

    def late(canceller: Canceller) -> None:
        run.cancel()  # as another thread may, once the driver has asked
        enter(canceller)

    monkeypatch.setattr(Canceller, "__enter__", late)
    assert drive(run, "aperform") == ["CallModel"]
    observed.check_cancelled(run)


@pytest.mark.parametrize("how", DRIVERS)
def test_a_cancellation_just_before_the_tools_begin_starts_no_tool(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(adds(1, 1), "never")
    run = observed.client.prompt("?").start()
    waves = ExecuteTools.waves

    def late(step: ExecuteTools) -> Any:
        run.cancel()  # as another thread may, once the driver has asked
        return waves(step)

    monkeypatch.setattr(ExecuteTools, "waves", late)
    drive(run, how)
    observed.check_cancelled(run)
    assert not [event for event in observed.watching.events if event.type == "tool_started"]


@pytest.mark.parametrize("how", DRIVERS)
def test_a_running_tool_sees_the_cancellation_and_its_record_has_its_outcome(how: str) -> None:
    runs: list[ChatRun] = []

    def stop(context: ToolContext) -> str:
        """Have the run cancelled."""
        runs[0].cancel()
        return "cancelled" if context.cancelled else "not cancelled"

    observed = Observed(ToolCall("stop"), "never", tools=[stop])
    runs.append(observed.client.prompt("?").start())
    assert drive(runs[0], how) == ["CallModel", "ExecuteTools"]
    observed.check_cancelled(runs[0])
    outcome = "ok" if how == "perform" else "cancelled"
    assert observed.trail.stories() == [["intent stop", "allowed", outcome]]


@pytest.mark.parametrize("how", DRIVERS)
def test_a_cancelled_batch_records_the_end_of_each_call(how: str) -> None:
    runs: list[ChatRun] = []
    both = threading.Barrier(2, timeout=PATIENCE)

    def stop(number: int) -> str:
        """Have the run cancelled."""
        both.wait()
        runs[0].cancel()
        raise RuntimeError("stopped")

    observed = Observed([ToolCall("stop", {"number": 1}), ToolCall("stop", {"number": 2})], "never", tools=[stop])
    runs.append(observed.client.prompt("?").start())
    assert drive(runs[0], how) == ["CallModel", "ExecuteTools"]
    observed.check_cancelled(runs[0])
    assert observed.trail.stories() == [["intent stop", "allowed", "cancelled"]] * 2


@pytest.mark.parametrize("how", DRIVERS)
def test_steps_of_the_clean_up_are_performed(how: str) -> None:
    cleaned: list[str] = []

    class Loop(ToolCallingAdvisor):
        async def finalize(self, response: Any) -> Any:
            await perform(cleaned.append, "blocking")
            if how == "aperform":
                await asyncio.sleep(0)
                cleaned.append("awaited")
            return response

    observed = Observed(adds(1, 1), tool_calling_advisor=Loop())
    run = observed.client.prompt("?").start()
    steps = drive(run, how, lambda step: run.cancel() if isinstance(step, ExecuteTools) else None)
    assert steps == ["CallModel", "ExecuteTools", "Call"]
    assert cleaned == ["blocking", "awaited"][: 2 if how == "aperform" else 1]
    observed.check_cancelled(run)


def test_an_answer_that_arrives_after_the_cancellation_is_dropped() -> None:
    observed = Observed()
    run = observed.client.prompt("?").start()
    step = run.next()
    assert step is not None
    run.cancel()
    run.cancel()
    run.answer(step, ChatResponse(AssistantMessage("late")))
    observed.check_cancelled(run)


def test_cancelling_a_run_that_has_not_begun_leaves_nothing_behind() -> None:
    observed = Observed("never")
    run = observed.client.prompt("?").start()
    run.cancel()
    assert run.next() is None
    assert (observed.telemetry.spans, observed.watching.events) == ((), [])


@pytest.mark.parametrize("how", DRIVERS)
def test_cancelling_a_run_that_has_ended_changes_nothing(how: str) -> None:
    observed = Observed("done")
    run = observed.client.prompt("?").start()
    drive(run, how)
    run.cancel()
    assert run.next() is None
    assert (run.response.content, run.response.stop_reason) == ("done", "answered")
