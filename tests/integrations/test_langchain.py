"""Agents of LangChain, run by LangGraph, with the telemetry, policies and records of our own loop."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelRetryMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from tests.captured import Telemetry
from tests.integrations.differences import differences
from tests.integrations.promises import DIFFERENCES, PROMISES
from tests.integrations.scripted_langchain import MODES, Script, answer, arun, asks_for, run
from tests.integrations.small_agent import AGENT, INSTRUCTIONS, LIMITS, QUESTION, TOOLS, Run, add, answers
from tests.waiting import patiently
from traced_tools import ApprovalAdvisor, Approve, LoopLimits, ToolCall, observe
from traced_tools.errors import ConfigurationError, LoopLimitExceeded
from traced_tools.integrations.langchain import _GRAPHS, TracedToolsMiddleware
from traced_tools.observe import TextDelta, ToolArgumentsDelta, names
from traced_tools.policy import Policy, PolicyAdvisor, Rule

THREAD: Any = {"configurable": {"thread_id": "t1"}}
ASKS = Policy([Rule("ask_first", then="require_approval", tool="pay")], default="allow")


@pytest.fixture(autouse=True)
def every_run_ends() -> Iterator[None]:
    yield
    assert (_GRAPHS._runs, _GRAPHS._parents) == ({}, {})


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def fail(name: str) -> str:
    """Fail."""
    raise LookupError(f"nobody is called {name}")


def middleware(seen: Run, agent: str = AGENT, **settings: Any) -> TracedToolsMiddleware:
    """Return a middleware whose runs are seen."""
    options: dict[str, Any] = {"audit": seen.trail, "observers": [seen.watching], "telemetry": seen.telemetry.options}
    return TracedToolsMiddleware(agent, **{**options, **settings})


def agent_of(seen: Run, tools: Any, *script: Any, others: Any = (), options: Any = None, **settings: Any) -> Any:
    """Return an agent with a scripted model, whose runs are seen."""
    model = Script(script=list(script))
    return create_agent(model, tools, middleware=[*others, middleware(seen, **settings)], **(options or {}))


def read(seen: Run) -> list[tuple[str, str]]:
    """Return the name and the status of each span, as they started, without those of advisors."""
    spans = [span for span in seen.telemetry.spans if not span.name.startswith("advise")]
    return [(span.name, span.status.status_code.name) for span in spans]


def decisions(seen: Run) -> list[Any]:
    """Return what was decided about each call, as it is recorded, and how its tool ended."""
    return [
        (draft.fields.get("decision") or draft.fields.get("outcome"))
        for draft in seen.trail.drafts
        if draft.kind != "intent"
    ]


def attribute(seen: Run, span: str, name: str) -> Any:
    return (seen.telemetry.one(span).attributes or {}).get(name)


def texts(state: Any) -> list[str]:
    """Return what the model reads of its calls."""
    return [message.text for message in state["messages"] if isinstance(message, ToolMessage)]


# The small agent.


@pytest.mark.parametrize("mode", MODES)
def test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone(mode: str) -> None:
    seen = Run()
    forgiving = ToolErrorMiddleware(lambda error, request: f"The tool look_up failed: LookupError: {error}")
    script = [answer(response) for response in answers()]
    options = {"system_prompt": INSTRUCTIONS}
    agent = agent_of(seen, TOOLS, *script, others=[forgiving], options=options, advisors=[seen.policy], limits=LIMITS)
    assert run(mode, agent)["messages"][-1].text == "Done."
    assert differences(seen.seen()) == set(DIFFERENCES["LangChain"])


def test_a_stream_of_messages_records_when_chunks_arrive_and_passes_them_on() -> None:
    seen = Run()
    agent = agent_of(seen, [add], AIMessage("It is 3."))
    run("stream", agent)
    assert attribute(seen, "chat", names.REQUEST_STREAM) is True
    assert names.RESPONSE_TIME_TO_FIRST_CHUNK in (seen.telemetry.one("chat").attributes or {})


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_listeners_receive_the_pieces_of_a_streamed_answer(mode: str) -> None:
    seen = Run()
    seen.watching.watches_deltas = True
    run(mode, agent_of(seen, [add], asks_for(("add", {"a": 1, "b": 2})), AIMessage("It is 3.")))
    pieces = seen.watching.pieces
    assert [piece.text for piece in pieces if isinstance(piece, TextDelta)] == ["It", "is", "3."]
    assert [piece.arguments for piece in pieces if isinstance(piece, ToolArgumentsDelta)] == ['{"a": 1, "b": 2}']
    assert attribute(seen, "invoke_agent", names.LOOP_STOP_REASON) == "answered"


# What fails.


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_a_tool_leaves_the_agent_unchanged_after_it_is_recorded(mode: str) -> None:
    seen = Run()
    agent = agent_of(seen, [fail], asks_for(("fail", {"name": "Ana"})))
    with pytest.raises(LookupError, match="nobody is called Ana"):
        run(mode, agent)
    assert decisions(seen) == ["allowed", "error"]
    assert dict(read(seen))["invoke_agent desk"] == "ERROR"
    assert attribute(seen, "execute_tool", names.ERROR_TYPE) == "LookupError"


class Failing(AgentMiddleware):
    """Fails in one of its hooks."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self._hook = hook

    def before_model(self, state: Any, runtime: Any) -> None:
        self._fail("before_model", state)

    def after_model(self, state: Any, runtime: Any) -> None:
        self._fail("after_model", state)

    def after_agent(self, state: Any, runtime: Any) -> None:
        self._fail("after_agent", state)

    def _fail(self, hook: str, state: Any) -> None:
        if hook == self._hook and len(state["messages"]) > 2:
            raise KeyError("broken")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hook", ["before_model", "after_model", "after_agent"])
