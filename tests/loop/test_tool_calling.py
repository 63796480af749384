"""The tool loop. A number such as B011 is the statement of the reference architecture that a test holds.

Of these, the following have no meaning here or are deliberately different:

- B006 (null request or chain): both are typed, and a chain never passes None.
- B007, B008, B045 (options that cannot carry tools): tools are part of the request, not of its options.
- B018 (provider-native usage objects are dropped): `Usage` holds none.
- B025 (an empty system message stands in for a missing one): nothing is invented; see the test of that number.
- B028, B029, B044 (a limit ends the run with the breach text as its answer): by default the model concludes (W-07).
- B034 (a subclass brings its own builder): there are no builders, a subclass inherits the constructor.
- B040, B041 (usage in chunks): the aggregate carries it, `stream.response.usage`.
- B021, B043 (finish reason `returnDirect`): `stop_reason` says it, `finish_reason` keeps to the conventions.
- B048 (tools of a stream run on a thread of their own): the blocking drivers run them where they are.
- B051 (finalize only after a plain answer): it runs in every ending (W-13).
- B054 (helper for a deprecated parameter), B057 (tools in a model's default options): there is neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.loop.loops import Loop, assert_complete
from tests.modes import MODES, run, run_chunks
from tests.observe.runs import adds
from tests.recorder import Recorder
from tests.sample_tools import add, direct
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.core import ToolExecutionResult
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatModel, ChatRequest, ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext

pytestmark = pytest.mark.parametrize("mode", MODES)


@tool(return_direct=True)
def failing_direct() -> str:
    """Fail directly."""
    raise RuntimeError("broken")


class Manager(ToolCallingManager):
    """Notes what it is asked to run."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[Message, ...]] = []

    async def execute(self, run: Any, messages: Sequence[Message], response: Any, tools: Any, **place: Any) -> Any:
        self.batches.append(tuple(messages))
        return await super().execute(run, messages, response, tools, **place)


# Passes.


def test_a_plain_answer_is_returned_and_no_tool_runs(mode: str) -> None:
    model, manager = ScriptedChatModel(["four"]), Manager()
    client = ChatClient(model, tools=[add], tool_calling_advisor=ToolCallingAdvisor(manager))
    response = run(mode, client.prompt("2+2?"))
    assert (response.content, response.stop_reason, response.finish_reason) == ("four", "answered", "stop")
    assert (len(model.requests), manager.batches, response.tool_results) == (1, [], ())


def test_a_response_without_a_model_answer_is_returned_as_it_is(mode: str) -> None:
    class Silent(Advisor):
        name, order = "silent", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            return ChatClientResponse(request.run, stop_reason="advisor", iteration=request.iteration)

    model = ScriptedChatModel([])
    response = run(mode, ChatClient(model, tools=[add], advisors=[Silent()]).prompt("hi"))
    assert (response.content, response.chat_response, response.tool_results) == ("", None, ())
    assert response.messages == (UserMessage("hi"),)


def test_one_tool_round_costs_two_model_calls(mode: str) -> None:
    model, manager = ScriptedChatModel([adds(2, 3), "five"]), Manager()
    client = ChatClient(model, tools=[add], tool_calling_advisor=ToolCallingAdvisor(manager))
    response = run(mode, client.prompt("2+3?"))
    assert (len(model.requests), len(manager.batches)) == (2, 1)
    assert response.content == "five"
    assert [(each.tool, each.value, each.content) for each in response.tool_results] == [("add", 5, "5")]


def test_two_tool_rounds_cost_three_model_calls(mode: str) -> None:
    model, manager = ScriptedChatModel([adds(1, 1), adds(2, 2), "four"]), Manager()
    client = ChatClient(model, tools=[add], tool_calling_advisor=ToolCallingAdvisor(manager))
    response = run(mode, client.prompt("?"))
    assert (len(model.requests), len(manager.batches)) == (3, 2)
    assert [each.content for each in response.tool_results] == ["2", "4"]


