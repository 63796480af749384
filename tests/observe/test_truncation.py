"""Truncated content is plain JSON that every exporter can encode."""

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

from traced_tools.observe.truncation import MAX_DEPTH, Item, truncate_json, truncate_utf8

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8), max_leaves=40
)


@given(JSON, st.integers(256, 2000))
def test_truncated_content_is_plain_json_within_the_limit(value: Any, most: int) -> None:
    made = truncate_json(value, most)
    assert len(made.text.encode()) <= most
    assert json.loads(made.text) == made.value
    assert_carried(made.value)


def assert_carried(value: Any, depth: int = 0) -> None:
    """OTLP can carry it: 64 bits, UTF-8, named keys, shallow."""
    assert depth <= MAX_DEPTH
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
def test_content_within_the_limit_is_unchanged(value: Any) -> None:
    assert truncate_json(value, 100_000) == (value, json.dumps(value), False)


@given(JSON, st.integers(256, 2000), st.integers(0, 2000))
def test_an_item_knows_the_smallest_limit_within_which_it_is_whole(value: Any, most: int, less: int) -> None:
    limit = min(most, less)
    assert (Item(value, most).least <= limit) == (Item(value, limit).whole is not None)


def test_texts_are_truncated_before_items_are_removed() -> None:
    made = truncate_json({"a": "x" * 5000, "b": "y" * 5000, "c": 1}, 1000)
    assert made.cut
    assert set(made.value) == {"a", "b", "c"}
    assert made.value["a"] in "x" * 5000
    assert len(made.value["a"]) > 200


def test_a_list_keeps_its_last_items() -> None:
    made = truncate_json([f"message {number} " + "z" * 300 for number in range(100)], 1000)
    assert made.cut
    assert made.value[-1].startswith("message 99")
    assert 2 <= len(made.value) < 100


def test_a_list_within_the_limit_is_unchanged() -> None:
    values = ["x" * 700, "y" * 200]
    assert truncate_json(values, 1000) == (values, json.dumps(values), False)


def test_a_single_large_item_uses_the_whole_limit() -> None:
    made = truncate_json(["x" * 5000], 1000)
    assert made.cut
    assert len(made.text) > 400


def test_a_mapping_with_too_many_items_keeps_the_first() -> None:
    made = truncate_json({f"key {number}": number for number in range(1000)}, 500)
    assert made.cut
    assert list(made.value.items())[:2] == [("key 0", 0), ("key 1", 1)]
    assert 250 < len(made.text) <= 500


def test_a_truncated_message_keeps_its_structure() -> None:
    made = truncate_json([{"role": "user", "parts": [{"type": "text", "content": "x"}] * 1000}], 500)
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


def test_no_more_of_a_value_is_read_than_fits() -> None:
    endless = Counted()
    assert truncate_json(endless, 8192).cut
    assert endless.seen < 20_000


def test_a_deeply_nested_value_is_truncated() -> None:
    value: Any = "x"
    for _ in range(60):
        value = [value, value, value]
    made = truncate_json({"deep": value}, 1000)
    assert made.cut
    assert len(made.text) <= 1000


@pytest.mark.parametrize("wild", [object(), b"bytes", {1, 2}, {"in": [object()]}])
def test_a_value_that_is_not_json_is_refused_and_not_quoted(wild: Any) -> None:
    with pytest.raises(TypeError, match=r"^content must be JSON, not \w+$"):
        truncate_json(wild, 1000)


@given(st.text(), st.integers(0, 50))
def test_a_truncated_text_is_a_valid_utf_8_prefix(text: str, most: int) -> None:
    short, cut = truncate_utf8(text, most)
    assert len(short.encode()) <= most
    assert cut is (len(text.encode("utf-8", "replace")) > most)
    assert text.encode("utf-8", "replace").decode().startswith(short)


def test_a_lone_surrogate_is_replaced() -> None:
    assert truncate_utf8("a\ud800b", 10) == ("a?b", False)
