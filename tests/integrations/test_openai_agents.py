"""Agents of the OpenAI Agents SDK, run by the SDK, with the telemetry, policies and records of our own loop."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from agents import Agent, ModelBehaviorError, RunConfig, Runner, Usage, UserError, function_tool, set_tracing_disabled
from agents.mcp import MCPServer
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as McpTool

from tests.audit.draft_trails import KeptTrail
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.integrations.blocking import blocking
from tests.integrations.contents import everything
from tests.integrations.differences import differences
from tests.integrations.promises import DIFFERENCES
from tests.integrations.small_agent import (
    AGENT,
    INSTRUCTIONS,
    LIMITS,
    MODEL,
    PROVIDER,
    QUESTION,
    TOOLS,
    USAGE,
    Run,
    add,
    answers,
    look_up,
)
from tests.waiting import patiently
from traced_tools import ApprovalAdvisor, Approve, AssistantMessage, LoopLimits, ToolCall, observe
from traced_tools.errors import ConfigurationError
from traced_tools.integrations.openai_agents import TracedRunner
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.policy import Policy, PolicyAdvisor, Rule

set_tracing_disabled(True)  # the SDK's own tracing would send spans to its vendor

MODES = ("run_sync", "run", "run_streamed")


class Script(ScriptedModel):
    """The SDK's scripted model, with the answers of the small agent, a name and a provider."""

    model = MODEL
    provider = PROVIDER

    def __init__(self, script: Iterable[ChatResponse]) -> None:
        super().__init__(map(_step, script))


def _step(response: ChatResponse) -> ModelStep:
    text, usage = response.message.text, response.usage
    output: list[Any] = [assistant_message(text)] if text else []
    output += [function_call(call.name, call.arguments, call_id=str(call.id)) for call in response.tool_calls]
    counts = (0, 0) if usage is None else (usage.input_tokens or 0, usage.output_tokens or 0)
    tokens = Usage(requests=1, input_tokens=counts[0], output_tokens=counts[1], total_tokens=sum(counts))
    return ModelStep(output=output, usage=tokens, response_id=response.id)


def run(mode: str, runner: TracedRunner, agent: Agent[Any], asked: Any = QUESTION, **options: Any) -> Any:
    """Run an agent in one of the forms that the SDK has, and return the result."""
    if mode == "run_sync":
        return blocking(lambda: runner.run_sync(agent, asked, **options))
    return asyncio.run(patiently(arun(mode, runner, agent, asked, **options)))


async def arun(mode: str, runner: TracedRunner, agent: Agent[Any], asked: Any = QUESTION, **options: Any) -> Any:
    if mode == "run":
        return await runner.run(agent, asked, **options)
    result = runner.run_streamed(agent, asked, **options)
    async for _ in result.stream_events():
        pass
    return result


def small_run(mode: str) -> Run:
    seen = Run()
    runner = TracedRunner(
        audit=seen.trail,  # type: ignore[arg-type]  # it stands for a trail
        observers=[seen.watching],
        advisors=[seen.policy],
        limits=LIMITS,
        telemetry=seen.telemetry.options,
    )
    agent = Agent(AGENT, instructions=INSTRUCTIONS, model=Script(answers()), tools=[*map(function_tool, TOOLS)])
    config = RunConfig(tool_not_found_behavior="return_error_to_model")
    assert run(mode, runner, agent, run_config=config).final_output == "Done."
    return seen


def of(*turns: Any, **settings: Any) -> tuple[Telemetry, TracedRunner, Agent[Any]]:
    """Return an agent with a tool, whose model answers with the turns, and a runner that observes it."""
    telemetry = Telemetry()
    runner = TracedRunner(telemetry=telemetry.options, **settings)
    return telemetry, runner, Agent(AGENT, model=scripted(*turns), tools=[function_tool(add)])


def scripted(*turns: Any) -> Script:
    """Return a model whose answers are texts, or calls."""
    messages = [
        AssistantMessage(turn) if isinstance(turn, str) else AssistantMessage("", tool_calls=turn) for turn in turns
    ]
    return Script(ChatResponse(message, usage=USAGE) for message in messages)


def outputs(result: Any) -> list[str]:
    """Return what the model read of each call."""
    return [str(item["output"]) for item in result.to_input_list() if item.get("type") == "function_call_output"]


CALL = ToolCall("add", {"a": 1, "b": 2}, id="c1")


