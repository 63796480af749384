"""Agents of strands, run by strands, with the telemetry, policies and records of our own loop.

`test_strands.py` runs these tests in the environment of strands.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import pytest
import strands
from strands import Agent
from strands.hooks import AfterInvocationEvent, AfterToolCallEvent, BeforeModelCallEvent, BeforeToolCallEvent
from strands.models import Model
from strands.types.exceptions import EventLoopException

from tests.captured import Telemetry
from tests.integrations.differences import differences
from tests.integrations.promises import DIFFERENCES, PROMISES
from tests.integrations.small_agent import AGENT, INSTRUCTIONS, LIMITS, MODEL, QUESTION, TOOLS, Run, add, answers
from tests.waiting import patiently
from traced_tools import ApprovalAdvisor, Approve, AssistantMessage, LoopLimits, ToolCall, observe
from traced_tools.core.messages import Usage
from traced_tools.errors import LoopLimitExceeded
from traced_tools.integrations.strands import TracedToolsPlugin
from traced_tools.models import ChatResponse
from traced_tools.observe import TextDelta, ToolArgumentsDelta, names
from traced_tools.policy import Policy, PolicyAdvisor, Rule
from traced_tools.run.context import current_run

ASKS = Policy([Rule("ask_first", then="require_approval", tool="pay")], default="allow")
PLUGINS: list[TracedToolsPlugin] = []


@pytest.fixture(autouse=True)
def every_run_ends() -> Any:
    PLUGINS.clear()
    yield
    assert [plugin._invocations for plugin in PLUGINS] == [{}] * len(PLUGINS)


class Scripted(Model):
    """A model of strands that gives the answers of a script, one after the other; an exception is raised."""

    def __init__(self, script: Iterable[Any]) -> None:
        self._script = list(script)
        self.offered: list[list[str]] = []

    def update_config(self, **config: Any) -> None:
        """Ignore it."""

    def get_config(self) -> Any:
        return {"model_id": MODEL}

    async def structured_output(self, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        raise NotImplementedError
        yield

    async def stream(self, messages: Any, tool_specs: Any = None, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        self.offered.append([spec["name"] for spec in tool_specs or ()])
        response = self._script.pop(0)
        if isinstance(response, BaseException):
            raise response
        yield {"messageStart": {"role": "assistant"}}
        for call in response.tool_calls:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": call.name, "toolUseId": call.id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": call.arguments}}}}
            yield {"contentBlockStop": {}}
        if text := response.message.text:
            yield {"contentBlockStart": {"start": {}}}
            for piece in text.split(" "):
                yield {"contentBlockDelta": {"delta": {"text": piece}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if response.tool_calls else "end_turn"}}
        usage = response.usage or Usage(input_tokens=0, output_tokens=0)
        counts = {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": usage.total_tokens,
        }
        yield {"metadata": {"usage": counts, "metrics": {"latencyMs": 0}}}


def asks_for(*calls: tuple[str, dict[str, Any]]) -> ChatResponse:
    """Return an answer that asks for calls, by the name of the tool and the arguments; their ids are c1, c2, …."""
    tool_calls = [ToolCall(name, arguments, f"c{index}") for index, (name, arguments) in enumerate(calls, 1)]
    return ChatResponse(AssistantMessage("", tool_calls=tool_calls))


def says(text: str) -> ChatResponse:
    return ChatResponse(AssistantMessage(text))


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def fail(name: str) -> str:
    """Fail."""
    raise LookupError(f"nobody is called {name}")


def agent_of(seen: Run, tools: Any, *script: Any, options: Any = None, agent: str = AGENT, **settings: Any) -> Agent:
    """Return an agent with a scripted model, whose runs are seen."""
    observed: dict[str, Any] = {"audit": seen.trail, "observers": [seen.watching], "telemetry": seen.telemetry.options}
    plugin = TracedToolsPlugin(agent, **{**observed, **settings})
    PLUGINS.append(plugin)
    tools = [tool if hasattr(tool, "tool_spec") else strands.tool(tool) for tool in tools]
    return Agent(
        Scripted(script), tools=tools, plugins=[plugin], callback_handler=None, retry_strategy=None, **(options or {})
    )


MODES = ("call", "invoke_async", "stream_async")


def run(mode: str, agent: Agent, prompt: Any = QUESTION) -> Any:
    """Run an agent in one of the forms that strands has; return its result."""
    return agent(prompt) if mode == "call" else asyncio.run(patiently(arun(mode, agent, prompt)))


async def arun(mode: str, agent: Agent, prompt: Any = QUESTION) -> Any:
    if mode == "invoke_async":
        return await agent.invoke_async(prompt)
    return [event["result"] async for event in agent.stream_async(prompt) if "result" in event][-1]


def texts(agent: Agent) -> list[str]:
    """Return what the model reads of its calls."""
    blocks = [
        block["toolResult"] for message in agent.messages for block in message["content"] if "toolResult" in block
    ]
    return ["".join(part["text"] for part in block["content"]) for block in blocks]


def read(seen: Run) -> list[tuple[str, str]]:
    """Return the name and the status of each span, as they started, without those of advisors."""
    spans = [span for span in seen.telemetry.spans if not span.name.startswith("advise")]
    return [(span.name, span.status.status_code.name) for span in spans]


def decisions(seen: Run) -> list[Any]:
    """Return what was decided about each call, as it is recorded, and how its tool ended."""
    drafts = [draft for draft in seen.trail.drafts if draft.kind != "intent"]
    return [draft.fields.get("decision") or draft.fields.get("outcome") for draft in drafts]


def attribute(seen: Run, span: str, name: str) -> Any:
    return (seen.telemetry.one(span).attributes or {}).get(name)


@pytest.mark.parametrize("mode", MODES)
def test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone(mode: str) -> None:
    seen = Run()
    options = {"system_prompt": INSTRUCTIONS}
    agent = agent_of(seen, TOOLS, *answers(), options=options, advisors=[seen.policy], limits=LIMITS)
    assert str(run(mode, agent)).strip() == "Done."
    assert differences(seen.seen()) == set(DIFFERENCES["strands"])


@pytest.mark.parametrize("mode", MODES)
def test_chunks_are_timed_and_listeners_receive_them(mode: str) -> None:
    seen = Run()
    seen.watching.watches_deltas = True
    run(mode, agent_of(seen, [add], asks_for(("add", {"a": 1, "b": 2})), says("It is 3.")))
    pieces = seen.watching.pieces
    assert [piece.text for piece in pieces if isinstance(piece, TextDelta)] == ["It", "is", "3."]
    written = "".join(piece.arguments for piece in pieces if isinstance(piece, ToolArgumentsDelta))
    assert json.loads(written) == {"a": 1, "b": 2}
    first = seen.telemetry.named("chat")[0].attributes or {}
    assert names.RESPONSE_TIME_TO_FIRST_CHUNK in first


def test_the_reader_of_a_stream_is_not_in_the_run() -> None:
    seen = Run()

    async def read_stream() -> None:
        async for _ in agent_of(seen, [add], asks_for(("add", {"a": 1, "b": 2})), says("3")).stream_async(QUESTION):
            assert current_run() is None

    asyncio.run(patiently(read_stream()))


# What fails.


@pytest.mark.parametrize("mode", MODES)
def test_the_model_reads_the_error_of_a_tool_after_it_is_recorded(mode: str) -> None:
    seen = Run()
    agent = agent_of(seen, [fail], asks_for(("fail", {"name": "Ana"})), says("Sorry."))
    run(mode, agent)
    assert "nobody is called Ana" in texts(agent)[0]
    assert decisions(seen) == ["allowed", "error"]
    assert attribute(seen, "execute_tool", names.ERROR_TYPE) == "LookupError"


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_fails_ends_its_call_and_the_run_as_failed(mode: str) -> None:
    seen = Run()
    with pytest.raises((ConnectionError, EventLoopException)):
        run(mode, agent_of(seen, [add], ConnectionError("no network")))
    assert {status for _, status in read(seen)} == {"ERROR"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hook", [BeforeModelCallEvent, BeforeToolCallEvent, AfterToolCallEvent, AfterInvocationEvent])
def test_a_run_ends_if_another_hook_fails(mode: str, hook: Any) -> None:
    seen, calls = Run(), []

    def broken(event: Any) -> None:
        calls.append(event)
        if hook is not BeforeModelCallEvent or len(calls) == 2:
            raise KeyError("broken")

    agent = agent_of(seen, [add], asks_for(("add", {"a": 1, "b": 2})), says("3"))
    agent.add_hook(broken, hook)
    try:
        run(mode, agent)
    except (KeyError, EventLoopException):
        assert hook is AfterInvocationEvent or dict(read(seen))["invoke_agent desk"] == "ERROR"
    assert "invoke_agent desk" in dict(read(seen))


def test_a_cancelled_agent_ends_its_run() -> None:
    seen = Run()

    async def cancelled() -> None:
        began = asyncio.Event()

        async def wait() -> str:
            """Wait."""
            began.set()
            await asyncio.Event().wait()
            return ""

        task = asyncio.create_task(arun("invoke_async", agent_of(seen, [wait], asks_for(("wait", {})))))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(cancelled()))
    assert [name for name, _ in read(seen)] == ["invoke_agent desk", "iteration", "chat scripted", "execute_tool wait"]


def test_a_stream_that_its_reader_leaves_ends_its_run() -> None:
    seen = Run()

    async def leave() -> None:
        stream = agent_of(seen, [add], says("It is 3.")).stream_async(QUESTION)
        async for event in stream:
            if "data" in event:
                break
        await stream.aclose()

    asyncio.run(patiently(leave()))
    assert {"invoke_agent desk", "chat scripted"} <= set(dict(read(seen)))


# Runs within runs.


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_takes_part_in_the_run_around_it(mode: str) -> None:
    seen = Run()
    agent = agent_of(seen, [add], *[asks_for(("add", {"a": 1, "b": 2})), says("3")] * 2)
    with observe.run("desk", observers=[seen.watching], telemetry=seen.telemetry.options) as outer:
        run(mode, agent)
        run(mode, agent)
    assert outer.content == "3"
    assert [span.name for span in seen.telemetry.children(seen.telemetry.one("invoke_agent"))] == ["iteration"] * 4


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_that_a_tool_asks_has_a_nested_run(mode: str) -> None:
    seen = Run()
    inner = agent_of(
        seen, [add], asks_for(("add", {"a": 1, "b": 2})), says("3"), agent="adder", options={"name": "adder"}
    )
    asker = inner.as_tool(name="ask", description="Ask the adder.")
    agent = agent_of(seen, [asker], asks_for(("ask", {"input": "1 + 2"})), says("3"))
    run(mode, agent)
    assert texts(agent) == ["3\n"]
    assert seen.telemetry.parent(seen.telemetry.one("invoke_agent adder")) == "advise_tool audit"
    assert len(seen.telemetry.named("invoke_agent")) == 2


@pytest.mark.parametrize("mode", MODES)
def test_the_calls_of_one_answer_are_those_of_one_iteration(mode: str) -> None:
    seen = Run()
    calls = asks_for(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), ("add", {"a": 5, "b": 6}))
    agent = agent_of(seen, [add], calls, says("Done."))
    run(mode, agent)
    assert texts(agent) == ["3", "7", "11"]
    first = seen.telemetry.named("iteration")[0]
    assert [span.name for span in seen.telemetry.children(first)] == ["chat scripted", *["execute_tool add"] * 3]


def test_agents_that_run_at_once_have_runs_of_their_own() -> None:
    seen = Run()
    agents = [agent_of(seen, [add], asks_for(("add", {"a": n, "b": 1})), says(str(n))) for n in range(8)]

    async def together() -> None:
        await asyncio.gather(*(arun("stream_async", agent) for agent in agents))

    asyncio.run(patiently(together()))
    assert [texts(agent) for agent in agents] == [[str(n + 1)] for n in range(8)]
    assert [len(seen.telemetry.children(span)) for span in seen.telemetry.named("invoke_agent")] == [2] * 8


def test_a_call_of_the_application_has_a_run_of_its_own_and_is_decided_about() -> None:
    seen = Run()
    agent = agent_of(seen, [add, pay], advisors=[seen.policy])
    assert agent.tool.add(a=1, b=2)["content"] == [{"text": "3"}]
    assert agent.tool.pay(amount=3)["status"] == "error"
    assert len(seen.telemetry.named("invoke_agent")) == 2


# What is decided.


@pytest.mark.parametrize("mode", MODES)
def test_the_intent_is_on_record_before_the_tool_begins(mode: str) -> None:
    seen = Run()
    recorded: list[str] = []

    def look() -> str:
        """Look at the trail."""
        recorded.extend(draft.kind for draft in seen.trail.drafts)
        return "ok"

    run(mode, agent_of(seen, [look], asks_for(("look", {})), says("Done.")))
    assert recorded == ["intent", "decision"]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_with_invalid_arguments_is_refused_and_the_model_reads_why(mode: str) -> None:
    seen = Run()
    agent = agent_of(seen, [add], asks_for(("add", {"a": "many"})), says("Sorry."))
    run(mode, agent)
    assert texts(agent)[0].startswith("The arguments are invalid")
    assert set(decisions(seen)) == {"invalid_arguments"}


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_tool_is_refused_and_the_model_reads_which_there_are(mode: str) -> None:
    seen = Run()
    agent = agent_of(seen, [add], asks_for(("invented", {})), says("Sorry."))
    run(mode, agent)
    assert texts(agent) == ["There is no tool of that name. Tools you can call: add."]
    assert decisions(seen) == ["unknown_tool"]


@pytest.mark.parametrize("mode", MODES)
def test_an_approver_can_wait_inline_and_change_the_arguments(mode: str) -> None:
    seen = Run()
    approver = ApprovalAdvisor(lambda request: Approve(by="ana", arguments={"amount": 2}))
    agent = agent_of(
        seen, [pay], asks_for(("pay", {"amount": 90})), says("Done."), advisors=[PolicyAdvisor(ASKS), approver]
    )
    run(mode, agent)
    assert texts(agent)[0].endswith("paid 2")
    assert decisions(seen) == ["approved", "ok"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("response", "text", "recorded"),
    [("y", "paid 90", ["approved", "ok"]), ("n", "A person has rejected the call.", ["rejected"])],
)
def test_a_call_can_wait_for_approval_while_the_agent_is_interrupted(
    mode: str, response: str, text: str, recorded: list[str]
) -> None:
    seen = Run()
    calls = asks_for(("pay", {"amount": 90}), ("add", {"a": 1, "b": 2}))
    agent = agent_of(seen, [pay, add], calls, says("Done."), advisors=[PolicyAdvisor(ASKS)])
    result = run(mode, agent)
    assert result.stop_reason == "interrupt"
    (waiting,) = result.interrupts
    assert (waiting.reason["tool"], waiting.reason["arguments"]) == ("pay", {"amount": 90})
    assert attribute(seen, "invoke_agent", names.LOOP_STOP_REASON) == "awaiting_approval"
    run(mode, agent, [{"interruptResponse": {"interruptId": waiting.id, "response": response}}])
    assert texts(agent)[1].endswith(text)  # strands adds the results of calls that waited last
    assert decisions(seen)[-len(recorded) :] == recorded
    assert len(seen.telemetry.named("invoke_agent")) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_can_interrupt_its_agent_and_the_run_waits_for_input(mode: str) -> None:
    seen = Run()

    @strands.tool(context=True)
    def greet(tool_context: strands.ToolContext) -> str:
        """Greet somebody."""
        return f"Hello {tool_context.interrupt('who', reason='Who?')}"

    agent = agent_of(seen, [greet], asks_for(("greet", {})), says("Done."))
    (waiting,) = run(mode, agent).interrupts
    assert waiting.reason == "Who?"
    assert attribute(seen, "invoke_agent", names.LOOP_STOP_REASON) == "awaiting_input"
    run(mode, agent, [{"interruptResponse": {"interruptId": waiting.id, "response": "Ana"}}])
    assert texts(agent) == ["Hello Ana"]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_a_hook_cancels_is_recorded_as_answered(mode: str) -> None:
    seen = Run()
    agent = agent_of(seen, [add], asks_for(("add", {"a": 1, "b": 2})), says("Done."))
    agent.add_hook(lambda event: setattr(event, "cancel_tool", "Not now."), BeforeToolCallEvent)
    run(mode, agent)
    assert decisions(seen) == ["answered"]


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_has_the_model_answer_without_tools(mode: str) -> None:
    seen = Run()
    agent = agent_of(
        seen, [add], asks_for(("add", {"a": 1, "b": 2})), says("Done."), limits=LoopLimits(max_iterations=1)
    )
    assert str(run(mode, agent)).strip() == "Done."
    assert agent.model.offered == [["add"], []]
    assert attribute(seen, "invoke_agent", names.LOOP_STOP_REASON) == "max_iterations"


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_goes_on_after_the_limit_fails_the_agent(mode: str) -> None:
    seen = Run()
    limits = LoopLimits(max_iterations=1)
    with pytest.raises((LoopLimitExceeded, EventLoopException)):
        run(mode, agent_of(seen, [add], *[asks_for(("add", {"a": 1, "b": 2}))] * 3, limits=limits))
    assert "ok" not in decisions(seen)[2:]


@pytest.mark.parametrize("mode", MODES)
def test_no_content_leaves_a_run_that_does_not_capture_it(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    seen, secret, telemetry = Run(), "top-secret", Telemetry()

    def tell(name: str) -> str:
        """Tell a secret."""
        return secret

    calls = asks_for(("tell", {"name": secret}), ("tell", {"nobody": secret}), ("fail", {"name": secret}))
    with telemetry:
        run(mode, agent_of(seen, [tell, fail], calls, says(secret), telemetry=telemetry.options), secret)
    assert secret not in str([span.to_json() for span in telemetry.spans])
    assert secret not in str([(event.name, event.attributes) for event in telemetry.events])
    assert secret not in str(telemetry.metrics)
    own_logs = [record for record in caplog.records if record.name.startswith("traced_tools")]
    assert secret not in str([(record.getMessage(), record.exc_text) for record in own_logs])


def test_an_invalid_setting_fails_when_the_plugin_is_made() -> None:
    with pytest.raises(TypeError, match="limits must be a LoopLimits"):
        TracedToolsPlugin("desk", limits=3)  # type: ignore[arg-type]


PROOFS = {
    "iteration spans": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "model calls": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "tokens": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "refused calls": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "unknown tool": test_an_unknown_tool_is_refused_and_the_model_reads_which_there_are,
    "intent before action": test_the_intent_is_on_record_before_the_tool_begins,
    "policy can deny": test_the_small_agent_differs_from_our_loop_in_the_declared_fields_alone,
    "approval can wait": test_a_call_can_wait_for_approval_while_the_agent_is_interrupted,
    "limits": test_a_limit_has_the_model_answer_without_tools,
    "sub-agents": test_an_agent_that_a_tool_asks_has_a_nested_run,
    "streaming": test_chunks_are_timed_and_listeners_receive_them,
}


def test_each_promise_has_a_proof() -> None:
    assert set(PROOFS) == set(PROMISES)
