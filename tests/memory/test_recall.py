"""The tool by which a model looks up what it is not sent anymore."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.memory.conversations import INSIDE, OUTSIDE, remembering, sent
from tests.modes import MODES, run
from traced_tools import ToolCall, UserMessage
from traced_tools.errors import ConversationDenied
from traced_tools.memory import (
    ChatMemoryRepository,
    CompactionEntry,
    InMemoryChatMemoryRepository,
    MessageWindowChatMemory,
    recall_tool,
)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def recall(**arguments: object) -> ToolCall:
    return ToolCall("recall", arguments)


def looked_up(repository: ChatMemoryRepository, call: ToolCall, mode: str = "call", order: int = INSIDE) -> str:
    """Return what the model reads when it makes a call of `recall` in the conversation c of Ana."""
    memory = MessageWindowChatMemory(repository, max_messages=2)
    client, model = remembering([[call], "Ok."], memory=memory, order=order, tools=[recall_tool(memory)])
    run(mode, client.prompt("What was the code?", conversation_id="c", principal="ana"))
    return sent(model)[-1]


def remember(repository: ChatMemoryRepository, *texts: str, principal: str = "ana", conversation: str = "c") -> None:
    memory = MessageWindowChatMemory(repository)
    memory.add(conversation, [UserMessage(text) for text in texts], principal=principal)


@pytest.mark.parametrize("order", [OUTSIDE, INSIDE])
def test_a_model_finds_what_is_not_in_its_view(
    open_repository: Callable[[], ChatMemoryRepository], mode: str, order: int
) -> None:
    with open_repository() as repository:
        remember(repository, "The code is 4711.", "I like tea.", "And cake.")
        found = looked_up(repository, recall(words="CODE"), mode, order)
    assert found == "tool Entry 1, turn 1, user: The code is 4711."


def test_messages_with_all_words_are_preferred_to_messages_with_any() -> None:
    repository = InMemoryChatMemoryRepository()
    remember(repository, "The code is 4711.", "The key is under the mat.", "I like tea.", "And cake.")
    assert looked_up(repository, recall(words="key mat")) == "tool Entry 2, turn 2, user: The key is under the mat."
    both = looked_up(repository, recall(words="key 4711"))
    assert both.index("Entry 2") < both.index("Entry 1")


def test_the_model_reads_that_there_are_more_messages_than_it_is_shown() -> None:
    repository = InMemoryChatMemoryRepository()
    remember(repository, *(f"The code is {number}." for number in range(10)), "Hello.", "And cake.")
    assert "Only the newest" not in looked_up(repository, recall(words="code"))
    remember(repository, "The code is 4711.", "And tea.", "And cake.")
    text = looked_up(repository, recall(words="code"))
    assert text.endswith("Only the newest 10 messages are shown. Add words to find others.")


def test_what_the_model_is_shown_is_not_found() -> None:
    repository = InMemoryChatMemoryRepository()
    remember(repository, "Hello.")
    assert "Nothing was found" in looked_up(repository, recall(words="code"))


def test_another_conversation_is_not_searched() -> None:
    repository = InMemoryChatMemoryRepository()
    remember(repository, "The code is 4711.", principal="bob", conversation="b")
    remember(repository, "The code is 4712.", principal="ana", conversation="other")
    assert "Nothing was found" in looked_up(repository, recall(words="code"))


def test_an_entry_is_returned_whole() -> None:
    repository = InMemoryChatMemoryRepository()
    remember(repository, "The code is 4711." + "x" * 5_000, "I like tea.", "And cake.")
    assert "x" * 5_000 not in looked_up(repository, recall(words="code"))
    assert "x" * 5_000 in looked_up(repository, recall(entry=1))
    for entry in (-1, 0, 1_000):
        assert f"no entry {entry}" in looked_up(repository, recall(entry=entry))


def test_a_compaction_is_no_entry_to_read() -> None:
    repository = InMemoryChatMemoryRepository()
    remember(repository, "Hello.")
    repository.append("c", [CompactionEntry(turn=1, through=1, trigger="t", strategy="s")], 1, principal="ana")
    assert "no entry 2" in looked_up(repository, recall(entry=2))


@pytest.mark.parametrize("words", ["", "   ", '" OR *', "x" * 1_000, " ".join(map(str, range(100)))])
def test_odd_words_find_nothing(open_repository: Callable[[], ChatMemoryRepository], words: str) -> None:
    with open_repository() as repository:
        remember(repository, "The code is 4711.", "I like tea.", "And cake.")
        assert "Nothing was found" in looked_up(repository, recall(words=words))


def test_without_a_conversation_the_call_fails() -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    client, model = remembering([[recall(words="code")], "Ok."], memory=memory, tools=[recall_tool(memory)])
    client.prompt("What was the code?").call()
    assert "MemoryAdvisor" in sent(model)[-1]


def test_an_owned_conversation_is_not_recalled_by_others() -> None:
    repository = InMemoryChatMemoryRepository()
    remember(repository, "The code is 4711.", principal="bob")
    with pytest.raises(ConversationDenied):
        looked_up(repository, recall(words="code"))


def test_an_inner_agent_does_not_recall_other_branches() -> None:
    repository = InMemoryChatMemoryRepository()
    memory = MessageWindowChatMemory(repository, max_messages=2)
    remember(repository, "The code is 4711.", "I like tea.", "And cake.")
    look_up = recall_tool(memory)
    inner, model = remembering([[recall(words="secret code")], "Ok."], memory=memory, name="inner", tools=[look_up])
    sibling, _ = remembering(["The secret is 42."], memory=memory, name="sibling")

    def ask() -> str:
        """Ask two agents."""
        spec = {"conversation_id": "c", "principal": "ana"}
        sibling.prompt("What is the secret code?", **spec).call()  # type: ignore[arg-type]
        return inner.prompt("Find it.", **spec).call().content  # type: ignore[arg-type]

    client, _ = remembering([[ToolCall("ask")], "Ok."], memory=memory, tools=[ask])
    client.prompt("Go.", conversation_id="c", principal="ana").call()
    assert sent(model)[-1] == "tool Entry 1, turn 1, user: The code is 4711."
