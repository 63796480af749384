"""Resuming runs that wait for approval: what runs, what the model reads, what is carried over, and what is refused."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from tests.audit.draft_trails import KeptTrail
from tests.captured import Telemetry
from tests.markers import MARKER
from tests.memory.conversations import assert_well_formed
from tests.modes import MODES, run
from traced_tools import (
    Advisor,
    Approve,
    AssistantMessage,
    AuditAdvisor,
    ChatClient,
    ChatClientResponse,
    EvaluationAdvisor,
    LoopLimits,
    MemoryAdvisor,
    Message,
    Reject,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    tool,
)
from traced_tools.core import ToolCallback
from traced_tools.errors import ResumeError
from traced_tools.memory import (
    CompactingChatMemory,
    InMemoryChatMemoryRepository,
    KeepTurns,
    MessageWindowChatMemory,
    Turns,
)
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, ToolInvocation, tool_callbacks
from traced_tools.tools.invocation import CallNext

DONE: list[str] = []
KEY = "0123456789abcdef" * 2
PLACES = {"outside": 200, "inside": 400}


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    DONE.append(f"pay {amount}")
    return f"paid {amount}"


@tool
def look(what: str = "all") -> str:
    """Look."""
    DONE.append(f"look {what}")
    return "seen"


def pays(amount: object = 5, id: str = "p") -> ToolCall:
    return ToolCall("pay", {"amount": amount}, id=id)


def looks(id: str = "l", **arguments: Any) -> ToolCall:
    return ToolCall("look", arguments, id=id)


def answers(*calls: ToolCall, tokens: int = 10) -> ChatResponse:
    return ChatResponse(AssistantMessage("", tool_calls=calls), usage=Usage(input_tokens=tokens, output_tokens=1))


def client(*turns: Any, **settings: Any) -> tuple[ChatClient, ScriptedChatModel]:
    model = ScriptedChatModel(list(turns))
    return ChatClient(model, **{"tools": [pay, look], **settings}), model


def paused(mode: str, *calls: ToolCall, prompt: Mapping[str, Any] | None = None, **settings: Any) -> ChatClientResponse:
    asking, _ = client([*calls] or [pays()], **settings)
    return run(mode, asking.prompt("buy", **(prompt or {})))


def state_of(response: ChatClientResponse) -> str:
    assert response.state is not None
    return response.state


def results_in(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(each.call_id, each.content) for part in messages if isinstance(part, ToolMessage) for each in part.results]


# What a resumed run does.


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_runs_the_approved_call_once_and_goes_on(mode: str) -> None:
    response = paused(mode, looks(), pays())
    assert DONE == ["look all"]
    going_on, model = client("done")
    resumed = run(mode, going_on.resume(state_of(response), {"p": Approve(by="ana")}))
    assert (resumed.content, resumed.stop_reason, DONE) == ("done", "answered", ["look all", "pay 5"])
    [result] = resumed.tool_results
    assert (result.call_id, result.decision, result.by) == ("p", "approved", "ana")
    [request] = model.requests
    assert results_in(request.messages) == [("l", "seen"), ("p", "paid 5")]
    assert [each.role for each in request.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_sends_the_model_the_reason_of_a_rejection(mode: str) -> None:
    response = paused(mode)
    going_on, model = client("done")
    resumed = run(mode, going_on.resume(state_of(response), {"p": Reject("too much", by="ana")}))
    assert resumed.tool_results[0].decision == "rejected"
    assert "too much" in results_in(model.requests[0].messages)[0][1]
    assert not DONE


@pytest.mark.parametrize("mode", MODES)
def test_a_call_without_a_decision_waits_on_and_keeps_the_results_of_the_others(mode: str) -> None:
    response = paused(mode, pays(1, "a"), looks(), pays(2, "b"))
    going_on, model = client("done")
    half = run(mode, going_on.resume(state_of(response), {"b": Approve()}))
    assert (half.stop_reason, [each.call_id for each in half.pending]) == ("awaiting_approval", ["a"])
    assert not model.requests
    assert half.pending[0].requested_at == response.pending[0].requested_at
    whole = run(mode, going_on.resume(state_of(half), {"a": Approve()}))
    assert whole.content == "done"
    assert DONE == ["look all", "pay 2", "pay 1"]
    assert results_in(model.requests[0].messages) == [("a", "paid 1"), ("l", "seen"), ("b", "paid 2")]


@pytest.mark.parametrize("mode", MODES)
def test_edited_arguments_replace_those_that_waited(mode: str) -> None:
    response = paused(mode)
    [result] = run(
        mode, client("done")[0].resume(state_of(response), {"p": Approve(arguments={"amount": 3})})
    ).tool_results
    assert (result.call_id, result.content) == ("p", "paid 3")
    [result] = run(
        mode, client("done")[0].resume(state_of(response), {"p": Approve(by="ana", arguments={"amount": "x"})})
    ).tool_results
    assert (result.decision, result.by, DONE) == ("invalid_arguments", "ana", ["pay 3"])
    assert "arguments that were approved instead of its own are invalid" in result.content


@pytest.mark.parametrize("mode", MODES)
def test_the_model_reads_which_arguments_ran_instead_of_its_own(mode: str) -> None:
    response = paused(mode, pays(1, "a"), pays(2, "b"), pays(4, "c"))
    going_on, model = client("done")
    decisions = {"b": Approve(arguments={"amount": 2}), "c": Approve(arguments={"amount": 7})}
    half = run(mode, going_on.resume(state_of(response), decisions))
    whole = run(mode, going_on.resume(state_of(half), {"a": Approve(arguments={"amount": 3})}))
    read = dict(results_in(model.requests[0].messages))
    assert read["b"] == "paid 2"  # the same arguments
    for call_id, amount in (("a", 3), ("c", 7)):
        assert read[call_id].endswith(f'instead of yours: {{"amount":{amount}}}. Its result:\npaid {amount}')
    assert [result.content for result in whole.tool_results] == ["paid 3"]


def test_the_driver_of_a_resumed_run_steps_through_the_call_that_waited() -> None:
    handle = client("done")[0].resume(state_of(paused("call", looks(), pays()))).start()
    step = handle.next()
    assert isinstance(step, ExecuteTools)
    assert [call.id for call in step.calls] == ["p"]
    step.approve("p", by="ana")
    while step is not None:
        handle.perform(step)
        step = handle.next()
    assert handle.response.content == "done"
    assert DONE == ["look all", "pay 5"]


class Doubling(Advisor):
    """Doubles the amount of each payment that is odd."""

    name, order = "doubling", 500

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        amount = call.args.get("amount", 0)
        return await call_next(call.replace(arguments={"amount": amount * 2}) if amount % 2 else call)


def test_an_approval_is_for_the_arguments_that_the_advisors_have_made() -> None:
    response = paused("call", advisors=[Doubling()])
    assert response.pending[0].args == {"amount": 10}
    resumed = client("done", advisors=[Doubling()])[0].resume(state_of(response), {"p": Approve()}).call()
    assert (resumed.content, DONE) == ("done", ["pay 10"])


def test_an_approval_does_not_cover_what_other_advisors_make_of_the_arguments() -> None:
    response = paused("call", advisors=[Doubling()])
    resumed = client("done")[0].resume(state_of(response), {"p": Approve()}).call()
    assert (resumed.stop_reason, resumed.pending[0].args, DONE) == ("awaiting_approval", {"amount": 5}, [])


class Stamping(Advisor):
    """Doubles each odd amount, after the default of the key is known."""

    name, order = "stamping", 500

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        changed = {**call.args, "amount": call.args["amount"] * 2} if call.args["amount"] % 2 else call.args
        return await call_next(call.replace(arguments=changed))


KEYS = map(str, itertools.count())
NewKey = Annotated[str, Field(default_factory=lambda: next(KEYS))]


@tool(requires_approval=True)
def order(amount: int, key: NewKey) -> str:
    """Order."""
    DONE.append(f"order {amount} {key}")
    return "ordered"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("advisors", [[], [Stamping()]], ids=["alone", "changed by an advisor"])
def test_a_call_with_a_computed_default_runs_with_the_default_that_was_approved(
    mode: str, advisors: list[Advisor]
) -> None:
    calls = [ToolCall("order", {"amount": 5}, id=each) for each in "ab"]
    response = paused(mode, *calls, tools=[order], advisors=advisors)
    keys = [each.args["key"] for each in response.pending]
    half = run(mode, client(tools=[order], advisors=advisors)[0].resume(state_of(response), {"a": Approve(by="ana")}))
    assert half.pending == response.pending[1:]  # the call that waits on is the same, and so is the key that it shows
    whole = run(mode, client("done", tools=[order], advisors=advisors)[0].resume(state_of(half), {"b": Approve()}))
    assert (whole.content, keys[0] != keys[1]) == ("done", True)
    assert [f"order {10 if advisors else 5} {key}" for key in keys] == DONE


# What is carried over.


@pytest.mark.parametrize("mode", MODES)
def test_usage_and_limits_go_on_where_they_were(mode: str) -> None:
    limits = LoopLimits(max_iterations=3, on_limit="stop")
    asking, _ = client(answers(looks()), answers(pays()), limits=limits)
    response = run(mode, asking.prompt("buy"))
    going_on, _ = client(answers(looks("m", what="more")), "never asked", limits=limits)
    resumed = run(mode, going_on.resume(state_of(response), {"p": Approve()}))
    assert (resumed.stop_reason, resumed.iteration) == ("max_iterations", 3)
    assert resumed.usage == Usage(input_tokens=30, output_tokens=3)


def test_calls_before_the_pause_count_against_the_limit_of_calls() -> None:
    limits = LoopLimits(max_calls_per_tool=2, on_limit="stop")
    response = paused("call", looks("a", what="a"), looks("b", what="b"), pays(), limits=limits)
    going_on, _ = client([looks("c", what="c")], "never asked", limits=limits)
    resumed = going_on.resume(state_of(response), {"p": Approve()}).call()
    assert resumed.stop_reason == "max_calls_per_tool"
    assert DONE == ["look a", "look b", "pay 5"]


def test_tokens_before_the_pause_count_against_the_budget() -> None:
    limits = LoopLimits(max_tokens=15, on_limit="stop")
    asking, _ = client(answers(pays()), limits=limits)
    response = asking.prompt("buy").call()
    going_on, _ = client(answers(looks()), limits=limits)
    resumed = going_on.resume(state_of(response), {"p": Approve()}).call()
    assert (resumed.stop_reason, DONE) == ("token_budget", ["pay 5"])


@pytest.mark.parametrize("mode", MODES)
def test_iterations_before_the_pause_count_when_a_judge_has_the_loop_run_again(mode: str) -> None:
    limits = LoopLimits(max_iterations=3, on_limit="stop")
    verdicts = iter([False, True])
    judging = EvaluationAdvisor(lambda answer: float(next(verdicts)))
    response = paused(mode, limits=limits, advisors=[judging])
    going_on, model = client("first", [looks()], "never asked", limits=limits, advisors=[judging])
    resumed = run(mode, going_on.resume(state_of(response), {"p": Approve()}))
    assert (resumed.stop_reason, len(model.requests)) == ("max_iterations", 2)


def test_a_tool_that_only_the_resolver_knows_can_wait() -> None:
    class Resolver:
        def resolve(self, name: str) -> ToolCallback | None:
            return tool_callbacks(pay)[0] if name == "pay" else None

    found = {"tools": [look], "resolver": Resolver(), "resolver_fallback": True}
    response = paused("call", **found)
    assert client("done", **found)[0].resume(state_of(response), {"p": Approve()}).call().content == "done"
    assert DONE == ["pay 5"]


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_has_the_conversation_principal_and_attributes_of_the_first(mode: str) -> None:
    response = paused(
        mode, prompt={"conversation_id": "c", "principal": "ana", "attributes": {"team": "red"}, "system": "be brief"}
    )
    going_on, model = client("done", system="be long")
    resumed = run(mode, going_on.resume(state_of(response), {"p": Approve()}))
    assert (resumed.conversation_id, resumed.run.principal, resumed.run.attributes["team"]) == ("c", "ana", "red")
    assert [each.role for each in model.requests[0].messages] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_links_to_the_run_that_asked(mode: str) -> None:
    telemetry = Telemetry()
    response = paused(mode, telemetry=telemetry.options)
    resumed = run(
        mode, client("done", telemetry=telemetry.options)[0].resume(state_of(response), {"p": Approve(by="ana")})
    )
    first, second = (span for span in telemetry.spans if span.name.startswith("invoke_agent"))
    assert first.context is not None
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert resumed.trace_id != response.trace_id
    [point] = telemetry.metric(names.APPROVAL_WAIT.name)
    assert point.attributes[names.TOOL_DECISION] == "approved"


@pytest.mark.parametrize("mode", MODES)
def test_the_calls_that_waited_are_tool_calls_of_the_resumed_run(mode: str) -> None:
    telemetry = Telemetry()
    response = paused(mode, looks(), pays(), telemetry=telemetry.options)
    run(mode, client("done", telemetry=telemetry.options)[0].resume(state_of(response), {"p": Approve(by="ana")}))
    counted = [
        span.attributes[names.LOOP_TOOL_CALLS]
        for span in telemetry.spans
        if span.attributes is not None and span.name.startswith("invoke_agent")
    ]
    assert counted == [2, 1]


@pytest.mark.parametrize("mode", MODES)
def test_the_result_of_an_uncaptured_tool_that_ends_a_resumed_run_is_not_captured(mode: str) -> None:
    @tool(name="pay", requires_approval=True, capture=False)
    def pay_secretly(amount: int) -> str:
        """Pay."""
        return MARKER

    class Ends(Advisor):
        name, order = "ends", 350

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.end(await call_next(call))

    telemetry = Telemetry("SPAN_AND_EVENT")
    settings: dict[str, Any] = {"tools": [pay_secretly], "telemetry": telemetry.options}
    response = paused(mode, **settings)
    going_on, _ = client(**settings, advisors=[Ends()])
    resumed = run(mode, going_on.resume(state_of(response), {"p": Approve()}))
    assert (resumed.content, resumed.stop_reason) == (MARKER, "advisor")
    assert not [span.name for span in telemetry.spans if MARKER in str(dict(span.attributes or {}))]
    assert not [event for event in telemetry.events if MARKER in repr(event)]


# Memory.


def remembering(place: str, repository: InMemoryChatMemoryRepository) -> dict[str, Any]:
    return {"advisors": [MemoryAdvisor(MessageWindowChatMemory(repository), order=PLACES[place])]}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_goes_on_in_its_conversation(mode: str, place: str) -> None:
    memory = remembering(place, InMemoryChatMemoryRepository())
    talk = {"conversation_id": "c", "principal": "ana"}
    run(mode, client("hello", **memory)[0].prompt("hi", **talk))
    response = paused(mode, looks(), pays(), prompt=talk, **memory)
    going_on, model = client("done", **memory)
    run(mode, going_on.resume(state_of(response), {"p": Approve()}))
    [request] = model.requests
    assert [each.role for each in request.messages] == ["user", "assistant", "user", "assistant", "tool"]
    assert results_in(request.messages) == [("l", "seen"), ("p", "paid 5")]
    later, model = client("bye", **memory)
    run(mode, later.prompt("more?", **talk))
    [request] = model.requests
    assert_well_formed(request.messages)
    assert request.messages[-2].text == "done"
    assert "hi" not in state_of(response)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", MODES)
def test_a_decision_is_refused_once_the_user_has_said_something_else(mode: str, place: str) -> None:
    memory = remembering(place, InMemoryChatMemoryRepository())
    response = paused(mode, prompt={"conversation_id": "c"}, **memory)
    other, model = client("fine", **memory)
    run(mode, other.prompt("never mind", conversation_id="c"))
    assert_well_formed(model.requests[0].messages)
    going_on, model = client("never asked", **memory)
    with pytest.raises(ResumeError, match="went on while the run waited"):
        run(mode, going_on.resume(state_of(response), {"p": Approve()}))
    assert not DONE
    assert not model.requests


@pytest.mark.parametrize("mode", MODES)
def test_a_run_resumes_whose_turn_is_longer_than_the_window(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    memory = {"advisors": [MemoryAdvisor(MessageWindowChatMemory(repository, max_messages=4), order=PLACES["inside"])]}
    rounds = [[looks(f"l{number}", what=str(number))] for number in range(3)]
    run(mode, client("hello", **memory)[0].prompt("hi", conversation_id="c"))
    response = run(mode, client(*rounds, [pays()], **memory)[0].prompt("buy", conversation_id="c"))
    going_on, model = client("done", **memory)
    assert run(mode, going_on.resume(state_of(response), {"p": Approve()})).content == "done"
    [request] = model.requests
    assert [each.role for each in request.messages] == ["user", *["assistant", "tool"] * 4]
    assert results_in(request.messages)[-1] == ("p", "paid 5")
    assert DONE == ["look 0", "look 1", "look 2", "pay 5"]


@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_is_compacted_around_the_call_that_waited(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    talk = {"conversation_id": "c"}
    for question in ("hi", "how are you?"):
        run(mode, client("fine", **remembering("inside", repository))[0].prompt(question, **talk))
    response = paused(mode, looks(), pays(), prompt=talk, **remembering("inside", repository))
    compacting = MemoryAdvisor(CompactingChatMemory(repository, Turns(1), KeepTurns(0)), order=PLACES["inside"])
    going_on, model = client("done", advisors=[compacting])
    run(mode, going_on.resume(state_of(response), {"p": Approve()}))
    [request] = model.requests
    assert [each.role for each in request.messages] == ["user", "assistant", "tool"]
    assert results_in(request.messages) == [("l", "seen"), ("p", "paid 5")]
    assert len(repository.read("c", kind="compaction").entries) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_waited_when_the_user_went_on_is_reported_once(mode: str) -> None:
    telemetry, trail = Telemetry(), KeptTrail()
    advisors = [*remembering("inside", InMemoryChatMemoryRepository())["advisors"], AuditAdvisor(trail)]
    paused(mode, prompt={"conversation_id": "c"}, advisors=advisors)
    for turn in ("never mind", "really"):
        asking, model = client("fine", advisors=advisors, telemetry=telemetry.options)
        run(mode, asking.prompt(turn, conversation_id="c"))
        [(call_id, content)] = results_in(model.requests[0].messages)
        assert (call_id, content.startswith("The call was not run")) == ("p", True)
    [span] = telemetry.named("refuse_tool pay")
    assert span.attributes is not None
    assert (span.attributes[names.TOOL_CALL_ID], span.attributes[names.REASON_CODE]) == ("p", "superseded")
    decided = [each for each in trail.drafts if each.kind == "decision"]
    assert [each.fields["decision"] for each in decided] == ["pending", "denied"]


@pytest.mark.parametrize("mode", MODES)
def test_of_a_call_in_messages_without_a_memory_nobody_says_that_it_was_not_run(mode: str) -> None:
    telemetry, trail = Telemetry(), KeptTrail()
    response = paused(mode, advisors=[AuditAdvisor(trail)])
    going_on, _ = client("done", advisors=[AuditAdvisor(trail)])
    run(mode, going_on.resume(state_of(response), {"p": Approve()}))
    said = response.messages  # a worker has resumed the run meanwhile
    for turn in ("never mind", "really"):
        asking, model = client("fine", advisors=[AuditAdvisor(trail)], telemetry=telemetry.options)
        said = run(mode, asking.prompt(turn, messages=said)).messages
        [(call_id, content)] = results_in(model.requests[0].messages)
        assert (call_id, content.startswith("The outcome of the call is unknown, and it may have run")) == ("p", True)
    assert not telemetry.named("refuse_tool pay")
    [point] = telemetry.metric(names.MISSING_RESULTS.name)
    assert ((point.attributes or {})[names.MISSING_RESULTS_KIND], point.value) == ("unknown", 1)
    decided = [each for each in trail.drafts if each.kind == "decision"]
    assert [each.fields["decision"] for each in decided] == ["pending", "approved"]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_is_reported_that_waited_in_a_turn_longer_than_the_window(mode: str) -> None:
    telemetry, repository = Telemetry(), InMemoryChatMemoryRepository()
    memory = MessageWindowChatMemory(repository, max_messages=4)
    settings = {"advisors": [MemoryAdvisor(memory, order=PLACES["inside"])], "telemetry": telemetry.options}
    rounds = [[looks(f"l{number}", what=str(number))] for number in range(3)]
    run(mode, client(*rounds, [pays()], **settings)[0].prompt("buy", conversation_id="c"))
    for turn in ("never mind", "really"):
        asking, model = client("fine", **settings)
        run(mode, asking.prompt(turn, conversation_id="c"))
        assert_well_formed(model.requests[0].messages)
    waited, superseded = telemetry.named("refuse_tool pay")
    assert (superseded.attributes or {})[names.REASON_CODE] == "superseded"
    assert (waited.attributes or {})[names.TOOL_DECISION] == "pending"


# What is refused.


def altered(state: str, *path: str | int, value: object) -> str:
    found = json.loads(state)
    at: Any = found
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("state", "waiting", 0, "arguments"), '{"amount":500}', "altered"),
        (("state", "principal"), "eve", "altered"),
        (("traced_tools_state",), 2, "another version"),
        (("digest",), "sha256:0", "altered"),
        (("digest",), None, "altered"),
    ],
)
def test_a_changed_state_is_refused(path: tuple[str | int, ...], value: object, problem: str) -> None:
    state = altered(state_of(paused("call")), *path, value=value)
    with pytest.raises(ResumeError, match=problem):
        client()[0].resume(state)


@pytest.mark.parametrize("key", [None, KEY])
@given(place=st.integers(0), other=st.characters(codec="ascii"))
def test_no_change_of_a_byte_passes(key: str | None, place: int, other: str) -> None:
    state = state_of(paused("call", approval_key=key))
    place %= len(state)
    changed = state[:place] + other + state[place + 1 :]
    try:
        if json.loads(changed) == json.loads(state):
            return
    except ValueError:  # it is no JSON any more
        pass
    with pytest.raises(ResumeError):
        client(approval_key=key)[0].resume(changed)


@given(text=st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ResumeError, match="not the state of a run"):
        client()[0].resume(text)


def test_a_forged_state_is_refused_with_a_key() -> None:
    unsigned, signed = state_of(paused("call")), state_of(paused("call", approval_key=KEY))
    with pytest.raises(ResumeError, match="not signed with the configured key"):
        client(approval_key=KEY)[0].resume(unsigned)
    with pytest.raises(ResumeError, match="signed with a key"):
        client()[0].resume(signed)
    with pytest.raises(ResumeError, match="a key that is not configured"):
        client(approval_key=KEY[::-1])[0].resume(signed)
    assert client("done", approval_key=KEY)[0].resume(signed, {"p": Approve()}).call().content == "done"


def test_a_state_is_accepted_with_any_of_several_keys_and_signed_with_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = KEY, KEY[::-1]
    state = state_of(paused("call", approval_key=old))
    rotated = client([pays(1, "q")], approval_key=[new, old])[0]
    assert client("done", approval_key=[new, old])[0].resume(state, {"p": Approve()}).call().content == "done"
    monkeypatch.setenv("TRACED_TOOLS_STATE_KEY", f"{new}, {old}")
    assert client("done")[0].resume(state, {"p": Approve()}).call().content == "done"
    later = state_of(rotated.prompt("buy").call())
    with pytest.raises(ResumeError, match="a key that is not configured"):
        client(approval_key=old)[0].resume(later)
    wrong: Any = [1]
    with pytest.raises(TypeError, match=r"approval_key\[0\] must be bytes or a str"):
        client(approval_key=wrong)


def redigested(state: str, *path: str | int, value: object) -> str:
    found = json.loads(altered(state, *path, value=value))
    canonical = json.dumps(found["state"], sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**found, "digest": f"sha256:{hashlib.sha256(canonical).hexdigest()}"})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("waiting", 0, "call_id"), "other"),
        (("waiting", 0, "tool"), "look"),
        (("results",), []),
        (("my secret name",), 1),
        (("seconds",), float("nan")),
        (("principal",), "\ud800"),
    ],
)
def test_a_forged_state_that_makes_no_sense_is_refused_without_a_quote(
    path: tuple[str | int, ...], value: object
) -> None:
    state = redigested(state_of(paused("call", looks(), pays())), "state", *path, value=value)
    with pytest.raises(ResumeError) as refused:
        client()[0].resume(state)
    assert str(refused.value) == "the state cannot be read: its contents are none of a run that waits"


def test_a_digest_or_a_decision_of_a_wrong_kind_is_refused() -> None:
    state = state_of(paused("call"))
    with pytest.raises(ResumeError, match="altered"):
        client()[0].resume(altered(state, "digest", value="\ud800"))
    for strange in (1, None, ("a",)):
        wrong: Any = {strange: Approve()}
        with pytest.raises(TypeError, match="the id of a call"):
            client()[0].resume(state, wrong)


class Requiring(Advisor):
    """Requires approval for reasons that no encoding has."""

    name, order = "requiring", 500

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(intent="why\ud800").requiring_approval("large\ud800", code="rule"))


@pytest.mark.parametrize("mode", MODES)
def test_a_state_keeps_texts_that_no_encoding_has(mode: str) -> None:
    said = {"conversation_id": "c\ud800", "principal": "ana"}
    response = paused(mode, pays(id="\ud800"), advisors=[Requiring()], prompt=said)
    [waiting] = response.pending
    going_on, _ = client("done", advisors=[Requiring()])
    half = run(mode, going_on.resume(state_of(response)))
    assert (half.conversation_id, half.run.principal) == ("c\ud800", "ana")
    whole = run(mode, going_on.resume(state_of(half), {waiting.call_id: Approve(by="bob\ud800")}))
    assert (whole.content, whole.tool_results[0].by) == ("done", "bob\ud800")


def test_the_key_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACED_TOOLS_STATE_KEY", KEY)
    signed = state_of(paused("call"))
    monkeypatch.delenv("TRACED_TOOLS_STATE_KEY")
    with pytest.raises(ResumeError, match="signed with a key"):
        client()[0].resume(signed)
    assert client("done", approval_key=KEY)[0].resume(signed, {"p": Approve()}).call().content == "done"


def test_a_tool_that_is_gone_or_has_changed_is_refused() -> None:
    @tool(name="pay", requires_approval=True)
    def changed(amount: int, currency: str = "EUR") -> str:
        """Pay."""
        return f"{amount} {currency}"

    state = state_of(paused("call"))
    with pytest.raises(ResumeError, match="'pay' of the waiting call 'p' is gone"):
        client("never asked", tools=[look])[0].resume(state, {"p": Approve()}).call()
    with pytest.raises(ResumeError, match="definition of the tool 'pay' has changed"):
        client("never asked", tools=[changed, look])[0].resume(state, {"p": Approve()}).call()
    with pytest.raises(ResumeError, match="no call with the id 'other' waits"):
        client("never asked")[0].resume(state, {"other": Approve()}).call()
    with pytest.raises(ValueError, match="needs an ApprovalAdvisor"):
        client("never asked")[0].resume(state, {"p": Approve(scope="tool")})
    assert not DONE


def test_a_response_and_an_error_show_no_content() -> None:
    response = paused("call", prompt={"principal": "my secret name"})
    shown = repr(response) + repr(response.pending) + repr(copy.copy(response))
    with pytest.raises(ResumeError) as refused:
        client(tools=[look])[0].resume(state_of(response), {"p": Approve(by="my secret name")}).call()
    for text in (shown, str(refused.value), repr(refused.value)):
        assert "amount" not in text
        assert "secret" not in text


_PROCESS = """
import os, signal, sys
from tests.loop.test_resuming import DONE, PLACES, client, looks, pays, results_in
from tests.memory.conversations import assert_well_formed
from traced_tools import Approve, MemoryAdvisor
from traced_tools.memory import MessageWindowChatMemory, SqlChatMemoryRepository