# The small agent.


@pytest.mark.parametrize("mode", MODES)
def test_a_run_differs_from_that_of_our_own_loop_only_in_the_declared_fields(mode: str) -> None:
    streamed = {
        "events model": "a streamed answer names the model",
        "records model": "a streamed answer names the model",
    }
    declared = set(DIFFERENCES["OpenAI Agents SDK"]) | (set(streamed) if mode == "run_streamed" else set())
    found = {kind for kind in differences(small_run(mode).seen()) if "response.model" not in kind}
    if mode == "run_streamed":
        found = {kind for kind in found if not kind.startswith("metrics")}  # the model is a label
    assert found == declared


@pytest.mark.parametrize("mode", MODES)
def test_a_run_of_the_sdk_s_own_runner_is_not_observed(mode: str) -> None:
    telemetry, runner, agent = of([CALL], "Done.", [CALL], "Done.")
    run(mode, runner, agent)
    spans = len(telemetry.spans)
    if mode == "run_sync":
        result = blocking(lambda: Runner.run_sync(agent, QUESTION))
    else:
        result = asyncio.run(patiently(Runner.run(agent, QUESTION)))
    assert outputs(result) == ["3"]
    assert len(telemetry.spans) == spans


# Runs.


@pytest.mark.parametrize("mode", MODES)
def test_a_run_in_the_block_of_a_run_takes_part_in_it(mode: str) -> None:
    telemetry, runner, agent = of([CALL], "Done.")
    with observe.run("outer", telemetry=telemetry.options):
        run(mode, runner, agent)
    assert telemetry.nested_names() == [
        ("invoke_agent outer", [("iteration", ["chat scripted", "execute_tool add"]), ("iteration", ["chat scripted"])])
    ]


def test_the_group_of_runs_is_their_conversation() -> None:
    telemetry, runner, agent = of("Done.")
    run("run", runner, agent, run_config=RunConfig(group_id="thread-7"))
    assert (telemetry.one("invoke_agent").attributes or {})[names.CONVERSATION_ID] == "thread-7"


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_as_a_tool_has_a_nested_run(mode: str) -> None:
    telemetry, runner, agent = of([ToolCall("ask_billing", {"input": "?"}, id="c1")], "Done.")
    billing = Agent("billing", model=scripted([CALL], "Paid."), tools=[function_tool(add)])
    agent.tools = [billing.as_tool("ask_billing", "Ask.")]
    assert outputs(run(mode, runner, agent)) == ["Paid."]
    assert telemetry.parent(telemetry.one("invoke_agent billing")) == "execute_tool ask_billing"
    assert len(telemetry.named("iteration")) == 4
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_after_a_handoff_has_a_nested_run(mode: str) -> None:
    telemetry, runner, agent = of([ToolCall("transfer_to_billing", {}, id="t1")])
    agent.handoffs = [Agent("billing", model=scripted([CALL], "Paid."), tools=[function_tool(add)])]
    assert run(mode, runner, agent).final_output == "Paid."
    assert telemetry.parent(telemetry.one("invoke_agent billing")) == "execute_tool transfer_to_billing"
    reasons = [(span.attributes or {})[names.LOOP_STOP_REASON] for span in telemetry.named("invoke_agent")]
    assert reasons == ["answered", "answered"]
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", MODES)
def test_a_run_around_a_handoff_has_the_answer_of_the_last_agent_and_the_calls_that_wait(mode: str) -> None:
    telemetry, runner, agent = of([ToolCall("transfer_to_billing", {}, id="t1")])
    waiting = function_tool(add, needs_approval=True)
    agent.handoffs = [Agent("billing", model=scripted([CALL], "Paid."), tools=[waiting])]
    with observe.run("desk", telemetry=telemetry.options) as outer:
        result = run(mode, runner, agent)
        assert [pending.tool for pending in outer.pending] == ["add"]
    reasons = {(span.attributes or {})[names.LOOP_STOP_REASON] for span in telemetry.named("invoke_agent")}
    assert reasons == {"awaiting_approval"}
    state = result.to_state()
    state.approve(result.interruptions[0])
    with observe.run("desk", telemetry=telemetry.options) as outer:
        assert run(mode, runner, agent, state).final_output == outer.content == "Paid."