def test_the_last_response_is_the_one_returned(mode: str) -> None:
    response = run(mode, ChatClient(ScriptedChatModel([["first", adds(1, 1)], "last"]), tools=[add]).prompt("?"))
    assert response.content == "last"
    assert response.chat_response is not None
    assert response.chat_response.id == "scripted_2"
    assert response.iteration == 2


def test_a_checker_that_says_no_leaves_the_calls_to_the_caller(mode: str) -> None:
    model, manager = ScriptedChatModel([adds(1, 1)]), Manager()
    loop = ToolCallingAdvisor(manager, is_tool_call=lambda response: False)
    response, chunks = run_chunks(mode, ChatClient(model, tools=[add], tool_calling_advisor=loop).prompt("?"))
    assert [call.name for call in response.tool_calls] == ["add"]
    assert (response.finish_reason, manager.batches, len(model.requests)) == ("tool_call", [], 1)
    assert [call.name for chunk in chunks for call in chunk.tool_calls] == (["add"] if chunks else [])
    assert bool(chunks) == mode.endswith("stream")


def test_a_checker_that_says_yes_makes_a_round_even_without_calls(mode: str) -> None:
    class Inventive(ToolCallingManager):
        async def execute(self, run: Any, messages: Any, response: Any, tools: Any, **place: Any) -> Any:
            return ToolExecutionResult((*messages, response.message, UserMessage("You may.")))

    loop = ToolCallingAdvisor(Inventive(), is_tool_call=lambda response: response.content.endswith("?"))
    model = ScriptedChatModel(["may I ?", "done"])
    response = run(mode, ChatClient(model, tool_calling_advisor=loop).prompt("hi"))
    assert response.content == "done"
    assert model.requests[1].messages[-1] == UserMessage("You may.")


def test_the_next_request_holds_the_whole_conversation(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 2), "three"])
    response = run(mode, ChatClient(model, system="be brief", tools=[add]).prompt("1+2?"))
    sent = model.requests[1].messages
    assert sent[:2] == (SystemMessage("be brief"), UserMessage("1+2?"))
    assert isinstance(sent[2], AssistantMessage)
    assert isinstance(sent[3], ToolMessage)
    assert sent[3].results[0].content == "3"
    assert response.messages == (*sent, AssistantMessage("three"))
    assert_complete(response.messages)


def test_without_history_the_model_sees_the_system_and_the_last_message_and_tools_see_all(
    mode: str,
) -> None:
    model, manager = ScriptedChatModel([adds(1, 1), adds(2, 2), "done"]), Manager()
    loop = ToolCallingAdvisor(manager, keep_history=False)
    client = ChatClient(model, system="brief", tools=[add], tool_calling_advisor=loop)
    response = run(mode, client.prompt("?"))
    for request in model.requests[1:]:
        assert [type(message) for message in request.messages] == [SystemMessage, ToolMessage]
    assert [len(batch) for batch in manager.batches] == [2, 4]
    assert [type(message).__name__ for message in response.messages] == [
        "SystemMessage",
        "UserMessage",
        *["AssistantMessage", "ToolMessage"] * 2,
        "AssistantMessage",
    ]


