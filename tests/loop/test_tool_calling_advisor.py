"""The tool loop as an advisor: its hooks, and its place among the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.captured import Telemetry
from tests.loop.loops import Loop, assert_complete
from tests.modes import MODES, run, run_chunks
from tests.observe.runs import adds
from tests.recorder import Recorder
from tests.sample_tools import add, direct, fail
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    Message,
    ToolCall,
    ToolExecutionError,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from traced_tools.core import ToolErrors, ToolExecutionResult
from traced_tools.errors import AdvisorChainError, ToolNotFoundError
from traced_tools.loop import ToolCallingAdvisor, ToolLoopAdvisor, TranscriptAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, tool_callbacks

pytestmark = pytest.mark.parametrize("mode", MODES)


class Transcript(TranscriptAdvisor):
    """A memory of the whole transcript, as small as can be."""

    name = "transcript"

    def __init__(self, order: int = 400) -> None:
        self.order = order
        self.stored: list[Message] = []

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self.stored += request.messages[-1:] if self.stored else request.messages
        response = await call_next(request.replace(messages=tuple(self.stored)))
        self.stored.append(response.message)
        return response


# Hooks.


def test_initialize_and_finalize_run_once_and_before_and_after_once_a_model_call(mode: str) -> None:
    loop = Loop()
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(mode, ChatClient(model, tools=[add], tool_calling_advisor=loop).prompt("?"))
    assert loop.seen == [
        "initialize 0",
        "before 1",
        "after 1",
        "next_instructions 1",
        "before 2",
        "after 2",
        "finalize",
    ]


def test_tools_added_by_before_are_offered_and_run(mode: str) -> None:
    class Adding(ToolCallingAdvisor):
        def before(self, request: ChatClientRequest) -> ChatClientRequest:
            return request if request.tools else request.replace(tools=tool_callbacks(add))

    model = ScriptedChatModel([adds(1, 1), "two"])
    response = run(mode, ChatClient(model, tool_calling_advisor=Adding()).prompt("?"))
    assert response.tool_results[0].content == "2"
    assert [[each.name for each in request.tools] for request in model.requests] == [["add"], ["add"]]


def test_what_initialize_changes_counts_from_the_first_pass(mode: str) -> None:
    class Hotter(ToolCallingAdvisor):
        def initialize(self, request: ChatClientRequest) -> ChatClientRequest:
            return request.replace(
                options=ChatOptions(temperature=1.0),
                messages=(*request.messages, UserMessage("and be quick")),
                context={**request.context, "hot": True},
            )

    model = ScriptedChatModel([adds(1, 1), "two"])
    response = run(mode, ChatClient(model, tools=[add], tool_calling_advisor=Hotter()).prompt("?"))
    assert [request.options.temperature for request in model.requests] == [1.0, 1.0]
    assert model.requests[0].messages == (UserMessage("?"), UserMessage("and be quick"))
    assert response.context == {"hot": True}
    assert response.messages[:2] == (UserMessage("?"), UserMessage("and be quick"))


def test_what_before_changes_stays_changed(mode: str) -> None:
    class Counting(ToolCallingAdvisor):
        def before(self, request: ChatClientRequest) -> ChatClientRequest:
            return request.replace(options=ChatOptions(seed=(request.options.seed or 0) + 1))

    model = ScriptedChatModel([adds(1, 1), "two"])
    run(mode, ChatClient(model, tools=[add], tool_calling_advisor=Counting()).prompt("?"))
    assert [request.options.seed for request in model.requests] == [1, 2]


def test_after_sees_the_whole_answer_of_each_pass(mode: str) -> None:
    answers: list[str] = []

    class Listening(ToolCallingAdvisor):
        def after(self, response: ChatClientResponse) -> ChatClientResponse:
            answers.append(f"{response.content} {len(response.tool_calls)}")
            return response

    model = ScriptedChatModel([["let me see", adds(1, 1)], "it is two"])
    run(mode, ChatClient(model, tools=[add], tool_calling_advisor=Listening()).prompt("?"))
    assert answers == ["let me see 1", "it is two 0"]


def test_after_can_take_the_calls_away(mode: str) -> None:
    class Calm(ToolCallingAdvisor):
        def after(self, response: ChatClientResponse) -> ChatClientResponse:
            return response.replace(chat_response=ChatResponse(AssistantMessage("no tools today")))

    model = ScriptedChatModel([adds(1, 1)])
    response = run(mode, ChatClient(model, tools=[add], tool_calling_advisor=Calm()).prompt("?"))
    assert (response.content, response.tool_results) == ("no tools today", ())
    assert response.messages[-1] == AssistantMessage("no tools today")


def test_finalize_changes_what_the_caller_gets(mode: str) -> None:
    class Polite(ToolCallingAdvisor):
        def finalize(self, response: ChatClientResponse) -> ChatClientResponse:
            return response.replace(context={"polite": True})

    response = run(mode, ChatClient(ScriptedChatModel(["x"]), tool_calling_advisor=Polite()).prompt("?"))
    assert response.context == {"polite": True}


@pytest.mark.parametrize("hook", ["initialize", "before", "after", "finalize"])
def test_a_hook_that_returns_something_else_is_named(mode: str, hook: str) -> None:
    loop = type("Odd", (ToolCallingAdvisor,), {hook: lambda self, value: None})()
    with pytest.raises(TypeError, match=f"{hook} of tool_calling must return a ChatClientRe"):
        run(mode, ChatClient(ScriptedChatModel(["x"]), tool_calling_advisor=loop).prompt("?"))


@pytest.mark.parametrize("hook", ["initialize", "before", "after", "finalize"])
def test_an_error_of_a_hook_passes_unchanged(mode: str, hook: str) -> None:
    error = LookupError("mine")

    def broken(self: Any, value: Any) -> Any:
        raise error

    loop = type("Broken", (ToolCallingAdvisor,), {hook: broken})()
    with pytest.raises(LookupError) as caught:
        run(mode, ChatClient(ScriptedChatModel(["x"]), tool_calling_advisor=loop).prompt("?"))
    assert caught.value is error


def test_finalize_runs_once_after_an_answer_and_after_a_direct_result(mode: str) -> None:
    for turns, reason in ((["x"], "answered"), ([ToolCall("direct", {"text": "x"})], "return_direct")):
        loop = Loop()
        run(mode, ChatClient(ScriptedChatModel(turns), tools=[direct], tool_calling_advisor=loop).prompt("?"))
        assert [final.stop_reason for final in loop.finals] == [reason]
        assert loop.finals[0].content == "x"


@pytest.mark.parametrize("where", ["model", "tool", "advisor", "unknown tool"])
def test_finalize_runs_once_after_an_error_with_what_there_is(mode: str, where: str) -> None:
    class Late(Recorder):
        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            if request.iteration == 2 and where == "advisor":
                raise LookupError("advisor")
            return await call_next(request)

    second: Any = {
        "model": LookupError("model"),
        "tool": ToolCall("fail"),
        "advisor": "never said",
        "unknown tool": ToolCall("invented"),
    }[where]
    expected = {"tool": ToolExecutionError, "unknown tool": ToolNotFoundError}.get(where, LookupError)
    loop = Loop()
    client = ChatClient(
        ScriptedChatModel([adds(1, 1), second]),
        tools=[add, fail],
        advisors=[Late()],
        tool_calling_advisor=loop,
        tool_errors=ToolErrors(always_raise=True, unknown_tool="raise"),
    )
    with pytest.raises(expected):
        run(mode, client.prompt("?"))
    assert [final.stop_reason for final in loop.finals] == ["error"]
    assert [each.content for each in loop.finals[0].tool_results] == ["2"]


# History and the order dial.


def test_an_advisor_inside_the_loop_sees_every_pass(mode: str) -> None:
    inside, outside = Recorder("inside", 400), Recorder("outside", 200)
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(mode, ChatClient(model, tools=[add], advisors=[inside, outside]).prompt("?"))
    assert [request.iteration for request in inside.requests] == [1, 2]
    assert isinstance(inside.requests[1].messages[-1], ToolMessage)
    assert [request.iteration for request in outside.requests] == [0]
    assert [response.content for response in outside.responses] == ["two"]


def test_a_transcript_inside_the_loop_switches_its_history_off(mode: str) -> None:
    transcript, inner = Transcript(), Recorder("inner", 500)
    model = ScriptedChatModel([[adds(1, 1), adds(2, 2)], adds(3, 3), "done"])
    client = ChatClient(model, system="brief", tools=[add], advisors=[transcript, inner])
    response = run(mode, client.prompt("?"))
    assert response.content == "done"
    assert [len(request.messages) for request in inner.requests] == [2, 4, 6]
    assert transcript.stored == list(response.messages)
    assert_complete(transcript.stored)


def test_the_loop_that_was_passed_keeps_its_history_for_others(mode: str) -> None:
    loop = ToolCallingAdvisor()
    client = ChatClient(
        ScriptedChatModel([adds(1, 1), "two"]), tools=[add], tool_calling_advisor=loop, advisors=[Transcript()]
    )
    run(mode, client.prompt("?"))
    assert loop.keep_history is True


@pytest.mark.parametrize(("order", "sent"), [(299, 3), (300, 3), (301, 1)])
def test_a_transcript_is_inside_only_with_a_greater_order(mode: str, order: int, sent: int) -> None:
    class Quiet(TranscriptAdvisor):
        name = "quiet"

    quiet = Quiet()
    quiet.order = order
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(mode, ChatClient(model, tools=[add], advisors=[quiet]).prompt("?"))
    assert len(model.requests[1].messages) == sent


def test_a_transcript_that_a_request_adds_switches_the_history_off_for_that_request(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two", adds(1, 1), "two"])
    client = ChatClient(model, tools=[add])
    transcript = Transcript()
    run(mode, client.prompt("?", advisors=[transcript]))
    run(mode, client.prompt("?"))
    assert_complete(transcript.stored)
    assert len(model.requests[1].messages) == len(model.requests[3].messages) == 3


# The loop among others.


def test_a_loop_is_made_of_what_it_needs(mode: str) -> None:
    with pytest.raises(TypeError, match="manager"):
        ToolCallingAdvisor("manager")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is_tool_call"):
        ToolCallingAdvisor(is_tool_call=True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="order"):
        ToolCallingAdvisor(order="first")  # type: ignore[arg-type]


def test_a_loop_has_a_name_and_an_order(mode: str) -> None:
    assert (ToolCallingAdvisor().name, ToolCallingAdvisor().order) == ("tool_calling", 300)
    assert ToolCallingAdvisor(order=350).order == 350


def test_without_tool_calling_the_caller_gets_the_calls(mode: str) -> None:
    inside = Recorder()
    model = ScriptedChatModel([["I would add", adds(1, 1)]])
    client = ChatClient(model, tools=[add], advisors=[inside])
    response, chunks = run_chunks(mode, client.prompt("?", tool_calling=False))
    assert [call.name for call in response.tool_calls] == ["add"]
    assert (response.content, response.finish_reason, response.tool_results) == ("I would add", "tool_call", ())
    assert (len(inside.requests), len(model.requests[0].tools)) == (1, 1)
    assert [call.name for chunk in chunks for call in chunk.tool_calls] == (["add"] if chunks else [])


def test_without_tools_the_chain_runs_once(mode: str) -> None:
    inside = Recorder()
    run(mode, ChatClient(ScriptedChatModel(["hi"]), advisors=[inside]).prompt("?"))
    assert len(inside.requests) == 1


def test_tools_injected_by_an_advisor_outside_the_loop_are_run(mode: str) -> None:
    class Inject(Advisor):
        name, order = "inject", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            return await call_next(request.replace(tools=tool_callbacks(add)))

    model = ScriptedChatModel([adds(1, 1), "two"])
    response = run(mode, ChatClient(model, advisors=[Inject()]).prompt("?"))
    assert [each.content for each in response.tool_results] == ["2"]


def test_tools_of_the_request_are_run(mode: str) -> None:
    response = run(mode, ChatClient(ScriptedChatModel([adds(1, 1), "two"])).prompt("?", tools=[add]))
    assert [each.content for each in response.tool_results] == ["2"]


def test_an_explicit_loop_takes_the_place_of_the_clients_own(mode: str) -> None:
    loop = Loop()
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(mode, ChatClient(model, tools=[add], advisors=[loop]).prompt("?"))
    assert len(model.requests) == 2
    assert loop.seen.count("initialize 0") == 1


def test_any_tool_loop_keeps_the_clients_own_away(mode: str) -> None:
    class Idle(ToolLoopAdvisor):
        name, order = "idle", 300

    response = run(mode, ChatClient(ScriptedChatModel([adds(1, 1)]), tools=[add], advisors=[Idle()]).prompt("?"))
    assert (response.tool_results, len(response.tool_calls)) == ((), 1)


def test_two_loops_are_an_error_that_names_both(mode: str) -> None:
    first, second = ToolCallingAdvisor(), ToolCallingAdvisor(order=350)
    with pytest.raises(AdvisorChainError) as caught:
        ChatClient(ScriptedChatModel([]), advisors=[first, second])
    for words in ("one tool loop", "2", "tool_calling (order 300)", "tool_calling (order 350)"):
        assert words in str(caught.value)
    with pytest.raises(AdvisorChainError):
        ChatClient(ScriptedChatModel([]), advisors=[first]).prompt("?", advisors=[second])


def test_a_loop_among_the_advisors_comes_before_the_clients_own(mode: str) -> None:
    explicit, own = Loop(), Loop()
    client = ChatClient(ScriptedChatModel(["a"]), tool_calling_advisor=own)
    run(mode, client.prompt("?", advisors=[explicit]))
    assert (len(explicit.finals), len(own.finals)) == (1, 0)


@pytest.mark.parametrize("passes_it", [False, True], ids=["own", "passed"])
def test_a_loop_and_its_manager_report_to_the_telemetry_of_the_client(
    mode: str, passes_it: bool, telemetry: Telemetry
) -> None:
    loop = ToolCallingAdvisor(ToolCallingManager()) if passes_it else None
    model = ScriptedChatModel([adds(1, 1), "two"])
    client = ChatClient(model, tools=[add], tool_calling_advisor=loop, telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    assert telemetry.parent(telemetry.one("execute_tool add")) == "iteration"
    assert len(telemetry.named("chat")) == 2


def test_a_custom_manager_runs_the_tools(mode: str) -> None:
    class Fixed(ToolCallingManager):
        async def execute(self, run: Any, messages: Any, response: Any, tools: Any, **place: Any) -> Any:
            results = [ToolResult(each.id or "", each.name, "fixed") for each in response.message.tool_calls]
            note = ToolMessage([result.part() for result in results])
            return ToolExecutionResult((*messages, response.message, note), False, results)

    loop = ToolCallingAdvisor(Fixed())
    model = ScriptedChatModel([adds(1, 1), "two"])
    response = run(mode, ChatClient(model, tools=[add], tool_calling_advisor=loop).prompt("?"))
    assert [each.content for each in response.tool_results] == ["fixed"]
