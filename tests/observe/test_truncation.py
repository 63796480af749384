"""Content cut to a size is plain JSON that every exporter can carry."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traced_tools.observe.truncation import DEEPEST, fitted, shortened

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8), max_leaves=40
)


@given(JSON, st.integers(256, 2000))
def test_whatever_is_fitted_is_no_larger_than_asked_and_is_plain_json(value: Any, most: int) -> None:
    made = fitted(value, most)
    assert len(made.text.encode()) <= most
    assert json.loads(made.text) == made.value
    assert_carried(made.value)


def assert_carried(value: Any, depth: int = 0) -> None:
    """OTLP can carry it: 64 bits, UTF-8, named keys, shallow."""
    assert depth <= DEEPEST
    if isinstance(value, dict):
        assert all(isinstance(key, str) and key for key in value)
        for each in value.values():
            assert_carried(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            assert_carried(each, depth + 1)
    elif isinstance(value, int):
        assert -(2**63) <= value < 2**63
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, str):
        value.encode()
    else:
        assert value is None


@given(st.recursive(st.booleans() | st.integers(-9, 9) | st.text("abc"), st.lists, max_leaves=10))
def test_what_fits_is_left_as_it_is(value: Any) -> None:
    assert fitted(value, 100_000) == (value, json.dumps(value), False)


def test_long_texts_are_shortened_before_anything_is_left_out() -> None:
    made = fitted({"a": "x" * 5000, "b": "y" * 5000, "c": 1}, 1000)
    assert made.cut
    assert set(made.value) == {"a", "b", "c"}
    assert made.value["a"] in "x" * 5000
    assert len(made.value["a"]) > 200


def test_a_list_keeps_what_is_newest() -> None:
    made = fitted([f"message {number} " + "z" * 300 for number in range(100)], 1000)
    assert made.cut
    assert made.value[-1].startswith("message 99")
    assert 2 <= len(made.value) < 100


def test_a_list_that_fits_as_a_whole_is_not_shortened() -> None:
    values = ["x" * 700, "y" * 200]
    assert fitted(values, 1000) == (values, json.dumps(values), False)


def test_a_single_large_item_uses_all_the_room_there_is() -> None:
    made = fitted(["x" * 5000], 1000)
    assert made.cut
    assert len(made.text) > 400


def test_of_what_has_too_many_parts_the_first_are_kept() -> None:
    made = fitted({f"key {number}": number for number in range(1000)}, 500)
    assert made.cut
    assert list(made.value.items())[:2] == [("key 0", 0), ("key 1", 1)]
    assert 250 < len(made.text) <= 500


def test_a_message_with_too_many_parts_is_still_a_message() -> None:
    made = fitted([{"role": "user", "parts": [{"type": "text", "content": "x"}] * 1000}], 500)
    (message,) = made.value
    assert message["role"] == "user"
    assert message["parts"][0] == {"type": "text", "content": "x"}
    assert made.cut


class Counted(Mapping[str, Any]):
    """As large as can be, and counts how much of it is looked at."""

    def __init__(self) -> None:
        self.seen = 0

    def __getitem__(self, key: str) -> Any:
        self.seen += 1
        return "some text"

    def __iter__(self) -> Iterator[str]:
        return (f"key {number}" for number in itertools.count())

    def __len__(self) -> int:
        return sys.maxsize


def test_no_more_of_a_value_is_looked_at_than_could_fit() -> None:
    endless = Counted()
    assert fitted(endless, 8192).cut
    assert endless.seen < 20_000


def test_a_value_that_holds_itself_many_times_over_is_cut() -> None:
    value: Any = "x"
    for _ in range(60):
        value = [value, value, value]
    made = fitted({"deep": value}, 1000)
    assert made.cut
    assert len(made.text) <= 1000


@pytest.mark.parametrize("wild", [object(), b"bytes", {1, 2}, {"in": [object()]}])
def test_what_is_no_json_is_refused_without_being_quoted(wild: Any) -> None:
    with pytest.raises(TypeError, match=r"^content must be JSON, not \w+$"):
        fitted(wild, 1000)


@given(st.text(), st.integers(0, 50))
def test_a_shortened_text_is_a_beginning_in_utf_8(text: str, most: int) -> None:
    short, cut = shortened(text, most)
    assert len(short.encode()) <= most
    assert cut is (len(text.encode("utf-8", "replace")) > most)
    assert text.encode("utf-8", "replace").decode().startswith(short)


def test_half_a_character_pair_does_not_break_a_text() -> None:
    assert shortened("a\ud800b", 10) == ("a?b", False)
