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
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import MODES, Recorder, run, run_chunks
from traced_tools import (
    Advisor,
    AdvisorChainError,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    LoopLimitExceeded,
    LoopLimits,
    Message,
    SystemMessage,
    ToolCall,
    ToolCallingAdvisor,
    ToolCallingManager,
    ToolErrors,
    ToolExecutionError,
    ToolExecutionResult,
    ToolInvocation,
    ToolLoopAdvisor,
    ToolMessage,
    ToolNotFoundError,
    ToolResult,
    ToolResultPart,
    TranscriptAdvisor,
    Usage,
    UserMessage,
    tool,
    tool_callbacks,
)
from traced_tools.advisors.base import AdviseNext
from traced_tools.models import ChatModel, ChatRequest, ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools.execution import CallNext

pytestmark = pytest.mark.parametrize("mode", MODES)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(reason: str = "no") -> str:
    """Fail."""
    raise RuntimeError(reason)


@tool(return_direct=True)
def direct(text: str) -> str:
    """Answer directly."""
    return text


@tool(return_direct=True)
def failing_direct() -> str:
    """Fail directly."""
    raise RuntimeError("broken")


def adds(a: int, b: int) -> ToolCall:
    return ToolCall("add", {"a": a, "b": b})


class Loop(ToolCallingAdvisor):
    """Notes each of its hooks."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seen: list[str] = []
        self.finals: list[ChatClientResponse] = []

    def initialize(self, request: ChatClientRequest) -> ChatClientRequest:
        self.seen.append(f"initialize {request.iteration}")
        return request

    async def before(self, request: ChatClientRequest) -> ChatClientRequest:
        self.seen.append(f"before {request.iteration}")
        return request

    def after(self, response: ChatClientResponse) -> ChatClientResponse:
        self.seen.append(f"after {response.iteration}")
        return response

    def next_instructions(
        self, request: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> Sequence[Message]:
        self.seen.append(f"next_instructions {response.iteration}")
        return super().next_instructions(request, response, result)

    async def finalize(self, response: ChatClientResponse) -> ChatClientResponse:
        self.seen.append("finalize")
        self.finals.append(response)
        return response


class Manager(ToolCallingManager):
    """Notes what it is asked to run."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[Message, ...]] = []

    async def execute(self, run: Any, messages: Sequence[Message], response: Any, tools: Any, **place: Any) -> Any:
        self.batches.append(tuple(messages))
        return await super().execute(run, messages, response, tools, **place)


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


def assert_complete(messages: Sequence[Message]) -> None:
    """Each requested call has its result right behind it, in call order."""
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            answer = messages[index + 1]
            assert isinstance(answer, ToolMessage)
            assert [call.id for call in message.tool_calls] == [part.call_id for part in answer.results]


# Passes.


def test_b009_a_plain_answer_is_returned_and_no_tool_runs(mode: str) -> None:
    model, manager = ScriptedChatModel(["four"]), Manager()
    client = ChatClient(model, tools=[add], tool_calling_advisor=ToolCallingAdvisor(manager))
    response = run(client.prompt("2+2?"), mode)
    assert (response.content, response.stop_reason, response.finish_reason) == ("four", "answered", "stop")
    assert (len(model.requests), manager.batches, response.tool_results) == (1, [], ())


def test_b010_a_response_without_a_model_answer_is_returned_as_it_is(mode: str) -> None:
    class Silent(Advisor):
        name, order = "silent", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            return ChatClientResponse(request.run, stop_reason="advisor", iteration=request.iteration)

    model = ScriptedChatModel([])
    response = run(ChatClient(model, tools=[add], advisors=[Silent()]).prompt("hi"), mode)
    assert (response.content, response.chat_response, response.tool_results) == ("", None, ())
    assert response.messages == (UserMessage("hi"),)


def test_b011_b038_one_tool_round_costs_two_model_calls(mode: str) -> None:
    model, manager = ScriptedChatModel([adds(2, 3), "five"]), Manager()
    client = ChatClient(model, tools=[add], tool_calling_advisor=ToolCallingAdvisor(manager))
    response = run(client.prompt("2+3?"), mode)
    assert (len(model.requests), len(manager.batches)) == (2, 1)
    assert response.content == "five"
    assert [(each.name, each.value, each.content) for each in response.tool_results] == [("add", 5, "5")]


def test_b012_two_tool_rounds_cost_three_model_calls(mode: str) -> None:
    model, manager = ScriptedChatModel([adds(1, 1), adds(2, 2), "four"]), Manager()
    client = ChatClient(model, tools=[add], tool_calling_advisor=ToolCallingAdvisor(manager))
    response = run(client.prompt("?"), mode)
    assert (len(model.requests), len(manager.batches)) == (3, 2)
    assert [each.content for each in response.tool_results] == ["2", "4"]


def test_b013_the_last_response_is_the_one_returned(mode: str) -> None:
    response = run(ChatClient(ScriptedChatModel([["first", adds(1, 1)], "last"]), tools=[add]).prompt("?"), mode)
    assert response.content == "last"
    assert response.chat_response is not None
    assert response.chat_response.id == "scripted_2"
    assert response.iteration == 2


def test_b014_b039_a_checker_that_says_no_leaves_the_calls_to_the_caller(mode: str) -> None:
    model, manager = ScriptedChatModel([adds(1, 1)]), Manager()
    loop = ToolCallingAdvisor(manager, is_tool_call=lambda response: False)
    response, chunks = run_chunks(ChatClient(model, tools=[add], tool_calling_advisor=loop).prompt("?"), mode)
    assert [call.name for call in response.tool_calls] == ["add"]
    assert (response.finish_reason, manager.batches, len(model.requests)) == ("tool_call", [], 1)
    assert [call.name for chunk in chunks for call in chunk.tool_calls] == (["add"] if chunks else [])
    assert bool(chunks) == mode.endswith("stream")


