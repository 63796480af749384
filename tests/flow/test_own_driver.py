"""Promise 3: a user may drive a run step by step."""

from __future__ import annotations

import asyncio

import pytest

from tests.captured import Telemetry
from tests.waiting import patiently
from traced_tools import Advisor, ChatClient, ChatClientRequest, ChatClientResponse, ChatRun, ToolCall, ToolResult
from traced_tools.core import ToolErrors
from traced_tools.core.messages import AssistantMessage
from traced_tools.errors import NeedsEventLoop
from traced_tools.flow import Step, perform
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import CallModel
from traced_tools.models.base import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools


class Adder:
    def __init__(self) -> None:
        self.calls = 0

    def client(self, telemetry: Telemetry | None = None, turns: list[object] | None = None) -> ChatClient:
        def add(a: int, b: int) -> int:
            self.calls += 1
            return a + b

        self.model = ScriptedChatModel(turns or [ToolCall("add", {"a": 1, "b": 2}), "three"])  # type: ignore[arg-type]
        return ChatClient(self.model, tools=[add], telemetry=None if telemetry is None else telemetry.options)


@pytest.fixture
def adder() -> Adder:
    return Adder()


def to_the_end(run: ChatRun) -> list[str]:
    steps = []
    while step := run.next():
        steps.append(type(step).__name__)
        run.perform(step)
    return steps


def test_the_steps_come_in_the_order_of_the_loop(adder: Adder) -> None:
    run = adder.client().prompt("?").start()

    assert to_the_end(run) == ["CallModel", "ExecuteTools", "CallModel"]
    assert run.response.content == "three"
    assert run.response.tool_results[0].content == "3"


def test_the_steps_are_performed_on_asyncio(adder: Adder) -> None:
    async def main() -> str:
        run = adder.client().prompt("?").start()
        while step := run.next():
            await run.aperform(step)
        return run.response.content

    assert asyncio.run(patiently(main())) == "three"
    assert adder.calls == 1


def test_nothing_happens_before_a_step_is_performed(adder: Adder, telemetry: Telemetry) -> None:
    run = adder.client(telemetry).prompt("?").start()
    assert not telemetry.counting.begun

    first = run.next()
    assert isinstance(first, CallModel)
    assert id(run.next()) == id(first)
    assert adder.model.requests == []

    run.perform(first)
    second = run.next()
    assert isinstance(second, ExecuteTools)
    assert [call.name for call in second.calls] == ["add"]
    assert (len(adder.model.requests), adder.calls) == (1, 0)

    run.perform(second)
    assert (len(adder.model.requests), adder.calls) == (1, 1)
    run.close()


def test_performing_another_step_than_the_awaited_one_is_refused(adder: Adder) -> None:
    run = adder.client().prompt("?").start()
    first = run.next()
    assert first is not None
    run.perform(first)

    other = adder.client().prompt("?").start().next()
    assert other is not None
    for wrong in (first, other):
        with pytest.raises(ValueError, match=r"run\.next"):
            run.perform(wrong)
        with pytest.raises(ValueError, match=r"run\.next"):
            run.answer(wrong, "anything")
        with pytest.raises(ValueError, match=r"run\.next"):
            asyncio.run(run.aperform(wrong))
    assert adder.calls == 0
    assert to_the_end(run) == ["ExecuteTools", "CallModel"]


def test_there_is_no_response_before_the_end(adder: Adder) -> None:
    run = adder.client().prompt("?").start()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="not ended"):
            _ = run.response
        step = run.next()
        assert step is not None
        run.perform(step)
    assert run.next() is None
    assert run.response.content == "three"


def test_there_is_no_response_of_a_run_that_failed() -> None:
    run = ChatClient(ScriptedChatModel([LookupError("down")])).prompt("?").start()
    step = run.next()
    assert step is not None
    with pytest.raises(LookupError, match="down"):
        run.perform(step)

    assert run.next() is None
    with pytest.raises(RuntimeError):
        _ = run.response


def test_there_is_no_response_of_a_run_that_was_closed(adder: Adder) -> None:
    run = adder.client().prompt("?").start()
    run.next()
    run.close()

    assert run.next() is None
    with pytest.raises(RuntimeError):
        _ = run.response


def test_a_denied_call_does_not_run_and_the_model_reads_why(adder: Adder, telemetry: Telemetry) -> None:
    turns: list[object] = [
        [ToolCall("add", {"a": 1, "b": 2}, "c1"), ToolCall("add", {"a": 3, "b": 4}, "c2")],
        lambda request: request.messages[-1].results[0].content,
    ]
    run = adder.client(telemetry, turns).prompt("?").start()
    while step := run.next():
        if isinstance(step, ExecuteTools):
            with pytest.raises(KeyError):
                step.deny("c9", "there is no such call")
            step.deny("c1", "not now")
        run.perform(step)

    assert adder.calls == 1
    assert "not now" in run.response.content
    assert [each.decision for each in run.response.tool_results] == ["denied", "allowed"]
    assert [span.name for span in telemetry.named("refuse_tool")] == ["refuse_tool add"]
    telemetry.check_each_ended_once()