def test_without_history_and_without_a_system_message_none_is_invented(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(mode, ChatClient(model, tools=[add], tool_calling_advisor=ToolCallingAdvisor(keep_history=False)).prompt("?"))
    assert [type(message) for message in model.requests[1].messages] == [ToolMessage]


def test_a_custom_next_instructions_decides_what_the_next_pass_is_sent(mode: str) -> None:
    class Short(ToolCallingAdvisor):
        def next_instructions(self, request: Any, response: Any, result: ToolExecutionResult) -> Sequence[Message]:
            return result.conversation_history[-2:]

    model = ScriptedChatModel([adds(1, 1), "two"])
    run(mode, ChatClient(model, tools=[add], tool_calling_advisor=Short()).prompt("?"))
    assert [type(message) for message in model.requests[1].messages] == [AssistantMessage, ToolMessage]


def test_text_beside_a_tool_call_is_seen_and_is_not_part_of_the_content(mode: str) -> None:
    model = ScriptedChatModel([["let me see", adds(1, 1)], "it is two"])
    response, chunks = run_chunks(mode, ChatClient(model, tools=[add]).prompt("?"))
    assert response.content == "it is two"
    if chunks:
        by_pass = {index: "".join(c.text for c in chunks if c.iteration == index) for index in (1, 2)}
        assert by_pass == {1: "let me see", 2: "it is two"}


def test_several_calls_of_one_answer_are_answered_in_call_order(mode: str) -> None:
    model = ScriptedChatModel([[adds(1, 1), adds(2, 2), adds(3, 3)], "done"])
    response = run(mode, ChatClient(model, tools=[add]).prompt("?"))
    assert [each.content for each in response.tool_results] == ["2", "4", "6"]
    assert_complete(response.messages)


# Usage.


def test_usage_is_summed_over_the_run(mode: str) -> None:
    usage = Usage(input_tokens=10, output_tokens=3, cache_read_tokens=2, cache_write_tokens=1)
    model = ScriptedChatModel([adds(1, 1), adds(2, 2), "x"], usage=usage)
    response = run(mode, ChatClient(model, tools=[add]).prompt("?"))
    assert response.usage == Usage(input_tokens=30, output_tokens=9, cache_read_tokens=6, cache_write_tokens=3)
    assert response.usage is not None
    assert response.usage.total_tokens == 39


def test_with_a_single_model_call_usage_is_as_reported(mode: str) -> None:
    usage = Usage(input_tokens=10, output_tokens=3)
    assert run(mode, ChatClient(ScriptedChatModel(["x"], usage=usage)).prompt("?")).usage == usage
    assert run(mode, ChatClient(ScriptedChatModel(["x"])).prompt("?")).usage is None


def test_usage_counts_model_calls_that_advisors_inside_the_loop_repeat(mode: str) -> None:
    class Twice(Advisor):
        name, order = "twice", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            await call_next(request)
            return await call_next(request)

    model = ScriptedChatModel(["a", "b"], usage=Usage(input_tokens=1, output_tokens=1))
    response = run(mode, ChatClient(model, advisors=[Twice()]).prompt("?"))
    assert response.content == "b"
    assert response.usage == Usage(input_tokens=2, output_tokens=2)


# Return direct.


@pytest.mark.parametrize("texts", [["one"], ["one", "two"]])
def test_direct_results_are_the_answer(mode: str, texts: list[str]) -> None:
    usage = Usage(input_tokens=5, output_tokens=2)
    calls = [ToolCall("direct", {"text": text}) for text in texts]
    model = ScriptedChatModel([adds(1, 1), calls], usage=usage)
    response, chunks = run_chunks(mode, ChatClient(model, tools=[add, direct]).prompt("?"))
    assert response.content == "\n".join(texts)
    assert (response.stop_reason, response.finish_reason) == ("return_direct", "stop")
    assert response.usage == usage + usage
    assert response.tool_calls == ()
    assert_complete(response.messages)
    assert response.messages[-1] == AssistantMessage("\n".join(texts))
    assert len(model.requests) == 2
    if mode.endswith("stream"):
        assert [chunk.text for chunk in chunks if chunk.text] == ["\n".join(texts)]


def test_text_beside_a_direct_call_is_streamed_apart_from_the_answer(mode: str) -> None:
    model = ScriptedChatModel([["one moment", ToolCall("direct", {"text": "here"})]])
    response, chunks = run_chunks(mode, ChatClient(model, tools=[direct]).prompt("?"))
    assert response.content == "here"
    if chunks:
        assert "".join(chunk.text for chunk in chunks if chunk.iteration == response.iteration) == "here"
        assert "".join(chunk.text for chunk in chunks if chunk.iteration == 1) == "one moment"


@pytest.mark.parametrize(
    "calls",
    [
        [ToolCall("direct", {"text": "x"}), adds(1, 1)],
        [ToolCall("failing_direct")],
        [ToolCall("direct", {"text": "x"}), ToolCall("failing_direct")],
        [ToolCall("direct", {"nonsense": 1})],
        [ToolCall("direct", {"text": "x"}), ToolCall("invented")],
    ],
    ids=["mixed", "failing", "one failing", "invalid arguments", "unknown sibling"],
)
def test_unless_every_call_succeeds_directly_the_model_goes_on(mode: str, calls: list[ToolCall]) -> None:
    model = ScriptedChatModel([calls, "the model's words"])
    response = run(mode, ChatClient(model, tools=[add, direct, failing_direct]).prompt("?"))
    assert (response.content, response.stop_reason) == ("the model's words", "answered")
    assert len(response.tool_results) == len(calls)


def test_a_denied_direct_call_goes_back_to_the_model(mode: str) -> None:
    class Deny(Advisor):
        name, order = "deny", 400

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.denied("not today")

    model = ScriptedChatModel([ToolCall("direct", {"text": "x"}), "sorry"])
    response = run(mode, ChatClient(model, tools=[direct], advisors=[Deny()]).prompt("?"))
    assert (response.content, response.stop_reason) == ("sorry", "answered")


# Streams.


def test_a_plain_answer_is_streamed_word_by_word(mode: str) -> None:
    response, chunks = run_chunks(mode, ChatClient(ScriptedChatModel(["one two three"])).prompt("?"))
    assert response.content == "one two three"
    if mode.endswith("stream"):
        assert [chunk.text for chunk in chunks if chunk.text] == ["one ", "two ", "three"]


def test_no_tool_call_reaches_the_consumer_of_a_stream(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "it is two"])
    _, chunks = run_chunks(mode, ChatClient(model, tools=[add]).prompt("?"))
    assert [chunk for chunk in chunks if chunk.tool_calls] == []
    assert {chunk.iteration for chunk in chunks} <= {2}


