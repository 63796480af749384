"""What every repository does beyond the contract: expiry, refusals, and its texts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.memory.made import NOW, said, texts
from tests.sweeps import check_each
from traced_tools.errors import ChatMemoryError, ConversationConflict, ConversationDenied
from traced_tools.memory import ChatMemoryRepository, InMemoryChatMemoryRepository


def test_a_conversation_expires_sixty_days_after_its_last_append(
    repository: ChatMemoryRepository, clock: Callable[[timedelta], None]
) -> None:
    repository.append("c", [said("one")], 0, principal="ana")
    clock(timedelta(days=59))
    repository.append("c", [said("two")], 1, principal="ana")
    clock(timedelta(days=118))
    assert texts(repository.read("c", principal="ana")) == ["one", "two"]
    assert [each.expires_at for each in repository.conversations()] == [NOW + timedelta(days=119)]
    clock(timedelta(days=119))
    assert repository.conversations() == ()
    assert repository.read("c", principal="ana").version == 0


def test_an_expired_conversation_leaves_nothing_to_a_new_one_with_its_id(
    repository: ChatMemoryRepository, clock: Callable[[timedelta], None]
) -> None:
    repository.append("c", [said("old")], 0, principal="ana", attributes={"user": "u1"})
    clock(timedelta(days=61))
    with pytest.raises(ConversationConflict):
        repository.append("c", [said("late")], 1, principal="ana")
    repository.append("c", [said("new")], 0, principal="bob")
    assert texts(repository.read("c", principal="bob")) == ["new"]
    assert repository.conversations(attributes={"user": "u1"}) == ()


def test_a_request_that_meets_an_expired_conversation_sees_the_one_that_somebody_begins_meanwhile(
    repository: ChatMemoryRepository, clock: Callable[[timedelta], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.append("c", [said("old")], 0)
    clock(timedelta(days=61))
    remove = repository.remove

    def begin_and_remove(conversation: Any) -> Any:
        monkeypatch.setattr(repository, "remove", remove)
        repository.append("c", [said("new")], 0)
        return remove(conversation)

    monkeypatch.setattr(repository, "remove", begin_and_remove)
    assert texts(repository.read("c")) == ["new"]


def test_delete_expired_keeps_a_conversation_that_somebody_continues_meanwhile(
    repository: ChatMemoryRepository, clock: Callable[[timedelta], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "gone"):
        repository.append(name, [said("one")], 0)
    find = repository.find_conversations

    def find_and_continue(*conditions: Any) -> Any:
        found = find(*conditions)
        repository.append("kept", [said("two")], 1)
        return found

    monkeypatch.setattr(repository, "find_conversations", find_and_continue)
    assert repository.delete_expired(NOW + timedelta(days=60)) == 1
    assert (repository.version("kept"), repository.version("gone")) == (2, 0)


def test_of_several_that_delete_expired_conversations_at_once_each_deletes_others(
    repository: ChatMemoryRepository,
) -> None:
    for number in range(20):
        repository.append(f"old {number}", [said("one"), said("two")], 0)
    later = datetime.now(UTC) + timedelta(days=61)
    with ThreadPoolExecutor(4) as pool:
        deleted = list(pool.map(lambda _: repository.delete_expired(later), range(4)))
    assert sum(deleted) == 20
    assert repository.conversations() == ()


def test_a_conversation_without_expiry_is_kept(
    clock: Callable[[timedelta], None],
) -> None:
    repository = InMemoryChatMemoryRepository(expire_after=None)
    repository.append("c", [said("one")], 0)
    clock(timedelta(days=36_500))
    assert repository.delete_expired() == 0
    assert repository.version("c") == 1


def test_a_conversation_that_is_deleted_while_it_is_read_is_read_as_it_is_afterwards(
    repository: ChatMemoryRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.append("c", [said("ana's")], 0, principal="ana")
    fetch = repository.fetch_entries

    def delete_and_fetch(*arguments: Any) -> Any:
        monkeypatch.setattr(repository, "fetch_entries", fetch)
        repository.delete("c", principal="ana")
        repository.append("c", [said("bob's")], 0, principal="bob")
        return fetch(*arguments)

    monkeypatch.setattr(repository, "fetch_entries", delete_and_fetch)
    with pytest.raises(ConversationDenied):
        repository.read("c", principal="ana")


def test_arguments_that_cannot_be_are_named() -> None:
    repository = InMemoryChatMemoryRepository()
    entries = [said("hello")]
    cases: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
        "no id": (lambda: repository.read(""), ValueError, "conversation_id must have 1 to 256 characters"),
        "a long id": (lambda: repository.append("x" * 257, entries, 0), ValueError, "1 to 256 characters; it has 257"),
        "a number as id": (lambda: repository.version(7), TypeError, "conversation_id must be a str"),  # type: ignore[arg-type]
        "an id that is no Unicode": (lambda: repository.delete("\ud800"), ValueError, "UTF-8"),
        "no principal": (lambda: repository.read("c", principal=""), ValueError, "principal must have 1 to 256"),
        "a negative version": (lambda: repository.append("c", entries, -1), ValueError, "expected_version"),
        "no version": (lambda: repository.append("c", entries, None), TypeError, "expected_version"),  # type: ignore[arg-type]
        "a long attribute": (
            lambda: repository.append("c", entries, 0, attributes={"user": "x" * 257}),
            ValueError,
            "each value in attributes must have 1 to 256",
        ),
        "an attribute that is no text": (
            lambda: repository.conversations(attributes={"user": 7}),  # type: ignore[dict-item]
            TypeError,
            "each value in attributes must be a str",
        ),
        "two ends": (lambda: repository.read("c", limit=1, last=1), ValueError, "limit counts from the beginning"),
        "no entries": (lambda: repository.read("c", last=0), ValueError, "last must be at least 1"),
        "one branch alone": (
            lambda: repository.read("c", branches=""),
            TypeError,
            "a sequence of str or None, not str",
        ),
        "no branches": (lambda: repository.read("c", branches=[]), ValueError, "branches must not be empty"),
        "a long branch": (
            lambda: repository.read("c", branches=["x" * 257]),
            ValueError,
            "each of branches must have 0",
        ),
        "an unknown kind": (lambda: repository.read("c", kind="note"), ValueError, "kind must be"),  # type: ignore[arg-type]
        "a time without zone": (lambda: repository.delete_expired(datetime(2026, 1, 1)), ValueError, "time zone"),
        "no time": (lambda: InMemoryChatMemoryRepository(expire_after=timedelta(0)), ValueError, "expire_after"),
    }

    def is_named(case: tuple[Callable[[], object], type[Exception], str]) -> None:
        with pytest.raises(case[1], match=case[2]):
            case[0]()

    check_each(cases, is_named)


def test_no_error_of_a_repository_shows_an_owner_an_attribute_or_a_content(repository: ChatMemoryRepository) -> None:
    secret = "a-secret-text"
    entry = said(secret)
    repository.append("c", [entry], 0, principal=f"{secret}-owner", attributes={"user": secret})
    shown = [
        repr(repository),
        repr(repository.conversations()),
        repr(repository.read("c", principal=f"{secret}-owner")),
    ]
    for request in (
        lambda: repository.append("c", [said(secret)], 0, principal=f"{secret}-owner"),
        lambda: repository.append("c", [said(secret, id=entry.id)], 1, principal=f"{secret}-owner"),
        lambda: repository.append("c", [said(secret)], 1, principal=f"{secret}-other"),
        lambda: repository.read("c"),
    ):
        with pytest.raises((ChatMemoryError, ValueError)) as caught:
            request()
        shown += [str(caught.value), repr(caught.value), repr(vars(caught.value)), repr(caught.value.__context__)]
    assert [each for each in shown if secret in each] == []