def test_b015_a_checker_that_says_yes_makes_a_round_even_without_calls(mode: str) -> None:
    class Inventive(ToolCallingManager):
        async def execute(self, run: Any, messages: Any, response: Any, tools: Any, **place: Any) -> Any:
            note = ToolMessage([ToolResultPart(call_id="x", name="x", content="made up")])
            return ToolExecutionResult((*messages, response.message, note))

    loop = ToolCallingAdvisor(Inventive(), is_tool_call=lambda response: response.content.endswith("?"))
    model = ScriptedChatModel(["may I ?", "done"])
    response = run(ChatClient(model, tool_calling_advisor=loop).prompt("hi"), mode)
    assert response.content == "done"
    assert isinstance(model.requests[1].messages[-1], ToolMessage)


def test_b023_the_next_request_holds_the_whole_conversation(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 2), "three"])
    response = run(ChatClient(model, system="be brief", tools=[add]).prompt("1+2?"), mode)
    sent = model.requests[1].messages
    assert sent[:2] == (SystemMessage("be brief"), UserMessage("1+2?"))
    assert isinstance(sent[2], AssistantMessage)
    assert isinstance(sent[3], ToolMessage)
    assert sent[3].results[0].content == "3"
    assert response.messages == (*sent, AssistantMessage("three"))
    assert_complete(response.messages)


def test_b024_b026_b047_without_history_the_model_sees_the_system_and_the_last_message_and_tools_see_all(
    mode: str,
) -> None:
    model, manager = ScriptedChatModel([adds(1, 1), adds(2, 2), "done"]), Manager()
    loop = ToolCallingAdvisor(manager, keep_history=False)
    client = ChatClient(model, system="brief", tools=[add], tool_calling_advisor=loop)
    response = run(client.prompt("?"), mode)
    for request in model.requests[1:]:
        assert [type(message) for message in request.messages] == [SystemMessage, ToolMessage]
    assert [len(batch) for batch in manager.batches] == [2, 4]
    assert [type(message).__name__ for message in response.messages] == [
        "SystemMessage",
        "UserMessage",
        *["AssistantMessage", "ToolMessage"] * 2,
        "AssistantMessage",
    ]


def test_b025_without_history_and_without_a_system_message_none_is_invented(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(ChatClient(model, tools=[add], tool_calling_advisor=ToolCallingAdvisor(keep_history=False)).prompt("?"), mode)
    assert [type(message) for message in model.requests[1].messages] == [ToolMessage]


def test_a_custom_next_instructions_decides_what_the_next_pass_is_sent(mode: str) -> None:
    class Short(ToolCallingAdvisor):
        def next_instructions(self, request: Any, response: Any, result: ToolExecutionResult) -> Sequence[Message]:
            return result.conversation_history[-2:]

    model = ScriptedChatModel([adds(1, 1), "two"])
    run(ChatClient(model, tools=[add], tool_calling_advisor=Short()).prompt("?"), mode)
    assert [type(message) for message in model.requests[1].messages] == [AssistantMessage, ToolMessage]


def test_text_beside_a_tool_call_is_seen_and_is_not_part_of_the_content(mode: str) -> None:
    model = ScriptedChatModel([["let me see", adds(1, 1)], "it is two"])
    response, chunks = run_chunks(ChatClient(model, tools=[add]).prompt("?"), mode)
    assert response.content == "it is two"
    if chunks:
        by_pass = {index: "".join(c.text for c in chunks if c.iteration == index) for index in (1, 2)}
        assert by_pass == {1: "let me see", 2: "it is two"}


def test_several_calls_of_one_answer_are_answered_in_call_order(mode: str) -> None:
    model = ScriptedChatModel([[adds(1, 1), adds(2, 2), adds(3, 3)], "done"])
    response = run(ChatClient(model, tools=[add]).prompt("?"), mode)
    assert [each.content for each in response.tool_results] == ["2", "4", "6"]
    assert_complete(response.messages)


# Usage.


def test_b016_b017_b022_usage_is_summed_over_the_run(mode: str) -> None:
    usage = Usage(input_tokens=10, output_tokens=3, cache_read_tokens=2, cache_write_tokens=1)
    model = ScriptedChatModel([adds(1, 1), adds(2, 2), "x"], usage=usage)
    response = run(ChatClient(model, tools=[add]).prompt("?"), mode)
    assert response.usage == Usage(input_tokens=30, output_tokens=9, cache_read_tokens=6, cache_write_tokens=3)
    assert response.usage is not None
    assert response.usage.total_tokens == 39


def test_b019_with_a_single_model_call_usage_is_as_reported(mode: str) -> None:
    usage = Usage(input_tokens=10, output_tokens=3)
    assert run(ChatClient(ScriptedChatModel(["x"], usage=usage)).prompt("?"), mode).usage == usage
    assert run(ChatClient(ScriptedChatModel(["x"])).prompt("?"), mode).usage is None


def test_usage_counts_model_calls_that_advisors_inside_the_loop_repeat(mode: str) -> None:
    class Twice(Advisor):
        name, order = "twice", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            await call_next(request)
            return await call_next(request)

    model = ScriptedChatModel(["a", "b"], usage=Usage(input_tokens=1, output_tokens=1))
    response = run(ChatClient(model, advisors=[Twice()]).prompt("?"), mode)
    assert response.content == "b"
    assert response.usage == Usage(input_tokens=2, output_tokens=2)


# Return direct.


@pytest.mark.parametrize("texts", [["one"], ["one", "two"]])
def test_b020_b021_b022_b043_direct_results_are_the_answer(mode: str, texts: list[str]) -> None:
    usage = Usage(input_tokens=5, output_tokens=2)
    calls = [ToolCall("direct", {"text": text}) for text in texts]
    model = ScriptedChatModel([adds(1, 1), calls], usage=usage)
    response, chunks = run_chunks(ChatClient(model, tools=[add, direct]).prompt("?"), mode)
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
    response, chunks = run_chunks(ChatClient(model, tools=[direct]).prompt("?"), mode)
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
    response = run(ChatClient(model, tools=[add, direct, failing_direct]).prompt("?"), mode)
    assert (response.content, response.stop_reason) == ("the model's words", "answered")
    assert len(response.tool_results) == len(calls)


def test_a_denied_direct_call_goes_back_to_the_model(mode: str) -> None:
    class Deny(Advisor):
        name, order = "deny", 400

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.denied("not today")

    model = ScriptedChatModel([ToolCall("direct", {"text": "x"}), "sorry"])
    response = run(ChatClient(model, tools=[direct], advisors=[Deny()]).prompt("?"), mode)
    assert (response.content, response.stop_reason) == ("sorry", "answered")


# Limits.


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def limited(limit: str) -> tuple[LoopLimits, list[Any]]:
    """Limits and turns that break `limit` in the second pass or the second call."""
    settings: dict[str, Any] = {
        "max_iterations": {"max_iterations": 1},
        "max_tool_calls": {"max_tool_calls": 1},
        "max_calls_per_tool": {"max_calls_per_tool": 1},
        "repeated_call": {"max_repeated_calls": 1},
        "token_budget": {"max_tokens": 4},
        "deadline": {"max_seconds": 60},
    }
    second = adds(1, 1) if limit == "repeated_call" else adds(2, 2)
    turns = {
        "max_iterations": [["so far", adds(1, 1)]],
        "deadline": [["so far", ToolCall("wait")]],
    }
    return LoopLimits(**settings[limit]), turns.get(limit, [["so far", adds(1, 1), second]])


LIMITS = ("max_iterations", "max_tool_calls", "max_calls_per_tool", "repeated_call", "token_budget", "deadline")


@pytest.fixture
def limited_client(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ChatClient, ScriptedChatModel, Loop]]:
    clock = Clock()
    monkeypatch.setattr("traced_tools.tools.limits.time", clock)

    def wait() -> str:
        """Wait."""
        clock.now += 100
        return "waited"

    def make(limit: str, on_limit: Any, *further: Any) -> tuple[ChatClient, ScriptedChatModel, Loop]:
        limits, turns = limited(limit)
        limits = LoopLimits(**{**limits.__dict__, "on_limit": on_limit})
        model = ScriptedChatModel([*turns, *further], usage=Usage(input_tokens=3, output_tokens=2))
        loop = Loop()
        return ChatClient(model, tools=[add, wait], limits=limits, tool_calling_advisor=loop), model, loop

    return make


