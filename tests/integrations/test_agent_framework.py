"""Agents of Microsoft Agent Framework, with the telemetry, policies and records of our loop."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import agent_framework as maf
import pytest

from tests.captured import Telemetry
from tests.integrations.contents import everything
from tests.integrations.differences import differences
from tests.integrations.promises import DIFFERENCES, HAD
from tests.integrations.scripted_agent_framework import ScriptedClient
from tests.integrations.small_agent import AGENT, INSTRUCTIONS, LIMITS, QUESTION, TOOLS, TURNS, Run, add
from tests.waiting import patiently
from traced_tools import ApprovalAdvisor, Approve, LoopLimits, Reject, ToolCall, observe
from traced_tools.core.tool_errors import ToolErrors
from traced_tools.errors import LoopLimitExceeded, ToolExecutionError
from traced_tools.integrations.agent_framework import traced
from traced_tools.observe import names
from traced_tools.policy import Policy, PolicyAdvisor, Rule

MODES = ("run", "stream")
FRAMEWORK = "Microsoft Agent Framework"
CALL = ToolCall("add", {"a": 1, "b": 2}, id="c1")
SECRET = "marker-of-the-prompt"
both = pytest.mark.parametrize("mode", MODES)


def run(mode: str, agent: maf.Agent[Any], asked: Any = QUESTION, **options: Any) -> maf.AgentResponse[Any]:
    """Run an agent in one of the forms that the framework has, and return its response."""
    return asyncio.run(patiently(arun(mode, agent, asked, **options)))


async def arun(mode: str, agent: maf.Agent[Any], asked: Any = QUESTION, **options: Any) -> maf.AgentResponse[Any]:
    if mode == "run":
        return await agent.run(asked, **options)
    stream = agent.run(asked, stream=True, **options)
    async for _ in stream:
        pass
    return await stream.get_final_response()


def small_run(mode: str) -> Run:
    seen = Run()
    middleware = traced(
        audit=seen.trail,  # type: ignore[arg-type]  # it stands for a trail
        observers=[seen.watching],
        advisors=[seen.policy],
        limits=LIMITS,
        telemetry=seen.telemetry.options,
    )
    client = ScriptedClient(*TURNS)
    agent = maf.Agent(client, INSTRUCTIONS, name=AGENT, tools=[*TOOLS], middleware=middleware)
    assert run(mode, agent).text.endswith("Done.")
    assert "tools" not in client.requests[-1][1]
    return seen


def of(*turns: Any, tools: Any = (add,), **settings: Any) -> tuple[Telemetry, maf.Agent[Any]]:
    """Return an agent whose model answers with the turns, and where its telemetry goes."""
    telemetry = Telemetry()
    middleware = traced(telemetry=telemetry.options, **settings)
    return telemetry, maf.Agent(ScriptedClient(*turns), name=AGENT, tools=[*tools], middleware=middleware)


def results(response: maf.AgentResponse[Any]) -> list[str]:
    """Return what the model read of each call."""
    contents = [content for message in response.messages for content in message.contents]
    return [str(content.result) for content in contents if content.type == "function_result"]


def decisions(telemetry: Telemetry) -> list[Any]:
    return [
        span.attributes.get(names.TOOL_DECISION)
        for span in telemetry.spans
        if span.attributes and span.name.split()[0] in ("execute_tool", "refuse_tool")
    ]


def refusing(tool: str) -> PolicyAdvisor:
    return PolicyAdvisor(Policy([Rule("r", then="deny", tool=tool)], default="allow"))


# The small agent.


@both
def test_a_run_differs_from_that_of_our_own_loop_only_in_the_declared_fields(mode: str) -> None:
    assert differences(small_run(mode).seen()) == set(DIFFERENCES[FRAMEWORK])


def test_the_promises_are_kept_as_published() -> None:
    assert {promise for promise, had in HAD[FRAMEWORK].items() if had != "yes"} == {"unknown tool", "streaming"}


# Runs.


@both
def test_an_agent_without_the_middleware_is_not_observed(mode: str) -> None:
    telemetry = Telemetry()
    agent = maf.Agent(ScriptedClient([CALL], "Done."), tools=[add])
    with observe.run(AGENT, telemetry=telemetry.options):
        assert results(run(mode, agent)) == ["3"]
    assert [span.name for span in telemetry.spans] == [f"invoke_agent {AGENT}"]


@both
def test_an_agent_in_the_block_of_a_run_takes_part_in_it(mode: str) -> None:
    telemetry, agent = of([CALL], "Done.")

    async def ask() -> None:
        with observe.run("outer", telemetry=telemetry.options) as outer:
            await arun(mode, agent)
        assert outer.content == "Done."
        assert [result.content for result in outer.tool_results] == ["3"]

    asyncio.run(patiently(ask()))
    assert [span.name for span in telemetry.named("invoke_agent")] == ["invoke_agent outer"]
    assert len(telemetry.named("iteration")) == 2


@both
def test_an_agent_that_is_a_tool_has_a_nested_run(mode: str) -> None:
    telemetry, inner = of("Inner.", tools=())
    inner.name = "inner"
    call = ToolCall("ask_inner", {"task": "?"}, id="c1")
    middleware = traced(telemetry=telemetry.options)
    agent = maf.Agent(
        ScriptedClient([call], "Done."), name=AGENT, tools=[inner.as_tool(name="ask_inner")], middleware=middleware
    )
    assert results(run(mode, agent)) == ["Inner."]
    (nested,) = telemetry.named("invoke_agent inner")
    assert telemetry.parent(nested) == "execute_tool ask_inner"


@both
def test_calls_of_an_answer_run_side_by_side_in_one_iteration(mode: str) -> None:
    both_run = asyncio.Event()
    waiting: list[int] = []

    async def meet(number: int) -> str:
        """Wait for the other call."""
        waiting.append(number)
        if len(waiting) == 2:
            both_run.set()
        await both_run.wait()
        return f"met {number}"

    calls = [ToolCall("meet", {"number": number}, id=f"c{number}") for number in (1, 2)]
    telemetry, agent = of(calls, "Done.", tools=[meet])
    assert results(run(mode, agent)) == ["met 1", "met 2"]
    places = [
        (span.attributes[names.TOOL_BATCH_INDEX], span.attributes[names.TOOL_BATCH_SIZE])
        for span in telemetry.named("execute_tool")
        if span.attributes
    ]
    assert sorted(places) == [(0, 2), (1, 2)]


@both
def test_an_error_of_the_model_ends_the_run_with_it(mode: str) -> None:
    telemetry, agent = of([CALL], ConnectionError(SECRET))
    with pytest.raises(ConnectionError):
        run(mode, agent)
    telemetry.check_run("error", "ConnectionError")
    assert len(telemetry.named("chat")) == 2
    assert SECRET not in everything(telemetry)


@both
def test_a_cancelled_run_ends_as_cancelled(mode: str) -> None:
    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async def cancel() -> None:
        task = asyncio.ensure_future(arun(mode, agent))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begun = asyncio.Event()
    telemetry, agent = of([ToolCall("wait", {}, id="c1")], "Done.", tools=[wait])
    asyncio.run(patiently(cancel()))
    gc.collect()
    telemetry.check_run("cancelled", "cancelled")


@pytest.mark.parametrize("closes", [True, False])
def test_a_stream_that_is_left_ends_its_run(closes: bool) -> None:
    async def leave() -> None:
        stream = agent.run(QUESTION, stream=True)
        async for _ in stream:
            break
        if closes:
            await stream.close()

    telemetry, agent = of([CALL], "Done.")
    asyncio.run(patiently(leave()))
    gc.collect()
    telemetry.check_run("cancelled", "cancelled")


# Calls.


@both
def test_a_call_that_an_approver_approves_runs_with_the_approved_arguments(mode: str) -> None:
    approver = ApprovalAdvisor(lambda request: Approve(arguments={"a": 20, "b": 22}))
    policy = PolicyAdvisor(Policy([Rule("ask", then="require_approval", tool="add")], default="allow"))
    telemetry, agent = of([CALL], "Done.", advisors=[policy, approver])
    (result,) = results(run(mode, agent))
    assert result.endswith("42")
    assert decisions(telemetry) == ["approved"]


@both
def test_a_call_that_an_approver_rejects_does_not_run(mode: str) -> None:
    policy = PolicyAdvisor(Policy([Rule("ask", then="require_approval", tool="add")], default="allow"))
    telemetry, agent = of([CALL], "Done.", advisors=[policy, ApprovalAdvisor(lambda request: Reject("no"))])
    assert "3" not in results(run(mode, agent))
    assert decisions(telemetry) == ["rejected"]


@both
def test_a_call_that_a_policy_asks_about_waits_in_the_framework(mode: str) -> None:
    policy = PolicyAdvisor(Policy([Rule("ask", then="require_approval", tool="add")], default="allow"))
    telemetry, agent = of([CALL], "Done.", advisors=[policy])

    async def ask() -> maf.AgentResponse[Any]:
        session = agent.create_session()
        response = await arun(mode, agent, session=session)
        (request,) = response.user_input_requests
        telemetry.check_run("awaiting_approval")
        answer = maf.Message("user", [request.to_function_approval_response(True)])
        return await arun(mode, agent, answer, session=session)

    response = asyncio.run(patiently(ask()))
    assert response.text == "Done."
    assert decisions(telemetry) == ["pending", "approved"]


@both
def test_a_function_that_requires_approval_waits_in_the_framework(mode: str) -> None:
    ran = []

    @maf.tool(approval_mode="always_require")
    def send(to: str) -> str:
        """Send a letter."""
        ran.append(to)
        return "sent"

    telemetry, agent = of([ToolCall("send", {"to": "Ana"}, id="c1")], "Done.", tools=[send])

    async def ask() -> maf.AgentResponse[Any]:
        session = agent.create_session()
        response = await arun(mode, agent, session=session)
        (request,) = response.user_input_requests
        assert not ran
        telemetry.check_run("awaiting_approval")
        answer = maf.Message("user", [request.to_function_approval_response(True)])
        return await arun(mode, agent, answer, session=session)

    assert asyncio.run(patiently(ask())).text == "Done."
    assert ran == ["Ana"]
    assert decisions(telemetry) == ["pending", "approved"]


@both
def test_an_approver_is_not_asked_about_such_a_function_before_the_framework_asks(mode: str) -> None:
    asked: list[str] = []

    @maf.tool(approval_mode="always_require")
    def send(to: str) -> str:
        """Send a letter."""
        return "sent"

    def decide(request: Any) -> Approve:
        asked.append(request.tool)
        return Approve()

    approver = ApprovalAdvisor(decide)
    telemetry, agent = of([ToolCall("send", {"to": "Ana"}, id="c1")], "Done.", tools=[send], advisors=[approver])
    (request,) = run(mode, agent).user_input_requests
    assert request.function_call is not None
    assert not asked
    assert decisions(telemetry) == [None]


@both
def test_invalid_arguments_are_refused_before_the_tool(mode: str) -> None:
    ran = []

    def strict(number: int) -> int:
        """Take a number."""
        ran.append(number)
        return number

    calls = [ToolCall("strict", {"number": "x"}, id="c1"), ToolCall("strict", "no JSON", id="c2")]
    telemetry, agent = of(calls, "Done.", tools=[strict])
    run(mode, agent)
    assert not ran
    assert decisions(telemetry) == ["invalid_arguments", "invalid_arguments"]


@both
def test_arguments_that_the_framework_converts_are_valid_and_a_policy_reads_what_it_makes_of_them(mode: str) -> None:
    def pay(amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    policy = Policy([Rule("too_much", then="deny", tool="pay", where={"amount": {"gt": 100}})], default="allow")
    calls = [ToolCall("pay", {"amount": text}, id=f"c{text}") for text in ("3", "300")]
    telemetry, agent = of(calls, "Done.", tools=[pay], advisors=[PolicyAdvisor(policy)])
    assert results(run(mode, agent)) == ["paid 3", "The call was not run: the policy does not allow it"]
    assert decisions(telemetry) == ["allowed", "denied"]


@both
def test_the_intent_is_recorded_before_the_tool_runs(mode: str) -> None:
    seen = Run()
    before: list[str] = []

    def act() -> str:
        """Act."""
        before.extend(draft.kind for draft in seen.trail.drafts)
        return "acted"

    _, agent = of([ToolCall("act", {}, id="c1")], "Done.", tools=[act], audit=seen.trail)
    run(mode, agent)
    assert before[-2:] == ["intent", "decision"]
    assert [draft.kind for draft in seen.trail.drafts][-1] == "outcome"


@both
def test_an_error_of_a_tool_reaches_the_framework_unless_it_ends_the_run(mode: str) -> None:
    def fail() -> str:
        """Fail."""
        raise LookupError(SECRET)

    call = ToolCall("fail", {}, id="c1")
    telemetry, agent = of([call], "Done.", tools=[fail])
    assert results(run(mode, agent)) == ["Error: Function failed."]
    assert SECRET not in everything(telemetry)
    _, agent = of([call], "Done.", tools=[fail], tool_errors=ToolErrors(always_raise=True))
    with pytest.raises(maf.MiddlewareFailure) as raised:
        run(mode, agent)
    assert isinstance(raised.value.__cause__, ToolExecutionError)


@both
def test_a_denied_call_has_the_text_of_the_policy(mode: str) -> None:
    telemetry, agent = of([CALL], "Done.", advisors=[refusing("add")])
    assert results(run(mode, agent)) == ["The call was not run: the policy does not allow it"]
    assert decisions(telemetry) == ["denied"]


@both
def test_a_limit_that_raises_ends_the_run(mode: str) -> None:
    telemetry, agent = of([CALL], [CALL], limits=LoopLimits(max_iterations=1, on_limit="raise"))
    with pytest.raises(LoopLimitExceeded):
        run(mode, agent)
    assert len(telemetry.named("iteration")) == 1


@both
def test_a_call_after_a_limit_is_recorded_once_under_its_name(mode: str) -> None:
    seen, calls = Run(), [[ToolCall("add", {"a": number, "b": 2}, id=f"c{number}")] for number in range(2)]
    telemetry, agent = of(*calls, tools=[add], audit=seen.trail, limits=LoopLimits(max_iterations=1))
    with pytest.raises(LoopLimitExceeded):
        run(mode, agent)
    assert decisions(telemetry) == ["allowed", "limited"]
    assert telemetry.one("refuse_tool").name == "refuse_tool add"
    recorded = [draft.fields["decision"] for draft in seen.trail.drafts if draft.kind == "decision"]
    assert recorded == ["allowed", "limited"]


@both
def test_nothing_that_is_said_leaves_the_process_without_capture(mode: str) -> None:
    telemetry = Telemetry()
    call = ToolCall("add", {"a": SECRET, "b": 1}, id="c1")
    agent = maf.Agent(
        ScriptedClient([call], SECRET), SECRET, name=AGENT, tools=[add], middleware=traced(telemetry=telemetry.options)
    )
    assert SECRET in run(mode, agent, SECRET).text
    assert SECRET not in everything(telemetry)
    telemetry.check_run("answered")


@both
def test_the_session_is_the_conversation(mode: str) -> None:
    telemetry, agent = of("Hello.")
    run(mode, agent, session=agent.create_session(session_id="s1"))
    attributes = telemetry.one("invoke_agent").attributes
    assert attributes is not None
    assert attributes[names.CONVERSATION_ID] == "s1"


@pytest.mark.parametrize("instructions", ["Be brief.", None])
def test_the_digest_of_the_instructions_does_not_depend_on_capture(instructions: str | None) -> None:
    digests = set()
    asked = [maf.Message("system", ["Be kind."]), maf.Message("user", ["So?"])]
    for telemetry in (Telemetry(), Telemetry("SPAN_ONLY")):
        agent = maf.Agent(ScriptedClient("Done."), instructions, middleware=traced(telemetry=telemetry.options))
        run("run", agent, asked)
        digests.add((telemetry.one("invoke_agent").attributes or {})[names.INSTRUCTIONS_DIGEST])
    assert len(digests) == 1


def test_invalid_settings_raise_at_once() -> None:
    with pytest.raises(TypeError, match="limits"):
        traced(limits=3)  # type: ignore[typeddict-item]