def test_answers_can_replace_the_model_and_the_tools(adder: Adder, telemetry: Telemetry) -> None:
    run = adder.client(telemetry).prompt("?").start()
    first = run.next()
    assert isinstance(first, CallModel)
    run.answer(first, ChatResponse(AssistantMessage([ToolCall("add", {"a": 1, "b": 2}, "c1")])))
    second = run.next()
    assert isinstance(second, ExecuteTools)
    run.answer(second, [ToolResult("c1", "add", "fifty")])
    third = run.next()
    assert isinstance(third, CallModel)
    run.answer(third, ChatResponse(AssistantMessage("done")))

    assert run.next() is None
    assert run.response.content == "done"
    assert (adder.calls, adder.model.requests) == (0, [])
    assert [(each.content, each.decision) for each in run.response.tool_results] == [("fifty", "answered")]
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("is_async", [False, True], ids=["run", "arun"])
def test_the_tools_of_a_step_run_once_and_are_recorded_once(adder: Adder, telemetry: Telemetry, is_async: bool) -> None:
    run = adder.client(telemetry).prompt("?").start()
    first = run.next()
    assert first is not None
    run.perform(first)
    step = run.next()
    assert isinstance(step, ExecuteTools)
    results = asyncio.run(patiently(step.arun())) if is_async else step.run()
    again = [step.run, lambda: asyncio.run(step.arun()), lambda: run.perform(step), lambda: list(run.stream(step))]
    for each in again:
        with pytest.raises(RuntimeError, match="was performed before"):
            each()
    run.answer(step, results)
    assert to_the_end(run) == ["CallModel"]
    assert (adder.calls, [each.decision for each in run.response.tool_results]) == (1, ["allowed"])
    assert len(telemetry.named("execute_tool add")) == 1
    telemetry.check_each_ended_once()


def test_an_answer_of_the_wrong_type_is_refused_and_the_run_continues(adder: Adder) -> None:
    run = adder.client().prompt("?").start()
    first = run.next()
    assert first is not None
    with pytest.raises(TypeError, match="ChatResponse"):
        run.answer(first, "just text")
    run.perform(first)
    second = run.next()
    assert second is not None
    for wrong in ("three", [], [ToolResult("other", "add", "3")]):
        with pytest.raises(ValueError, match="one ToolResult per call"):
            run.answer(second, wrong)
    assert to_the_end(run) == ["ExecuteTools", "CallModel"]


def test_the_spans_are_those_of_the_built_in_loop(adder: Adder, telemetry: Telemetry) -> None:
    built_in = Telemetry()
    adder.client(built_in).prompt("?").call()
    to_the_end(adder.client(telemetry).prompt("?").start())
    assert telemetry.parents() == built_in.parents()
    assert len(telemetry.parents()) > 6
    telemetry.check_each_ended_once()


class Storing(Advisor):
    name, order = "storing", 400

    def __init__(self) -> None:
        self.stored: list[str] = []

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        await perform(self.stored.append, "asked")
        return await call_next(request)


def test_steps_of_advisors_are_returned_to_the_driver() -> None:
    advisor = Storing()
    run = ChatClient(ScriptedChatModel(["hello"]), advisors=[advisor]).prompt("?").start()
    step = run.next()

    assert isinstance(step, Step)
    assert not isinstance(step, CallModel | ExecuteTools)
    assert "append" in repr(step)
    assert advisor.stored == []
    run.answer(step, None)
    assert isinstance(run.next(), CallModel)
    assert advisor.stored == []
    run.close()


def test_an_error_of_a_step_is_thrown_into_the_run(adder: Adder, telemetry: Telemetry) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    client = adder.client(telemetry, [ToolCall("fail")])
    run = client.prompt("?", tools=[fail], tool_errors=ToolErrors(always_raise=True)).start()
    with pytest.raises(Exception, match="fail failed with ZeroDivisionError"):
        to_the_end(run)
    telemetry.check_each_ended_once()
    telemetry.check_run("error", "traced_tools.errors.ToolExecutionError")


def test_leaving_the_block_of_a_run_ends_it_as_cancelled(adder: Adder, telemetry: Telemetry) -> None:
    with adder.client(telemetry).prompt("?").start() as run:
        step = run.next()
        assert step is not None
        run.perform(step)

    telemetry.check_cancelled()
    assert adder.calls == 0


class Sleeping(Advisor):
    name, order = "sleeping", 400

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        await asyncio.sleep(self.seconds)
        response = await call_next(request)
        await asyncio.sleep(self.seconds)
        return response


def test_a_run_on_asyncio_may_await_asyncio_awaitables() -> None:
    async def main() -> list[str]:
        run = ChatClient(ScriptedChatModel(["hello"]), advisors=[Sleeping(0.001)]).prompt("?").start()
        steps = []
        while step := run.next():
            steps.append(type(step).__name__)
            await run.aperform(step)
        assert run.response.content == "hello"
        return steps

    assert "CallModel" in asyncio.run(patiently(main()))


@pytest.mark.parametrize("seconds", [0, 0.001])
def test_needs_event_loop_names_the_alternatives(seconds: float) -> None:
    run = ChatClient(ScriptedChatModel(["hello"]), advisors=[Sleeping(seconds)]).prompt("?").start()
    with pytest.raises(NeedsEventLoop, match=r"acall.*perform"):
        to_the_end(run)