@pytest.mark.parametrize("limit", LIMITS)
def test_b027_a_broken_limit_asks_once_more_without_tools(mode: str, limit: str, limited_client: Any) -> None:
    client, model, loop = limited_client(limit, "conclude", "concluded")
    response, chunks = run_chunks(client.prompt("?"), mode)
    assert (response.content, response.stop_reason) == ("concluded", limit)
    assert [len(request.tools) for request in model.requests] == [2, 0]
    assert response.usage == Usage(input_tokens=6, output_tokens=4)
    assert_complete(response.messages)
    assert response.messages[-1] == AssistantMessage("concluded")
    assert [final.stop_reason for final in loop.finals] == [limit]
    if chunks:
        assert "".join(chunk.text for chunk in chunks if chunk.iteration == 2) == "concluded"


@pytest.mark.parametrize("limit", LIMITS)
def test_calls_in_the_concluding_answer_are_refused(mode: str, limit: str, limited_client: Any) -> None:
    client, model, _ = limited_client(limit, "conclude", ["I insist", adds(8, 8)])
    response = run(client.prompt("?"), mode)
    assert (response.content, response.stop_reason) == ("I insist", limit)
    assert len(model.requests) == 2
    assert_complete(response.messages)
    assert response.tool_results[-1].outcome is None
    assert response.tool_results[-1].value is None
    assert response.tool_results[-1].decision in ("limited", "repeated")


@pytest.mark.parametrize("limit", LIMITS)
def test_a_broken_limit_can_stop_the_run_with_what_there_is(mode: str, limit: str, limited_client: Any) -> None:
    client, model, loop = limited_client(limit, "stop")
    response = run(client.prompt("?"), mode)
    assert (response.content, response.stop_reason) == ("so far", limit)
    assert len(model.requests) == 1
    assert response.usage == Usage(input_tokens=3, output_tokens=2)
    assert_complete(response.messages)
    assert [final.stop_reason for final in loop.finals] == [limit]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_broken_limit_can_raise_with_what_there_is(mode: str, limit: str, limited_client: Any) -> None:
    client, model, loop = limited_client(limit, "raise")
    with pytest.raises(LoopLimitExceeded) as caught:
        run(client.prompt("?"), mode)
    assert caught.value.limit == limit
    response = caught.value.response
    assert (response.stop_reason, response.content, len(model.requests)) == (limit, "so far", 1)
    assert_complete(response.messages)
    assert response.usage == Usage(input_tokens=3, output_tokens=2)
    assert response.tool_results
    assert [final.stop_reason for final in loop.finals] == [limit]