def test_a_run_ends_as_failed_if_another_middleware_fails(mode: str, hook: str) -> None:
    seen = Run()
    script = [asks_for(("add", {"a": 1, "b": 2})), AIMessage("It is 3.")]
    with pytest.raises(KeyError):
        run(mode, agent_of(seen, [add], *script, others=[Failing(hook)]))
    assert dict(read(seen))["invoke_agent desk"] == "ERROR"
    assert attribute(seen, "invoke_agent", names.ERROR_TYPE) == "KeyError"


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_fails_ends_its_call_and_the_run_as_failed(mode: str) -> None:
    seen = Run()
    with pytest.raises(ConnectionError):
        run(mode, agent_of(seen, [add], ConnectionError("no network")))
    assert {status for _, status in read(seen)} == {"ERROR"}


def test_a_cancelled_agent_ends_its_run() -> None:
    seen = Run()

    async def cancelled() -> None:
        began = asyncio.Event()

        async def wait() -> str:
            """Wait."""
            began.set()
            await asyncio.Event().wait()
            return ""

        task = asyncio.create_task(arun("ainvoke", agent_of(seen, [wait], asks_for(("wait", {})))))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(cancelled()))
    assert [name for name, _ in read(seen)] == ["invoke_agent desk", "iteration", "chat scripted", "execute_tool wait"]


def test_a_stream_that_its_reader_leaves_ends_its_run() -> None:
    seen = Run()
    stream = agent_of(seen, [add], asks_for(("add", {"a": 1, "b": 2})), AIMessage("3")).stream({"messages": QUESTION})
    next(stream)
    stream.close()
    assert read(seen)[0][0] == "invoke_agent desk"
    assert seen.telemetry.parent(seen.telemetry.one("refuse_tool")) == "iteration"


# Runs within runs.


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_takes_part_in_the_run_around_it(mode: str) -> None:
    seen = Run()
    agent = agent_of(seen, [add], *[asks_for(("add", {"a": 1, "b": 2})), AIMessage("3")] * 2)
    with observe.run("desk", observers=[seen.watching], telemetry=seen.telemetry.options) as outer:
        run(mode, agent)
        run(mode, agent)
    assert outer.content == "3"
    assert [span.name for span in seen.telemetry.children(seen.telemetry.one("invoke_agent"))] == ["iteration"] * 4
    assert len(outer.tool_results) == 2


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_that_a_tool_asks_has_a_nested_run(mode: str) -> None:
    seen = Run()
    inner = agent_of(seen, [add], asks_for(("add", {"a": 1, "b": 2})), AIMessage("3"), agent="adder")

    def ask(question: str) -> str:
        """Ask the adder."""
        return str(inner.invoke({"messages": question})["messages"][-1].text)

    async def ask_on_asyncio(question: str) -> str:
        return str((await inner.ainvoke({"messages": question}))["messages"][-1].text)

    asker = langchain_tool(ask)
    asker.coroutine = ask_on_asyncio  # type: ignore[attr-defined]  # it is a structured tool
    assert texts(run(mode, agent_of(seen, [asker], asks_for(("ask", {"question": "1 + 2"})), AIMessage("3")))) == ["3"]
    nested = seen.telemetry.one("invoke_agent adder")
    assert seen.telemetry.parent(nested) == "advise_tool audit"  # the innermost of the call of the tool
    assert len(seen.telemetry.named("invoke_agent")) == 2