def test_a_request_run_twice_is_two_complete_runs(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two"] * 2, usage=Usage(input_tokens=1, output_tokens=1))
    inside, outside = Recorder("inside", 400), Recorder("outside", 100)
    spec = ChatClient(model, tools=[add], advisors=[inside, outside]).prompt("?")
    first, second = run(mode, spec), run(mode, spec)
    assert first.usage == second.usage == Usage(input_tokens=2, output_tokens=2)
    assert first.run_id != second.run_id
    assert (len(inside.requests), len(outside.requests)) == (4, 2)
    assert len(first.tool_results) == len(second.tool_results) == 1


def test_a_model_that_says_nothing_gives_an_empty_answer(mode: str) -> None:
    class Mute(ChatModel):
        model, provider = "mute", "test"

        def call(self, request: ChatRequest) -> ChatResponse:
            return ChatResponse(AssistantMessage())

        def stream(self, request: ChatRequest) -> Any:
            yield from ()

        async def astream(self, request: ChatRequest) -> Any:
            for chunk in ():
                yield chunk

    response, chunks = run_chunks(mode, ChatClient(Mute(), tools=[add]).prompt("?"))
    assert (response.content, chunks, response.stop_reason) == ("", [], "answered") or mode in ("call", "acall")


def test_a_stream_that_is_left_early_is_finalized_as_cancelled(mode: str) -> None:
    loop = Loop()
    spec = ChatClient(ScriptedChatModel(["one two three"]), tool_calling_advisor=loop).prompt("?")

    async def leave() -> None:
        async with spec.astream() as stream:
            async for _ in stream:
                break

    if mode == "stream":
        with spec.stream() as stream:
            next(stream)
    elif mode == "astream":
        asyncio.run(leave())
    else:
        run_of = spec.start()
        run_of.next()
        run_of.close()
    assert [final.stop_reason for final in loop.finals] == ["cancelled"]