@pytest.mark.parametrize("limit", ["max_tool_calls", "max_calls_per_tool", "repeated_call"])
def test_calls_within_a_limit_keep_their_results(mode: str, limit: str, limited_client: Any) -> None:
    client, _, _ = limited_client(limit, "stop")
    first, second = run(client.prompt("?"), mode).tool_results
    assert (first.content, first.decision, first.ok) == ("2", "allowed", True)
    assert second.decision == ("repeated" if limit == "repeated_call" else "limited")
    assert (second.ok, second.error_type) == (False, None)


def test_a_used_up_budget_runs_no_tool(mode: str, limited_client: Any) -> None:
    client, _, _ = limited_client("token_budget", "stop")
    response = run(client.prompt("?"), mode)
    assert {each.decision for each in response.tool_results} == {"limited"}


def test_an_answer_within_the_last_allowed_pass_breaks_no_limit(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two"], usage=Usage(input_tokens=5, output_tokens=5))
    limits = LoopLimits(max_iterations=2, max_tool_calls=1, max_calls_per_tool=1, max_repeated_calls=1, max_tokens=20)
    response = run(ChatClient(model, tools=[add], limits=limits).prompt("?"), mode)
    assert (response.content, response.stop_reason) == ("two", "answered")


def test_by_default_a_fourth_identical_call_ends_the_run(mode: str) -> None:
    same = [ToolCall("add", text) for text in ('{"a":1,"b":1}', '{"b": 1, "a": 1}', '{"a":1,"b":1}', '{"b":1,"a":1}')]
    model = ScriptedChatModel([*same, "enough"])
    response = run(ChatClient(model, tools=[add]).prompt("?"), mode)
    assert [each.decision for each in response.tool_results] == ["allowed"] * 3 + ["repeated"]
    assert (response.stop_reason, response.content) == ("repeated_call", "enough")


def test_of_identical_calls_in_one_answer_only_those_over_the_limit_are_refused(mode: str) -> None:
    model = ScriptedChatModel([[adds(1, 1)] * 4, "enough"])
    response = run(ChatClient(model, tools=[add]).prompt("?"), mode)
    assert [each.decision for each in response.tool_results] == ["allowed"] * 3 + ["repeated"]


def test_calls_with_one_id_are_decided_apart(mode: str) -> None:
    calls = [ToolCall("add", {"a": 1, "b": 1}, id="same"), ToolCall("add", {"a": 2, "b": 2}, id="same")]
    model = ScriptedChatModel([calls, "enough"])
    response = run(ChatClient(model, tools=[add], limits=LoopLimits(max_tool_calls=1)).prompt("?"), mode)
    assert [each.decision for each in response.tool_results] == ["allowed", "limited"]


def test_a_request_brings_its_own_limits(mode: str) -> None:
    client = ChatClient(ScriptedChatModel([adds(1, 1)]), tools=[add], limits=LoopLimits(max_iterations=9))
    response = run(client.prompt("?", limits=LoopLimits(max_iterations=1, on_limit="stop")), mode)
    assert response.stop_reason == "max_iterations"


def test_a_run_whose_time_is_over_before_it_begins_is_only_concluded(mode: str) -> None:
    model = ScriptedChatModel(["too late"])
    response = run(ChatClient(model, tools=[add], limits=LoopLimits(max_seconds=1e-9)).prompt("?"), mode)
    assert (response.content, response.stop_reason, model.requests[0].tools) == ("too late", "deadline", ())


def test_the_concluding_call_does_not_demand_a_tool(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "enough"])
    client = ChatClient(model, tools=[add], options=ChatOptions(tool_choice="required"))
    run(client.prompt("?", limits=LoopLimits(max_iterations=1)), mode)
    assert model.requests[0].options.tool_choice == "required"
    assert model.requests[1].options.tool_choice in (None, "none", "auto")


# Hooks.


def test_b030_initialize_and_finalize_run_once_and_before_and_after_once_a_model_call(mode: str) -> None:
    loop = Loop()
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(ChatClient(model, tools=[add], tool_calling_advisor=loop).prompt("?"), mode)
    assert loop.seen == [
        "initialize 0",
        "before 1",
        "after 1",
        "next_instructions 1",
        "before 2",
        "after 2",
        "finalize",
    ]


def test_b031_b046_tools_added_by_before_are_offered_and_run(mode: str) -> None:
    class Adding(ToolCallingAdvisor):
        def before(self, request: ChatClientRequest) -> ChatClientRequest:
            return request if request.tools else request.replace(tools=tool_callbacks(add))

    model = ScriptedChatModel([adds(1, 1), "two"])
    response = run(ChatClient(model, tool_calling_advisor=Adding()).prompt("?"), mode)
    assert response.tool_results[0].content == "2"
    assert [[each.name for each in request.tools] for request in model.requests] == [["add"], ["add"]]


def test_b033_what_initialize_changes_counts_from_the_first_pass(mode: str) -> None:
    class Hotter(ToolCallingAdvisor):
        def initialize(self, request: ChatClientRequest) -> ChatClientRequest:
            return request.replace(
                options=ChatOptions(temperature=1.0),
                messages=(*request.messages, UserMessage("and be quick")),
                context={**request.context, "hot": True},
            )

    model = ScriptedChatModel([adds(1, 1), "two"])
    response = run(ChatClient(model, tools=[add], tool_calling_advisor=Hotter()).prompt("?"), mode)
    assert [request.options.temperature for request in model.requests] == [1.0, 1.0]
    assert model.requests[0].messages == (UserMessage("?"), UserMessage("and be quick"))
    assert response.context == {"hot": True}
    assert response.messages[:2] == (UserMessage("?"), UserMessage("and be quick"))


def test_what_before_changes_stays_changed(mode: str) -> None:
    class Counting(ToolCallingAdvisor):
        def before(self, request: ChatClientRequest) -> ChatClientRequest:
            return request.replace(options=ChatOptions(seed=(request.options.seed or 0) + 1))

    model = ScriptedChatModel([adds(1, 1), "two"])
    run(ChatClient(model, tools=[add], tool_calling_advisor=Counting()).prompt("?"), mode)
    assert [request.options.seed for request in model.requests] == [1, 2]


