"""What a run by hand does where a test of random conversations does not go: streams, contexts, approvals, errors."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context

from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.integrations.contents import names_by_end
from tests.integrations.small_agent import (
    AGENT,
    LIMITS,
    MESSAGES,
    MODEL,
    PROVIDER,
    TOOLS,
    Run,
    answers,
    own_run,
    without_our_loop,
)
from tests.sample_tools import add
from tests.waiting import PATIENCE, patiently
from traced_tools import (
    ApprovalAdvisor,
    Approve,
    AssistantMessage,
    ChatClient,
    LoopLimits,
    Reject,
    ToolCall,
    UserMessage,
    observe,
    tool,
)
from traced_tools.core import Provide, ToolErrors
from traced_tools.core.messages import ToolMessage
from traced_tools.errors import LoopLimitExceeded, ResumeError, ToolExecutionError
from traced_tools.models.base import ChatChunk
from traced_tools.observe import ManualRun, names
from traced_tools.run.context import current_run
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

CALL = ToolCall("add", {"a": 1, "b": 2}, id="c1")


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def ask(run: ManualRun, *calls: ToolCall, text: str = "") -> None:
    """Have the model of a run ask for calls, or answer."""
    with run.model_call(tools=[add]) as call:
        call.answered(AssistantMessage(text, tool_calls=calls))


def stop_reason(telemetry: Telemetry) -> Any:
    (span,) = telemetry.named("invoke_agent")
    return (span.attributes or {})[names.LOOP_STOP_REASON]


# Streams.


def test_the_chunks_of_a_stream_are_timed_and_reach_the_listeners() -> None:
    telemetry, watching = Telemetry(), Watching(deltas=True)
    with observe.run("desk", model="m", observers=[watching], telemetry=telemetry.options) as run:
        with run.model_call() as call:
            chunks = [*call.chunks(iter(["Hel", "lo"]), read=lambda text: ChatChunk(text=text))]
            call.answered("".join(chunks))
    chat = telemetry.one("chat").attributes or {}
    assert chunks == ["Hel", "lo"]
    assert chat[names.REQUEST_STREAM] is True
    assert names.RESPONSE_TIME_TO_FIRST_CHUNK in chat
    assert [getattr(delta, "text", None) for delta in watching.pieces] == ["Hel", "lo"]


def test_the_chunks_of_a_stream_on_asyncio_are_timed() -> None:
    telemetry = Telemetry()

    async def stream() -> AsyncIterator[str]:
        yield "Hel"
        yield "lo"

    async def read() -> str:
        with observe.run("desk", model="m", telemetry=telemetry.options) as run, run.model_call() as call:
            text = "".join([chunk async for chunk in call.achunks(stream())])
            call.answered(text)
        return text

    assert asyncio.run(patiently(read())) == "Hello"
    assert names.RESPONSE_TIME_TO_FIRST_CHUNK in (telemetry.one("chat").attributes or {})


@pytest.mark.parametrize("ends", ["iteration", "next iteration", "run", "run without an iteration"])
def test_a_model_call_that_is_left_open_ends_as_cancelled_with_what_is_around_it(ends: str) -> None:
    telemetry = Telemetry()
    run = observe.run("desk", telemetry=telemetry.options).begin()
    if ends == "iteration":
        with run.iteration():
            call = run.model_call("m").begin()
    elif ends != "run without an iteration":
        run.advance()
    if ends != "iteration":
        call = run.model_call("m").begin()
    if ends == "next iteration":
        run.advance()
    assert run.is_calling_model == ends.startswith("run")
    if ends.startswith("run"):
        run.end()
    attributes = telemetry.one("chat m").attributes or {}
    assert attributes[names.ERROR_TYPE] == "cancelled"
    assert not call.is_open
    call.end()
    if not ends.startswith("run"):
        run.end()
    telemetry.check_each_ended_once()
    assert all(point.sum >= 0 for point in telemetry.metric("gen_ai.client.inference.duration"))
    assert stop_reason(telemetry) != "cancelled"


def test_a_model_call_in_a_generator_ends_with_its_run() -> None:
    telemetry = Telemetry()

    def read(run: ManualRun) -> Iterator[str]:
        with run.model_call("m") as call:
            yield from call.chunks(iter("abc"))

    with observe.run("desk", telemetry=telemetry.options) as run, run.iteration():
        chunks = read(run)
        next(chunks)
    assert names_by_end(telemetry) == ["chat m", "iteration", "invoke_agent desk"]
    assert not trace.get_current_span().get_span_context().is_valid
    del chunks
    telemetry.check_each_ended_once()


def test_the_code_that_left_a_model_call_may_still_report_its_answer() -> None:
    telemetry = Telemetry()
    run = observe.run("desk", telemetry=telemetry.options).begin()
    call = run.model_call("m")
    call.begin(on_left=lambda: call.answered("Hello.") and call.end())
    run.end()
    assert run.content == "Hello."
    assert names.ERROR_TYPE not in (telemetry.one("chat m").attributes or {})


def test_a_stream_that_fails_fails_the_model_call() -> None:
    telemetry = Telemetry()

    def stream() -> Iterator[str]:
        yield "Hel"
        raise ConnectionError("secret")

    with pytest.raises(ConnectionError), observe.run("desk", model="m", telemetry=telemetry.options) as run:
        with run.model_call() as call:
            list(call.chunks(stream()))
    assert (telemetry.one("chat").attributes or {})[names.ERROR_TYPE] == "ConnectionError"
    assert stop_reason(telemetry) == "error"


# Contexts.


def test_a_run_is_current_in_its_block_only() -> None:
    telemetry = Telemetry()
    before = otel_context.get_current()
    with telemetry.tracer.start_as_current_span("outer") as outer:
        with observe.run("desk", telemetry=telemetry.options) as run:
            assert current_run() is not None
            with run.iteration():
                ask(run, text="Hello.")
        assert trace.get_current_span() is outer
    assert current_run() is None
    assert otel_context.get_current() is before
    assert telemetry.nested_names() == [("outer", [("invoke_agent desk", [("iteration", ["chat"])])])]


def test_baggage_that_a_block_attaches_stays() -> None:
    def attach() -> None:
        with observe.run("desk", telemetry=Telemetry().options) as run:
            with run.iteration():
                otel_context.attach(baggage.set_baggage("tenant", "a"))
            assert baggage.get_baggage("tenant") == "a"
        assert baggage.get_baggage("tenant") == "a"

    contextvars.Context().run(attach)


def test_the_span_of_the_application_is_between_those_of_the_run() -> None:
    telemetry = Telemetry()
    with observe.run("desk", telemetry=telemetry.options) as run:
        with telemetry.tracer.start_as_current_span("step"), run.iteration():
            ask(run, CALL)
            with telemetry.tracer.start_as_current_span("mine"):
                run.execute(add, CALL)
    [(_, [(step, [(_, below)])])] = telemetry.nested_names()
    assert (step, below) == ("step", ["chat", ("mine", ["execute_tool add"])])


def test_a_run_begins_goes_on_and_ends_in_contexts_that_do_not_know_one_another() -> None:
    telemetry = Telemetry()

    def elsewhere(*call: Any) -> None:
        contextvars.Context().run(*call)

    run = observe.run("desk", telemetry=telemetry.options)
    elsewhere(run.begin)
    elsewhere(run.advance)
    elsewhere(ask, run, CALL)
    elsewhere(run.execute, add, CALL)
    elsewhere(run.advance)
    elsewhere(lambda: ask(run, text="Three."))
    elsewhere(run.end)
    telemetry.check_each_ended_once()
    iterations = [("iteration", ["chat", "execute_tool add"]), ("iteration", ["chat"])]
    assert telemetry.nested_names() == [("invoke_agent desk", iterations)]
    assert stop_reason(telemetry) == "answered"
    assert current_run() is None


def test_a_run_whose_iteration_goes_on_is_nowhere_current_between_its_calls() -> None:
    telemetry = Telemetry()
    with telemetry.tracer.start_as_current_span("outer") as outer:
        run = observe.run("desk", telemetry=telemetry.options).begin()
        run.advance()
        ask(run, text="Hello.")
        assert trace.get_current_span() is outer
        run.end()
        assert trace.get_current_span() is outer


def test_tools_run_side_by_side_in_threads() -> None:
    telemetry, meeting = Telemetry(), threading.Barrier(3, timeout=PATIENCE)

    def meet(number: int) -> int:
        """Wait for the others."""
        meeting.wait()
        return number

    calls = [ToolCall("meet", {"number": number}, id=f"c{number}") for number in range(3)]
    with observe.run("desk", telemetry=telemetry.options) as run, run.iteration():
        ask(run, *calls)
        with ThreadPoolExecutor(3) as threads:
            results = list(threads.map(lambda call: run.execute(meet, call), calls))
    assert [result.value for result in results] == [0, 1, 2]
    assert {telemetry.parent(span) for span in telemetry.named("execute_tool")} == {"iteration"}
    (agent,) = telemetry.named("invoke_agent")
    attributes = agent.attributes or {}
    booked = sum(float(str(attributes[name])) for name in names.TIME_BY_KIND.values() if name in attributes)
    (point,) = telemetry.metric("gen_ai.invoke_agent.duration")
    assert booked == pytest.approx(point.sum, rel=1e-3)


def test_async_tools_run_side_by_side_on_asyncio() -> None:
    telemetry = Telemetry()

    async def main() -> list[Any]:
        meeting = asyncio.Barrier(3)

        async def meet(number: int) -> int:
            """Wait for the others."""
            await meeting.wait()
            return number

        calls = [ToolCall("meet", {"number": number}, id=f"c{number}") for number in range(3)]
        with observe.run("desk", telemetry=telemetry.options) as run, run.iteration():
            ask(run, *calls)
            return await asyncio.gather(*(run.aexecute(meet, call) for call in calls))

    assert [result.value for result in asyncio.run(patiently(main()))] == [0, 1, 2]
    assert {telemetry.parent(span) for span in telemetry.named("execute_tool")} == {"iteration"}


# Runs in runs.


def test_a_run_by_hand_in_a_tool_of_an_agent_is_nested_in_its_run() -> None:
    telemetry, watching = Telemetry(), Watching()

    def look(question: str) -> str:
        """Look something up."""
        with observe.run("helper", observers=[watching], telemetry=telemetry.options) as run:
            ask(run, text="Found.")
        return run.content

    model = ScriptedChatModel([ToolCall("look", {"question": "?"}, id="c1"), "Done."])
    response = ChatClient(model, name="planner", tools=[look], telemetry=telemetry.options).prompt("Look.").call()
    assert [result.content for result in response.tool_results] == ["Found."]
    assert {event.parent_run_id for event in watching.events} == {response.run_id}
    assert {event.actors for event in watching.events} == {("agent:planner", "tool:look")}
    assert telemetry.parent(telemetry.one("invoke_agent helper")) == "execute_tool look"


def test_an_agent_in_a_tool_of_a_run_by_hand_is_nested_in_it() -> None:
    telemetry = Telemetry()
    helper = ChatClient(ScriptedChatModel(["Found."]), name="helper", telemetry=telemetry.options)
    call = ToolCall("ask_helper", {"question": "?"}, id="c1")
    with observe.run("planner", telemetry=telemetry.options, principal="ana") as run, run.iteration():
        ask(run, call)
        result = run.execute(helper.as_tool("ask_helper", "Looks up."), call)
    assert result.content == "Found."
    assert telemetry.parent(telemetry.one("invoke_agent helper")) == "execute_tool ask_helper"


def test_calls_by_hand_of_the_manager_in_a_run_by_hand_are_nested_in_it() -> None:
    telemetry, watching = Telemetry(), Watching()
    with observe.run("desk", telemetry=telemetry.options) as run, run.model_call() as call:
        response = call.answered(AssistantMessage(tool_calls=[CALL]))
        ToolCallingManager().execute_tool_calls(
            [UserMessage("Add.")], response, tools=[add], advisors=[watching], telemetry=telemetry.options
        )
    assert {event.parent_run_id for event in watching.events} == {run.id}


# Approvals.


def test_a_call_that_nobody_decides_about_waits() -> None:
    telemetry = Telemetry()
    call = ToolCall("pay", {"amount": 9}, id="c1")
    with observe.run("desk", telemetry=telemetry.options) as run, run.iteration():
        ask(run, call)
        result = run.execute(pay, call)
    assert (result.decision, [pending.call_id for pending in run.pending]) == ("pending", ["c1"])
    assert run.tool_results == ()
    assert stop_reason(telemetry) == "awaiting_approval"


@pytest.mark.parametrize(
    ("decision", "outcome", "content"),
    [
        (Approve(by="ana"), "approved", "paid 9"),
        (Approve(by="ana", arguments={"amount": 5}), "approved", "paid 5"),
        (Reject("too much", by="ana"), "rejected", "too much"),
    ],
)
def test_a_decision_about_a_call_is_passed_with_it(decision: Approve | Reject, outcome: str, content: str) -> None:
    call = ToolCall("pay", {"amount": 9}, id="c1")
    with observe.run("desk") as run, run.iteration():
        ask(run, call)
        assert run.execute(pay, call).decision == "pending"
        result = run.execute(pay, call, decision=decision)
    assert (result.decision, result.by) == (outcome, "ana")
    assert content in result.content
    assert run.pending == ()


def test_an_approver_decides_while_the_call_waits() -> None:
    call = ToolCall("pay", {"amount": 9}, id="c1")
    approver = ApprovalAdvisor(lambda request: Approve(by="ana"))
    with observe.run("desk", advisors=[approver]) as run, run.iteration():
        ask(run, call)
        assert run.execute(pay, call).content == "paid 9"


# Calls that are left, answered, or not of the answer.


def test_a_call_that_is_left_belongs_to_its_iteration_wherever_the_run_ends() -> None:
    telemetry = Telemetry()
    run = observe.run("desk", telemetry=telemetry.options).begin()
    run.advance()
    ask(run, CALL)
    run.end()
    (iteration,), (refused,) = telemetry.named("iteration"), telemetry.named("refuse_tool add")
    assert refused.parent is not None
    assert refused.parent == iteration.context


def test_a_call_that_the_application_leaves_has_a_span_and_an_intent() -> None:
    run = Run()
    with observe.run("desk", audit=run.trail, telemetry=run.telemetry.options) as by_hand:  # type: ignore[arg-type]
        with by_hand.iteration():
            ask(by_hand, CALL)
        ask(by_hand, text="Never mind.")
    (span,) = run.telemetry.named("refuse_tool add")
    assert run.telemetry.parent(span) == "iteration"
    assert [draft.kind for draft in run.trail.drafts] == ["intent"]


def test_a_call_that_the_application_answers_is_recorded_as_answered() -> None:
    run = Run()
    with observe.run("desk", audit=run.trail, telemetry=run.telemetry.options) as by_hand:  # type: ignore[arg-type]
        with by_hand.iteration():
            ask(by_hand, CALL)
            result = by_hand.answer(CALL, "three")
    assert (result.decision, result.content) == ("answered", "three")
    assert [(draft.kind, draft.fields.get("decision")) for draft in run.trail.drafts] == [
        ("intent", None),
        ("decision", "answered"),
    ]


def test_calls_outside_an_iteration_are_recorded_with_the_iteration_0() -> None:
    telemetry, watching = Telemetry(), Watching()
    with observe.run("desk", observers=[watching], telemetry=telemetry.options) as run:
        ask(run, CALL)
        assert run.execute(add, CALL).content == "3"
    assert {event.iteration for event in watching.events} == {0}
    assert telemetry.nested_names() == [("invoke_agent desk", ["chat", "execute_tool add"])]


def test_calls_that_no_answer_has_asked_for_have_places_of_their_own() -> None:
    watching = Watching()
    calls = [CALL, ToolCall("add", {"a": 3, "b": 4}, id="c2")]
    with observe.run("desk", observers=[watching]) as run, run.iteration():
        assert [run.execute(add, call).content for call in calls] == ["3", "7"]
    places = [getattr(event, "batch_index", None) for event in watching.events if event.type == "tool_finished"]
    assert places == [0, 1]


# Limits and ends.


def test_an_iteration_after_the_concluding_one_is_refused() -> None:
    telemetry = Telemetry()
    with observe.run("desk", limits=LoopLimits(max_iterations=1), telemetry=telemetry.options) as run:
        with run.iteration() as first:
            ask(run, CALL)
            run.execute(add, CALL)
        with run.iteration() as concluding:
            ask(run, CALL)
            assert run.execute(add, CALL).decision == "limited"
        with pytest.raises(LoopLimitExceeded) as caught:
            run.iteration()
    assert (first.limit, concluding.limit, caught.value.limit) == (None, "max_iterations", "max_iterations")
    assert len(caught.value.response.tool_results) == 2
    assert stop_reason(telemetry) == "max_iterations"


@pytest.mark.parametrize("on_limit", ["stop", "raise"])
def test_limits_that_do_not_conclude_refuse_the_iteration(on_limit: Any) -> None:
    with observe.run("desk", limits=LoopLimits(max_iterations=1, on_limit=on_limit)) as run:
        with run.iteration():
            ask(run, CALL)
            run.execute(add, CALL)
        with pytest.raises(LoopLimitExceeded):
            run.iteration()


def test_a_run_that_its_application_ends_after_tools_ends_by_the_application() -> None:
    telemetry = Telemetry()
    with observe.run("desk", telemetry=telemetry.options) as run, run.iteration():
        ask(run, CALL)
        run.execute(add, CALL)
    assert stop_reason(telemetry) == "advisor"


def test_an_error_of_the_application_ends_the_run_as_failed() -> None:
    telemetry = Telemetry()
    with pytest.raises(KeyError), observe.run("desk", telemetry=telemetry.options) as run, run.iteration():
        ask(run, CALL)
        raise KeyError("mine")
    telemetry.check_each_ended_once()
    telemetry.check_run("error", "KeyError")


def test_a_failed_tool_ends_the_run_if_its_errors_are_raised() -> None:
    telemetry = Telemetry()
    (look_up,) = [function for function in TOOLS if function.__name__ == "look_up"]
    call = ToolCall("look_up", {"name": "Ana"}, id="c1")
    errors = ToolErrors(always_raise=True)
    with pytest.raises(ToolExecutionError), observe.run("desk", tool_errors=errors, telemetry=telemetry.options) as run:
        with run.iteration():
            ask(run, call)
            run.execute(look_up, call)
    telemetry.check_run("error", "traced_tools.errors.ToolExecutionError")


def test_a_cancelled_task_cancels_the_run() -> None:
    telemetry = Telemetry()

    async def main() -> None:
        begun = asyncio.Event()

        async def wait(a: int, b: int) -> int:
            """Wait for good."""
            begun.set()
            await asyncio.Event().wait()
            return 0

        async def work() -> None:
            call = ToolCall("wait", {"a": 1, "b": 2}, id="c1")
            with observe.run("desk", telemetry=telemetry.options) as run, run.iteration():
                ask(run, call)
                await run.aexecute(wait, call)

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(main()))
    telemetry.check_each_ended_once()
    assert stop_reason(telemetry) == "cancelled"


# What is refused, and what is not recorded.


def test_methods_of_a_run_that_is_not_under_way_say_so() -> None:
    run = observe.run("desk")
    for method in (run.iteration, run.model_call, lambda: run.execute(add, CALL), run.end):
        with pytest.raises(RuntimeError, match="the run has not begun"):
            method()
    with run:
        pass
    with pytest.raises(RuntimeError, match="the run has ended"):
        run.iteration()
    with pytest.raises(RuntimeError, match="has begun before"):
        run.begin()


def test_an_iteration_in_an_iteration_is_refused() -> None:
    with observe.run("desk") as run, run.iteration():
        with pytest.raises(RuntimeError, match="the iteration 1 has not ended"):
            run.iteration()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"agent": " "}, "agent must not be blank"),
        ({"model": 3}, "model must be a str"),
        ({"messages": ["Hello"]}, "messages"),
        ({"limits": 3}, "limits must be a LoopLimits"),
        ({"tool_errors": 3}, "tool_errors must be a ToolErrors"),
        ({"advisors": [3]}, "advisors.0. must be an Advisor"),
        ({"observers": 3}, "observers must be a sequence of advisors"),
        ({"audit": 3}, "trail must be an AuditTrail"),
        ({"principal": ""}, "principal must have 1 to 256 characters"),
        ({"version": ""}, "version must have 1 to 64"),
        ({"attributes": {"gen_ai.x y": 1}}, "attributes"),
    ],
)
def test_an_invalid_argument_of_a_run_is_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        observe.run(**{"agent": "desk", **arguments})


def test_invalid_arguments_of_calls_are_named() -> None:
    wrong: Any = {"name": "add"}
    with observe.run("desk") as run:
        with pytest.raises(TypeError, match="tool_call must be a ToolCall"):
            run.execute(add, wrong)
        with pytest.raises(TypeError, match="options must be a ChatOptions"):
            run.model_call(options=wrong)
        with run.model_call() as call, pytest.raises(TypeError, match="answer must be a str, an AssistantMessage"):
            call.answered(wrong)


def test_nothing_of_a_run_is_recorded_where_nothing_listens() -> None:
    with observe.run("desk") as run, run.iteration():
        ask(run, CALL)
        assert run.execute(add, CALL).content == "3"
    assert run.trace_id is None


def test_contents_stay_out_unless_they_are_captured() -> None:
    marker = "PLANTED"
    telemetry, watching = Telemetry(), Watching(deltas=True)

    def echo(text: str) -> str:
        """Repeat a text."""
        raise ValueError(text)

    call = ToolCall("echo", {"text": marker}, id="c1")
    context = {"key": marker}
    with observe.run("desk", observers=[watching], tool_context=context, telemetry=telemetry.options) as run:
        with run.iteration():
            with run.model_call("m", messages=[UserMessage(marker)], tools=[echo]) as asked:
                [*asked.chunks(iter([marker]), read=lambda text: ChatChunk(text=text))]
                asked.answered(AssistantMessage(marker, tool_calls=[call]))
            run.execute(echo, call)
            run.answer(ToolCall("echo", {"text": marker}, id="c2"), marker)
    recorded = [
        *(str(span.to_json()) for span in telemetry.spans),
        *(str(event) for event in telemetry.events),
        *(str(point) for point in telemetry.metrics),
        *(event.for_export().model_dump_json() for event in watching.events),
        *map(repr, (run, asked, run.pending)),
    ]
    assert len(recorded) > 20
    assert [text for text in recorded if marker in text] == []


def test_the_small_agent_by_hand_is_as_in_our_loop() -> None:
    run, script, messages = Run(), iter(answers()), list[Any](MESSAGES)
    with observe.run(
        AGENT,
        model=MODEL,
        provider=PROVIDER,
        messages=messages,
        audit=run.trail,  # type: ignore[arg-type]  # it stands for a trail
        observers=[run.watching],
        advisors=[run.policy],
        limits=LIMITS,
        telemetry=run.telemetry.options,
    ) as by_hand:
        response = None
        while response is None or response.tool_calls:
            with by_hand.iteration() as iteration:
                with by_hand.model_call(messages=messages, tools=() if iteration.limit else TOOLS) as call:
                    response = call.answered(next(script))
                results = [by_hand.execute(TOOLS, tool_call) for tool_call in response.tool_calls]
                messages += [response.message, ToolMessage([result.part() for result in results])] if results else []
    assert without_our_loop(run.seen()) == without_our_loop(own_run().seen())


def test_models_that_a_run_calls_in_turn_have_their_own_metrics() -> None:
    telemetry = Telemetry()
    with observe.run("desk", model="small", provider="a", telemetry=telemetry.options) as run:
        for model, provider in (("small", None), ("large", "b"), ("small", "c")):
            with run.model_call(model, provider) as call:
                call.answered("Hello.")
    durations = telemetry.metric("gen_ai.client.inference.duration")
    labels = {(point.attributes[names.REQUEST_MODEL], point.attributes[names.PROVIDER_NAME]) for point in durations}
    assert labels == {("small", "a"), ("large", "b"), ("small", "c")}


def test_tools_that_are_provided_when_asked_for_are_refused_for_a_model_call() -> None:
    class Provider:
        def tool_callbacks(self) -> list[Any]:
            return [add]

    with observe.run("desk") as run, pytest.raises(TypeError, match="not a provider"):
        run.model_call(tools=Provider())
    with observe.run("desk") as run:
        assert run.execute(Provider(), CALL).content == "3"


def test_a_list_of_tools_that_grows_is_read_anew() -> None:
    tools: list[Any] = []
    with observe.run("desk") as run, run.iteration():
        assert run.execute(tools, CALL).decision == "unknown_tool"
        tools.append(add)
        assert run.execute(tools, CALL).content == "3"


def test_a_run_that_nobody_ends_ends_as_cancelled_when_it_is_collected() -> None:
    telemetry = Telemetry()
    run = observe.run("desk", telemetry=telemetry.options).begin()
    run.advance()
    ask(run, CALL)
    del run
    gc.collect()
    telemetry.check_each_ended_once()
    assert stop_reason(telemetry) == "cancelled"
    assert [span.name for span in telemetry.named("refuse_tool")] == ["refuse_tool add"]


# Blocks in generators, which end in other contexts than they began in.


def streamed(telemetry: Telemetry, principal: str) -> Iterator[str]:
    with observe.run("desk", principal=principal, telemetry=telemetry.options) as run, run.model_call() as call:
        yield from call.chunks(iter(["Hel", "lo"]))
        call.answered("Hello.")


def next_run(telemetry: Telemetry) -> tuple[Any, Any]:
    """Run an agent, and return its principal and the parent of its span."""
    with observe.run("next", telemetry=telemetry.options) as run:
        principal = run._run.principal
    (span,) = telemetry.named("invoke_agent next")
    return principal, span.parent


def test_a_run_that_ended_in_another_thread_is_no_parent() -> None:
    telemetry = Telemetry()

    def main() -> tuple[Any, Any]:
        stream = streamed(telemetry, "admin")
        next(stream)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(stream.close).result()  # type: ignore[attr-defined]  # it is a generator
        return next_run(telemetry)

    assert contextvars.Context().run(main) == (None, None)


def test_runs_in_generators_that_take_turns_are_no_parents_once_they_have_ended() -> None:
    telemetry = Telemetry()

    def main() -> tuple[Any, Any]:
        first, second = streamed(telemetry, "admin"), streamed(telemetry, "admin")
        for stream in (first, second):
            next(stream)
        for stream in (first, second):
            stream.close()  # type: ignore[attr-defined]  # it is a generator
        return next_run(telemetry)

    assert contextvars.Context().run(main) == (None, None)


def test_a_stream_that_another_task_closes_leaves_no_parent() -> None:
    telemetry = Telemetry()

    async def stream() -> AsyncIterator[str]:
        with observe.run("desk", principal="admin", telemetry=telemetry.options):
            yield "Hel"
            yield "lo"

    async def main() -> tuple[Any, Any]:
        chunks = stream()
        await anext(chunks)
        await asyncio.create_task(chunks.aclose())  # type: ignore[attr-defined, arg-type]  # it is a generator
        return next_run(telemetry)

    assert asyncio.run(patiently(main())) == (None, None)


def test_an_agent_after_a_run_that_ended_elsewhere_is_in_the_span_around_it() -> None:
    telemetry = Telemetry()

    def main() -> None:
        stream = streamed(telemetry, "admin")
        next(stream)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(stream.close).result()  # type: ignore[attr-defined]  # it is a generator
        with telemetry.tracer.start_as_current_span("request"):
            client = ChatClient(ScriptedChatModel(["Hello."]), name="agent", telemetry=telemetry.options)
            assert client.prompt("Hello?").call().run.principal is None

    contextvars.Context().run(main)
    assert telemetry.parent(telemetry.one("invoke_agent agent")) == "request"


# Calls as applications have them.


def recorded(run: Run) -> list[tuple[str, Any, int | None]]:
    return [
        (draft.kind, draft.fields.get("decision"), draft.subject and draft.subject.batch_index)
        for draft in run.trail.drafts
    ]


def by_hand(run: Run, **settings: Any) -> ManualRun:
    trail: Any = run.trail
    return observe.run("desk", audit=trail, observers=[run.watching], telemetry=run.telemetry.options, **settings)


@pytest.mark.parametrize("call_id", [None, "same"])
def test_equal_calls_without_ids_of_their_own_are_told_apart(call_id: str | None) -> None:
    run, calls = Run(), [ToolCall("add", {"a": 1, "b": 2}, id=call_id) for _ in range(2)]
    with by_hand(run) as hand, hand.iteration():
        ask(hand, *calls)
        results = [hand.execute(add, call) for call in calls]
        assert hand.open_calls == ()
    assert len({result.call_id for result in results}) == 2
    assert [place for kind, _, place in recorded(run) if kind == "intent"] == [0, 1]


def test_calls_with_one_id_that_no_answer_has_are_told_apart() -> None:
    run = Run()
    with by_hand(run) as hand:
        results = [hand.execute(add, CALL) for _ in range(2)]
    assert len({result.call_id for result in results}) == 2
    assert [place for kind, _, place in recorded(run) if kind == "intent"] == [0, 1]


def test_a_call_that_is_decided_later_is_counted_once_and_has_a_place_of_its_own() -> None:
    run, call = Run(), ToolCall("pay", {"amount": 9}, id="c1")
    with by_hand(run) as hand, hand.iteration():
        ask(hand, call)
        hand.execute(pay, call)
        hand.execute(pay, call, decision=Approve(by="ana"))
    decisions = [fact for fact in recorded(run) if fact[0] == "decision"]
    assert decisions == [("decision", "pending", 0), ("decision", "approved", 1)]
    assert (run.telemetry.one("invoke_agent").attributes or {})[names.LOOP_TOOL_CALLS] == 1
    assert run.telemetry.metric("traced_tools.approval.wait") != []


def test_a_call_that_is_left_outside_an_iteration_has_a_span_and_an_intent() -> None:
    run = Run()
    with by_hand(run) as hand:
        ask(hand, CALL)
        ask(hand, CALL)
    spans = run.telemetry.named("refuse_tool add")
    assert [run.telemetry.parent(span) for span in spans] == ["invoke_agent desk"] * 2
    assert recorded(run) == [("intent", None, 0), ("intent", None, 1)]


def test_a_call_that_is_left_in_a_run_without_a_block_is_in_its_iteration() -> None:
    run = Run()
    hand = by_hand(run).begin()
    hand.advance()
    ask(hand, CALL)
    hand.end()
    assert run.telemetry.parent(run.telemetry.one("refuse_tool add")) == "iteration"


def test_a_call_that_is_answered_outside_an_iteration_has_the_name_of_its_tool() -> None:
    run = Run()
    with by_hand(run) as hand:
        ask(hand, CALL)
        hand.answer(CALL, "3")
    assert [event.tool for event in run.watching.events if event.type == "tool_decided"] == ["add"]  # type: ignore[attr-defined]


def test_a_run_that_goes_on_without_a_call_that_waited_does_not_wait() -> None:
    telemetry, call = Telemetry(), ToolCall("pay", {"amount": 9}, id="c1")
    with observe.run("desk", telemetry=telemetry.options) as run:
        with run.iteration():
            ask(run, call)
            run.execute(pay, call)
        with run.iteration():
            ask(run, text="Never mind.")
    assert run.pending == ()
    assert stop_reason(telemetry) == "answered"


def test_one_answer_is_reported_in_the_block_of_its_call() -> None:
    with observe.run("desk") as run:
        with run.model_call() as call:
            call.answered("Hello.")
            with pytest.raises(RuntimeError, match="the model call has its answer"):
                call.answered("Hello again.")
        with run.model_call() as late:
            pass
        with pytest.raises(RuntimeError, match="the model call has ended"):
            late.answered("Hello.")
        wrong: Any = {"a": 1}
        with pytest.raises(TypeError, match="content must be a str"):
            run.answer(CALL, wrong)


def test_model_calls_side_by_side_have_their_own_durations() -> None:
    telemetry = Telemetry()

    async def main() -> None:
        meeting = asyncio.Barrier(2)

        async def ask_model(run: ManualRun, model: str) -> None:
            with run.model_call(model) as call:
                await meeting.wait()
                call.answered("Hello.")
                await meeting.wait()

        with observe.run("desk", telemetry=telemetry.options) as run:
            await asyncio.gather(*(ask_model(run, model) for model in ("a", "b")))

    asyncio.run(patiently(main()))
    spans = {span.name: ((span.end_time or 0) - (span.start_time or 0)) / 1e9 for span in telemetry.named("chat")}
    for point in telemetry.metric("gen_ai.client.inference.duration"):
        assert point.sum == pytest.approx(spans[f"chat {point.attributes[names.REQUEST_MODEL]}"], rel=1e-3)
    attributes = telemetry.one("invoke_agent").attributes or {}
    booked = sum(float(str(attributes[name])) for name in names.TIME_BY_KIND.values() if name in attributes)
    (run_duration,) = telemetry.metric("gen_ai.invoke_agent.duration")
    assert booked == pytest.approx(run_duration.sum, rel=1e-3)


@pytest.mark.parametrize(
    ("decision", "error"),
    [
        (Approve(by="ana", scope="run"), ValueError),
        (Provide({"size": 1}), ResumeError),
        ("yes", TypeError),
    ],
)
def test_an_invalid_decision_leaves_the_call_to_be_executed(decision: Any, error: type[Exception]) -> None:
    run, call = Run(), ToolCall("pay", {"amount": 9}, id="c1")
    with by_hand(run) as hand, hand.iteration():
        ask(hand, call)
        with pytest.raises(error):
            hand.execute(pay, call, decision=decision)
        assert hand.open_calls == (call,)
        assert hand.execute(pay, call, decision=Approve(by="ana")).call_id == "c1"
    assert [place for kind, _, place in recorded(run) if kind == "intent"] == [0]