folder, place, step = sys.argv[1:]
memory = MessageWindowChatMemory(SqlChatMemoryRepository("sqlite:///" + folder + "/memory.db"))
advisors = [MemoryAdvisor(memory, order=PLACES[place])]
if step == "ask":
    asking, _ = client([looks(), pays()], advisors=advisors)
    print(asking.prompt("buy", conversation_id="c").call().state, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
going_on, model = client("done", advisors=advisors)
if step == "resume":
    response = going_on.resume(sys.stdin.read(), {"p": Approve(by="ana")}).call()
else:
    response = going_on.prompt("never mind", conversation_id="c").call()
assert_well_formed(model.requests[0].messages)
print(response.content, DONE, results_in(model.requests[0].messages))
"""


class Processes:
    """Processes of an agent whose conversations outlive them."""

    def __init__(self, folder: Path, place: str) -> None:
        self._command = [sys.executable, "-c", _PROCESS, str(folder), place]

    def __call__(self, step: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command, root = [*self._command, step], Path(__file__).parents[2]
        return subprocess.run(command, input=given, text=True, capture_output=True, timeout=60, cwd=root, check=False)

    def killed(self) -> str:
        """Return the state of a run that waits, and whose process was killed."""
        asked = self("ask")
        assert asked.returncode == -9, asked.stderr
        return asked.stdout


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_run_is_resumed_in_another_process_after_the_first_was_killed(tmp_path: Path, place: str) -> None:
    process = Processes(tmp_path, place)
    state = process.killed()
    resumed = process("resume", state)
    assert resumed.stdout == "done ['pay 5'] [('l', 'seen'), ('p', 'paid 5')]\n", resumed.stderr
    assert "ResumeError" in process("resume", state).stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_conversation_goes_on_in_another_process_while_a_run_of_a_killed_one_waits(
    tmp_path: Path, place: str
) -> None:
    process = Processes(tmp_path, place)
    state = process.killed()
    other = process("go on")
    assert other.stdout.startswith("done [] "), other.stderr
    assert ("('p', 'The call was not run" in other.stdout) is (place == "inside")
    refused = process("resume", state)
    assert "ResumeError: the conversation went on while the run waited" in refused.stderr
    assert not refused.stdout
