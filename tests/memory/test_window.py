"""The memory that sends the last messages of a conversation."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

import pytest

from tests.memory.conversations import INSIDE, remembering, sent, shown
from traced_tools import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage, tool
from traced_tools.core import ToolResultPart, dump_messages
from traced_tools.errors import ConversationDenied
from traced_tools.memory import InMemoryChatMemoryRepository, LogReader, MemoryView, MessageWindowChatMemory


def turns(count: int, rounds: int = 0) -> list[Message]:
    """Return turns of a question, rounds of a call and its result, and an answer."""
    found: list[Message] = []
    for turn in range(1, count + 1):
        found.append(UserMessage(f"{turn}?"))
        for index in range(rounds):
            found.append(AssistantMessage(tool_calls=[ToolCall("look", id=f"{turn}.{index}")]))
            found.append(ToolMessage([ToolResultPart(call_id=f"{turn}.{index}", name="look", content="seen")]))
        found.append(AssistantMessage(f"{turn}!"))
    return found


def view(messages: list[Message], size: int) -> list[str]:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=size)
    memory.add("c", messages)
    return shown(memory.get("c"))


def test_the_last_turns_that_fit_are_sent() -> None:
    for size in range(1, 9):
        whole = shown(turns(3))
        assert view(turns(3), size) == whole[len(whole) - min(size, 6) // 2 * 2 :]


def test_a_turn_that_does_not_fit_is_left_out_whole() -> None:
    assert view(turns(2, rounds=1), 7) == ["user 2?", "call look", "tool seen", "assistant 2!"]
    assert view(turns(2, rounds=1), 3) == []


def test_the_turn_of_the_run_is_sent_whole_and_older_turns_make_room() -> None:
    @tool
    def look(at: int) -> str:
        """Look."""
        return "seen"

    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=4)
    memory.add("c", turns(2))
    calls = [[ToolCall("look", {"at": index})] for index in range(3)]
    client, model = remembering([*calls, "Done."], memory=memory, order=INSIDE, tools=[look])
    client.prompt("Go.", conversation_id="c").call()
    rounds = ["call look", "tool seen"]
    assert [sent(model, index) for index in range(4)] == [
        ["user 2?", "assistant 2!", "user Go."],
        ["user Go.", *rounds],
        ["user Go.", *rounds * 2],
        ["user Go.", *rounds * 3],
    ]


@pytest.mark.parametrize("size", [0, -1, 1.5, None, True])
def test_a_size_that_is_no_positive_whole_number_is_refused(size: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_messages"):
        MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=size)


def test_a_window_reads_no_more_of_a_long_conversation_than_of_a_short_one() -> None:
    class Counting(InMemoryChatMemoryRepository):
        fetched: tuple[int, ...] = ()

        def fetch_entries(self, conversation: Any, selection: Any) -> Any:
            found = super().fetch_entries(conversation, selection)
            self.fetched += (len(found),)
            return found

    seen = []
    for count in (50, 5_000):
        repository = Counting()
        memory = MessageWindowChatMemory(repository, max_messages=20)
        memory.add("c", turns(count))
        repository.fetched = ()
        client, _ = remembering(["Yes."], memory=memory)
        client.prompt("Still there?", conversation_id="c").call()
        seen.append(repository.fetched)
    assert seen == [(21,), (21,)]


def test_turns_of_active_runs_do_not_count_as_left_out() -> None:
    repository = InMemoryChatMemoryRepository()
    counted: list[int] = []

    @tool
    def ask() -> str:
        """Ask in the same conversation."""
        thread = threading.Thread(target=lambda: inner.prompt("2?", conversation_id="c").call())
        thread.start()
        thread.join()
        return "done"

    class Counting(MessageWindowChatMemory):
        async def read(self, log: LogReader) -> MemoryView:
            view = await super().read(log)
            counted.append(view.left_out)
            return view

    inner, _ = remembering(["Two."], memory=Counting(repository))
    client, _ = remembering([ToolCall("ask"), "One."], memory=Counting(repository), tools=[ask])
    client.prompt("1?", conversation_id="c").call()
    assert counted == [0, 0]


def test_the_view_grows_at_its_end_while_nothing_is_left_out() -> None:
    """Then providers find the request before in their caches."""

    @tool
    def look(at: int) -> str:
        """Look."""
        return "seen"

    answers = [*[[ToolCall("look", {"at": 1})], [ToolCall("look", {"at": 2})], "Done."] * 3]
    client, model = remembering(answers, order=INSIDE, tools=[look], system="Be kind.")
    for index in range(3):
        client.prompt(f"{index}?", conversation_id="c").call()
    texts = [dump_messages(request.messages)[:-1] for request in model.requests]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_messages_are_added_in_turns() -> None:
    repository = InMemoryChatMemoryRepository()
    memory = MessageWindowChatMemory(repository)
    memory.add("c", [AssistantMessage("Hello.")], principal="ana")
    memory.add("c", turns(2), principal="ana")
    memory.add("c", [], principal="ana")
    assert [entry.turn for entry in repository.read("c", principal="ana").entries] == [1, 2, 2, 3, 3]
    with pytest.raises(ConversationDenied):
        memory.add("c", turns(1), principal="bob")
    with pytest.raises(ConversationDenied):
        memory.get("c")


@pytest.mark.parametrize("messages", [["Hi."], "Hi.", 1, [SystemMessage("Be kind.")]])
def test_what_is_no_message_of_a_conversation_is_not_added(messages: Any) -> None:
    repository = InMemoryChatMemoryRepository()
    with pytest.raises((TypeError, ValueError), match="messages"):
        MessageWindowChatMemory(repository).add("c", messages)
    assert repository.conversations() == ()


async def get(memory: MessageWindowChatMemory) -> tuple[Message, ...]:
    await memory.aadd("c", turns(1))
    return await memory.aget("c")


def test_messages_are_added_and_returned_on_asyncio() -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    assert shown(asyncio.run(get(memory))) == ["user 1?", "assistant 1!"]
