"""A run waits with the agents that its tools ask: what waits, how it goes on, and what a tool does that cannot wait."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.audit.draft_trails import KeptTrail, auditing
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.memory.conversations import assert_well_formed
from tests.modes import MODES, run
from tests.sweeps import sweep
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    Approve,
    ChatClient,
    ChatClientResponse,
    LoopLimitExceeded,
    LoopLimits,
    MemoryAdvisor,
    Message,
    Policy,
    PolicyAdvisor,
    Reject,
    RetryToolAdvisor,
    Rule,
    StructuredOutputAdvisor,
    ToolCall,
    ToolContext,
    ToolMessage,
    ToolSearchToolCallingAdvisor,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.core import InputRequest, NestedUsage, PendingInput, Provide, ToolErrors, ToolMetadata
from traced_tools.errors import InputRequired, NestedRunWaits, ResumeError, ToolExecutionError
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.models.base import ChatResponse
from traced_tools.observe import names
from traced_tools.search import RegexToolIndex
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, FunctionToolCallback, ToolCallingManager, augmented

DONE: list[str] = []
ONE = Usage(input_tokens=10, output_tokens=5)
PLACES = {"outside": 200, "inside": 400}


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@tool(requires_approval=True)
def pay(amount: int, context: ToolContext) -> str:
    """Pay."""
    DONE.append(f"pay {amount}")
    return f"paid {amount} of {context.get('account')} for {context.principal}"


@tool
def look() -> str:
    """Look."""
    DONE.append("look")
    return "seen"


@tool
def parcel(context: ToolContext) -> str:
    """Send a parcel."""
    if context.input is None:
        schema = {"type": "object", "properties": {"kilos": {"type": "number"}}}
        params = {"message": "How heavy?", "requestedSchema": schema}
        raise InputRequired(PendingInput(requests=(InputRequest(key="w", method="elicitation/create", params=params),)))
    return f"sent {context.input.provided.answers['w']['kilos']} kg"


class Metered(ScriptedChatModel):
    """Reports the usage `ONE` for every answer."""

    def call(self, request: Any) -> ChatResponse:
        return super().call(request).replace(usage=ONE)


def pays(amount: int = 5, id: str = "p") -> ToolCall:
    return ToolCall("pay", {"amount": amount}, id=id)


def asks(id: str = "o", name: str = "ask_bank", question: str = "Pay.") -> ToolCall:
    return ToolCall(name, {"question": question}, id=id)


def agent(name: str, *turns: Any, **settings: Any) -> ChatClient:
    return ChatClient(Metered(list(turns)), name=name, **{"tools": [pay, look, parcel], **settings})


def asker(client: ChatClient, *turns: Any, **settings: Any) -> ChatClient:
    """An agent that asks the agent `client`."""
    asking = client.as_tool(f"ask_{client.name}", f"Ask the {client.name}.")
    return agent("desk", *turns, **{**settings, "tools": [asking, look, *settings.get("tools", ())]})


def requests(client: ChatClient) -> list[Any]:
    model: Any = client._settings.model
    return [*model.requests]


def results_in(messages: Any) -> list[tuple[str, str]]:
    return [(each.call_id, each.content) for part in messages if isinstance(part, ToolMessage) for each in part.results]


def state_of(response: ChatClientResponse) -> str:
    assert response.state is not None
    return response.state


def decided(response: ChatClientResponse, decision: Any = None) -> Mapping[str, Any]:
    return {each.call_id: decision or Approve(by="ana") for each in response.pending}


class Why(BaseModel):
    reason: str


# What waits, and how it goes on.


@pytest.mark.parametrize("mode", MODES)
def test_a_run_waits_for_a_call_of_the_agent_that_it_asks_and_resumes_the_agents_run(mode: str) -> None:
    bank = agent("bank", [look_call(), pays()], "It is paid.")
    desk = asker(bank, asks(), "The bank has paid.")
    paused = run(mode, desk.prompt("Pay.", principal="ana", tool_context={"account": 7}))
    assert (paused.stop_reason, paused.content, paused.tool_results) == ("awaiting_approval", "", ())
    [waiting] = paused.pending
    assert (waiting.call_id, waiting.path, waiting.tool, waiting.args) == ("o/p", ("ask_bank",), "pay", {"amount": 5})
    resumed = run(mode, desk.resume(state_of(paused), decided(paused), tool_context={"account": 7}))
    assert (resumed.stop_reason, resumed.content) == ("answered", "The bank has paid.")
    assert [(each.call_id, each.content) for each in resumed.tool_results] == [("o", "It is paid.")]
    assert DONE == ["look", "pay 5"]
    asked, answered = requests(bank)
    assert [each.role for each in asked.messages] == ["user"]
    assert results_in(answered.messages) == [("l", "seen"), ("p", "paid 5 of 7 for ana")]
    assert results_in(requests(desk)[-1].messages) == [("o", "It is paid.")]
    assert len(requests(desk)) == 2


def look_call(id: str = "l") -> ToolCall:
    return ToolCall("look", {}, id=id)


@pytest.mark.parametrize("mode", MODES)
def test_agents_that_ask_agents_wait_at_any_depth(mode: str) -> None:
    bank = agent("bank", pays(), "paid")
    teller = agent("teller", asks("t"), "the bank paid", tools=[bank.as_tool("ask_bank", "Ask.")])
    desk = asker(teller, asks("o", "ask_teller"), "done")
    paused = run(mode, desk.prompt("?"))
    [waiting] = paused.pending
    assert (waiting.call_id, waiting.path) == ("o/t/p", ("ask_teller", "ask_bank"))
    resumed = run(mode, desk.resume(state_of(paused), decided(paused)))
    assert (resumed.content, resumed.tool_results[0].content) == ("done", "the bank paid")
    assert DONE == ["pay 5"]
    assert [len(requests(each)) for each in (bank, teller, desk)] == [2, 2, 2]
    assert paused.nested_usage == NestedUsage(
        model_calls=2, tool_calls=2, usage=Usage(input_tokens=20, output_tokens=10)
    )
    assert resumed.nested_usage == NestedUsage(
        model_calls=4, tool_calls=4, usage=Usage(input_tokens=40, output_tokens=20)
    )


@pytest.mark.parametrize("mode", MODES)
def test_several_agents_wait_at_once_and_the_other_calls_keep_their_results(mode: str) -> None:
    bank = agent("bank", *[pays()] * 2, "paid", "paid")
    desk = asker(bank, [asks("a"), look_call(), asks("b", question="Pay again."), pays(9)], "done", tools=[pay])
    paused = run(mode, desk.prompt("?"))
    assert [each.call_id for each in paused.pending] == ["a/p", "b/p", "p"]
    half = run(mode, desk.resume(state_of(paused), {"b/p": Approve(), "p": Reject("no")}))
    assert (half.stop_reason, [each.call_id for each in half.pending]) == ("awaiting_approval", ["a/p"])
    assert half.pending[0].requested_at == paused.pending[0].requested_at
    whole = run(mode, desk.resume(state_of(half), decided(half)))
    assert whole.content == "done"
    assert DONE == ["look", "pay 5", "pay 5"]
    read = dict(results_in(requests(desk)[-1].messages))
    assert (read["a"], read["l"], read["b"]) == ("paid", "seen", "paid")
    assert "no" in read["p"]


@pytest.mark.parametrize("mode", MODES)
def test_the_agent_reads_why_its_call_was_rejected(mode: str) -> None:
    bank = agent("bank", pays(), "It was refused.")
    desk = asker(bank, asks(), "done")
    paused = run(mode, desk.prompt("?"))
    resumed = run(mode, desk.resume(state_of(paused), decided(paused, Reject("too much", by="ana"))))
    assert resumed.tool_results[0].content == "It was refused."
    assert "too much" in results_in(requests(bank)[-1].messages)[0][1]
    assert not DONE


@pytest.mark.parametrize("mode", MODES)
def test_a_run_waits_for_input_of_the_agent_that_it_asks(mode: str) -> None:
    post = agent("post", ToolCall("parcel", {}, id="q"), "sent")
    desk = asker(post, asks("o", "ask_post"), "done")
    paused = run(mode, desk.prompt("?"))
    assert (paused.stop_reason, paused.pending[0].call_id) == ("awaiting_input", "o/q")
    with pytest.raises(ResumeError, match="waits for input"):
        desk.resume(state_of(paused), decided(paused))
    resumed = run(mode, desk.resume(state_of(paused), decided(paused, Provide({"w": {"kilos": 2}}))))
    assert (resumed.content, results_in(requests(post)[-1].messages)) == ("done", [("q", "sent 2 kg")])


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_that_waits_again_has_its_run_wait_again(mode: str) -> None:
    bank = agent("bank", pays(1, "p"), pays(2, "q"), "paid both")
    desk = asker(bank, asks(), "done")
    first = run(mode, desk.prompt("?"))
    second = run(mode, desk.resume(state_of(first), decided(first)))
    assert [each.call_id for each in second.pending] == ["o/q"]
    third = run(mode, desk.resume(state_of(second), decided(second)))
    assert (third.content, DONE) == ("done", ["pay 1", "pay 2"])
    assert results_in(requests(desk)[-1].messages) == [("o", "paid both")]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_without_a_decision_waits_on(mode: str) -> None:
    desk = asker(agent("bank", pays(), "paid"), asks(), "done")
    paused = run(mode, desk.prompt("?"))
    again = run(mode, desk.resume(state_of(paused)))
    assert again.pending == paused.pending
    assert run(mode, desk.resume(state_of(again), decided(again))).content == "done"
    assert DONE == ["pay 5"]


@sweep(mode=MODES, outer=[None, *PLACES], inner=[None, *PLACES])
def test_agents_with_memories_go_on_where_they_waited(mode: str, outer: str | None, inner: str | None) -> None:
    def sent(*, pauses: bool) -> list[Any]:
        memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
        approving = [] if pauses else [ApprovalAdvisor(lambda request: Approve())]
        advisors = [*remembering(memory, inner), *approving]
        bank = agent("bank", "hello", pays(), "paid", "bye", tools=[pay], advisors=advisors)
        desk = asker(bank, [asks("h")], "hi", [asks()], "done", [asks("b")], "bye", advisors=remembering(memory, outer))
        for question in ("hi", "pay", "bye"):
            response = run(mode, desk.prompt(question, conversation_id="c"))
            if response.pending:
                response = run(mode, desk.resume(state_of(response), decided(response)))
        for each in (*requests(desk), *requests(bank)):
            assert_well_formed(each.messages)
        return [[each.messages for each in requests(client)] for client in (desk, bank)]

    assert sent(pauses=True) == sent(pauses=False)


@sweep(mode=MODES, outer=PLACES, inner=PLACES, most=[1, 2])
def test_runs_of_one_agent_that_wait_at_once_in_a_conversation_go_on(
    mode: str, outer: str, inner: str, most: int
) -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    bank = agent("bank", pays(1), pays(2), "paid", "paid", "bye", advisors=remembering(memory, inner))
    loop = ToolCallingAdvisor(ToolCallingManager(max_concurrency=most))
    calls = [asks("a"), asks("b", question="More.")]
    advisors = remembering(memory, outer)
    desk = asker(bank, calls, "done", [asks("c")], "bye", advisors=advisors, tool_calling_advisor=loop)
    paused = run(mode, desk.prompt("?", conversation_id="c"))
    assert sorted(each.call_id for each in paused.pending) == ["a/p", "b/p"]
    half = run(mode, desk.resume(state_of(paused), {"b/p": Approve()}))
    assert [each.call_id for each in half.pending] == ["a/p"]
    whole = run(mode, desk.resume(state_of(half), decided(half)))
    assert (whole.content, sorted(DONE)) == ("done", ["pay 1", "pay 2"])
    assert results_in(requests(desk)[1].messages) == [("a", "paid"), ("b", "paid")]
    run(mode, desk.prompt("bye", conversation_id="c"))
    for each in (*requests(desk), *requests(bank)):
        assert_well_formed(each.messages)
    if inner == "inside":  # a log without calls does not say which runs wait
        questions = [[part.text for part in each.messages if isinstance(part, UserMessage)] for each in requests(bank)]
        assert all("More." not in asked or "Pay." not in asked for asked in questions[:4])


def remembering(memory: MessageWindowChatMemory, place: str | None) -> list[MemoryAdvisor]:
    return [] if place is None else [MemoryAdvisor(memory, order=PLACES[place])]


@pytest.mark.parametrize("mode", MODES)
def test_the_tool_of_an_agent_that_waits_can_require_approval_itself(mode: str) -> None:
    bank = agent("bank", pays(), "paid")
    asking = bank.as_tool("ask_bank", "Ask.", metadata=ToolMetadata(requires_approval=True))
    desk = agent("desk", asks(), "done", tools=[asking])
    first = run(mode, desk.prompt("?"))
    assert [(each.call_id, each.path) for each in first.pending] == [("o", ())]
    second = run(mode, desk.resume(state_of(first), {"o": Approve(by="bob")}))
    assert [each.call_id for each in second.pending] == ["o/p"]
    third = run(mode, desk.resume(state_of(second), decided(second)))
    assert (third.content, DONE) == ("done", ["pay 5"])
    assert (third.tool_results[0].decision, third.tool_results[0].by) == ("approved", "bob")
    assert len(requests(bank)) == 2


@pytest.mark.parametrize("mode", MODES)
def test_policies_decide_again_about_the_call_that_goes_on(mode: str) -> None:
    desk = asker(agent("bank", pays(), "paid"), asks(), "done")
    paused = run(mode, desk.prompt("?"))
    policy = PolicyAdvisor(Policy([Rule("no_bank", tool="ask_bank", then="deny", reason="closed")]))
    [result] = run(mode, desk.replace(advisors=[policy]).resume(state_of(paused), decided(paused))).tool_results
    assert (result.decision, result.rule, DONE) == ("denied", "no_bank", [])


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_held_until_the_calls_beside_an_agent_are_decided(mode: str) -> None:
    loop = ToolCallingAdvisor(ToolCallingManager(hold="batch"))
    desk = asker(agent("bank", pays(), "paid"), [asks(), pays(9)], "done", tools=[pay], tool_calling_advisor=loop)
    held = run(mode, desk.prompt("?"))
    assert [(each.call_id, each.held) for each in held.pending] == [("o", True), ("p", False)]
    paused = run(mode, desk.resume(state_of(held), {"p": Approve()}))
    assert ([each.call_id for each in paused.pending], DONE) == (["o/p"], ["pay 9"])
    assert run(mode, desk.resume(state_of(paused), decided(paused))).content == "done"
    assert DONE == ["pay 9", "pay 5"]


@pytest.mark.parametrize("mode", MODES)
def test_the_tool_of_an_agent_waits_with_added_arguments_and_a_time_limit(mode: str) -> None:
    bank = agent("bank", pays(), "paid")
    asking = bank.as_tool("ask_bank", "Ask.", metadata=ToolMetadata(timeout=30))
    call = ToolCall("ask_bank", {"reason": "due", "question": "Pay."}, id="o")
    desk = agent("desk", call, "done", tools=augmented(asking, arguments=Why))
    paused = run(mode, desk.prompt("?"))
    assert [each.call_id for each in paused.pending] == ["o/p"]
    assert run(mode, desk.resume(state_of(paused), decided(paused))).content == "done"
    assert DONE == ["pay 5"]


@pytest.mark.parametrize("mode", MODES)
def test_corrections_of_an_agent_go_on_where_it_waited(mode: str) -> None:
    bank = agent("bank", "nothing", pays(), "5", advisors=[StructuredOutputAdvisor(int, max_attempts=2)])
    desk = asker(bank, asks(), "done")
    paused = run(mode, desk.prompt("?"))
    resumed = run(mode, desk.resume(state_of(paused), decided(paused)))
    assert (resumed.content, resumed.tool_results[0].content) == ("done", "5")


@pytest.mark.parametrize("mode", MODES)
def test_limits_count_what_the_agent_used_before_and_after_the_pause_once(mode: str) -> None:
    bank = agent("bank", pays(), "paid")
    teller = agent("teller", asks("t"), "told", tools=[bank.as_tool("ask_bank", "Ask.")])
    limits = LoopLimits(max_tokens=6 * 15 - 1, on_limit="stop")
    desk = asker(teller, asks("o", "ask_teller"), "enough", limits=limits)
    paused = run(mode, desk.prompt("?"))
    resumed = run(mode, desk.resume(state_of(paused), decided(paused)))
    assert (resumed.stop_reason, resumed.content) == ("answered", "enough")


@pytest.mark.parametrize("mode", MODES)
def test_tools_that_a_search_has_found_wait_in_both_runs(mode: str) -> None:
    def searching() -> ToolCallingAdvisor:
        return ToolSearchToolCallingAdvisor(index=RegexToolIndex())

    def search(words: str) -> ToolCall:
        return ToolCall("search_tools", {"query": words}, id=f"s {words}")

    bank = agent("bank", search("Pay"), pays(), "paid", tool_calling_advisor=searching())
    desk = asker(bank, search("Ask the bank"), asks(), "done", tool_calling_advisor=searching())
    paused = run(mode, desk.prompt("?"))
    assert [each.call_id for each in paused.pending] == ["o/p"]
    assert run(mode, desk.resume(state_of(paused), decided(paused))).content == "done"
    offered = [{tool.name for tool in each.tools} for each in requests(bank)]
    assert all("pay" in names for names in offered[1:])
    assert DONE == ["pay 5"]


def test_other_arguments_of_the_tool_begin_a_new_run_of_the_agent() -> None:
    class Asking(Advisor):
        name, order = "asking", 500

        async def advise_tool(self, call: Any, call_next: Any) -> Any:
            return await call_next(call.replace(arguments={"question": "Pay more."}))

    bank = agent("bank", pays(), pays(7, "q"))
    desk = asker(bank, asks(), "done")
    paused = desk.prompt("?").call()
    again = desk.replace(advisors=[Asking()]).resume(state_of(paused), decided(paused)).call()
    assert ([each.call_id for each in again.pending], DONE) == (["o/q"], [])


# States and stores.


@pytest.mark.parametrize("mode", MODES)
def test_the_inbox_has_the_calls_of_agents_with_their_path(mode: str, tmp_path: Path) -> None:
    with PendingStore(tmp_path / "pending.db") as store, PendingStore(tmp_path / "own.db") as own:
        bank = agent("bank", pays(), "paid", pending_store=own)
        desk = asker(bank, asks(), "done", pending_store=store)
        paused = run(mode, desk.prompt("?", principal="ana"))
        assert not own.pending()
        [waiting] = store.pending(agent="desk", principal="ana")
        assert (waiting.call_id, waiting.path, waiting.tool, waiting.args) == (
            "o/p",
            ("ask_bank",),
            "pay",
            {"amount": 5},
        )
        assert (waiting.run_id, waiting.is_last) == (paused.run_id, True)
        assert store.find("o/p").path == ("ask_bank",)
        store.decide("o/p", Approve(by="ana", arguments={"amount": 3}))
        [state] = store.ready(agent="desk")
        assert run(mode, desk.resume(state)).content == "done"
        with pytest.raises(ResumeError, match="spent"):
            run(mode, desk.resume(state))
        assert DONE == ["pay 3"]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_of_an_agent_that_expires_is_denied(mode: str, tmp_path: Path) -> None:
    with PendingStore(tmp_path / "pending.db", expires=timedelta(microseconds=1)) as store:
        bank = agent("bank", pays(), "It expired.")
        desk = asker(bank, asks(), "done", pending_store=store)
        run(mode, desk.prompt("?"))
        [state] = store.ready()
        assert run(mode, desk.resume(state)).content == "done"
        assert "expired" in results_in(requests(bank)[-1].messages)[0][1]
        assert not DONE


def test_the_state_of_an_agent_is_signed_and_checked_with_the_state_around_it() -> None:
    desk = asker(agent("bank", pays(), "paid"), asks(), "done", approval_key="k" * 20)
    paused = desk.prompt("?").call()
    state = json.loads(state_of(paused))
    state["state"]["waiting"][0]["nested"]["waiting"][0]["arguments"] = '{"amount":500}'
    with pytest.raises(ResumeError, match="altered"):
        desk.resume(json.dumps(state))
    with pytest.raises(ResumeError, match="no call with the id 'p' waits"):
        desk.resume(state_of(paused), {"p": Approve()})
    with pytest.raises(ResumeError, match="no call with the id 'o' waits"):
        desk.resume(state_of(paused), {"o": Approve()})
    with pytest.raises(ValueError, match="needs an ApprovalAdvisor"):
        desk.resume(state_of(paused), {"o/p": Approve(scope="run")})


@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_refused_and_not_spent_if_the_agent_is_another_one_now(mode: str, tmp_path: Path) -> None:
    @tool(name="pay", requires_approval=True)
    def changed(amount: int, currency: str = "EUR") -> str:
        """Pay."""
        raise AssertionError("it was never approved")

    def ask_bank(question: str) -> str:
        """Ask the bank."""
        raise AssertionError("it does not know the agent")

    with PendingStore(tmp_path / "pending.db") as store:
        bank = agent("bank", pays(), "paid")
        teller = agent("teller", asks("t"), "told", tools=[bank.as_tool("ask_bank", "Ask.")])
        desk = asker(teller, asks("o", "ask_teller"), "done", pending_store=store)
        paused = run(mode, desk.prompt("?"))

        def resumed(*tools: Any, name: str = "teller") -> ChatClientResponse:
            client = teller.replace(tools=tools, name=name).as_tool("ask_teller", "Ask the teller.")
            return run(mode, desk.replace(tools=[client]).resume(state_of(paused), decided(paused)))

        with pytest.raises(ResumeError, match="definition of the tool 'pay' has changed"):
            resumed(bank.replace(tools=[changed]).as_tool("ask_bank", "Ask."))
        with pytest.raises(ResumeError, match="definition of the tool 'ask_bank' has changed"):
            resumed(ask_bank)
        with pytest.raises(ResumeError, match="asks no agent any more"):
            resumed(FunctionToolCallback(ask_bank, description="Ask."))
        with pytest.raises(ResumeError, match="of the agent 'teller', and this client is 'clerk'"):
            resumed(name="clerk")
        assert resumed(bank.as_tool("ask_bank", "Ask.")).content == "done"
        assert DONE == ["pay 5"]


@pytest.mark.parametrize("mode", MODES)
def test_the_tool_of_an_agent_fails_if_a_tool_of_the_agent_is_gone(mode: str) -> None:
    bank = agent("bank", pays())
    desk = asker(bank, asks(), "sorry")
    paused = run(mode, desk.prompt("?"))
    without = bank.replace(tools=[look]).as_tool("ask_bank", "Ask the bank.")
    [result] = run(mode, desk.replace(tools=[without]).resume(state_of(paused), decided(paused))).tool_results
    assert (result.outcome, type(result.error), DONE) == ("error", ResumeError, [])
    assert "'pay' of the waiting call 'p' is gone" in result.content


def test_one_decision_is_not_taken_for_two_calls() -> None:
    bank = agent("bank", pays(1, "b/p"), pays(2, "p"), "paid", "paid")
    loop = ToolCallingAdvisor(ToolCallingManager(max_concurrency=1))
    desk = asker(bank, [asks("a"), asks("a/b", question="More.")], "done", tool_calling_advisor=loop)
    paused = desk.prompt("?").call()
    assert [each.call_id for each in paused.pending] == ["a/b/p", "a/b/p"]
    with pytest.raises(ResumeError, match="several calls with the id 'a/b/p' wait"):
        desk.resume(state_of(paused), decided(paused))


def test_calls_run_by_hand_wait_with_their_agents() -> None:
    bank = agent("bank", pays(), "paid")
    manager, tools = ToolCallingManager(), [bank.as_tool("ask_bank", "Ask.")]
    messages: list[Message] = [UserMessage("?")]
    answer = agent("desk", asks(), tools=tools).prompt(messages=messages, tool_calling=False).call()
    first = manager.execute_tool_calls(messages, answer, tools=tools)
    assert [each.call_id for each in first.pending] == ["o/p"]
    second = manager.execute_tool_calls(
        messages, answer, tools=tools, earlier=first, decisions={"o/p": Approve(by="ana")}
    )
    assert (second.results[0].content, second.pending, DONE) == ("paid", (), ["pay 5"])


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_that_a_limit_ends_without_an_answer_is_an_error(mode: str) -> None:
    bank = agent("bank", [look_call()], limits=LoopLimits(max_iterations=1, on_limit="stop"))
    [result] = run(mode, asker(bank, asks(), "sorry").prompt("?")).tool_results
    assert (result.outcome, type(result.error)) == ("error", LoopLimitExceeded)
    assert "max_iterations" in result.content


def test_the_driver_of_a_resumed_run_decides_about_the_calls_of_an_agent() -> None:
    desk = asker(agent("bank", [pays(1), pays(2, "q")], "paid"), asks(), "done")
    paused = desk.prompt("?").call()
    handle = desk.resume(state_of(paused), {"o/p": Approve()}).start()
    step = handle.next()
    assert isinstance(step, ExecuteTools)
    step.decide("o/q", Reject("too much"))
    with pytest.raises(KeyError):
        step.approve("o/r")
    with pytest.raises(ValueError, match="needs an ApprovalAdvisor"):
        step.decide("o/q", Approve(scope="run"))
    while step is not None:
        handle.perform(step)
        step = handle.next()
    assert (handle.response.content, DONE) == ("done", ["pay 1"])


def test_a_driver_that_ends_the_call_of_an_agent_leaves_its_outcome_open() -> None:
    desk = asker(agent("bank", [look_call(), pays()], "never"), asks(), "done")
    paused = desk.prompt("?").call()
    handle = desk.resume(state_of(paused)).start()
    step = handle.next()
    assert isinstance(step, ExecuteTools)
    step.decide("o", Reject("enough.", by="ana"))
    while step is not None:
        handle.perform(step)
        step = handle.next()
    [result] = handle.response.tool_results
    assert (result.decision, DONE) == ("rejected", ["look"])
    assert result.content.startswith("The outcome of the call is unknown")


# Tools that cannot wait.


def wrong(mode: str, bank: ChatClient) -> Any:
    """A tool that returns what an agent has said, though the agent waits."""

    def ask_bank(question: str) -> str:
        """Ask the bank."""
        return f"The bank says: {run(mode, bank.prompt(question)).content}"

    async def ask_bank_async(question: str) -> str:
        """Ask the bank."""
        return f"The bank says: {(await bank.prompt(question).acall()).content}"

    return tool(name="ask_bank", retry_on=(Exception,))(ask_bank_async if mode == "acall" else ask_bank)


@sweep(mode=MODES, inner=["call", "acall", "stream"])
def test_a_tool_that_returns_while_its_agent_waits_fails_and_says_why(mode: str, inner: str) -> None:
    bank = agent("bank", pays())
    retrying = RetryToolAdvisor("ask_bank", retry_on=Exception)
    desk = agent("desk", asks(), "sorry", tools=[wrong(inner, bank)], advisors=[retrying])
    [result] = run(mode, desk.prompt("?")).tool_results
    assert (result.outcome, type(result.error)) == ("error", NestedRunWaits)
    assert len(requests(bank)) == 1
    for each in ("'bank'", "pay", "waits for a decision", "as_tool"):
        assert each in result.content
    assert results_in(requests(desk)[-1].messages) == [("o", result.content)]
    strict = agent("desk", asks(), tools=[wrong(inner, agent("bank", pays()))])
    with pytest.raises(ToolExecutionError) as raised:
        run(mode, strict.prompt("?", tool_errors=ToolErrors(raise_on=(NestedRunWaits,))))
    assert isinstance(raised.value.original, NestedRunWaits)


def test_the_error_says_that_a_store_has_the_run_of_the_agent(tmp_path: Path) -> None:
    with PendingStore(tmp_path / "pending.db") as store:
        desk = agent("desk", asks(), "sorry", tools=[wrong("call", agent("bank", pays(), pending_store=store))])
        [result] = desk.prompt("?").call().tool_results
        assert "goes on from its store without this tool" in result.content
        assert [each.call_id for each in store.pending()] == ["p"]


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_resumes_its_agent_itself_succeeds(mode: str) -> None:
    bank = agent("bank", pays(), "paid")

    def ask_bank(question: str) -> str:
        """Ask the bank."""
        paused = bank.prompt(question).call()
        return bank.resume(state_of(paused), decided(paused)).call().content

    [result] = run(mode, agent("desk", asks(), "done", tools=[ask_bank]).prompt("?")).tool_results
    assert (result.content, DONE) == ("paid", ["pay 5"])


@pytest.mark.parametrize("mode", MODES)
def test_what_a_tool_raises_while_its_agent_waits_is_its_result(mode: str) -> None:
    def ask_bank(question: str) -> str:
        """Ask the bank."""
        raise LookupError(agent("bank", pays()).prompt(question).call().stop_reason)

    [result] = run(mode, agent("desk", asks(), "done", tools=[ask_bank]).prompt("?")).tool_results
    assert result.content == "The tool ask_bank failed: LookupError: awaiting_approval"


def test_an_output_of_a_run_that_waits_is_an_error_that_says_so() -> None:
    with pytest.raises(RuntimeError, match="its calls wait in `pending`"):
        _ = agent("bank", pays()).prompt("?", output=int).call().output


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_that_waits_inside_a_wrong_tool_fails_that_tool_alone(mode: str) -> None:
    teller = agent("teller", asks("t"), "The bank does not answer.", tools=[wrong("call", agent("bank", pays()))])
    response = run(mode, asker(teller, asks("o", "ask_teller"), "done").prompt("?"))
    assert (response.content, response.tool_results[0].content) == ("done", "The bank does not answer.")


# What is recorded.


@pytest.mark.parametrize("mode", MODES)
def test_spans_events_and_records_tell_the_path(mode: str) -> None:
    telemetry, outside, inside = Telemetry(), Watching(), Watching()
    of_desk, of_bank = KeptTrail(), KeptTrail()
    settings: dict[str, Any] = {"telemetry": telemetry.options}
    bank = agent("bank", pays(), "paid", advisors=[inside, auditing(of_bank)], **settings)
    desk = asker(bank, asks(), "done", advisors=[outside, auditing(of_desk)], **settings)
    paused = run(mode, desk.prompt("?"))
    resumed = run(mode, desk.resume(state_of(paused), decided(paused)))

    spans = {span.context.span_id: span for span in telemetry.spans if span.context is not None}
    for name in ("bank", "desk"):
        first, second = telemetry.named(f"invoke_agent {name}")
        assert first.context is not None
        assert [link.context.span_id for link in second.links] == [first.context.span_id]
        reasons = [(span.attributes or {})[names.LOOP_STOP_REASON] for span in (first, second)]
        assert reasons == ["awaiting_approval", "answered"]
    for span in telemetry.named("invoke_agent bank"):
        while span.parent is not None and span.name != "execute_tool ask_bank":
            span = spans[span.parent.span_id]
        assert span.name == "execute_tool ask_bank"
    outcomes = [(span.attributes or {}).get(names.TOOL_OUTCOME) for span in telemetry.named("execute_tool ask_bank")]
    assert outcomes == ["input_required", "ok"]
    [wait] = telemetry.metric(names.APPROVAL_WAIT.name)
    assert (wait.attributes[names.TOOL_NAME], wait.attributes[names.TOOL_DECISION]) == ("pay", "approved")

    assert {event.parent_run_id for event in inside.events} == {paused.run_id, resumed.run_id}
    assert {event.parent_run_id for event in outside.events} == {None}

    def recorded(trail: KeptTrail, kind: str, field: str) -> list[Any]:
        return [each.fields[field] for each in trail.drafts if each.kind == kind]

    assert recorded(of_bank, "decision", "decision") == ["pending", "approved"]
    assert recorded(of_bank, "outcome", "outcome") == ["ok"]
    assert recorded(of_desk, "decision", "decision") == ["allowed", "allowed"]
    assert recorded(of_desk, "outcome", "outcome") == ["input_required", "ok"]


def test_what_waits_shows_no_content() -> None:
    paused = asker(agent("bank", pays(4711)), asks(question="my secret")).prompt("?").call()
    for text in (repr(paused), repr(paused.pending), repr(paused.run.pause)):
        assert "4711" not in text
        assert "secret" not in text
