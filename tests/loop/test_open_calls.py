"""A call in a conversation that has no result gets one: providers refuse a conversation that leaves a call open."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loop.loops import assert_complete
from tests.modes import MODES, run
from tests.observe.runs import adds
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    AssistantMessage,
    BaseAdvisor,
    ChatClient,
    ChatClientRequest,
    LoopLimits,
    MemoryAdvisor,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from traced_tools.core import ToolResultPart
from traced_tools.core.conversation import with_paired_results, with_results
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.models import AnthropicChatModel, OpenAIChatModel
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel

UNKNOWN = "The outcome of the call is unknown, and it may have run: the conversation went on without its result."


def asks(*ids: str | None) -> AssistantMessage:
    return AssistantMessage(tool_calls=[ToolCall("add", {"a": 1, "b": 1}, id=each) for each in ids])


def gives(*ids: str) -> ToolMessage:
    return ToolMessage([ToolResultPart(call_id=each, name="add", content="2") for each in ids])


def unknown(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="add", content=UNKNOWN, is_error=True)


def contents(message: Message) -> list[tuple[str, str, bool]]:
    assert isinstance(message, ToolMessage)
    return [(each.call_id, each.content, each.is_error) for each in message.results]


OPEN: dict[str, tuple[Sequence[Message], int, list[tuple[str, str, bool]]]] = {
    "at the end": ([UserMessage("1+1?"), asks("1")], 2, [("1", UNKNOWN, True)]),
    "in the middle": (
        [UserMessage("1+1?"), asks("1"), UserMessage("well?"), AssistantMessage("2")],
        2,
        [("1", UNKNOWN, True)],
    ),
    "answered in part": (
        [UserMessage("1+1?"), asks("1", "2", "3"), gives("2")],
        2,
        [("1", UNKNOWN, True), ("2", "2", False), ("3", UNKNOWN, True)],
    ),
    "answered in part, in two messages": (
        [UserMessage("1+1?"), asks("1", "2", "3"), gives("3"), gives("1")],
        2,
        [("1", "2", False), ("2", UNKNOWN, True), ("3", "2", False)],
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", OPEN)
def test_an_open_call_is_sent_with_a_result_of_unknown_outcome(mode: str, case: str) -> None:
    messages, place, expected = OPEN[case]
    model = ScriptedChatModel(["fine"])
    response = run(mode, ChatClient(model, tools=[add]).prompt("go on", messages=messages))
    (request,) = model.requests
    assert contents(request.messages[place]) == expected
    assert request.messages[place - 1] == messages[place - 1]
    assert request.messages[-1] == UserMessage("go on")
    assert response.messages == (*request.messages, AssistantMessage("fine"))


@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_goes_on_after_calls_that_nobody_ran(mode: str) -> None:
    model = ScriptedChatModel([[adds(1, 1), adds(2, 2)], "never mind", "bye"])
    client = ChatClient(model, tools=[add])
    asked = run(mode, client.prompt("?", tool_calling=False))
    assert len(asked.tool_calls) == 2
    left = run(mode, client.prompt("forget it", messages=asked.messages))
    assert_complete(left.messages)
    assert len(model.requests[1].messages) == 4
    again = run(mode, client.prompt("bye", messages=left.messages))
    assert again.messages[:4] == left.messages[:4]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_limit", ["conclude", "stop"])
def test_a_conversation_goes_on_after_a_limit_as_it_is(mode: str, on_limit: str) -> None:
    model = ScriptedChatModel([[adds(1, 1), adds(2, 2)], [adds(3, 3)], "fine"])
    client = ChatClient(model, tools=[add])
    limits = LoopLimits(max_tool_calls=1, on_limit=on_limit)  # type: ignore[arg-type]
    ended = run(mode, client.prompt("?", limits=limits))
    assert_complete(ended.messages)
    assert run(mode, client.prompt("go on", messages=ended.messages)).messages[: len(ended.messages)] == ended.messages


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [100, 400])
def test_a_call_that_an_advisor_leaves_open_gets_a_result_as_well(mode: str, order: int) -> None:
    class Remembering(BaseAdvisor):
        name = "remembering"

        def before(self, request: ChatClientRequest) -> ChatClientRequest:
            if asks("1") in request.messages:
                return request
            return request.replace(messages=[UserMessage("before"), asks("1"), *request.messages])

    advisor: Advisor = Remembering()
    advisor.order = order
    model = ScriptedChatModel([adds(1, 1), "2"])
    response = run(mode, ChatClient(model, tools=[add], advisors=[advisor]).prompt("1+1?"))
    for request in model.requests:
        assert_complete(request.messages)
        assert asks("1") in request.messages
    assert_complete(response.messages)
    assert (asks("1") in response.messages) is (order == 100)


def test_providers_are_sent_a_result_for_an_open_call() -> None:
    said = Reply.json({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
    with ReplayServer([said]) as server, OpenAIChatModel("m", base_url=server.url) as model:
        ChatClient(model).prompt("go on", messages=[asks("1")]).call()
        sent = server.requests[0].json()["messages"]
        assert [each["role"] for each in sent] == ["assistant", "tool", "user"]
        assert (sent[1]["tool_call_id"], sent[1]["content"]) == ("1", UNKNOWN)
    said = Reply.json(
        {"content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn", "usage": {}, "role": "assistant"}
    )
    with ReplayServer([said]) as server, AnthropicChatModel("m", base_url=server.url, api_key="k") as claude:
        ChatClient(claude).prompt("go on", messages=[UserMessage("?"), asks("1", "2"), gives("2")]).call()
        sent = server.requests[0].json()["messages"]
        results = [each["tool_use_id"] for each in sent[2]["content"] if each["type"] == "tool_result"]
        assert results == ["1", "2"]


ASKED, SAID, MORE = UserMessage("?"), AssistantMessage("2"), UserMessage("well?")
OTHER = ToolMessage([ToolResultPart(call_id="1", name="sub", content="3")])
PAIRED: dict[str, tuple[Sequence[Message], list[Message]]] = {
    "without a call": ([ASKED, gives("1"), SAID], [ASKED, SAID]),
    "at the beginning": ([gives("1"), ASKED], [ASKED]),
    "twice": ([ASKED, asks("1"), gives("1", "1")], [ASKED, asks("1"), gives("1")]),
    "twice, in two messages": ([ASKED, asks("1"), gives("1"), gives("1")], [ASKED, asks("1"), gives("1")]),
    "twice, later": (
        [ASKED, asks("1"), gives("1"), SAID, gives("1")],
        [ASKED, asks("1"), gives("1"), SAID],
    ),
    "before the call": ([ASKED, gives("1"), asks("1")], [ASKED, asks("1"), gives("1")]),
    "after a later message": (
        [ASKED, asks("1"), MORE, gives("1")],
        [ASKED, asks("1"), gives("1"), MORE],
    ),
    "of a call with an id of another one": (
        [ASKED, asks("1"), gives("1"), asks("1"), MORE, gives("1")],
        [ASKED, asks("1"), gives("1"), asks("1"), gives("1"), MORE],
    ),
    "of several answers": (
        [ASKED, asks("1", "2"), asks("3"), gives("3", "2", "1")],
        [ASKED, asks("1", "2"), gives("1", "2"), asks("3"), gives("3")],
    ),
    "in another order": ([ASKED, asks("1", "2"), gives("2", "1")], [ASKED, asks("1", "2"), gives("1", "2")]),
    "of calls without an id": (
        [ASKED, asks(None, None), gives("", "")],
        [ASKED, asks("ttcall_1_0", "ttcall_1_1"), gives("ttcall_1_0", "ttcall_1_1")],
    ),
    "of a call without an id, among others": (
        [ASKED, asks("1", None), gives("1")],
        [ASKED, asks("1", "ttcall_1_1"), ToolMessage([*gives("1").results, unknown("ttcall_1_1")])],
    ),
    "of calls with one id": (
        [ASKED, asks("1", "1"), gives("1")],
        [ASKED, asks("1", "ttcall_1_1"), ToolMessage([*gives("1").results, unknown("ttcall_1_1")])],
    ),
    "of another tool": (
        [ASKED, OTHER, asks("1")],
        [ASKED, asks("1"), ToolMessage([unknown("1")])],
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", PAIRED)
def test_each_result_is_sent_directly_after_its_call_and_no_other_is_sent(mode: str, case: str) -> None:
    messages, expected = PAIRED[case]
    model = ScriptedChatModel(["fine"])
    run(mode, ChatClient(model, tools=[add]).prompt("go on", messages=messages))
    (request,) = model.requests
    assert [*request.messages] == [*expected, UserMessage("go on")]


def test_results_alone_are_sent_because_the_server_may_have_the_calls() -> None:
    messages = (SystemMessage("Be brief."), gives("1"))
    assert with_paired_results(messages) is messages


@pytest.mark.parametrize("mode", MODES)
def test_a_memory_inside_the_loop_may_add_the_call_of_a_result(mode: str) -> None:
    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()), order=400)
    model = ScriptedChatModel([adds(1, 1), "2"])
    loop = ToolCallingAdvisor(keep_history=False)
    client = ChatClient(model, tools=[add], advisors=[memory, loop])
    assert run(mode, client.prompt("1+1?", conversation_id="c")).content == "2"
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "tool"]


IDS = st.sampled_from([None, "", "1", "2", "3"])
MESSAGES = st.one_of(
    st.just(UserMessage("x")),
    st.just(AssistantMessage("x")),
    st.lists(IDS, max_size=3).map(lambda ids: asks(*ids)),
    st.lists(st.sampled_from(["", "1", "2", "3"]), max_size=3).map(lambda ids: gives(*ids)),
)


@given(st.lists(MESSAGES, max_size=8).map(tuple))
def test_whatever_the_conversation_each_call_has_its_result_and_nothing_is_lost(messages: tuple[Message, ...]) -> None:
    found = with_results(messages)
    for index, message in enumerate(found):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            given = [
                result.call_id
                for each in found[index + 1 : _next_other(found, index)]
                if isinstance(each, ToolMessage)
                for result in each.results
            ]
            for call in message.tool_calls:  # one without an id may have any result
                if call.id:
                    assert call.id in given
                    given.remove(call.id)
            assert len(given) >= sum(not call.id for call in message.tool_calls)
    assert with_results(found) is found
    assert [each for each in found if not isinstance(each, ToolMessage)] == [
        each for each in messages if not isinstance(each, ToolMessage)
    ]
    kept = [result for each in found if isinstance(each, ToolMessage) for result in each.results]
    for result in (result for each in messages if isinstance(each, ToolMessage) for result in each.results):
        kept.remove(result)
    assert {result.content for result in kept} <= {UNKNOWN}


@given(st.lists(MESSAGES, max_size=8).map(tuple))
def test_whatever_the_conversation_the_results_of_each_answer_are_those_of_its_calls(
    messages: tuple[Message, ...],
) -> None:
    paired = with_paired_results(with_results(messages))
    said = [message for message in paired if not isinstance(message, ToolMessage)]
    for before, message in zip((None, *paired), paired if said else (), strict=False):
        asked = before.tool_calls if isinstance(before, AssistantMessage) else ()
        answered = message.results if isinstance(message, ToolMessage) else ()
        assert len(asked) == len(answered)
        assert [call.id for call in asked] == [result.call_id for result in answered]
        assert all(call.id for call in asked)
        assert len({call.id for call in asked}) == len(asked)
    assert with_paired_results(with_results(paired)) == paired


def _next_other(messages: Sequence[Message], index: int) -> int:
    later = range(index + 1, len(messages))
    return next((each for each in later if not isinstance(messages[each], ToolMessage)), len(messages))
