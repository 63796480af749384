"""What a resumed run has used of its limits, and the tools that its approved calls need."""

from __future__ import annotations

import pytest

from tests.loop.test_resuming import DONE, answers, client, look, looks, pay, pays, state_of
from tests.modes import MODES, run
from traced_tools import Advisor, Approve, ChatClient, LoopLimits, ToolContext, tool
from traced_tools.core import ToolErrors
from traced_tools.core.messages import Usage
from traced_tools.core.totals import NestedUsage
from traced_tools.errors import ResumeError, ToolExecutionError
from traced_tools.loop.advisor import AdviseNext
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import StaticToolCallbackResolver, tool_callbacks


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


class Served:
    """A tool with the definition of another one, of the server `bank`."""

    def __init__(self, of: object) -> None:
        [inner] = tool_callbacks(of)
        self.definition, self.metadata = inner.definition, inner.metadata.replace(source="bank")

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        raise AssertionError("somebody approved another tool")


@tool
def ask() -> str:
    """Ask another agent, which looks three times."""
    model = ScriptedChatModel([answers(*(looks(str(each), what=str(each)) for each in range(3)), tokens=100), "seen"])
    return ChatClient(model, name="inner", tools=[look]).prompt("?").call().content


@pytest.mark.parametrize("mode", MODES)
def test_what_nested_runs_have_used_before_the_pause_counts(mode: str) -> None:
    def first(limits: LoopLimits) -> tuple[ChatClientResponse, ScriptedChatModel]:
        turns = [answers(looks("ask").replace(name="ask")), answers(pays(1, "p")), answers(pays(2, "q")), "done"]
        asking, model = client(*turns, tools=[ask, pay], limits=limits)
        paused = run(mode, asking.prompt("buy"))
        return run(mode, asking.resume(state_of(paused), {"p": Approve()})), model

    resumed, _ = first(LoopLimits())
    assert resumed.nested_usage == NestedUsage(2, 3, Usage(input_tokens=100, output_tokens=1))
    assert resumed.usage == Usage(input_tokens=30, output_tokens=3)
    resumed, _ = first(LoopLimits(max_tool_calls=5, on_limit="stop"))
    assert (resumed.stop_reason, [each.decision for each in resumed.tool_results]) == (
        "max_tool_calls",
        ["approved", "limited"],
    )
    resumed, model = first(LoopLimits(max_tokens=130, on_limit="stop"))
    assert (resumed.stop_reason, len(model.requests)) == ("token_budget", 3)


@pytest.mark.parametrize("mode", MODES)
def test_what_nested_runs_have_used_counts_after_several_pauses(mode: str) -> None:
    turns = [answers(looks("ask").replace(name="ask"), pays(1, "p")), answers(pays(2, "q")), "done"]
    asking, _ = client(*turns, tools=[ask, pay])
    first = run(mode, asking.prompt("buy"))
    second = run(mode, asking.resume(state_of(first), {"p": Approve()}))
    third = run(mode, asking.resume(state_of(second), {"q": Approve()}))
    assert third.content == "done"
    assert third.nested_usage == NestedUsage(2, 3, Usage(input_tokens=100, output_tokens=1))
    assert third.usage == Usage(input_tokens=20, output_tokens=2)


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_only_the_resolver_knows_runs_if_a_budget_is_used_up(mode: str) -> None:
    found = {"tools": [look], "resolver": StaticToolCallbackResolver([pay]), "resolver_fallback": True}
    paused = run(mode, client([pays()], **found)[0].prompt("buy"))
    going_on, _ = client("never asked", **found, limits=LoopLimits(max_seconds=1e-9, on_limit="stop"))
    [result] = run(mode, going_on.resume(state_of(paused), {"p": Approve()})).tool_results
    assert (result.decision, result.content) == ("approved", "paid 5")


def test_a_tool_of_another_source_is_refused() -> None:
    same = Served(pay)
    state = state_of(client([pays()])[0].prompt("buy").call())
    with pytest.raises(ResumeError, match="'pay' comes from 'bank', and from 'local' when the call 'p' began to wait"):
        client(tools=[same])[0].resume(state, {"p": Approve()}).call()


def test_a_client_of_another_name_is_refused() -> None:
    state = state_of(client([pays()], name="sandbox")[0].prompt("buy").call())
    with pytest.raises(ResumeError, match="of the agent 'sandbox', and this client is 'production'"):
        client(name="production")[0].resume(state, {"p": Approve()})
    assert not DONE


class RetryAdvisor(Advisor):
    """Has the loop run again after a failure."""

    name, order = "again", 100

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        try:
            return await call_next(request)
        except ToolExecutionError:
            return await call_next(request)


@pytest.mark.parametrize("mode", MODES)
def test_an_approved_call_does_not_run_twice_if_an_advisor_has_the_loop_run_again(mode: str) -> None:
    @tool(name="pay", requires_approval=True)
    def fails(amount: int) -> str:
        """Pay."""
        DONE.append("pay")
        raise ConnectionError("lost")

    settings = {"tools": [fails], "advisors": [RetryAdvisor()], "tool_errors": ToolErrors(always_raise=True)}
    paused = run(mode, client([pays()], **settings)[0].prompt("buy"))
    resumed = run(mode, client("sorry", **settings)[0].resume(state_of(paused), {"p": Approve()}))
    assert (resumed.content, DONE) == ("sorry", ["pay"])
