"""A run that waited for approval, and is resumed, can be driven step by step; so can a run whose steps fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.captured import Telemetry
from tests.sample_tools import add
from tests.waiting import patiently
from traced_tools import Approve, ChatClient, ChatRun, Reject, ToolCall, tool
from traced_tools.flow import Step
from traced_tools.models import CallModel
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools

CALLS = [
    ToolCall("add", {"a": 1, "b": 1}, id="a"),
    ToolCall("launch", {"place": "moon"}, id="1"),
    ToolCall("launch", {"place": "mars"}, id="2"),
]
Decisions = Mapping[str, Approve | Reject]


@tool(requires_approval=True)
def launch(place: str) -> str:
    """Launch."""
    return f"gone to {place}"


def resumed(decisions: Decisions) -> ChatRun:
    client = ChatClient(ScriptedChatModel([CALLS, "Done."]), tools=[add, launch])
    state = client.prompt("?").call().state
    assert state is not None
    return client.resume(state, decisions).start()


def performed(run: ChatRun, how: str, step: Step) -> None:
    if how == "perform":
        run.perform(step)
    else:
        asyncio.run(patiently(run.aperform(step)))


@pytest.mark.parametrize("how", ["perform", "aperform"])
def test_the_first_step_of_a_resumed_run_has_the_calls_that_waited(how: str) -> None:
    run = resumed({"1": Approve(by="ana"), "2": Reject("too far")})
    first = run.next()
    assert isinstance(first, ExecuteTools)
    assert [call.id for call in first.calls] == ["1", "2"]
    performed(run, how, first)
    second = run.next()
    assert isinstance(second, CallModel)
    performed(run, how, second)
    assert run.next() is None
    assert [(each.call_id, each.decision) for each in run.response.tool_results][-2:] == [
        ("1", "approved"),
        ("2", "rejected"),
    ]
    assert run.response.content == "Done."


def test_the_driver_of_a_resumed_run_decides_about_a_call_without_a_decision() -> None:
    run = resumed({"1": Approve(by="ana")})
    step = run.next()
    assert isinstance(step, ExecuteTools)
    step.approve("2", by="ben", arguments={"place": "venus"})
    while step := run.next():
        run.perform(step)
    first, second = run.response.tool_results[-2:]
    assert (first.content, first.by) == ("gone to moon", "ana")
    assert (second.content, second.by) == ("gone to venus", "ben")


def test_a_call_of_a_resumed_run_that_nobody_decides_waits_in_a_new_state() -> None:
    run = resumed({"1": Approve(by="ana")})
    while step := run.next():
        run.perform(step)
    assert run.response.stop_reason == "awaiting_approval"
    assert [each.call_id for each in run.response.pending] == ["2"]
    assert run.response.state is not None


@pytest.mark.parametrize("how", ["run", "arun"])
def test_a_driver_that_performs_a_failing_model_call_itself_asks_again(how: str, telemetry: Telemetry) -> None:
    model = ScriptedChatModel([LookupError("down"), "up"])
    run = ChatClient(model, telemetry=telemetry.options).prompt("?").start()
    step = run.next()
    assert isinstance(step, CallModel)

    def asked() -> object:
        return step.run() if how == "run" else asyncio.run(patiently(step.arun()))

    with pytest.raises(LookupError, match="down"):
        asked()
    assert run.next() is step
    run.answer(step, asked())
    assert run.next() is None
    assert run.response.content == "up"
    telemetry.check_run("answered")