def test_an_agent_that_a_tool_of_a_run_by_hand_asks_has_a_nested_run() -> None:
    seen = Run()
    agent = agent_of(seen, [add], AIMessage("3"), agent="adder")

    def ask() -> str:
        """Ask the adder."""
        return str(agent.invoke({"messages": "1 + 2"})["messages"][-1].text)

    with observe.run("desk", telemetry=seen.telemetry.options) as outer:
        assert outer.execute(ask, ToolCall("ask", id="h1")).content == "3"
    assert seen.telemetry.parent(seen.telemetry.one("invoke_agent adder")) == "execute_tool ask"


def test_agents_side_by_side_in_a_run_do_not_share_its_iterations() -> None:
    seen = Run()
    both = threading.Barrier(2)

    def meet() -> str:
        """Meet the other agent."""
        both.wait()
        return "met"

    with observe.run("desk", telemetry=seen.telemetry.options):
        agents = [agent_of(seen, [meet], asks_for(("meet", {})), AIMessage("Done.")) for _ in range(2)]
        graph = StateGraph(MessagesState)
        for name, agent in zip("ab", agents, strict=True):
            graph.add_node(name, agent)
            graph.add_edge(START, name)
            graph.add_edge(name, END)
        graph.compile().invoke({"messages": [("user", QUESTION)]})
    assert len(seen.telemetry.named("invoke_agent")) == 2
    assert len(seen.telemetry.named("iteration")) == 4


@pytest.mark.parametrize("on_asyncio", [False, True])
def test_one_middleware_keeps_concurrent_runs_apart(on_asyncio: bool) -> None:
    seen = Run()
    shared = middleware(seen)
    agents = [
        create_agent(
            Script(script=[asks_for(("add", {"a": n, "b": 1})), AIMessage(str(n))]), [add], middleware=[shared]
        )
        for n in range(8)
    ]

    async def together() -> list[Any]:
        return list(await asyncio.gather(*(arun("ainvoke", agent) for agent in agents)))

    if on_asyncio:
        states = asyncio.run(patiently(together()))
    else:
        with ThreadPoolExecutor(8) as threads:
            states = list(threads.map(lambda agent: run("invoke", agent), agents))
    assert [texts(state) for state in states] == [[str(n + 1)] for n in range(8)]
    assert sorted(len(seen.telemetry.children(span)) for span in seen.telemetry.named("invoke_agent")) == [2] * 8


@pytest.mark.parametrize("mode", MODES)
def test_the_calls_of_one_answer_are_those_of_one_iteration(mode: str) -> None:
    seen = Run()
    calls = asks_for(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), ("add", {"a": 5, "b": 6}))
    state = run(mode, agent_of(seen, [add], calls, AIMessage("Done.")))
    assert texts(state) == ["3", "7", "11"]
    first = seen.telemetry.named("iteration")[0]
    assert [span.name for span in seen.telemetry.children(first)] == ["chat scripted", *["execute_tool add"] * 3]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_node_of_another_graph_decides_and_records(is_async: bool) -> None:
    seen = Run()
    traced = middleware(seen, advisors=[seen.policy])
    node = ToolNode([add, pay], wrap_tool_call=traced.wrap_tool_call, awrap_tool_call=traced.awrap_tool_call)
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.add_edge(START, "tools")
    calls = {"messages": [asks_for(("add", {"a": 1, "b": 2}), ("pay", {"amount": 3}))]}
    compiled = graph.compile()
    state = asyncio.run(patiently(compiled.ainvoke(calls))) if is_async else compiled.invoke(calls)
    assert texts(state) == ["3", "The call was not run: the policy does not allow it"]
    assert sorted(name for name, _ in read(seen)) == ["execute_tool add", "invoke_agent desk", "refuse_tool pay"]
    assert attribute(seen, "invoke_agent", names.LOOP_STOP_REASON) == "answered"


# What is decided.


