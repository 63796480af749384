"""Entries of a log: what they hold, what they refuse, and what they show."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from tests.memory.made import said
from tests.sweeps import check_each
from traced_tools import ToolMessage, UserMessage
from traced_tools.core.messages import ToolResultPart
from traced_tools.memory import CompactionEntry, InMemoryChatMemoryRepository, MessageEntry
from traced_tools.memory.entries import dump_entry, load_entry


def test_an_entry_makes_an_id_that_sorts_by_time_and_a_time_with_a_zone() -> None:
    before = datetime.now(UTC)
    entries = [said(str(number)) for number in range(100)]
    ids = [entry.id for entry in entries]
    assert len(set(ids)) == 100
    assert ids == sorted(ids) or [each[:13] for each in ids] == sorted(each[:13] for each in ids)
    assert before <= entries[0].time <= datetime.now(UTC)


def test_an_entry_is_json_and_back_without_its_place() -> None:
    entry = said("hello", 3, run_id="r", branch="a.b", agent="b").at("a conversation", 7)
    assert (entry.conversation_id, entry.position) == ("a conversation", 7)
    assert "a conversation" not in dump_entry(entry)
    assert load_entry(dump_entry(entry), entry.kind).at("a conversation", 7) == entry


def test_an_entry_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        said("hello").turn = 2


def test_an_entry_refuses_values_that_no_log_can_have() -> None:
    cases: dict[str, dict[str, Any]] = {
        "no turn": {"turn": 0},
        "a huge turn": {"turn": 1 << 31},
        "no id": {"id": ""},
        "a long id": {"id": "x" * 257},
        "a time without zone": {"time": datetime(2026, 1, 1)},
        "a branch that ends with a dot": {"branch": "a."},
        "a branch that begins with a dot": {"branch": ".a"},
        "a branch with two dots": {"branch": "a..b"},
        "a long branch": {"branch": "x" * 257},
        "an unknown field": {"colour": "red"},
    }

    def refuses(case: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            said("hello", **{"turn": 1, **case})

    check_each(cases, refuses)


def test_neither_the_repr_nor_an_error_of_an_entry_shows_its_content() -> None:
    entry = said("a-secret-text")
    compaction = CompactionEntry(
        turn=1, through=1, summary=(UserMessage("a-secret-text"),), trigger="tokens", strategy="summarize"
    )
    assert "a-secret-text" not in repr(entry) + repr(compaction) + str(entry)
    with pytest.raises(ValidationError) as caught:
        load_entry(
            '{"kind": "message", "turn": "a-secret-text", "message": {"role": "user", "parts": "a-secret-text"}}',
            "message",
        )
    assert "a-secret-text" not in str(caught.value)


def test_append_names_what_is_no_entry() -> None:
    repository = InMemoryChatMemoryRepository()
    entry = said("hello")
    cases: dict[str, tuple[Any, type[Exception], str]] = {
        "none": ([], ValueError, "must not be empty"),
        "one alone": (entry, TypeError, "a sequence of entries, not MessageEntry"),
        "a message": ([entry, UserMessage("hello")], TypeError, r"entries\[1\] must be a MessageEntry"),
        "one twice": ([entry, entry], ValueError, "the same id"),
    }

    def is_named(case: tuple[Any, type[Exception], str]) -> None:
        with pytest.raises(case[1], match=case[2]):
            repository.append("c", case[0], 0)

    check_each(cases, is_named)
    assert repository.version("c") == 0


def test_text_that_utf_8_cannot_encode_is_refused_without_quoting_it() -> None:
    result = ToolResultPart(call_id="c", name="t", content="a-secret-text \ud800")
    with pytest.raises(ValueError, match="UTF-8") as caught:
        InMemoryChatMemoryRepository().append("c", [MessageEntry(ToolMessage([result]), turn=1)], 0)
    assert "a-secret-text" not in str(caught.value)
    assert caught.value.__context__ is None
