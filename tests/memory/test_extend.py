"""Extending a log as it was read, which finds the conversation only if something has changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.memory.made import said, texts
from traced_tools.errors import ConversationConflict, ConversationDenied
from traced_tools.flow.flow import call
from traced_tools.memory import ChatMemoryRepository, ConversationLog, InMemoryChatMemoryRepository, MessageEntry


def read(repository: ChatMemoryRepository, **options: Any) -> ConversationLog:
    return call(repository.read_flow("c", **options))


def extend(
    repository: ChatMemoryRepository, log: ConversationLog, *entries: MessageEntry, **options: Any
) -> ConversationLog:
    return call(repository.extend_flow(log, entries, **options))


def test_a_log_that_was_read_is_extended_again_and_again(repository: ChatMemoryRepository) -> None:
    log = extend(repository, read(repository), said("one"), said("two"), principal="ana", attributes={"team": "red"})
    assert (log.version, texts(log), [entry.position for entry in log.entries]) == (2, ["one", "two"], [1, 2])
    log = extend(repository, log, three := said("three", 2), principal="ana", attributes={"user": "u1"})
    assert log == ConversationLog("c", 3, (three.at("c", 3),), log.conversation)
    assert extend(repository, read(repository, principal="ana", last=1), said("four"), principal="ana").version == 4
    assert texts(repository.read("c", principal="ana")) == ["one", "two", "three", "four"]
    (found,) = repository.conversations()
    assert (found.version, found.last_turn, found.attributes) == (4, 2, {"team": "red", "user": "u1"})


def test_a_log_that_was_read_is_extended_without_finding_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = InMemoryChatMemoryRepository()
    logs = [read(repository)]
    monkeypatch.delattr(InMemoryChatMemoryRepository, "find_conversation")
    for number in range(3):
        logs.append(extend(repository, logs[-1], said(str(number))))
    assert [log.version for log in logs] == [0, 1, 2, 3]


def test_a_log_that_has_changed_is_not_extended(repository: ChatMemoryRepository) -> None:
    empty = read(repository)
    one = extend(repository, empty, said("one"))
    two = extend(repository, one, said("two"))
    for outdated in (empty, one):
        with pytest.raises(ConversationConflict) as caught:
            extend(repository, outdated, said("late"))
        assert caught.value.version == 2
    repository.delete("c")
    with pytest.raises(ConversationConflict):
        extend(repository, two, said("late"))
    repository.append("c", [said("new"), said("newer")], 0)
    with pytest.raises(ConversationConflict):
        extend(repository, two, said("late"))
    assert texts(repository.read("c")) == ["new", "newer"]


def test_a_log_is_extended_once_by_the_same_entries(repository: ChatMemoryRepository) -> None:
    empty = read(repository)
    one = extend(repository, empty, first := said("one"))
    assert extend(repository, empty, first) == one
    assert extend(repository, one, first) == one
    extend(repository, one, said("two"))
    again = extend(repository, empty, first)
    assert (again.version, again.entries) == (one.version, one.entries)
    with pytest.raises(ConversationConflict):  # because its caller has not read the second entry
        extend(repository, again, said("late"))
    assert texts(repository.read("c")) == ["one", "two"]


def test_a_log_is_only_extended_by_its_owner(repository: ChatMemoryRepository) -> None:
    log = extend(repository, read(repository), said("one"), principal="ana")
    for other in ("bob", None):
        with pytest.raises(ConversationDenied):
            extend(repository, log, said("two"), principal=other)
    with pytest.raises(ValueError, match="principal must have 1 to 256"):
        extend(repository, ConversationLog("d", 0), said("one"), principal="")


def test_a_log_that_expires_after_it_was_read_is_not_extended(
    repository: ChatMemoryRepository, clock: Callable[[timedelta], None]
) -> None:
    log = extend(repository, read(repository), said("one"), principal="ana")
    clock(timedelta(days=61))
    with pytest.raises(ConversationConflict) as caught:
        extend(repository, log, said("two"), principal="ana")
    assert caught.value.version == 0
    assert extend(repository, read(repository), said("new"), principal="bob").version == 1