def test_b049_after_sees_the_whole_answer_of_each_pass(mode: str) -> None:
    answers: list[str] = []

    class Listening(ToolCallingAdvisor):
        def after(self, response: ChatClientResponse) -> ChatClientResponse:
            answers.append(f"{response.content} {len(response.tool_calls)}")
            return response

    model = ScriptedChatModel([["let me see", adds(1, 1)], "it is two"])
    run(ChatClient(model, tools=[add], tool_calling_advisor=Listening()).prompt("?"), mode)
    assert answers == ["let me see 1", "it is two 0"]


def test_after_can_take_the_calls_away(mode: str) -> None:
    class Calm(ToolCallingAdvisor):
        def after(self, response: ChatClientResponse) -> ChatClientResponse:
            return response.replace(chat_response=ChatResponse(AssistantMessage("no tools today")))

    model = ScriptedChatModel([adds(1, 1)])
    response = run(ChatClient(model, tools=[add], tool_calling_advisor=Calm()).prompt("?"), mode)
    assert (response.content, response.tool_results) == ("no tools today", ())
    assert response.messages[-1] == AssistantMessage("no tools today")


def test_finalize_changes_what_the_caller_gets(mode: str) -> None:
    class Polite(ToolCallingAdvisor):
        def finalize(self, response: ChatClientResponse) -> ChatClientResponse:
            return response.replace(context={"polite": True})

    response = run(ChatClient(ScriptedChatModel(["x"]), tool_calling_advisor=Polite()).prompt("?"), mode)
    assert response.context == {"polite": True}


@pytest.mark.parametrize("hook", ["initialize", "before", "after", "finalize"])
def test_a_hook_that_returns_something_else_is_named(mode: str, hook: str) -> None:
    loop = type("Odd", (ToolCallingAdvisor,), {hook: lambda self, value: None})()
    with pytest.raises(TypeError, match=f"{hook} of tool_calling must return a ChatClientRe"):
        run(ChatClient(ScriptedChatModel(["x"]), tool_calling_advisor=loop).prompt("?"), mode)


@pytest.mark.parametrize("hook", ["initialize", "before", "after", "finalize"])
def test_an_error_of_a_hook_passes_unchanged(mode: str, hook: str) -> None:
    error = LookupError("mine")

    def broken(self: Any, value: Any) -> Any:
        raise error

    loop = type("Broken", (ToolCallingAdvisor,), {hook: broken})()
    with pytest.raises(LookupError) as caught:
        run(ChatClient(ScriptedChatModel(["x"]), tool_calling_advisor=loop).prompt("?"), mode)
    assert caught.value is error


def test_b032_finalize_runs_once_after_an_answer_and_after_a_direct_result(mode: str) -> None:
    for turns, reason in ((["x"], "answered"), ([ToolCall("direct", {"text": "x"})], "return_direct")):
        loop = Loop()
        run(ChatClient(ScriptedChatModel(turns), tools=[direct], tool_calling_advisor=loop).prompt("?"), mode)
        assert [final.stop_reason for final in loop.finals] == [reason]
        assert loop.finals[0].content == "x"


@pytest.mark.parametrize("where", ["model", "tool", "advisor", "unknown tool"])
def test_b032_finalize_runs_once_after_an_error_with_what_there_is(mode: str, where: str) -> None:
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
        run(client.prompt("?"), mode)
    assert [final.stop_reason for final in loop.finals] == ["error"]
    assert [each.content for each in loop.finals[0].tool_results] == ["2"]


# History and the order dial.


def test_b052_b067_an_advisor_inside_the_loop_sees_every_pass(mode: str) -> None:
    inside, outside = Recorder("inside", 400), Recorder("outside", 200)
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(ChatClient(model, tools=[add], advisors=[inside, outside]).prompt("?"), mode)
    assert [request.iteration for request in inside.requests] == [1, 2]
    assert isinstance(inside.requests[1].messages[-1], ToolMessage)
    assert [request.iteration for request in outside.requests] == [0]
    assert [response.content for response in outside.responses] == ["two"]


def test_b068_a_transcript_inside_the_loop_switches_its_history_off(mode: str) -> None:
    transcript, inner = Transcript(), Recorder("inner", 500)
    model = ScriptedChatModel([[adds(1, 1), adds(2, 2)], adds(3, 3), "done"])
    client = ChatClient(model, system="brief", tools=[add], advisors=[transcript, inner])
    response = run(client.prompt("?"), mode)
    assert response.content == "done"
    assert [len(request.messages) for request in inner.requests] == [2, 4, 6]
    assert transcript.stored == list(response.messages)
    assert_complete(transcript.stored)


def test_b068_the_loop_that_was_passed_keeps_its_history_for_others(mode: str) -> None:
    loop = ToolCallingAdvisor()
    client = ChatClient(
        ScriptedChatModel([adds(1, 1), "two"]), tools=[add], tool_calling_advisor=loop, advisors=[Transcript()]
    )
    run(client.prompt("?"), mode)
    assert loop.keep_history is True


@pytest.mark.parametrize(("order", "sent"), [(299, 3), (300, 3), (301, 1)])
def test_b069_a_transcript_is_inside_only_with_a_greater_order(mode: str, order: int, sent: int) -> None:
    class Quiet(TranscriptAdvisor):
        name = "quiet"

    quiet = Quiet()
    quiet.order = order
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(ChatClient(model, tools=[add], advisors=[quiet]).prompt("?"), mode)
    assert len(model.requests[1].messages) == sent


