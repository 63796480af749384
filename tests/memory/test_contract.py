"""The repositories of this package fulfil the contract, and the contract finds repositories that don't."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from traced_tools.memory import (
    ChatMemoryRepository,
    Conversation,
    EntrySelection,
    InMemoryChatMemoryRepository,
    StoredEntry,
    check_chat_memory_repository,
)
from traced_tools.memory.contract import CONTRACT


def test_each_repository_fulfils_the_contract(open_repository: Callable[[], ChatMemoryRepository]) -> None:
    check_chat_memory_repository(open_repository)


class AsyncRepository(ChatMemoryRepository):
    """A store whose methods are all coroutines, which wait for the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = InMemoryChatMemoryRepository()

    async def find_conversation(self, conversation_id: str) -> Conversation | None:
        return self._inner.find_conversation(conversation_id)

    async def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Sequence[StoredEntry]:
        return self._inner.fetch_entries(conversation, selection)

    async def commit(self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]) -> bool:
        return self._inner.commit(before, after, entries)

    async def remove(self, conversation: Conversation) -> bool:
        return self._inner.remove(conversation)

    async def find_conversations(
        self, principal: str | None, attributes: Mapping[str, str], expired_by: datetime | None
    ) -> Iterable[Conversation]:
        return self._inner.find_conversations(principal, attributes, expired_by)


def test_a_repository_of_coroutines_fulfils_the_contract_blocking_too() -> None:
    check_chat_memory_repository(AsyncRepository)


class Overwriting(InMemoryChatMemoryRepository):
    def commit(self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]) -> bool:
        return super().commit(self.find_conversation(after.id), after, entries)


class Partial(InMemoryChatMemoryRepository):
    def commit(self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]) -> bool:
        stored = {each.id for log in self._logs.values() for each in log.entries}
        return super().commit(before, after, [each for each in entries if each.id not in stored])


class SharingIds(InMemoryChatMemoryRepository):
    def commit(self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]) -> bool:
        stored = {each.id for log in self._logs.values() for each in log.entries}
        return not any(each.id in stored for each in entries) and super().commit(before, after, entries)


class Unordered(InMemoryChatMemoryRepository):
    def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Sequence[StoredEntry]:
        return super().fetch_entries(conversation, selection)[::-1]


class FirstForLast(InMemoryChatMemoryRepository):
    def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Sequence[StoredEntry]:
        found = super().fetch_entries(
            conversation, EntrySelection(selection.after, selection.through, ids=selection.ids)
        )
        return found[: selection.last]


class EveryBranch(InMemoryChatMemoryRepository):
    def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Sequence[StoredEntry]:
        return super().fetch_entries(conversation, replace(selection, branches=None))


class CaseInsensitive(InMemoryChatMemoryRepository):
    def find_conversation(self, conversation_id: str) -> Conversation | None:
        return next(
            (each for name, each in self._conversations.items() if name.lower() == conversation_id.lower()), None
        )


class Ownerless(InMemoryChatMemoryRepository):
    def find_conversation(self, conversation_id: str) -> Conversation | None:
        found = super().find_conversation(conversation_id)
        return None if found is None else found.replace(principal=None)


class Undeleting(InMemoryChatMemoryRepository):
    def remove(self, conversation: Conversation) -> bool:
        return True


class AnyAttribute(InMemoryChatMemoryRepository):
    def find_conversations(
        self, principal: str | None, attributes: Mapping[str, str], expired_by: datetime | None
    ) -> Iterable[Conversation]:
        return super().find_conversations(principal, {}, expired_by)


class ExpiringAll(InMemoryChatMemoryRepository):
    def find_conversations(
        self, principal: str | None, attributes: Mapping[str, str], expired_by: datetime | None
    ) -> Iterable[Conversation]:
        return super().find_conversations(principal, attributes, None)


class Trimming(InMemoryChatMemoryRepository):
    def commit(self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]) -> bool:
        shortened = [each._replace(body=each.body.replace("\\u0000", "")) for each in entries]
        return super().commit(before, after, shortened)


BROKEN: dict[Any, str] = {
    Overwriting: "commit and remove change nothing if the conversation has changed",
    Partial: "an append of which a part is stored already",
    SharingIds: "entries with the same id in different conversations",
    Unordered: "entries are returned as they were appended",
    FirstForLast: "a part of the log can be read",
    EveryBranch: "the entries of branches can be read",
    CaseInsensitive: "texts that look alike are different",
    Ownerless: "a conversation is only for the principal that began it",
    Undeleting: "a deleted conversation is gone",
    AnyAttribute: "conversations are found by owner and attributes",
    ExpiringAll: "delete_expired deletes the conversations that have expired",
    Trimming: "entries are returned as they were appended",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_contract_names_the_statement_that_a_broken_repository_violates(broken: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        check_chat_memory_repository(broken)
    for way in ("blocking", "asyncio"):
        assert any(f"({way})" in line and BROKEN[broken] in line for line in str(caught.value).splitlines())


def test_every_check_has_a_statement_of_its_own() -> None:
    assert len(CONTRACT) == 19
