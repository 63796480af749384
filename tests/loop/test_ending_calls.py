"""An advisor around a tool call may end the run with a result: `call.end`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit.draft_trails import KeptTrail, auditing
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.loop.loops import Loop, assert_complete
from tests.markers import MARKER
from tests.modes import MODES, run, run_chunks
from tests.observe.runs import adds
from tests.sample_tools import add
from traced_tools import Advisor, AssistantMessage, ChatClient, LoopLimits, ToolCall, ToolResult, UserMessage, tool
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext


class Ending(Advisor):
    """Ends the run at calls whose `a` is above 1, in one of three ways."""

    name, order = "ending", 450

    def __init__(self, how: str = "text") -> None:
        self.how = how

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        if call.args["a"] <= 1:
            return await call_next(call)
        if self.how == "denial":
            return call.end(call.denied("closed"))
        return call.end("that is all" if self.how == "text" else await call_next(call))


def ending(*turns: Any, how: str = "text", **settings: Any) -> ChatClient:
    advisors = [*settings.pop("advisors", ()), Ending(how)]
    return ChatClient(ScriptedChatModel([*turns, "never asked"]), tools=[add], advisors=advisors, **settings)


@pytest.mark.parametrize("mode", MODES)
def test_the_run_ends_with_the_result_and_asks_the_model_no_more(mode: str) -> None:
    telemetry, loop = Telemetry(), Loop()
    client = ending(adds(1, 1), ["Adding.", adds(2, 2)], telemetry=telemetry.options, tool_calling_advisor=loop)
    response, chunks = run_chunks(mode, client.prompt("?"))
    assert (response.content, response.stop_reason, response.finish_reason) == ("that is all", "advisor", "stop")
    assert_complete(response.messages)
    assert response.messages[-1] == AssistantMessage("that is all")
    assert [(each.decision, each.advisor) for each in response.tool_results] == [
        ("allowed", None),
        ("answered", "ending"),
    ]
    assert [final.stop_reason for final in loop.finals] == ["advisor"]
    if chunks:
        assert chunks[-1].text == "that is all"
    attributes = telemetry.one("invoke_agent assistant").attributes or {}
    assert (attributes[names.LOOP_STOP_REASON], attributes[names.LOOP_ITERATIONS]) == ("advisor", 2)


@pytest.mark.parametrize(
    ("how", "content", "decision", "outcome"),
    [("tool", "4", "allowed", "ok"), ("denial", "The call was not run: closed", "denied", None)],
)
@pytest.mark.parametrize("mode", MODES)
def test_the_result_may_be_the_tools_own_or_a_refusal(
    mode: str, how: str, content: str, decision: str, outcome: str | None
) -> None:
    trail = KeptTrail()
    response = run(mode, ending(adds(2, 2), how=how, advisors=[auditing(trail)]).prompt("?"))
    assert (response.content, response.stop_reason) == (content, "advisor")
    assert [(each.decision, each.outcome) for each in response.tool_results] == [(decision, outcome)]
    assert trail.stories() == [["intent add", decision, *([outcome] if outcome else [])]]


@pytest.mark.parametrize("mode", MODES)
def test_the_other_calls_of_the_answer_run_and_the_first_ending_in_order_is_the_answer(mode: str) -> None:
    response = run(mode, ending([adds(1, 1), adds(2, 2), adds(3, 3), adds(1, 0)], how="tool").prompt("?"))
    assert [each.content for each in response.tool_results] == ["2", "4", "6", "1"]
    assert response.content == "4"
    assert_complete(response.messages)


@pytest.mark.parametrize("mode", MODES)
def test_it_wins_over_a_limit_that_the_same_answer_breaks(mode: str) -> None:
    response = run(mode, ending([adds(2, 2), adds(1, 1)], limits=LoopLimits(max_tool_calls=1)).prompt("?"))
    assert (response.content, response.stop_reason) == ("that is all", "advisor")


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_further_out_may_let_the_run_go_on(mode: str) -> None:
    class GoingOn(Advisor):
        name, order = "going_on", 420

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.answered((await call_next(call)).content)

    response = run(mode, ending(adds(2, 2), advisors=[GoingOn()]).prompt("?"))
    assert (response.content, response.stop_reason) == ("never asked", "answered")


def test_the_driver_of_a_run_finds_it_ended_after_the_batch() -> None:
    by_hand = ending(adds(2, 2)).prompt("?").start()
    while step := by_hand.next():
        by_hand.perform(step)
    assert (by_hand.response.content, by_hand.response.stop_reason) == ("that is all", "advisor")


def test_calls_executed_by_hand_return_the_result_that_ends_the_run() -> None:
    answer = ChatResponse(AssistantMessage(tool_calls=[adds(1, 1), adds(2, 2)]))
    done = ToolCallingManager().execute_tool_calls([UserMessage("?")], answer, tools=[add], advisors=[Ending()])
    assert done.ended_by is done.results[1]
    assert not done.return_direct


def test_the_answer_is_not_cut() -> None:
    @tool
    def write(a: int) -> str:
        """Write much."""
        return "x" * 1000

    loop = Loop(manager=ToolCallingManager(max_result_characters=100))
    model = ScriptedChatModel([[ToolCall("write", {"a": 1}), ToolCall("write", {"a": 2})]])
    client = ChatClient(model, tools=[write], advisors=[Ending("tool")], tool_calling_advisor=loop)
    response = client.prompt("?").call()
    assert [(len(each.content) < 1000, each.cut) for each in response.tool_results] == [(True, True), (False, False)]
    assert len(response.content) == 1000


@pytest.mark.parametrize("mode", MODES)
def test_the_answer_stays_out_of_telemetry_where_a_tool_does(mode: str) -> None:
    @tool(capture=False)
    def secret(a: int) -> str:
        """Return a secret."""
        return MARKER

    telemetry, watching = Telemetry(capture="SPAN_AND_EVENT"), Watching()
    client = ChatClient(
        ScriptedChatModel([ToolCall("secret", {"a": 2})]),
        tools=[secret],
        advisors=[Ending("tool"), watching],
        telemetry=telemetry.options,
    )
    assert run(mode, client.prompt("?")).content == MARKER
    assert not [span.name for span in telemetry.spans if MARKER in span.to_json()]
    assert not [event.type for event in watching.events if MARKER in event.model_dump_json()]


@pytest.mark.parametrize("given", [None, 4, ToolResult("other", "add", "4")])
def test_what_is_no_result_of_the_call_is_an_error(given: Any) -> None:
    class Wrong(Advisor):
        name, order = "wrong", 450

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.end(given)

    client = ChatClient(ScriptedChatModel([adds(1, 1)]), tools=[add], advisors=[Wrong()])
    with pytest.raises((TypeError, ValueError), match=r"result must be a str or a ToolResult|of the call it was given"):
        client.prompt("?").call()