def test_a_transcript_that_a_request_adds_switches_the_history_off_for_that_request(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two", adds(1, 1), "two"])
    client = ChatClient(model, tools=[add])
    transcript = Transcript()
    run(client.prompt("?", advisors=[transcript]), mode)
    run(client.prompt("?"), mode)
    assert_complete(transcript.stored)
    assert len(model.requests[1].messages) == len(model.requests[3].messages) == 3


# The loop among others.


def test_b001_b002_b003_a_loop_is_made_of_what_it_needs(mode: str) -> None:
    with pytest.raises(TypeError, match="manager"):
        ToolCallingAdvisor("manager")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is_tool_call"):
        ToolCallingAdvisor(is_tool_call=True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="order"):
        ToolCallingAdvisor(order="first")  # type: ignore[arg-type]


def test_b004_b005_a_loop_has_a_name_and_an_order(mode: str) -> None:
    assert (ToolCallingAdvisor().name, ToolCallingAdvisor().order) == ("tool_calling", 300)
    assert ToolCallingAdvisor(order=350).order == 350


def test_b053_without_tool_calling_the_caller_gets_the_calls(mode: str) -> None:
    inside = Recorder()
    model = ScriptedChatModel([["I would add", adds(1, 1)]])
    client = ChatClient(model, tools=[add], advisors=[inside])
    response, chunks = run_chunks(client.prompt("?", tool_calling=False), mode)
    assert [call.name for call in response.tool_calls] == ["add"]
    assert (response.content, response.finish_reason, response.tool_results) == ("I would add", "tool_call", ())
    assert (len(inside.requests), len(model.requests[0].tools)) == (1, 1)
    assert [call.name for chunk in chunks for call in chunk.tool_calls] == (["add"] if chunks else [])


def test_b055_without_tools_the_chain_runs_once(mode: str) -> None:
    inside = Recorder()
    run(ChatClient(ScriptedChatModel(["hi"]), advisors=[inside]).prompt("?"), mode)
    assert len(inside.requests) == 1


def test_b056_tools_injected_by_an_advisor_outside_the_loop_are_run(mode: str) -> None:
    class Inject(Advisor):
        name, order = "inject", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            return await call_next(request.replace(tools=tool_callbacks(add)))

    model = ScriptedChatModel([adds(1, 1), "two"])
    response = run(ChatClient(model, advisors=[Inject()]).prompt("?"), mode)
    assert [each.content for each in response.tool_results] == ["2"]


def test_b058_tools_of_the_request_are_run(mode: str) -> None:
    response = run(ChatClient(ScriptedChatModel([adds(1, 1), "two"])).prompt("?", tools=[add]), mode)
    assert [each.content for each in response.tool_results] == ["2"]


def test_b059_an_explicit_loop_takes_the_place_of_the_clients_own(mode: str) -> None:
    loop = Loop()
    model = ScriptedChatModel([adds(1, 1), "two"])
    run(ChatClient(model, tools=[add], advisors=[loop]).prompt("?"), mode)
    assert len(model.requests) == 2
    assert loop.seen.count("initialize 0") == 1


def test_b060_any_tool_loop_keeps_the_clients_own_away(mode: str) -> None:
    class Idle(ToolLoopAdvisor):
        name, order = "idle", 300

    response = run(ChatClient(ScriptedChatModel([adds(1, 1)]), tools=[add], advisors=[Idle()]).prompt("?"), mode)
    assert (response.tool_results, len(response.tool_calls)) == ((), 1)


def test_b061_b062_two_loops_are_an_error_that_names_both(mode: str) -> None:
    first, second = ToolCallingAdvisor(), ToolCallingAdvisor(order=350)
    with pytest.raises(AdvisorChainError) as caught:
        ChatClient(ScriptedChatModel([]), advisors=[first, second])
    for words in ("one place", "2", "tool_calling (order 300)", "tool_calling (order 350)"):
        assert words in str(caught.value)
    with pytest.raises(AdvisorChainError):
        ChatClient(ScriptedChatModel([]), advisors=[first]).prompt("?", advisors=[second])


def test_b059_a_loop_among_the_advisors_comes_before_the_clients_own(mode: str) -> None:
    explicit, own = Loop(), Loop()
    client = ChatClient(ScriptedChatModel(["a"]), tool_calling_advisor=own)
    run(client.prompt("?", advisors=[explicit]), mode)
    assert (len(explicit.finals), len(own.finals)) == (1, 0)


def test_b063_a_custom_manager_runs_the_tools(mode: str) -> None:
    class Fixed(ToolCallingManager):
        async def execute(self, run: Any, messages: Any, response: Any, tools: Any, **place: Any) -> Any:
            results = [ToolResult(each.id or "", each.name, "fixed") for each in response.message.tool_calls]
            note = ToolMessage([result.part() for result in results])
            return ToolExecutionResult((*messages, response.message, note), False, results)

    loop = ToolCallingAdvisor(Fixed())
    model = ScriptedChatModel([adds(1, 1), "two"])
    response = run(ChatClient(model, tools=[add], tool_calling_advisor=loop).prompt("?"), mode)
    assert [each.content for each in response.tool_results] == ["fixed"]


# Streams.


def test_b036_a_plain_answer_is_streamed_word_by_word(mode: str) -> None:
    response, chunks = run_chunks(ChatClient(ScriptedChatModel(["one two three"])).prompt("?"), mode)
    assert response.content == "one two three"
    if mode.endswith("stream"):
        assert [chunk.text for chunk in chunks if chunk.text] == ["one ", "two ", "three"]


def test_b037_no_tool_call_reaches_the_consumer_of_a_stream(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "it is two"])
    _, chunks = run_chunks(ChatClient(model, tools=[add]).prompt("?"), mode)
    assert [chunk for chunk in chunks if chunk.tool_calls] == []
    assert {chunk.iteration for chunk in chunks} <= {2}


