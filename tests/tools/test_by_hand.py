"""Calls that are executed by hand follow the rules of the loop: limits, ids, advisors, approvals."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from pydantic import Field

from tests.audit.draft_trails import KeptTrail, auditing, person_of
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.loop.test_resuming_limits import Served
from tests.observe.closed_list import assert_consistent
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    Approve,
    AssistantMessage,
    ChatClient,
    LoopLimitExceeded,
    LoopLimits,
    Message,
    Reject,
    ToolCall,
    ToolContext,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.core import ToolExecutionResult
from traced_tools.errors import ResumeError
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext

pytestmark = pytest.mark.parametrize("how", ["execute_tool_calls", "aexecute_tool_calls"])
QUESTION: tuple[Message, ...] = (UserMessage("?"),)


@tool(requires_approval=True)
def launch(place: str) -> str:
    """Launch."""
    return f"gone to {place}"


NUMBERS = itertools.count()
NewNumber = Annotated[int, Field(default_factory=lambda: next(NUMBERS))]


@tool(requires_approval=True)
def order(key: NewNumber) -> str:
    """Order."""
    return f"ordered with {key}"


@tool(repeatable=True)
def wait() -> str:
    """Wait."""
    return "waited"


def adds(number: int, **fields: Any) -> ToolCall:
    return ToolCall("add", {"a": number, "b": 1}, **fields)


def executed(how: str, messages: Sequence[Message], *calls: ToolCall, **settings: Any) -> ToolExecutionResult:
    response = settings.pop("response", None) or ChatResponse(AssistantMessage(tool_calls=calls))
    settings = {"tools": [add, launch, wait], **settings}
    if how == "execute_tool_calls":
        return ToolCallingManager().execute_tool_calls(messages, response, **settings)
    return asyncio.run(ToolCallingManager().aexecute_tool_calls(messages, response, **settings))


def in_turns(how: str, calls: Sequence[Any], **settings: Any) -> list[ToolResult]:
    """Execute answers one after the other, each with the conversation so far; return all results."""
    history, results = QUESTION, []
    for answer in calls:
        done = executed(how, history, *(answer if isinstance(answer, list) else [answer]), **settings)
        history = done.conversation_history
        results += done.results
    return results


# Limits.


@pytest.mark.parametrize(
    ("limits", "calls", "limit", "tool_name", "ran"),
    [
        ({"max_tool_calls": 1}, [adds(1), adds(2)], "max_tool_calls", None, ["2"]),
        (
            {"max_calls_per_tool": 1},
            [adds(1), adds(2), ToolCall("wait", "")],
            "max_calls_per_tool",
            "add",
            ["2", "waited"],
        ),
        ({"max_tokens": 5}, [adds(1)], "token_budget", None, []),
    ],
    ids=["calls", "calls of a tool", "tokens"],
)
def test_a_broken_limit_raises_once_the_other_calls_have_run(
    how: str, limits: dict[str, Any], calls: list[ToolCall], limit: str, tool_name: str | None, ran: list[str]
) -> None:
    response = ChatResponse(AssistantMessage(tool_calls=calls), usage=Usage(input_tokens=9, output_tokens=1))
    with pytest.raises(LoopLimitExceeded) as caught:
        executed(how, QUESTION, response=response, limits=LoopLimits(**limits, on_limit="raise"))
    error = caught.value
    assert (error.limit, error.tool, error.response) == (limit, tool_name, response)
    assert error.result is not None
    assert [each.content for each in error.result.results if each.ok] == ran
    assert len(error.result.results) == len(calls)
    assert isinstance(error.result.conversation_history[-1], ToolMessage)


@pytest.mark.parametrize(
    ("limits", "decisions"),
    [
        ({"max_tool_calls": 2}, ["allowed", "allowed", "limited", "limited"]),
        ({"max_calls_per_tool": 3}, ["allowed", "allowed", "allowed", "limited"]),
        ({"max_iterations": 2}, ["allowed", "allowed", "limited", "limited"]),
    ],
    ids=str,
)
def test_limits_count_the_calls_in_the_conversation(how: str, limits: dict[str, Any], decisions: list[str]) -> None:
    results = in_turns(how, [adds(number) for number in range(4)], limits=LoopLimits(**limits))
    assert [each.decision for each in results] == decisions


def test_a_repetition_is_counted_over_the_conversation_and_stays_refused(how: str) -> None:
    answers = [[adds(1), ToolCall("wait", "")]] * 5
    decisions = [each.decision for each in in_turns(how, answers)]
    assert decisions[::2] == ["allowed"] * 3 + ["repeated"] * 2
    assert decisions[1::2] == ["allowed"] * 5


def test_a_call_whose_result_changes_is_not_a_repetition_over_the_conversation(how: str) -> None:
    states = iter(range(6))

    def status() -> int:
        """Get the state."""
        return next(states)

    results = in_turns(how, [ToolCall("status", "")] * 6, tools=[status])
    assert [each.decision for each in results] == ["allowed"] * 6


def test_calls_before_the_last_user_message_do_not_count(how: str) -> None:
    limits = LoopLimits(max_tool_calls=1, max_iterations=1, on_limit="raise")
    first = executed(how, QUESTION, adds(1), limits=limits)
    again = (*first.conversation_history, AssistantMessage("two"), UserMessage("again"))
    (result,) = executed(how, again, adds(1), limits=limits).results
    assert result.ok


def test_a_limit_that_the_conversation_reached_earlier_is_not_raised_again(how: str) -> None:
    limits = LoopLimits(max_calls_per_tool=1, on_limit="raise")
    with pytest.raises(LoopLimitExceeded) as caught:
        executed(how, QUESTION, adds(1), adds(2), limits=limits)
    assert caught.value.result is not None
    history = caught.value.result.conversation_history
    (result,) = executed(how, history, ToolCall("wait", ""), limits=limits).results
    assert result.ok


# Ids.


def test_calls_without_an_id_or_with_a_repeated_id_get_a_unique_id(how: str) -> None:
    done = executed(how, QUESTION, adds(1), adds(2, id="x"), adds(3, id="x"), ToolCall("wait", ""))
    message, answer = done.conversation_history[1:]
    assert isinstance(message, AssistantMessage)
    assert isinstance(answer, ToolMessage)
    ids = [call.id for call in message.tool_calls]
    assert ids[1] == "x"
    assert all(ids)
    assert len(set(ids)) == 4
    assert [each.call_id for each in done.results] == [part.call_id for part in answer.results] == ids


def test_a_conversation_with_results_by_hand_continues_in_a_client(how: str) -> None:
    model = ScriptedChatModel([adds(1), "two"])
    client = ChatClient(model, tools=[add])
    asked = client.prompt("?", tool_calling=False).call()
    done = executed(how, QUESTION, response=asked, tools=[add])
    assert executed(how, asked.messages, response=asked, tools=[add]).conversation_history == done.conversation_history
    answer = client.prompt(messages=done.conversation_history).call()
    assert answer.content == "two"
    assert model.requests[1].messages == done.conversation_history


# Approvals.


MOON, MARS = ToolCall("launch", {"place": "moon"}, id="1"), ToolCall("launch", {"place": "mars"}, id="2")


@pytest.mark.parametrize("by", [None, "ana"])
def test_an_approved_call_runs_and_its_span_names_who_approved(how: str, by: str | None) -> None:
    telemetry = Telemetry("SPAN_ONLY")
    done = executed(how, QUESTION, MOON, MARS, decisions={"1": Approve(by=by)}, telemetry=telemetry.options)
    assert [(each.decision, each.by) for each in done.results] == [("approved", by), ("pending", None)]
    span = telemetry.one("execute_tool launch")
    assert (span.attributes or {}).get(names.APPROVAL_BY) == by
    assert_consistent(telemetry)


def test_calls_that_wait_run_once_they_are_decided_and_the_others_keep_their_results(how: str) -> None:
    calls = [ToolCall("launch", {"place": "venus"}, id="0"), MOON, adds(1, id="a"), MARS]
    earlier = executed(how, QUESTION, *calls)
    assert [each.call_id for each in earlier.pending] == ["0", "1", "2"]
    decisions = {"0": Reject("too hot"), "1": Approve(by="ana", arguments={"place": "Moon"})}
    done = executed(how, QUESTION, *calls, earlier=earlier, decisions=decisions)
    assert [(each.decision, each.content) for each in done.results] == [
        ("rejected", "The call was not run: too hot"),
        ("approved", "gone to Moon"),
        ("allowed", "2"),
        ("pending", "The call was not run: it waits for approval."),
    ]
    assert done.results[2] is earlier.results[2]
    assert [each.call_id for each in done.pending] == ["2"]
    *history, results = done.conversation_history
    assert (history, results) == (
        [*QUESTION, AssistantMessage(tool_calls=calls)],
        ToolMessage(tuple(each.part() for each in done.results[:3])),
    )


def test_an_approval_of_a_call_that_waited_does_not_cover_arguments_that_an_advisor_changed_since(how: str) -> None:
    class Elsewhere(Advisor):
        name, order = "elsewhere", 500

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return await call_next(call.replace(arguments={"place": "the sun"}))

    earlier = executed(how, QUESTION, MOON)
    settings: dict[str, Any] = {"earlier": earlier, "decisions": {"1": Approve()}}
    [again] = executed(how, QUESTION, MOON, advisors=[Elsewhere()], **settings).pending
    assert again.args == {"place": "the sun"}
    [result] = executed(how, QUESTION, MOON, **settings).results
    assert result.decision == "approved"


def test_a_call_that_waited_runs_with_the_default_that_was_computed_then(how: str) -> None:
    asked = ToolCall("order", {}, id="o")
    earlier = executed(how, QUESTION, asked, tools=[order])
    [waits] = earlier.pending
    [result] = executed(how, QUESTION, asked, tools=[order], earlier=earlier, decisions={"o": Approve()}).results
    assert (result.decision, result.content) == ("approved", f"ordered with {waits.args['key']}")


def test_an_earlier_result_without_calls_that_wait_stays_as_it_is(how: str) -> None:
    class Ending(Advisor):
        name, order = "ending", 500

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.end(await call_next(call))

    for advisors in ([], [Ending()]):
        earlier = executed(how, QUESTION, adds(1, id="a"), *([MOON] if advisors else []), advisors=advisors)
        again = executed(how, QUESTION, adds(1, id="a"), *([MOON] if advisors else []), earlier=earlier)
        assert [*again.results] == [*earlier.results]
        assert again.pending == earlier.pending == ()


def test_the_result_of_another_answer_is_refused(how: str) -> None:
    with pytest.raises(ValueError, match="earlier is the result of another response"):
        executed(how, QUESTION, MARS, earlier=executed(how, QUESTION, MOON))


def test_a_decision_about_an_unknown_call_raises_and_no_tool_runs(how: str) -> None:
    ran: list[str] = []

    def note() -> None:
        """Note."""
        ran.append("note")

    call = ToolCall("note", "", id="1")
    with pytest.raises(KeyError, match="no call of this batch has the id '2'"):
        executed(how, QUESTION, call, tools=[note], decisions={"1": Approve(), "2": Approve()})
    wrong: Any
    for wrong, says in (
        (["1"], "decisions must be a mapping of ids of calls to Approve, Reject or Provide, not list"),
        ({"1": "ana"}, r"decisions\['1'\] must be an Approve, a Reject or a Provide, not str"),
    ):
        with pytest.raises(TypeError, match=says):
            executed(how, QUESTION, call, tools=[note], decisions=wrong)
    with pytest.raises(ValueError, match="an approval of more than the call needs an ApprovalAdvisor"):
        executed(how, QUESTION, call, tools=[note], decisions={"1": Approve(scope="tool")})
    assert ran == []


# Advisors.


class Guard(Advisor):
    """Denies some calls, and records that it was called."""

    def __init__(self, name: str, order: int, seen: list[str], denied: str = "") -> None:
        self.name, self.order, self._seen, self._denied = name, order, seen, denied

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        self._seen.append(self.name)
        return call.denied("no", code="rule-7") if call.name == self._denied else await call_next(call)


@tool(name="launch", requires_approval=True)
def launch_elsewhere(place: str) -> str:
    """Launch something else."""
    raise AssertionError("somebody approved another tool")


@pytest.mark.parametrize(
    ("tools", "problem"),
    [([launch_elsewhere], "definition of the tool"), ([Served(launch)], "comes from 'bank'"), ([], "is gone")],
)
def test_an_approval_is_refused_if_the_tool_has_changed(how: str, tools: list[Any], problem: str) -> None:
    earlier = executed(how, QUESTION, MOON)
    with pytest.raises(ResumeError, match=problem):
        executed(how, QUESTION, MOON, tools=tools, earlier=earlier, decisions={MOON.id: Approve()})
    [result] = executed(how, QUESTION, MOON, tools=tools, earlier=earlier, decisions={MOON.id: Reject("no")}).results
    assert result.decision == "rejected"


def test_advisors_wrap_the_calls_the_outermost_first(how: str) -> None:
    seen: list[str] = []
    telemetry, watching = Telemetry(), Watching()
    advisors = [Guard("inner", 500, seen, "wait"), Guard("outer", 400, seen), watching]
    done = executed(how, QUESTION, adds(1), advisors=advisors, telemetry=telemetry.options)
    assert (seen, done.results[0].content) == (["outer", "inner"], "2")
    assert watching.types == [
        "iteration_started",
        *("tool_intended", "tool_decided", "tool_started", "tool_finished"),
        "iteration_finished",
    ]
    (denied,) = executed(how, QUESTION, ToolCall("wait", ""), advisors=advisors, telemetry=telemetry.options).results
    assert (denied.decision, denied.advisor, denied.reason_code) == ("denied", "inner", "rule-7")
    assert [span.name for span in telemetry.children(None)] == ["execute_tool add", "refuse_tool wait"]
    assert_consistent(telemetry)


def test_the_audit_advisor_records_calls_by_hand_and_forgets_them(how: str) -> None:
    trail = KeptTrail()
    advisor = auditing(trail)
    calls = [adds(1, id="1"), ToolCall("launch", {"place": "moon"}, id="2"), ToolCall("launch", {}, id="3")]
    executed(how, QUESTION, *calls, advisors=[advisor], decisions={"2": Approve(by="ana"), "3": Reject("no", by="bob")})
    executed(how, QUESTION, adds(2), advisors=[advisor])
    assert trail.stories() == [
        ["intent add", "allowed", "ok"],
        ["intent launch", "approved", "ok"],
        ["intent launch", "rejected"],
        ["intent add", "allowed", "ok"],
    ]
    assert {person_of(each) for each in trail.of("decision")} == {None, "ana", "bob"}
    assert not advisor._runs


def test_the_audit_advisor_keeps_a_tool_by_hand_from_running_unrecorded(how: str) -> None:
    trail = KeptTrail()
    trail.is_out = True
    (result,) = executed(how, QUESTION, adds(1), advisors=[auditing(trail)]).results
    assert (result.decision, result.reason_code) == ("denied", "audit_unavailable")


# What cannot be used.


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"tool_context": [("a", 1)]}, TypeError, "tool_context must be a mapping of names to values, not list"),
        ({"tool_context": {1: 1}}, ValueError, "tool_context must have names"),
        ({"advisors": [object()]}, TypeError, r"advisors\[0\] must be an Advisor, not object"),
        ({"advisors": Watching()}, TypeError, "advisors must be a sequence of Advisor objects, not Watching"),
        ({"messages": None}, TypeError, "messages must be a sequence of messages, not None"),
    ],
    ids=["pairs", "no names", "no advisor", "one advisor", "no messages"],
)
def test_arguments_that_a_prompt_rejects_are_rejected_by_hand(
    how: str, settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    given = {"messages": QUESTION, **settings}
    with pytest.raises(error, match=says):
        executed(how, given.pop("messages"), adds(1), **given)


def test_consecutive_errors_count_since_the_last_user_message(how: str) -> None:
    wrong = [ToolCall("add", {"a": word, "b": 1}) for word in ("one", "two", "three")]
    limits = LoopLimits(max_consecutive_errors=2)
    assert [each.decision for each in in_turns(how, wrong, limits=limits)] == [*["invalid_arguments"] * 2, "limited"]


def test_calls_by_hand_have_the_agent_and_the_principal_that_are_passed(how: str) -> None:
    def whose(context: ToolContext) -> str:
        """Return on whose behalf the call is."""
        return str(context.principal)

    telemetry = Telemetry()
    settings = {"tools": [whose], "telemetry": telemetry.options, "agent": "desk", "principal": "ana"}
    assert executed(how, QUESTION, ToolCall("whose"), **settings).results[0].content == "ana"
    assert (telemetry.one("execute_tool whose").attributes or {})["gen_ai.agent.name"] == "desk"
    for name in ("agent", "principal"):
        with pytest.raises(TypeError, match=name):
            executed(how, QUESTION, ToolCall("whose"), **{**settings, name: 7})
