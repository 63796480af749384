"""Logs that a repository has read before: it reads only what is new, and never what is not there anymore."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.memory.made import NOW, said, texts
from tests.memory.sql_store import execute
from traced_tools.errors import ConversationDenied
from traced_tools.memory import CompactionEntry, EntrySelection, MemoryEntry, SqlChatMemoryRepository
from traced_tools.memory.conversation import Conversation, StoredEntry
from traced_tools.memory.loaded import LoadedLogs


class Counting(SqlChatMemoryRepository):
    """Counts the rows that it fetches."""

    fetched = 0

    def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Any:
        """Fetch and count."""
        rows = super().fetch_entries(conversation, selection)
        self.fetched += len(rows)
        return rows

    def rows_of(self, **part: Any) -> tuple[int, list[str]]:
        """Return how many rows a read fetches, and its texts."""
        before = self.fetched
        log = self.read("c", **part)
        return self.fetched - before, texts(log)


@pytest.fixture
def repository(url: str) -> Iterator[Counting]:
    with Counting(url) as repository:
        yield repository


@pytest.fixture
def other(url: str) -> Iterator[SqlChatMemoryRepository]:
    """Another process."""
    with SqlChatMemoryRepository(url) as repository:
        yield repository


def entries(count: int) -> list[MemoryEntry]:
    compaction = CompactionEntry(turn=1, through=1, trigger="tokens", strategy="summarize")
    return [
        compaction if number % 7 == 6 else said(str(number), turn=1 + number // 4, branch="ab"[number % 2])
        for number in range(count)
    ]


def test_a_log_that_was_read_is_read_again_from_its_last_entry(repository: Counting, other: Any) -> None:
    repository.append("c", [said(str(number)) for number in range(100)], 0)
    expected = [str(number) for number in range(100)]
    assert repository.rows_of() == (100, expected)
    assert repository.rows_of() == (1, expected)
    assert repository.rows_of(after=90) == (1, expected[90:])
    other.append("c", [said("new"), said("newer")], 100)
    assert repository.rows_of() == (3, [*expected, "new", "newer"])
    assert repository.rows_of(after=101) == (1, ["newer"])


def test_what_is_read_after_a_position_does_not_replace_what_was_read_before(repository: Counting) -> None:
    repository.append("c", [said(str(number)) for number in range(10)], 0)
    assert repository.rows_of(after=8)[0] == 2
    assert repository.rows_of()[0] == 10
    repository.append("c", [said("new")], 10)
    assert repository.rows_of(after=10) == (1, ["new"])
    assert repository.rows_of()[0] == 2


PARTS: list[dict[str, Any]] = [
    {},
    {"after": 3},
    {"after": 30},
    {"kind": "message"},
    {"kind": "compaction"},
    {"branches": ["a"]},
    {"branches": ["b", "a"], "after": 5},
    {"branches": ["a"], "kind": "message"},
    {"branches": ["none"]},
    {"limit": 4},
    {"last": 4},
    {"last_turns": 2},
]


def test_each_part_is_the_same_whatever_was_read_before(repository: Counting, other: Any, url: str) -> None:
    version = 0
    for _ in range(3):
        version = other.append("c", entries(12), version)
        for part in (*PARTS, *reversed(PARTS)):
            with SqlChatMemoryRepository(url) as fresh:
                assert repository.read("c", **part) == fresh.read("c", **part), part


def test_a_conversation_that_was_deleted_and_begun_again_has_nothing_of_the_one_before(
    repository: Counting, other: Any
) -> None:
    repository.append("c", [said("old"), said("older")], 0)
    repository.read("c")
    other.delete("c")
    other.append("c", [said("new"), said("newer"), said("newest")], 0)
    assert repository.rows_of() == (3, ["new", "newer", "newest"])
    other.delete("c")
    assert repository.rows_of() == (0, [])


def test_a_store_that_was_restored_from_a_backup_is_read_again(repository: Counting, other: Any, url: str) -> None:
    other.append("c", [said("one"), said("two"), said("lost")], 0)
    assert repository.rows_of()[1] == ["one", "two", "lost"]
    execute(url, "DELETE FROM chat_memory_entries WHERE position = 3")
    execute(url, "UPDATE chat_memory_conversations SET version = 2")
    assert repository.rows_of()[1] == ["one", "two"]
    repository.read("c")
    other.append("c", [said("three"), said("four")], 2)
    execute(url, "DELETE FROM chat_memory_entries WHERE position > 2")
    execute(url, "UPDATE chat_memory_conversations SET version = 2")
    other.append("c", [said("drei"), said("vier")], 2)
    assert repository.rows_of()[1] == ["one", "two", "drei", "vier"]


def test_another_principal_does_not_see_what_was_read(repository: Counting) -> None:
    repository.append("c", [said("secret")], 0, principal="ana")
    assert texts(repository.read("c", principal="ana")) == ["secret"]
    for principal in ("bob", None):
        with pytest.raises(ConversationDenied):
            repository.read("c", principal=principal)


def test_a_repository_holds_a_limited_number_of_entries_and_forgets_what_was_not_read_for_longest(url: str) -> None:
    with Counting(url) as repository:
        repository._loaded = LoadedLogs(25)
        for name in ("a", "b", "c"):
            repository.append(name, [said(name)] + [said("x") for _ in range(9)], 0)
        repository.read("a")
        repository.read("b")
        repository.read("a")
        repository.read("c")
        before = repository.fetched
        repository.read("a")
        repository.read("c")
        assert repository.fetched - before == 2
        repository.read("b")
        assert repository.fetched - before == 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_begins_without_logs() -> None:
    conversation = Conversation(key="k", id="c", version=1, last_turn=1, created_at=NOW, updated_at=NOW)
    logs = LoadedLogs(10)
    selection = EntrySelection(0, 1)
    row = StoredEntry(1, "e", 1, "", "message", said("x", id="e").model_dump_json())
    found = logs.find(conversation, selection).extended([row], "c")
    assert found is not None
    logs.keep(conversation, selection, found)
    assert logs.find(conversation, selection).entries
    logs._lock.acquire()  # as another thread of the parent may
    if not (child := os.fork()):
        os._exit(len(logs.find(conversation, selection).entries))
    assert os.waitpid(child, 0)[1] == 0
