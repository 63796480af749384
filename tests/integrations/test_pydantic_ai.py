"""Agents of pydantic-ai, run by pydantic-ai, with the telemetry, policies and records of our own loop."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ExternalToolset,
    FunctionToolset,
    ImageUrl,
    ModelRetry,
    RunContext,
    Tool,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition as AgentTool
from pydantic_ai.usage import RequestUsage

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
from traced_tools.integrations.pydantic_ai import TracedRuns
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.policy import Policy, PolicyAdvisor, Rule


class Script(Model[Any]):
    """A model of pydantic-ai that gives the answers of a script, one after the other."""

    def __init__(self, script: Iterable[ChatResponse]) -> None:
        super().__init__()
        self._script = iter(script)
        self.asked: list[tuple[list[ModelMessage], ModelRequestParameters]] = []

    @property
    def model_name(self) -> str:
        return MODEL

    @property
    def system(self) -> str:
        return PROVIDER

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ModelResponse:
        self.asked.append((messages, parameters))
        return _answer(next(self._script))

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)


def _answer(response: ChatResponse) -> ModelResponse:
    text, usage = response.message.text, response.usage
    parts: list[Any] = [TextPart(text)] if text else []
    parts += [ToolCallPart(call.name, call.arguments, str(call.id)) for call in response.tool_calls]
    assert usage is not None
    return ModelResponse(
        parts,
        usage=RequestUsage(input_tokens=usage.input_tokens or 0, output_tokens=usage.output_tokens or 0),
        model_name=MODEL,
        finish_reason=response.finish_reason,  # type: ignore[arg-type]
        provider_response_id=response.id,
    )


class Forgiving(AbstractCapability[Any]):
    """Has the model read the error of a tool, which would end the run otherwise."""

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        try:
            return await handler(args)
        except LookupError as error:
            return f"The tool {call.tool_name} failed: {type(error).__name__}: {error}"


MODES = ("run_sync", "run", "run_stream", "run_stream_events", "iter")


def run(mode: str, agent: Agent[Any, Any], question: str | None = QUESTION, **options: Any) -> Any:
    """Run an agent in one of the forms that pydantic-ai has, and return its output."""
    if mode == "run_sync":
        return blocking(lambda: agent.run_sync(question, **options)).output
    return asyncio.run(patiently(arun(mode, agent, question, **options)))


async def arun(mode: str, agent: Agent[Any, Any], question: str | None = QUESTION, **options: Any) -> Any:
    if mode == "run":
        return (await agent.run(question, **options)).output
    if mode == "run_stream":
        async with agent.run_stream(question, **options) as stream:
            return await stream.get_output()
    if mode == "run_stream_events":
        async with agent.run_stream_events(question, **options) as events:
            return [event async for event in events][-1].result.output
    async with agent.iter(question, **options) as steps:
        async for _ in steps:
            pass
    return steps.result.output


def small_run(mode: str) -> Run:
    seen = Run()
    traced = TracedRuns(
        audit=seen.trail,  # type: ignore[typeddict-item]  # it stands for a trail
        observers=[seen.watching],
        advisors=[seen.policy],
        limits=LIMITS,
        telemetry=seen.telemetry.options,
    )
    agent = Agent(
        Script(answers()), name=AGENT, instructions=INSTRUCTIONS, tools=TOOLS, capabilities=[Forgiving(), traced]
    )
    assert run(mode, agent) == "Done."
    return seen


def of(*turns: Any, tools: Any = (add,), output_type: Any = str, **settings: Any) -> tuple[Telemetry, Agent[Any, Any]]:
    """Return an observed agent with tools, whose model answers with the turns."""
    telemetry = Telemetry()
    traced = TracedRuns(telemetry=telemetry.options, **settings)
    return telemetry, Agent(scripted(*turns), name=AGENT, tools=tools, output_type=output_type, capabilities=[traced])


def scripted(*turns: Any) -> Script:
    """Return a model whose answers are texts, or calls."""
    texts_and_calls = [(turn, ()) if isinstance(turn, str) else ("", turn) for turn in turns]
    return Script(
        ChatResponse(AssistantMessage(text, tool_calls=calls), usage=USAGE) for text, calls in texts_and_calls
    )


def outputs(agent: Agent[Any, Any]) -> list[str]:
    """Return what the model read of each call."""
    model: Any = agent.model
    messages = model.asked[-1][0]
    parts = [part for message in messages for part in message.parts]
    return [part.model_response_str(wrap_if_error=False) for part in parts if isinstance(part, ToolReturnPart)]


def stop_reason(telemetry: Telemetry) -> Any:
    return (telemetry.one("invoke_agent").attributes or {})[names.LOOP_STOP_REASON]


CALL = ToolCall("add", {"a": 1, "b": 2}, id="c1")
PAUSING = [str, DeferredToolRequests]


# The small agent.


@pytest.mark.parametrize("mode", MODES)
def test_a_run_differs_from_that_of_our_own_loop_only_in_the_declared_fields(mode: str) -> None:
    assert differences(small_run(mode).seen()) == set(DIFFERENCES["pydantic-ai"])


# Runs.


@pytest.mark.parametrize("mode", MODES)
def test_a_run_in_the_block_of_a_run_takes_part_in_it(mode: str) -> None:
    telemetry, agent = of([CALL], "Done.")
    with observe.run("outer", telemetry=telemetry.options):
        run(mode, agent)
    assert telemetry.nested_names() == [
        ("invoke_agent outer", [("iteration", ["chat scripted", "execute_tool add"]), ("iteration", ["chat scripted"])])
    ]


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_that_a_tool_begins_has_a_nested_run(mode: str) -> None:
    async def ask_billing() -> str:
        return str((await billing.run("?")).output)

    telemetry, agent = of([ToolCall("ask_billing", {}, id="c1")], "Done.", tools=[ask_billing])
    traced = TracedRuns(telemetry=telemetry.options)
    billing = Agent(scripted([CALL], "Paid."), name="billing", tools=[add], capabilities=[traced])
    run(mode, agent)
    assert outputs(agent) == ["Paid."]
    assert telemetry.parent(telemetry.one("invoke_agent billing")) == "execute_tool ask_billing"
    telemetry.check_each_ended_once()


def test_the_capability_of_a_run_takes_the_place_of_the_agent_s() -> None:
    telemetry, agent = of([CALL], "Done.")
    of_the_run = Telemetry()
    run("run_sync", agent, capabilities=[TracedRuns(telemetry=of_the_run.options)])
    assert not telemetry.spans
    assert len(of_the_run.named("execute_tool add")) == 1


def test_agents_side_by_side_in_a_run_have_a_run_each_but_for_the_first() -> None:
    telemetry, first = of("One.")
    second = Agent(scripted("Two."), name="second", capabilities=[TracedRuns(telemetry=telemetry.options)])

    async def ask_both() -> None:
        with observe.run("outer", telemetry=telemetry.options):
            await asyncio.gather(first.run(QUESTION), second.run(QUESTION))

    asyncio.run(patiently(ask_both()))
    assert sorted(span.name for span in telemetry.named("invoke_agent")) == [
        "invoke_agent outer",
        "invoke_agent second",
    ]


@pytest.mark.parametrize("mode", ["run", "run_stream", "iter"])
def test_runs_of_an_agent_side_by_side_are_apart(mode: str) -> None:
    class Answering(Script):
        async def request(self, messages: Any, model_settings: Any, parameters: Any) -> ModelResponse:
            await asyncio.sleep(0)
            if len(messages) == 1:
                return ModelResponse([ToolCallPart("add", {"a": 1, "b": 2})])
            return ModelResponse([TextPart("Done.")])

    telemetry = Telemetry()
    traced = TracedRuns(telemetry=telemetry.options)
    agent = Agent(Answering([]), name=AGENT, tools=[add], capabilities=[traced])

    async def ask() -> None:
        await asyncio.gather(*(arun(mode, agent) for _ in range(10)))

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
    telemetry, agent = of(calls, "Done.", tools=[meet])
    run(mode, agent)
    assert outputs(agent) == ["1", "2"]
    assert len(telemetry.named("execute_tool meet")) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_fails_fails_the_run(mode: str) -> None:
    telemetry, agent = of()
    with pytest.raises((StopIteration, RuntimeError)):
        run(mode, agent)
    assert stop_reason(telemetry) == "error"
    assert (telemetry.one("chat").attributes or {})[names.ERROR_TYPE]
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", ["run", "run_stream", "iter"])
def test_a_cancelled_run_ends_as_cancelled(mode: str) -> None:
    async def cancel() -> Telemetry:
        began = asyncio.Event()

        async def wait() -> str:
            began.set()
            await asyncio.Event().wait()
            return ""

        telemetry, agent = of([ToolCall("wait", {}, id="c1")], tools=[wait])
        task = asyncio.create_task(arun(mode, agent))
        await began.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return telemetry

    telemetry = asyncio.run(patiently(cancel()))
    assert stop_reason(telemetry) == "cancelled"
    telemetry.check_each_ended_once()


def test_a_run_whose_steps_are_left_ends() -> None:
    telemetry, agent = of([CALL], "Done.")

    async def leave() -> None:
        async with agent.iter(QUESTION) as steps:
            async for step in steps:
                if Agent.is_call_tools_node(step):
                    break

    asyncio.run(patiently(leave()))
    assert stop_reason(telemetry) == "cancelled"
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_ends_a_run_without_tools(mode: str) -> None:
    telemetry, agent = of([CALL], "Done.", limits=LoopLimits(max_iterations=1))
    run(mode, agent)
    model: Any = agent.model
    assert [len(parameters.function_tools) for _, parameters in model.asked] == [1, 0]
    assert stop_reason(telemetry) == "max_iterations"


@pytest.mark.parametrize("mode", MODES)
def test_the_call_of_an_output_tool_is_the_answer(mode: str) -> None:
    telemetry, agent = of([ToolCall("final_result", {"response": 42}, id="c1")], output_type=int)
    assert run(mode, agent) == 42
    assert telemetry.nested_names() == [("invoke_agent desk", [("iteration", ["chat scripted"])])]


def test_the_pieces_of_a_stream_are_timed_and_reach_the_listeners() -> None:
    watching = Watching(deltas=True)
    telemetry, agent = of([CALL], "Done.", observers=[watching])
    run("run_stream", agent)
    pieces = [getattr(delta, "text", None) or getattr(delta, "arguments", None) for delta in watching.pieces]
    assert "".join(map(str, pieces)) == CALL.arguments + "Done."
    assert all(names.RESPONSE_TIME_TO_FIRST_CHUNK in (span.attributes or {}) for span in telemetry.named("chat"))


# Calls.


@pytest.mark.parametrize("mode", MODES)
def test_invalid_arguments_are_refused_and_the_model_reads_why(mode: str) -> None:
    telemetry, agent = of([ToolCall("add", {"a": "x", "b": 2}, id="c1")], "Done.")
    run(mode, agent)
    (text,) = outputs(agent)
    assert text.startswith("The arguments are invalid")
    assert (telemetry.one("refuse_tool add").attributes or {})[names.TOOL_DECISION] == "invalid_arguments"


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_pydantic_converts_are_valid(mode: str) -> None:
    _, agent = of([ToolCall("add", {"a": "1", "b": 2}, id="c1")], "Done.")
    run(mode, agent)
    assert outputs(agent) == ["3"]


@pytest.mark.parametrize("mode", MODES)
def test_a_validator_of_the_application_that_asks_for_another_try_counts_as_the_tool(mode: str) -> None:
    def refuse(ctx: RunContext[Any], a: int, b: int) -> None:
        raise ModelRetry("smaller")

    telemetry, agent = of([CALL], "Done.", tools=[Tool(add, args_validator=refuse)])
    run(mode, agent)
    assert outputs(agent) == ["smaller"]
    assert (telemetry.one("execute_tool add").attributes or {})[names.ERROR_TYPE].endswith("ModelRetry")


@pytest.mark.parametrize("mode", MODES)
def test_the_model_reads_what_is_recorded_of_an_unknown_tool(mode: str) -> None:
    telemetry, agent = of([ToolCall("invented", {}, id="c1")], "Done.")
    run(mode, agent)
    (text,) = outputs(agent)
    refused = telemetry.one("refuse_tool").attributes or {}
    assert refused[names.TOOL_RESULT_SIZE] == len(text)
    assert refused[names.TOOL_DECISION] == "unknown_tool"


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_a_tool_leaves_to_pydantic_ai(mode: str) -> None:
    telemetry, agent = of([ToolCall("look_up", {"name": "Ana"}, id="c1")], tools=[look_up])
    with pytest.raises(LookupError):
        run(mode, agent)
    assert (telemetry.one("execute_tool").attributes or {})[names.ERROR_TYPE] == "LookupError"
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", MODES)
def test_the_intent_of_a_call_is_on_record_before_its_tool_begins(mode: str) -> None:
    trail: Any = KeptTrail()

    def list_records() -> str:
        return ",".join(draft.kind for draft in trail.drafts)

    _, agent = of([ToolCall("list_records", {}, id="c1")], "Done.", tools=[list_records], audit=trail)
    run(mode, agent)
    assert outputs(agent) == ["intent,decision"]


@pytest.mark.parametrize("mode", MODES)
def test_an_approver_is_asked_before_a_tool_that_requires_approval(mode: str) -> None:
    asked: list[str] = []

    async def ask(request: Any) -> Approve:
        asked.append(request.tool)
        await asyncio.sleep(0)
        return Approve(by="ana", arguments={"a": 20, "b": 22})

    _, agent = of([CALL], "Done.", tools=[Tool(add, requires_approval=True)], advisors=[ApprovalAdvisor(ask)])
    run(mode, agent)
    (text,) = outputs(agent)
    assert asked == ["add"]
    assert text.endswith("42")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_approved", [True, False])
def test_a_call_waits_and_another_run_goes_on_with_it(mode: str, is_approved: bool) -> None:
    telemetry, agent = of([CALL], "Done.", tools=[Tool(add, requires_approval=True)], output_type=PAUSING)
    first = blocking(lambda: agent.run_sync(QUESTION))
    assert [call.tool_call_id for call in first.output.approvals] == ["c1"]
    assert stop_reason(telemetry) == "awaiting_approval"
    decision = ToolApproved() if is_approved else ToolDenied("too much")
    results = DeferredToolResults(approvals={"c1": decision})
    run(mode, agent, None, message_history=first.all_messages(), deferred_tool_results=results)
    decisions = [
        (span.attributes or {})[names.TOOL_DECISION]
        for span in (*telemetry.named("refuse_tool add"), *telemetry.named("execute_tool add"))
    ]
    assert decisions == ["pending", "approved" if is_approved else "rejected"]
    assert outputs(agent) == ["3" if is_approved else "too much"]


@pytest.mark.parametrize("mode", MODES)
def test_a_handler_of_the_application_decides_about_a_call_within_the_run(mode: str) -> None:
    def decide(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults:
        return DeferredToolResults(approvals={call.tool_call_id: True for call in requests.approvals})

    telemetry = Telemetry()
    capabilities = [TracedRuns(telemetry=telemetry.options), HandleDeferredToolCalls(decide)]
    agent = Agent(scripted([CALL], "Done."), tools=[Tool(add, requires_approval=True)], capabilities=capabilities)
    assert run(mode, agent) == "Done."
    assert outputs(agent) == ["3"]
    assert (telemetry.one("execute_tool add").attributes or {})[names.TOOL_DECISION] == "approved"
    assert stop_reason(telemetry) == "answered"


def test_a_policy_can_have_any_call_wait() -> None:
    policy = PolicyAdvisor(Policy([Rule("ask", then="require_approval", tool="add")], default="allow"))
    telemetry, agent = of([CALL], "Done.", output_type=PAUSING, advisors=[policy])
    output: Any = run("run_sync", agent)
    assert [call.tool_call_id for call in output.approvals] == ["c1"]
    assert stop_reason(telemetry) == "awaiting_approval"


@pytest.mark.parametrize("deferral", [ApprovalRequired(), CallDeferred()])
def test_a_call_that_its_tool_defers_waits(deferral: Exception) -> None:
    def later(a: int, b: int) -> int:
        raise deferral

    telemetry, agent = of([CALL], tools=[Tool(later, name="add")], output_type=PAUSING)
    output: Any = run("run_sync", agent)
    assert [call.tool_call_id for call in (*output.approvals, *output.calls)] == ["c1"]
    assert stop_reason(telemetry) == "awaiting_input"


def test_what_was_answered_elsewhere_is_recorded() -> None:
    external = ExternalToolset([AgentTool(name="remote", parameters_json_schema={"type": "object"})])
    telemetry, agent = of([ToolCall("remote", {}, id="c1")], "Done.", output_type=PAUSING)
    first = blocking(lambda: agent.run_sync(QUESTION, toolsets=[external]))
    results = DeferredToolResults(calls={"c1": "it is so"})
    assert stop_reason(telemetry) == "awaiting_input"
    history = first.all_messages()
    run("run_sync", agent, None, message_history=history, deferred_tool_results=results, toolsets=[external])
    assert (telemetry.named("refuse_tool")[-1].attributes or {})[names.TOOL_DECISION] == "answered"


@pytest.mark.parametrize(("then", "decision"), [("deny", "denied"), ("require_approval", "pending")])
def test_a_policy_can_keep_a_call_from_another_program(then: Any, decision: str) -> None:
    external = ExternalToolset([AgentTool(name="remote", parameters_json_schema={"type": "object"})])
    policy = PolicyAdvisor(Policy([Rule("stay", then=then, tool="remote")], default="allow"))
    telemetry, agent = of([ToolCall("remote", {}, id="c1")], "Done.", output_type=PAUSING, advisors=[policy])
    assert run("run_sync", agent, toolsets=[external]) == "Done."
    assert (telemetry.one("refuse_tool remote").attributes or {})[names.TOOL_DECISION] == decision


@pytest.mark.parametrize("destructive", [True, False])
def test_a_policy_knows_the_server_and_the_hints_of_a_tool(destructive: bool) -> None:
    rule = Rule("hints", then="deny", source="bank", annotations={"destructive": destructive})
    policy = PolicyAdvisor(Policy([rule], default="allow"))
    telemetry, agent = of([CALL], "Done.", tools=[], advisors=[policy])
    hints = {"annotations": {"destructiveHint": True}}  # as the toolset of an MCP server has them
    server: FunctionToolset[Any] = FunctionToolset([Tool(add, metadata=hints)], id="bank")
    run("run_sync", agent, toolsets=[server])
    assert telemetry.one("refuse_tool add" if destructive else "execute_tool add")


# Contents.


def test_the_digest_of_the_instructions_does_not_depend_on_capture() -> None:
    digests = set()
    for telemetry in (Telemetry(), Telemetry(capture="SPAN_ONLY")):
        traced = TracedRuns(telemetry=telemetry.options)
        agent = Agent(scripted("Done."), system_prompt="Be brief.", instructions="Short.", capabilities=[traced])
        run("run", agent)
        digests.add((telemetry.one("invoke_agent").attributes or {})[names.INSTRUCTIONS_DIGEST])
    assert len(digests) == 1


def test_a_conversation_is_captured_as_the_model_is_sent_it_without_files() -> None:
    telemetry = Telemetry(capture="SPAN_ONLY")
    traced = TracedRuns(telemetry=telemetry.options)
    agent = Agent(scripted([CALL], "Done."), system_prompt="Be brief.", tools=[add], capabilities=[traced])
    blocking(lambda: agent.run_sync(["Look:", ImageUrl("https://example.com/a.png")]))
    (first, second) = [str((span.attributes or {})[names.INPUT_MESSAGES]) for span in telemetry.named("chat")]
    assert "Look:" in first
    assert '"response": 3' in second


def test_what_cannot_be_converted_does_not_fail_the_run(caplog: pytest.LogCaptureFixture) -> None:
    telemetry, agent = of("Done.")
    run("run_sync", agent, model_settings={"temperature": "hot"})
    assert "hot" not in caplog.text
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", MODES)
def test_no_content_is_recorded_while_capture_is_off(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> str:
        raise ModelRetry(f"secret {text}")

    calls = [ToolCall("fail", {"text": "secret"}, id="c1"), ToolCall("add", {"a": "secret", "b": 1}, id="c2")]
    telemetry, agent = of(calls, "secret", tools=[add, fail])
    with caplog.at_level("DEBUG", "traced_tools"):
        run(mode, agent, "secret", instructions="secret")
    assert "secret" not in everything(telemetry)
    assert "secret" not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("traced"))


def test_without_pydantic_ai_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    monkeypatch.delitem(sys.modules, "traced_tools.integrations.pydantic_ai")
    with pytest.raises(ConfigurationError, match=r"traced_tools\[pydantic-ai\]"):
        importlib.import_module("traced_tools.integrations.pydantic_ai")


def test_an_invalid_setting_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="limits"):
        TracedRuns(limits=5)  # type: ignore[arg-type]