@pytest.mark.parametrize("mode", MODES)
def test_the_intent_is_on_record_before_the_tool_begins(mode: str) -> None:
    seen = Run()
    recorded: list[str] = []

    def look() -> str:
        """Look at the trail."""
        recorded.extend(draft.kind for draft in seen.trail.drafts)
        return "ok"

    run(mode, agent_of(seen, [look], asks_for(("look", {})), AIMessage("Done.")))
    assert recorded == ["intent", "decision"]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_with_invalid_arguments_is_refused_and_the_model_reads_why(mode: str) -> None:
    seen = Run()
    state = run(mode, agent_of(seen, [add], asks_for(("add", {"a": "many"})), AIMessage("Sorry.")))
    assert texts(state)[0].startswith("The arguments are invalid")
    assert set(decisions(seen)) == {"invalid_arguments"}


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_the_framework_converts_are_valid_and_a_policy_reads_what_it_makes_of_them(mode: str) -> None:
    policy = Policy([Rule("too_much", then="deny", tool="pay", where={"amount": {"gt": 100}})], default="allow")
    calls = [("pay", {"amount": "3"}), ("pay", {"amount": "300"}), ("pay", {"amount": "many"})]
    agent = agent_of(Run(), [pay], asks_for(*calls), AIMessage("Done."), advisors=[PolicyAdvisor(policy)])
    paid, denied, invalid = texts(run(mode, agent))
    assert paid == "paid 3"
    assert denied == "The call was not run: the policy does not allow it"
    assert invalid.startswith("The arguments are invalid")


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_tool_is_refused_and_the_model_reads_which_there_are(mode: str) -> None:
    seen = Run()
    state = run(mode, agent_of(seen, [add], asks_for(("invented", {})), AIMessage("Sorry.")))
    assert texts(state) == ["There is no tool of that name. Tools you can call: add."]
    assert decisions(seen) == ["unknown_tool"]


@pytest.mark.parametrize("mode", MODES)
def test_an_approver_can_wait_inline_and_change_the_arguments(mode: str) -> None:
    seen = Run()
    approver = ApprovalAdvisor(lambda request: Approve(by="ana", arguments={"amount": 2}))
    agent = agent_of(
        seen, [pay], asks_for(("pay", {"amount": 90})), AIMessage("Done."), advisors=[PolicyAdvisor(ASKS), approver]
    )
    (text,) = texts(run(mode, agent))
    assert text.endswith("paid 2")
    assert text != "paid 2"  # the model reads that other arguments were approved
    assert decisions(seen) == ["approved", "ok"]


