"""Text that a person reads to decide: nothing is hidden, turned round or pushed out of sight."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traced_tools.core.readable import is_seen, readable_arguments, readable_json, readable_text

UNSEEN = {
    "C0": "\x00\x07\x08\x1b\x7f",
    "C1": "\x80\x85\x9b\x9f",
    "direction": "\u061c\u200e\u200f\u202a\u202d\u202e\u2066\u2069",
    "zero width": "\u200b\u200c\u200d\u2060\ufeff\u00ad",
    "lines": "\u2028\u2029",
    "spaces": "\u00a0\u2003\u3000",
    "fillers": "\u034f\u115f\u1160\u17b4\u180e\u2800\u3164\uffa0",
    "selectors": "\ufe00\ufe0f\U000e0100\U000e01ef",
    "tags": "\U000e0001\U000e0041",
    "private": "\ue000\U0010fffd",
    "surrogates": "\ud800\udfff",
}
anything = st.text(st.characters(exclude_categories=[]) | st.sampled_from("".join(UNSEEN.values())), max_size=300)


@pytest.mark.parametrize("kind", UNSEEN)
def test_unseen_characters_are_written_out(kind: str) -> None:
    for character in UNSEEN[kind]:
        code = f"{ord(character):x}"
        assert not is_seen(character)
        assert code in readable_text(f"a{character}b", 10)
        assert json.loads(readable_json(json.dumps(character, ensure_ascii=False), 10)) == character
        assert readable_json(f'"{character}"', 10).isprintable()


def test_words_of_all_scripts_are_shown_as_they_are() -> None:
    for text in ("Straße 5 €", "東京", "Привет", "สวัสดี", "नमस्ते", "שלום", "مرحبا", "🚀"):
        assert readable_text(text, 50) == text


@given(anything)
def test_a_readable_text_has_one_line_and_says_how_long_the_text_is(text: str) -> None:
    shown = readable_text(text, 100)
    assert all(map(is_seen, shown))
    assert shown.endswith("characters)") == (len(text) > 100)


@given(st.dictionaries(anything, anything | st.lists(anything | st.integers()) | st.booleans()))
def test_readable_arguments_have_one_line_of_limited_length(arguments: dict[str, Any]) -> None:
    shown = readable_arguments(json.dumps(arguments))
    assert all(map(is_seen, shown))
    assert len(shown) < 2050


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=9) | st.none() | st.floats(allow_nan=False), max_size=5))
def test_short_arguments_keep_their_value(arguments: dict[str, Any]) -> None:
    assert json.loads(readable_arguments(json.dumps(arguments))) == arguments


def test_a_long_value_does_not_move_another_one_out_of_sight() -> None:
    arguments = {"a_note": "x" * 100_000, "nested": [{"note": "y" * 100_000}], "to": "Mallory"}
    shown = json.loads(readable_arguments(json.dumps(arguments)))
    assert shown["to"] == "Mallory"
    assert shown["a_note"] == "x" * 200 + "… (100,000 characters)"
    assert shown["nested"] == [{"note": "y" * 200 + "… (100,000 characters)"}]


def test_arguments_that_are_cut_as_a_whole_say_so() -> None:
    text = json.dumps({f"key_{number}": "x" * 50 for number in range(1000)})
    assert readable_arguments(text).endswith(f"… ({len(text):,} characters)")


def test_python_finds_all_characters_of_these_categories_unprintable() -> None:
    unseen = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    wrong = [code for code in range(0x110000) if unicodedata.category(chr(code)) in unseen and is_seen(chr(code))]
    assert wrong == []
