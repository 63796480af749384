"""Searching conversations: full text finds what reading would, and a deleted conversation leaves no words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.memory.made import said
from tests.memory.sql_store import execute
from tests.sweeps import check_each
from traced_tools import ToolMessage
from traced_tools.core.messages import ToolResultPart
from traced_tools.errors import UnreadableConversation
from traced_tools.memory import (
    ChatMemoryRepository,
    InMemoryChatMemoryRepository,
    MessageEntry,
    SqlChatMemoryRepository,
    sql_search,
)
from traced_tools.memory.words import words_in

WORDS = ("fox", "FOX", "Straße", "strasse", "ﬁn", "東京", "x" * 250, "a_b", "é", "e\u0301", "İ", "42", "NOT")
SYNTAX = (" ", " ", ".", '"', "'", "*", "(", ")", ":", "^", "-", "=", "+", "&", "|", "!", "\\", "\0", "\n", "{", "%")
TEXTS = st.lists(st.sampled_from((*WORDS, *SYNTAX)), min_size=1, max_size=8).map("".join)
ANY_TEXT = st.text(min_size=1, max_size=30).filter(lambda text: text.encode("utf-8", "ignore").decode() == text)
WANTED = st.lists(st.one_of(TEXTS.map(lambda text: text[:200]), ANY_TEXT), min_size=1, max_size=4)


def found(repository: ChatMemoryRepository, *words: str, **options: Any) -> list[int | None]:
    return [entry.position for entry in repository.search("c", words, **options)]


@pytest.fixture
def repository(store: str) -> Iterator[SqlChatMemoryRepository]:
    with SqlChatMemoryRepository(store) as repository:
        yield repository


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.tuples(st.one_of(TEXTS, ANY_TEXT), st.sampled_from(["", "a"])), min_size=1, max_size=8),
    searches=st.lists(
        st.tuples(
            WANTED,
            st.sampled_from(["all", "any"]),
            st.fixed_dictionaries(
                {},
                optional={
                    "branches": st.sampled_from([[""], ["a"], ["", "b"]]),
                    "before": st.integers(1, 9),
                    "through": st.integers(1, 9),
                    "limit": st.integers(1, 3),
                },
            ),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_full_text_finds_what_reading_all_messages_finds(
    repository: SqlChatMemoryRepository, texts: list[tuple[str, str]], searches: list[Any]
) -> None:
    repository.delete("c")
    scanning = InMemoryChatMemoryRepository()
    for text, branch in texts:
        for each in (repository, scanning):
            each.append("c", [said(text, branch=branch)], each.version("c"))
        words, match, options = searches[len(text) % len(searches)]
        assert found(repository, *words, match=match, **options) == found(scanning, *words, match=match, **options)
    for words, match, options in [*searches, *(([text[:200]], "all", {}) for text, _ in texts)]:
        assert found(repository, *words, match=match, **options) == found(scanning, *words, match=match, **options)


def test_what_is_not_searched_is_not_indexed(store: str, repository: SqlChatMemoryRepository) -> None:
    tables = (
        "SELECT name FROM sqlite_master WHERE name LIKE 'chat_memory_words%'"
        if store.startswith("sqlite")
        else "SELECT to_regclass('chat_memory_words') WHERE to_regclass('chat_memory_words') IS NOT NULL"
    )
    repository.append("c", [said("one")], 0)
    repository.delete("c")
    assert execute(store, tables) == []
    repository.append("c", [said("one")], 0)
    repository.append("d", [said("one")], 0)
    assert found(repository, "one") == [1]
    assert execute(store, "SELECT count(*) FROM chat_memory_words") == [(1,)]


def test_a_search_indexes_only_what_is_new(
    store: str, repository: SqlChatMemoryRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.append("c", [said(f"word{number}") for number in range(120)], 0)
    assert found(repository, "word0") == [1]
    added: list[int] = []
    add = type(repository._index).add

    def record(index: Any, connection: Any, key: str, words: Any) -> None:
        added.extend(words)
        add(index, connection, key, words)

    monkeypatch.setattr(type(repository._index), "add", record)
    assert found(repository, "word119") == [120]
    repository.append("c", [said("word0")], 120)
    assert found(repository, "word0") == [121, 1]
    assert added == [121]


def test_a_deleted_conversation_leaves_no_words(store: str, repository: SqlChatMemoryRepository) -> None:
    for name in ("c", "d"):
        repository.append(name, [said("secretword")], 0)
        assert len(repository.search(name, ["secretword"])) == 1
    repository.delete("c")
    assert execute(store, "SELECT count(*) FROM chat_memory_words") == [(1,)]
    assert execute(store, "SELECT count(*) FROM chat_memory_indexed") == [(1,)]
    assert found(repository, "secretword") == []
    assert len(repository.search("d", ["secretword"])) == 1


def test_a_conversation_that_is_deleted_while_it_is_indexed_leaves_no_words(
    store: str, repository: SqlChatMemoryRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.append("c", [said("word")], 0)
    search_entries = repository.search_entries

    def delete_and_search(*arguments: Any) -> Any:
        repository.delete("c")
        return search_entries(*arguments)

    monkeypatch.setattr(repository, "search_entries", delete_and_search)
    assert found(repository, "word") == []
    assert execute(store, "SELECT count(*) FROM chat_memory_words") == [(0,)]
    assert execute(store, "SELECT count(*) FROM chat_memory_indexed") == [(0,)]


def test_searches_at_once_index_each_message_once(store: str) -> None:
    with SqlChatMemoryRepository(store) as repository:
        repository.append("c", [said("word", 1 + number) for number in range(300)], 0)
    results: list[Any] = []

    def search() -> None:
        with SqlChatMemoryRepository(store) as repository:
            results.append(found(repository, "word", limit=1000))

    threads = [threading.Thread(target=search) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [list(range(300, 0, -1))] * 6
    assert execute(store, "SELECT count(*) FROM chat_memory_words") == [(300,)]


def test_a_message_with_very_many_words_is_found_by_words_from_all_of_its_parts(
    repository: SqlChatMemoryRepository,
) -> None:
    """PostgreSQL limits a `tsvector` to a megabyte; these are two."""
    content = " ".join(f"{number:07x}" for number in range(300_000))
    large = MessageEntry(ToolMessage([ToolResultPart(call_id="c", name="t", content=content)]), turn=1)
    repository.append("c", [large, said("0000000 fox"), said("fox 00493df")], 0)
    assert found(repository, "0000000", "00493df") == [1]
    assert found(repository, "0000000") == [2, 1]
    assert found(repository, "00493df fox", "0000001", match="any") == [3, 1]
    assert found(repository, "00493df", "fox", "0000000") == []
    assert found(repository, "0000000", "missing") == []


def test_the_longest_search_is_no_problem(repository: SqlChatMemoryRepository) -> None:
    words = ["".join(chr(0x4E00 + 200 * word + place) for place in range(200)) for word in range(20)]
    repository.append("c", [said("".join(words)), said(words[0]), said("x" * 200_000)], 0)
    assert found(repository, *words) == [1]
    assert found(repository, *words, match="any") == [2, 1]
    assert found(repository, "x" * 200) == [3]


def test_a_database_without_full_text_is_searched_by_reading(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_search, "_HAS_FTS5", "SELECT a_missing_function()")
    with SqlChatMemoryRepository(url) as repository:
        repository.append("c", [said(f"fox {number}") for number in range(250)], 0)
        assert found(repository, "fox", limit=2) == [250, 249]
        assert found(repository, "0", "fox") == [1]
        assert repository.delete("c") is True
    assert execute(url, "SELECT name FROM sqlite_master WHERE name LIKE 'chat_memory_words%'") == []


def test_a_search_names_a_message_that_cannot_be_read(store: str, repository: SqlChatMemoryRepository) -> None:
    repository.append("c", [said("a-secret-one"), said("two")], 0)
    execute(store, "UPDATE chat_memory_entries SET body = 'a-secret' WHERE position = 1")
    with pytest.raises(UnreadableConversation, match="entry 1 of the conversation 'c'") as caught:
        repository.search("c", ["one"])
    assert "a-secret" not in str(caught.value) + repr(caught.value.__context__)


def test_searches_that_cannot_be_are_named() -> None:
    repository = InMemoryChatMemoryRepository()
    cases: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
        "a text": (lambda: repository.search("c", "fox"), TypeError, "words must be a sequence of str, not str"),
        "no words": (lambda: repository.search("c", []), ValueError, "1 to 20 items; it has 0"),
        "many words": (lambda: repository.search("c", ["x"] * 21), ValueError, "1 to 20 items; it has 21"),
        "no word": (lambda: repository.search("c", [""]), ValueError, "each of words must have 1 to 200"),
        "a long word": (lambda: repository.search("c", ["x" * 201]), ValueError, "1 to 200 characters; it has 201"),
        "a number": (lambda: repository.search("c", [7]), TypeError, "each of words must be a str"),  # type: ignore[list-item]
        "no Unicode": (lambda: repository.search("c", ["\ud800"]), ValueError, "UTF-8"),
        "no match": (lambda: repository.search("c", ["x"], match="none"), ValueError, "match must be all or any"),  # type: ignore[arg-type]
        "no limit": (lambda: repository.search("c", ["x"], limit=0), ValueError, "limit must be at least 1"),
        "a page before": (lambda: repository.search("c", ["x"], before=0), ValueError, "before must be at least 1"),
    }

    def is_named(case: tuple[Callable[[], object], type[Exception], str]) -> None:
        with pytest.raises(case[1], match=case[2]):
            case[0]()

    check_each(cases, is_named)


def test_words_are_letters_and_digits_without_regard_to_case() -> None:
    text = "Don't look_up \uff26\uff2f\uff38-2; 東京へ! --x"
    assert words_in(text) == {"don", "t", "look", "up", "fox", "2", "東", "京", "へ", "x"}