@pytest.mark.parametrize("mode", MODES)
def test_a_denied_handoff_fails_the_run(mode: str) -> None:
    policy = PolicyAdvisor(Policy([Rule("stay", then="deny", tool="transfer_to_billing")], default="allow"))
    telemetry, runner, agent = of([ToolCall("transfer_to_billing", {}, id="c1")], advisors=[policy])
    agent.handoffs = [Agent("billing", model=scripted("Paid."))]
    with pytest.raises(UserError, match="was refused"):
        run(mode, runner, agent)
    assert telemetry.one("refuse_tool transfer_to_billing")
    assert not telemetry.named("invoke_agent billing")


@pytest.mark.parametrize("mode", ["run", "run_streamed"])
def test_runs_of_an_agent_side_by_side_are_apart(mode: str) -> None:
    async def respond(call: Any) -> Any:
        await asyncio.sleep(0)
        if any(item.get("type") == "function_call_output" for item in call.input):
            return [assistant_message("Done.")]
        return [function_call("add", '{"a": 1, "b": 2}', call_id="c1")]

    telemetry, runner, agent = of()
    model = Script([])
    model.extend([ModelStep.respond(respond) for _ in range(20)])
    agent.model = model

    async def ask() -> None:
        await asyncio.gather(*(arun(mode, runner, agent) for _ in range(10)))

    asyncio.run(patiently(ask()))
    iterations = [("iteration", ["chat scripted", "execute_tool add"]), ("iteration", ["chat scripted"])]
    assert telemetry.nested_names() == [("invoke_agent desk", iterations)] * 10
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", MODES)
def test_calls_of_an_answer_run_side_by_side(mode: str) -> None:
    arrived: list[int] = []
    both = asyncio.Event()

    async def meet(number: int) -> int:
        arrived.append(number)
        if len(arrived) == 2:
            both.set()
        await both.wait()
        return number

    calls = [ToolCall("meet", {"number": number}, id=f"c{number}") for number in (1, 2)]
    telemetry, runner, agent = of(calls, "Done.")
    agent.tools = [function_tool(meet)]
    assert outputs(run(mode, runner, agent)) == ["1", "2"]
    assert len(telemetry.named("execute_tool meet")) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_fails_fails_the_run(mode: str) -> None:
    telemetry, runner, agent = of()
    agent.model = ScriptedModel([ConnectionError("secret")])
    with pytest.raises(ConnectionError):
        run(mode, runner, agent)
    assert (telemetry.one("invoke_agent").attributes or {})[names.LOOP_STOP_REASON] == "error"
    assert (telemetry.one("chat").attributes or {})[names.ERROR_TYPE] == "ConnectionError"


@pytest.mark.parametrize("mode", ["run", "run_streamed"])
def test_a_cancelled_run_ends_as_cancelled(mode: str) -> None:
    async def cancel() -> Telemetry:
        began = asyncio.Event()

        async def wait() -> str:
            began.set()
            await asyncio.Event().wait()
            return ""

        telemetry, runner, agent = of([ToolCall("wait", {}, id="c1")])
        agent.tools = [function_tool(wait)]
        if mode == "run":
            task: Any = asyncio.create_task(arun(mode, runner, agent))
            await began.wait()
        else:
            result = runner.run_streamed(agent, QUESTION)
            task = result.run_loop_task
            await began.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        return telemetry

    telemetry = asyncio.run(patiently(cancel()))
    assert (telemetry.one("invoke_agent").attributes or {})[names.LOOP_STOP_REASON] == "cancelled"


def test_a_limit_ends_a_run_without_tools() -> None:
    telemetry, runner, agent = of([CALL], "Done.", limits=LoopLimits(max_iterations=1))
    run("run", runner, agent)
    model: Any = agent.model
    assert [len(call.tools) for call in model.calls] == [1, 0]
    assert (telemetry.one("invoke_agent").attributes or {})[names.LOOP_STOP_REASON] == "max_iterations"


def test_the_pieces_of_a_stream_are_timed_and_reach_the_listeners() -> None:
    watching = Watching(deltas=True)
    telemetry, runner, agent = of([CALL], "Done.", observers=[watching])
    run("run_streamed", runner, agent)
    pieces = [getattr(delta, "text", None) or getattr(delta, "arguments", None) for delta in watching.pieces]
    assert "".join(map(str, pieces)) == CALL.arguments + "Done."
    assert all(names.RESPONSE_TIME_TO_FIRST_CHUNK in (span.attributes or {}) for span in telemetry.named("chat"))