def test_b042_b066_a_request_run_twice_is_two_complete_runs(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two"] * 2, usage=Usage(input_tokens=1, output_tokens=1))
    inside, outside = Recorder("inside", 400), Recorder("outside", 100)
    spec = ChatClient(model, tools=[add], advisors=[inside, outside]).prompt("?")
    first, second = run(spec, mode), run(spec, mode)
    assert first.usage == second.usage == Usage(input_tokens=2, output_tokens=2)
    assert first.run_id != second.run_id
    assert (len(inside.requests), len(outside.requests)) == (4, 2)
    assert len(first.tool_results) == len(second.tool_results) == 1


def test_b050_a_model_that_says_nothing_gives_an_empty_answer(mode: str) -> None:
    class Mute(ChatModel):
        model, provider = "mute", "test"

        def call(self, request: ChatRequest) -> ChatResponse:
            return ChatResponse(AssistantMessage())

        def stream(self, request: ChatRequest) -> Any:
            yield from ()

        async def astream(self, request: ChatRequest) -> Any:
            for chunk in ():
                yield chunk

    response, chunks = run_chunks(ChatClient(Mute(), tools=[add]).prompt("?"), mode)
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


# When a tool fails.


def test_b035_a_failure_is_told_to_the_model_and_the_siblings_keep_their_results(mode: str) -> None:
    model = ScriptedChatModel([[adds(1, 1), ToolCall("fail", {"reason": "no disk"}), adds(2, 2)], "noted"])
    response = run(ChatClient(model, tools=[add, fail]).prompt("?"), mode)
    assert [each.content for each in response.tool_results] == ["2", "The tool fail failed: RuntimeError: no disk", "4"]
    assert [each.ok for each in response.tool_results] == [True, False, True]
    results = model.requests[1].messages[-1]
    assert isinstance(results, ToolMessage)
    assert [part.is_error for part in results.results] == [False, True, False]


@pytest.mark.parametrize(
    "errors",
    [ToolErrors(always_raise=True), ToolErrors(raise_on=(RuntimeError,)), ToolErrors(raise_on=(Exception,))],
    ids=["always", "exactly", "base class"],
)
def test_b035_a_failure_raises_when_the_policy_says_so(mode: str, errors: ToolErrors) -> None:
    model = ScriptedChatModel([[adds(1, 1), ToolCall("fail", {"reason": "no disk"})]])
    with pytest.raises(ToolExecutionError) as caught:
        run(ChatClient(model, tools=[add, fail], tool_errors=errors).prompt("?"), mode)
    assert (caught.value.tool_name, caught.value.error_type) == ("fail", "RuntimeError")
    assert isinstance(caught.value.original, RuntimeError)
    assert str(caught.value.original) == "no disk"
    assert "no disk" not in str(caught.value)


def test_a_failure_outside_the_policys_classes_is_told_to_the_model(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("fail"), "noted"])
    client = ChatClient(model, tools=[fail], tool_errors=ToolErrors(raise_on=(PermissionError,)))
    assert run(client.prompt("?"), mode).content == "noted"


def test_the_words_for_the_model_can_be_replaced(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("fail"), "noted"])
    errors = ToolErrors(message=lambda name, error: f"{name} is off ({type(error).__name__})")
    response = run(ChatClient(model, tools=[fail]).prompt("?", tool_errors=errors), mode)
    assert response.tool_results[0].content == "fail is off (RuntimeError)"


def test_an_unknown_name_is_answered_with_the_names_there_are(mode: str) -> None:
    model = ScriptedChatModel([[ToolCall("subtract"), adds(1, 1)], "ok"])
    response = run(ChatClient(model, tools=[add, fail]).prompt("?"), mode)
    unknown, known = response.tool_results
    assert (unknown.decision, unknown.error_type, unknown.outcome) == ("unknown_tool", "unknown_tool", None)
    assert "add, fail" in unknown.content
    assert known.content == "2"


def test_an_unknown_name_raises_when_the_policy_says_so(mode: str) -> None:
    client = ChatClient(ScriptedChatModel([[ToolCall("subtract"), adds(1, 1)]]), tools=[add])
    with pytest.raises(ToolNotFoundError) as caught:
        run(client.prompt("?", tool_errors=ToolErrors(unknown_tool="raise")), mode)
    assert "subtract" not in str(caught.value)


# Advice around tools.


class Advice(Advisor):
    """Does with each call what it is made with."""

    def __init__(
        self, advise: Callable[[ToolInvocation, CallNext], Any], name: str = "advice", order: int = 400
    ) -> None:
        self.name = name
        self.order = order
        self._advise = advise

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        result = self._advise(call, call_next)
        return result if isinstance(result, ToolResult) else await result


def ask(mode: str, *advice: Advisor, calls: Any = None, turns: Sequence[Any] = ("done",)) -> ChatClientResponse:
    model = ScriptedChatModel([adds(1, 1) if calls is None else calls, *turns])
    return run(ChatClient(model, tools=[add, fail], advisors=advice).prompt("?", tool_context={"user": "ann"}), mode)


def test_advice_sees_the_call(mode: str) -> None:
    seen: list[ToolInvocation] = []

    def note(call: ToolInvocation, call_next: CallNext) -> Any:
        seen.append(call)
        return call_next(call)

    response = ask(mode, Advice(note))
    (call,) = seen
    assert (call.name, call.arguments, call.iteration) == ("add", '{"a": 1, "b": 1}', 1)
    assert (call.id, call.definition.description) == (response.tool_results[0].call_id, "Add two numbers.")
    assert (dict(call.context), call.context.run_id) == ({"user": "ann"}, response.run_id)