DECISIONS: dict[str, tuple[Any, str, list[str]]] = {
    "approve": ({"type": "approve"}, "paid 90", ["approved", "ok"]),
    "edit": ({"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 2}}}, "paid 2", ["approved", "ok"]),
    "reject": ({"type": "reject", "message": "Too much."}, "Too much.", ["rejected"]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("decision", DECISIONS)
def test_a_call_can_wait_for_approval_while_the_graph_is_interrupted(mode: str, decision: str) -> None:
    seen, (answered, text, recorded) = Run(), DECISIONS[decision]
    agent = agent_of(
        seen,
        [pay],
        asks_for(("pay", {"amount": 90})),
        AIMessage("Done."),
        options={"checkpointer": InMemorySaver()},
        advisors=[PolicyAdvisor(ASKS)],
    )
    run(mode, agent, config=THREAD)
    (waiting,) = agent.get_state(THREAD).interrupts
    assert [request["args"] for request in waiting.value["action_requests"]] == [{"amount": 90}]
    assert attribute(seen, "invoke_agent", names.LOOP_STOP_REASON) == "awaiting_approval"
    assert attribute(seen, "invoke_agent", names.CONVERSATION_ID) == "t1"
    assert decisions(seen) == ["pending"]
    seen.trail.drafts.clear()
    state = run(mode, agent, Command(resume={"decisions": [answered]}), THREAD)
    assert texts(state)[0].endswith(text)
    assert decisions(seen) == recorded
    assert [draft.kind for draft in seen.trail.drafts].count("intent") == 1
    _, resumed = seen.telemetry.named("invoke_agent")
    assert (resumed.attributes or {})[names.LOOP_TOOL_CALLS] == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_call_is_decided_once_if_the_graph_is_resumed_in_the_same_run(mode: str) -> None:
    seen = Run()
    options = {"checkpointer": InMemorySaver()}
    agent = agent_of(seen, [pay], asks_for(("pay", {"amount": 90})), AIMessage("Done."), options=options)
    settings: Any = {"audit": seen.trail, "telemetry": seen.telemetry.options, "advisors": [PolicyAdvisor(ASKS)]}
    with observe.run("desk", **settings) as outer:
        run(mode, agent, config=THREAD)
        assert [pending.tool for pending in outer.pending] == ["pay"]
        run(mode, agent, Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
        assert not outer.pending
    assert decisions(seen) == ["pending", "approved", "ok"]
    assert attribute(seen, "invoke_agent", names.LOOP_TOOL_CALLS) == 1
    assert attribute(seen, "invoke_agent", names.LOOP_STOP_REASON) == "answered"


@pytest.mark.parametrize("mode", MODES)
def test_a_call_of_which_the_decision_cannot_be_read_waits_on(mode: str) -> None:
    seen = Run()
    options = {"checkpointer": InMemorySaver()}
    script = [asks_for(("pay", {"amount": 90})), AIMessage("Done.")]
    agent = agent_of(seen, [pay], *script, options=options, advisors=[PolicyAdvisor(ASKS)])
    run(mode, agent, config=THREAD)
    with pytest.raises(ValueError, match="must be 'approve', 'edit' or 'reject'"):
        run(mode, agent, Command(resume={"decisions": [{"type": "maybe"}]}), THREAD)
    assert decisions(seen) == ["pending", "pending"]


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_asks_a_person_itself_gets_its_own_answer_after_the_approval(mode: str) -> None:
    seen = Run()

    def pay() -> str:
        """Pay somebody."""
        return f"paid {interrupt('Whom?')}"

    script = [asks_for(("pay", {})), AIMessage("Done.")]
    options = {"checkpointer": InMemorySaver()}
    agent = agent_of(seen, [pay], *script, options=options, advisors=[PolicyAdvisor(ASKS)])
    run(mode, agent, config=THREAD)
    run(mode, agent, Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert texts(run(mode, agent, Command(resume="Ana"), THREAD)) == ["paid Ana"]
    assert decisions(seen) == ["pending", "approved", "input_required", "approved", "ok"]


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_can_interrupt_its_graph_and_the_run_waits_for_input(mode: str) -> None:
    seen = Run()

    def greet() -> str:
        """Greet somebody."""
        return f"Hello {interrupt('Who?')}"

    script = [asks_for(("greet", {})), AIMessage("Done.")]
    agent = agent_of(seen, [greet], *script, options={"checkpointer": InMemorySaver()})
    run(mode, agent, config=THREAD)
    assert [waiting.value for waiting in agent.get_state(THREAD).interrupts] == ["Who?"]
    assert attribute(seen, "invoke_agent", names.LOOP_STOP_REASON) == "awaiting_input"
    assert texts(run(mode, agent, Command(resume="Ana"), THREAD)) == ["Hello Ana"]


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_another_middleware_rejects_or_edits_are_recorded_as_they_are_made(mode: str) -> None:
    seen = Run()
    calls = asks_for(("pay", {"amount": 90}), ("pay", {"amount": 80}))
    agent = agent_of(
        seen,
        [pay],
        calls,
        AIMessage("Done."),
        others=[HumanInTheLoopMiddleware({"pay": True})],
        options={"checkpointer": InMemorySaver()},
    )
    run(mode, agent, config=THREAD)
    answered = [{"type": "reject"}, {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 2}}}]
    state = run(mode, agent, Command(resume={"decisions": answered}), THREAD)
    assert "paid 2" in texts(state)[1]
    assert decisions(seen) == ["allowed", "ok"]
    intents = [draft.contents["arguments"].text for draft in seen.trail.drafts if draft.kind == "intent"]
    assert [json.loads(intent)["amount"] for intent in intents] == [90, 80, 2]  # two that never began, and one that did


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_another_middleware_answers_is_recorded_as_answered(mode: str) -> None:
    seen = Run()
    calls = asks_for(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))
    agent = agent_of(seen, [add], calls, AIMessage("Done."), others=[ToolCallLimitMiddleware(run_limit=1)])
    run(mode, agent)
    assert sorted(decisions(seen)) == ["allowed", "answered", "ok"]


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_has_the_model_answer_without_tools(mode: str) -> None:
    seen = Run()
    model = Script(script=[asks_for(("add", {"a": 1, "b": 2})), AIMessage("Done.")])
    traced = middleware(seen, limits=LoopLimits(max_iterations=1))
    assert run(mode, create_agent(model, [add], middleware=[traced]))["messages"][-1].text == "Done."
    assert model.offered == [["add"], []]
    assert attribute(seen, "invoke_agent", names.LOOP_STOP_REASON) == "max_iterations"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_limit", ["stop", "conclude"])
def test_a_model_that_goes_on_after_the_limit_fails_the_agent(mode: str, on_limit: Any) -> None:
    seen = Run()
    limits = LoopLimits(max_iterations=1, on_limit=on_limit)
    with pytest.raises(LoopLimitExceeded):
        run(mode, agent_of(seen, [add], *[asks_for(("add", {"a": 1, "b": 2}))] * 3, limits=limits))
    assert decisions(seen)[:2] == ["allowed", "ok"]
    assert "ok" not in decisions(seen)[2:]


# What tools and other middlewares return.


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_can_return_a_command(mode: str) -> None:
    seen = Run()

    @langchain_tool
    def note(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Note a text."""
        return Command(update={"messages": [ToolMessage(f"noted {text}", tool_call_id=tool_call_id)]})

    agent = agent_of(
        seen, [note], asks_for(("note", {"text": "x"})), AIMessage("Done."), telemetry=seen.telemetry.options
    )
    assert texts(run(mode, agent)) == ["noted x"]
    assert attribute(seen, "execute_tool", names.TOOL_CALL_RESULT) == '"noted x"'


@pytest.mark.parametrize("mode", MODES)
def test_a_message_of_a_failed_tool_reaches_the_model_unchanged(mode: str) -> None:
    seen = Run()

    @langchain_tool
    def refuse() -> ToolMessage:
        """Refuse."""
        return ToolMessage("No.", tool_call_id="c1", status="error")

    state = run(mode, agent_of(seen, [refuse], asks_for(("refuse", {})), AIMessage("Done.")))
    assert texts(state) == ["No."]
    assert decisions(seen) == ["allowed", "error"]


@pytest.mark.parametrize("mode", MODES)
def test_each_attempt_of_another_middleware_is_recorded_in_its_iteration(mode: str) -> None:
    seen, attempts = Run(), []

    def flaky() -> str:
        """Fail at first."""
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError
        return "ok"

    retries = [
        ModelRetryMiddleware(max_retries=1, initial_delay=0),
        ToolRetryMiddleware(max_retries=1, initial_delay=0),
    ]
    script = [ConnectionError(), asks_for(("flaky", {})), AIMessage("Done.")]
    assert texts(run(mode, agent_of(seen, [flaky], *script, others=retries))) == ["ok"]
    assert read(seen) == [
        ("invoke_agent desk", "UNSET"),
        ("iteration", "UNSET"),
        ("chat scripted", "ERROR"),
        ("chat scripted", "UNSET"),
        ("execute_tool flaky", "ERROR"),
        ("execute_tool flaky", "UNSET"),
        ("iteration", "UNSET"),
        ("chat scripted", "UNSET"),
    ]


class Verdict(BaseModel):
    """A verdict."""

    guilty: bool


@pytest.mark.parametrize("mode", MODES)
def test_a_structured_answer_is_a_call_that_the_framework_answers(mode: str) -> None:
    seen = Run()
    agent = agent_of(
        seen, [add], asks_for(("Verdict", {"guilty": False})), options={"response_format": ToolStrategy(Verdict)}
    )
    assert run(mode, agent)["structured_response"] == Verdict(guilty=False)
    assert decisions(seen) == ["answered"]


class Adding(AgentMiddleware):
    """Offers a tool that the agent does not have, and runs it."""

    def __init__(self) -> None:
        super().__init__()
        self._tool = langchain_tool(pay)

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tools=[*request.tools, self._tool]))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(tools=[*request.tools, self._tool]))

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(request if request.tool else request.override(tool=self._tool))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request if request.tool else request.override(tool=self._tool))


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_another_middleware_adds_is_known(mode: str) -> None:
    seen = Run()
    agent = agent_of(seen, [add], asks_for(("pay", {"amount": 3})), AIMessage("Done."), others=[Adding()])
    assert texts(run(mode, agent)) == ["paid 3"]
    assert decisions(seen) == ["allowed", "ok"]


@pytest.mark.parametrize("mode", MODES)
def test_a_command_keeps_its_updates_if_other_arguments_were_approved(mode: str) -> None:
    seen = Run()

    @langchain_tool
    def pay(amount: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Pay an amount."""
        return Command(update={"messages": [ToolMessage(f"paid {amount}", tool_call_id=tool_call_id, artifact=amount)]})

    approver = ApprovalAdvisor(lambda request: Approve(arguments={"amount": 2}))
    advisors = [PolicyAdvisor(ASKS), approver]
    state = run(mode, agent_of(seen, [pay], asks_for(("pay", {"amount": 90})), AIMessage("Done."), advisors=advisors))
    (message,) = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert message.text.endswith("paid 2")
    assert message.artifact == 2


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
def test_a_call_of_an_agent_that_a_tool_asks_can_wait_for_approval(mode: str) -> None:
    seen = Run()
    inner = agent_of(
        seen,
        [pay],
        asks_for(("pay", {"amount": 90})),
        AIMessage("It is paid."),
        agent="payer",
        advisors=[PolicyAdvisor(ASKS)],
    )

    def ask(question: str) -> str:
        """Ask the payer."""
        return str(inner.invoke({"messages": question})["messages"][-1].text)

    options = {"checkpointer": InMemorySaver()}
    outer = agent_of(seen, [ask], asks_for(("ask", {"question": "Pay."})), AIMessage("Done."), options=options)
    run(mode, outer, config=THREAD)
    reasons = {
        span.name: (span.attributes or {})[names.LOOP_STOP_REASON] for span in seen.telemetry.named("invoke_agent")
    }
    assert reasons == {"invoke_agent desk": "awaiting_input", "invoke_agent payer": "awaiting_approval"}
    state = run(mode, outer, Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert texts(state) == ["It is paid."]


def test_a_conversation_that_cannot_be_converted_is_lost_telemetry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Run()
    monkeypatch.setattr("traced_tools.integrations.langchain.messages_of", lambda messages: 1 / 0)
    monkeypatch.setattr("traced_tools.integrations.langchain.response_of", lambda message: 1 / 0)
    assert texts(run("invoke", agent_of(seen, [add], asks_for(("add", {"a": 1, "b": 2})), AIMessage("3")))) == ["3"]
    assert decisions(seen) == ["allowed", "ok"]


# Contents, settings.


@pytest.mark.parametrize("mode", MODES)
def test_no_content_leaves_a_run_that_does_not_capture_it(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    seen, secret = Run(), "top-secret"
    telemetry = Telemetry()

    def tell(name: str) -> str:
        """Tell a secret."""
        return secret

    script = [
        asks_for(("tell", {"name": secret}), ("tell", {"nobody": secret}), ("fail", {"name": secret})),
        AIMessage(secret),
    ]
    with telemetry, pytest.raises(LookupError):
        run(mode, agent_of(seen, [tell, fail], *script, telemetry=telemetry.options), secret)
    assert secret not in str([span.to_json() for span in telemetry.spans])
    assert secret not in str([(event.name, event.attributes) for event in telemetry.events])
    assert secret not in str(telemetry.metrics)
    assert secret not in caplog.text.replace("test_no_content", "")
    assert telemetry.complaints.texts == []


def test_an_invalid_setting_fails_when_the_middleware_is_made() -> None:
    with pytest.raises(TypeError, match="limits must be a LoopLimits"):
        TracedToolsMiddleware("desk", limits=3)  # type: ignore[arg-type]


def test_a_missing_framework_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "traced_tools.integrations.langchain")
    monkeypatch.setitem(sys.modules, "langchain.agents.middleware", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'traced_tools\[langchain\]'"):
        importlib.import_module("traced_tools.integrations.langchain")


PROOFS = {
    "iteration spans": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "model calls": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "tokens": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "refused calls": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "unknown tool": test_an_unknown_tool_is_refused_and_the_model_reads_which_there_are,
    "intent before action": test_the_intent_is_on_record_before_the_tool_begins,
    "policy can deny": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "approval can wait": test_a_call_can_wait_for_approval_while_the_graph_is_interrupted,
    "limits": test_a_limit_has_the_model_answer_without_tools,
    "sub-agents": test_an_agent_that_a_tool_asks_has_a_nested_run,
    "streaming": test_a_stream_of_messages_records_when_chunks_arrive_and_passes_them_on,
}


def test_each_promise_has_a_proof() -> None:
    assert set(PROMISES) == set(PROOFS)