# Calls.


@pytest.mark.parametrize("mode", MODES)
def test_invalid_arguments_are_refused_and_the_model_reads_why(mode: str) -> None:
    telemetry, runner, agent = of([ToolCall("add", {"a": "x", "b": 2}, id="c1")], "Done.")
    (text,) = outputs(run(mode, runner, agent))
    assert text.startswith("The arguments are invalid")
    assert (telemetry.one("refuse_tool add").attributes or {})[names.TOOL_DECISION] == "invalid_arguments"


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_the_sdk_converts_are_valid(mode: str) -> None:
    _, runner, agent = of([ToolCall("add", {"a": "1", "b": 2}, id="c1")], "Done.")
    assert outputs(run(mode, runner, agent)) == ["3"]


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_tool_fails_the_run_as_the_sdk_has_it_and_is_recorded(mode: str) -> None:
    telemetry, runner, agent = of([ToolCall("invented", {}, id="c1")])
    with pytest.raises(ModelBehaviorError):
        run(mode, runner, agent)
    assert (telemetry.one("refuse_tool").attributes or {})[names.TOOL_DECISION] == "unknown_tool"


@pytest.mark.parametrize("mode", MODES)
def test_the_model_reads_what_is_recorded_of_an_unknown_tool(mode: str) -> None:
    telemetry, runner, agent = of([ToolCall("invented", {}, id="c1")], "Done.")
    config = RunConfig(tool_not_found_behavior="return_error_to_model")
    (text,) = outputs(run(mode, runner, agent, run_config=config))
    assert (telemetry.one("refuse_tool").attributes or {})[names.TOOL_RESULT_SIZE] == len(text)


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_a_tool_leaves_to_the_sdk(mode: str) -> None:
    telemetry, runner, agent = of([ToolCall("look_up", {"name": "Ana"}, id="c1")])
    agent.tools = [function_tool(look_up, failure_error_function=None)]
    with pytest.raises(UserError, match="look_up") as raised:
        run(mode, runner, agent)
    assert isinstance(raised.value.__cause__, LookupError)
    assert (telemetry.one("execute_tool").attributes or {})[names.ERROR_TYPE] == "LookupError"


@pytest.mark.parametrize("mode", MODES)
def test_the_intent_of_a_call_is_on_record_before_its_tool_begins(mode: str) -> None:
    trail: Any = KeptTrail()

    def list_records() -> str:
        return ",".join(draft.kind for draft in trail.drafts)

    _, runner, agent = of([ToolCall("list_records", {}, id="c1")], "Done.", audit=trail)
    agent.tools = [function_tool(list_records)]
    assert outputs(run(mode, runner, agent)) == ["intent,decision"]


@pytest.mark.parametrize("mode", MODES)
def test_an_approver_is_asked_before_a_tool_that_needs_approval(mode: str) -> None:
    asked: list[str] = []

    async def ask(request: Any) -> Approve:
        asked.append(request.tool)
        await asyncio.sleep(0)
        return Approve(by="ana", arguments={"a": 20, "b": 22})

    _, runner, agent = of([CALL], "Done.", advisors=[ApprovalAdvisor(ask)])
    agent.tools = [function_tool(add, needs_approval=True)]
    (text,) = outputs(run(mode, runner, agent))
    assert asked == ["add"]
    assert text.endswith("42")


@pytest.mark.parametrize("mode", MODES)
def test_a_call_waits_in_the_state_of_the_sdk_and_goes_on_in_another_run(mode: str) -> None:
    telemetry, runner, agent = of([CALL], "Done.")
    agent.tools = [function_tool(add, needs_approval=True)]
    result = run(mode, runner, agent)
    (waiting,) = result.interruptions
    assert (telemetry.one("invoke_agent").attributes or {})[names.LOOP_STOP_REASON] == "awaiting_approval"
    state = result.to_state()
    state.approve(waiting)
    assert outputs(run(mode, runner, agent, state)) == ["3"]
    assert (telemetry.one("execute_tool add").attributes or {})[names.TOOL_DECISION] == "approved"


@pytest.mark.parametrize("mode", MODES)
def test_a_rejection_between_two_runs_is_recorded(mode: str) -> None:
    telemetry, runner, agent = of([CALL], "Done.")
    agent.tools = [function_tool(add, needs_approval=True)]
    result = run(mode, runner, agent)
    state = result.to_state()
    state.reject(result.interruptions[0])
    run(mode, runner, agent, state)
    decisions = [(span.attributes or {})[names.TOOL_DECISION] for span in telemetry.named("refuse_tool add")]
    assert decisions == ["pending", "rejected"]