def test_advice_can_deny_a_call(mode: str) -> None:
    response = ask(mode, Advice(lambda call, call_next: call.denied("too expensive")))
    (result,) = response.tool_results
    assert (result.decision, result.outcome, result.error_type, result.advisor) == ("denied", None, None, "advice")
    assert "too expensive" in result.content
    assert result.part().is_error


def test_advice_can_answer_in_the_tools_place(mode: str) -> None:
    response = ask(mode, Advice(lambda call, call_next: call.answered("42", value=42)))
    (result,) = response.tool_results
    assert (result.decision, result.content, result.value, result.advisor) == ("answered", "42", 42, "advice")
    assert not result.part().is_error


def test_advice_can_change_the_arguments(mode: str) -> None:
    change = Advice(lambda call, call_next: call_next(call.replace(arguments='{"a": 20, "b": 22}')))
    assert ask(mode, change).tool_results[0].content == "42"


def test_changed_arguments_are_checked_again(mode: str) -> None:
    change = Advice(lambda call, call_next: call_next(call.replace(arguments='{"a": "many"}')))
    (result,) = ask(mode, change).tool_results
    assert (result.decision, result.error_type, result.outcome) == ("invalid_arguments", "invalid_arguments", None)
    assert "a: " in result.content


def test_arguments_changed_for_one_attempt_do_not_stick_to_the_next(mode: str) -> None:
    async def both(call: ToolInvocation, call_next: CallNext) -> ToolResult:
        await call_next(call.replace(arguments='{"a": 20, "b": 22}'))
        return await call_next(call)

    assert ask(mode, Advice(both)).tool_results[0].content == "2"


def test_advice_can_run_a_tool_again(mode: str) -> None:
    attempts: list[int] = []

    def flaky() -> str:
        """Fail at first."""
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError
        return "at last"

    async def again(call: ToolInvocation, call_next: CallNext) -> ToolResult:
        result = await call_next(call)
        while not result.ok:
            result = await call_next(call)
        return result

    model = ScriptedChatModel([ToolCall("flaky"), "done"])
    response = run(ChatClient(model, tools=[flaky], advisors=[Advice(again)]).prompt("?"), mode)
    assert (response.tool_results[0].content, len(attempts)) == ("at last", 3)


def test_advice_sees_a_failure_as_a_result(mode: str) -> None:
    async def excuse(call: ToolInvocation, call_next: CallNext) -> ToolResult:
        result = await call_next(call)
        assert (result.error_type, result.outcome) == ("RuntimeError", "error")
        assert isinstance(result.error, RuntimeError)
        return call.answered("never mind")

    assert ask(mode, Advice(excuse), calls=ToolCall("fail")).tool_results[0].content == "never mind"


def test_the_lower_order_stands_further_out(mode: str) -> None:
    seen: list[str] = []

    def note(name: str, order: int) -> Advice:
        async def around(call: ToolInvocation, call_next: CallNext) -> ToolResult:
            seen.append(f"{name} in")
            result = await call_next(call)
            seen.append(f"{name} out")
            return result

        return Advice(around, name, order)

    ask(mode, note("inner", 500), note("outer", 100))
    assert seen == ["outer in", "inner in", "inner out", "outer out"]


def test_an_outer_refusal_never_reaches_the_inner_advice(mode: str) -> None:
    def unreachable(call: ToolInvocation, call_next: CallNext) -> Any:
        raise AssertionError("the inner advice was reached")

    outer = Advice(lambda call, call_next: call.denied("no"), "outer", 100)
    (result,) = ask(mode, outer, Advice(unreachable, "inner", 500)).tool_results
    assert result.advisor == "outer"


def test_the_advisor_that_decided_is_the_one_named(mode: str) -> None:
    inner = Advice(lambda call, call_next: call.denied("no"), "inner", 500)
    outer = Advice(lambda call, call_next: call_next(call), "outer", 100)
    assert ask(mode, inner, outer).tool_results[0].advisor == "inner"


def test_an_error_of_an_advisor_passes_unchanged(mode: str) -> None:
    error = LookupError("mine")

    def broken(call: ToolInvocation, call_next: CallNext) -> Any:
        raise error

    with pytest.raises(LookupError) as caught:
        ask(mode, Advice(broken))
    assert caught.value is error


def test_advice_that_returns_something_else_is_named(mode: str) -> None:
    async def odd(call: ToolInvocation, call_next: CallNext) -> Any:
        return "42"

    with pytest.raises(TypeError, match="advise_tool of advice must return a ToolResult, not str"):
        ask(mode, Advice(odd))


@pytest.mark.parametrize("calls", [ToolCall("invented"), ToolCall("add", {"a": "x"})], ids=["unknown", "invalid"])
def test_a_call_that_cannot_run_never_reaches_advice(mode: str, calls: ToolCall) -> None:
    def unreachable(call: ToolInvocation, call_next: CallNext) -> Any:
        raise AssertionError("the advice was reached")

    assert not ask(mode, Advice(unreachable), calls=calls).tool_results[0].ok


def test_the_deadline_is_told_to_tools_and_advice(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.tools.limits.time", SimpleNamespace(monotonic=lambda: 1000.0))
    deadlines: list[float | None] = []

    def note(call: ToolInvocation, call_next: CallNext) -> Any:
        deadlines.append(call.context.deadline)
        return call_next(call)

    model = ScriptedChatModel([adds(1, 1), "two"])
    client = ChatClient(model, tools=[add], advisors=[Advice(note)], limits=LoopLimits(max_seconds=5))
    run(client.prompt("?"), mode)
    assert deadlines == [1005.0]