def test_a_call_for_which_a_policy_requires_approval_does_not_run_and_the_model_reads_that() -> None:
    policy = PolicyAdvisor(Policy([Rule("ask", then="require_approval", tool="add")], default="allow"))
    telemetry, runner, agent = of([CALL], "Done.", advisors=[policy])
    assert outputs(run("run", runner, agent)) == ["The call was not run: it waits for approval."]
    assert (telemetry.one("invoke_agent").attributes or {})[names.LOOP_STOP_REASON] == "answered"


class Bank(MCPServer):
    """A server with one tool."""

    name = "bank"

    async def connect(self) -> None:
        """Do nothing."""

    cleanup = connect

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
        schema = {"type": "object", "properties": {}}
        return [McpTool(name="pay", input_schema=schema, annotations={"destructiveHint": True})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        return CallToolResult(content=[TextContent(type="text", text="paid")])

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("destructive", [True, False])
def test_a_policy_knows_the_server_and_the_hints_of_a_tool(mode: str, destructive: bool) -> None:
    rule = Rule("hints", then="deny", source="bank", annotations={"destructive": destructive})
    policy = PolicyAdvisor(Policy([rule], default="allow"))
    telemetry, runner, agent = of([ToolCall("pay", {}, id="c1")], "Done.", advisors=[policy])
    agent.mcp_servers = [Bank()]
    (text,) = outputs(run(mode, runner, agent))
    assert ("paid" in text) is not destructive
    assert telemetry.one("refuse_tool pay" if destructive else "execute_tool pay")


# Contents.


def test_the_digest_of_the_instructions_does_not_depend_on_capture() -> None:
    digests = set()
    for telemetry in (Telemetry(), Telemetry(capture="SPAN_ONLY")):
        runner = TracedRunner(telemetry=telemetry.options)
        agent = Agent("desk", instructions="Be brief.", model=scripted("Done."))
        run("run", runner, agent, [{"role": "developer", "content": "Short."}, {"role": "user", "content": "So?"}])
        digests.add((telemetry.one("invoke_agent").attributes or {})[names.INSTRUCTIONS_DIGEST])
    assert len(digests) == 1


def test_a_conversation_is_captured_as_the_model_is_sent_it_without_files() -> None:
    telemetry = Telemetry(capture="SPAN_ONLY")
    runner = TracedRunner(telemetry=telemetry.options)
    agent = Agent("desk", instructions="Be brief.", model=scripted([CALL], "Done."), tools=[function_tool(add)])
    parts = [{"type": "input_text", "text": "Look:"}, {"type": "input_image", "image_url": "https://example.com/a.png"}]
    history = [{"role": "developer", "content": "Short."}, {"role": "user", "content": parts}]
    run("run", runner, agent, [*history, {"role": "assistant", "content": "Hm."}, {"role": "user", "content": "So?"}])
    (first, second) = [str((span.attributes or {})[names.INPUT_MESSAGES]) for span in telemetry.named("chat")]
    assert "Look:" in first and "Hm." in first
    assert '"response": 3' in second


@pytest.mark.parametrize("mode", MODES)
def test_no_content_is_recorded_while_capture_is_off(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> str:
        raise ValueError(f"secret {text}")

    calls = [ToolCall("fail", {"text": "secret"}, id="c1"), ToolCall("add", {"a": "secret", "b": 1}, id="c2")]
    telemetry, runner, agent = of(calls, "secret")
    agent.tools = [function_tool(add), function_tool(fail)]
    agent.instructions = "secret"
    with caplog.at_level("DEBUG", "traced_tools"):
        run(mode, runner, agent, "secret")
    assert "secret" not in everything(telemetry)
    assert "secret" not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("traced"))


def test_without_the_sdk_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agents", None)
    monkeypatch.delitem(sys.modules, "traced_tools.integrations.openai_agents")
    with pytest.raises(ConfigurationError, match=r"traced_tools\[openai-agents\]"):
        importlib.import_module("traced_tools.integrations.openai_agents")


def test_an_invalid_setting_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="limits"):
        TracedRunner(limits=5)  # type: ignore[arg-type]
