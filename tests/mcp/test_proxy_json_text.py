"""JSON text that the gateway changes in place: what is not changed stays as it was written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traced_tools.mcp.proxy.json_text import is_ambiguous, read_json, text_at, with_member, with_members, without_member

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)
INDENTS = st.sampled_from([None, 0, 3])


@given(OBJECTS, st.text(max_size=3), VALUES, INDENTS)
def test_a_member_that_is_set_is_the_only_one_that_changes(
    value: dict[str, Any], key: str, member: Any, indent: int | None
) -> None:
    text = json.dumps(value, indent=indent)
    assert json.loads(with_member(text, (key,), json.dumps(member))) == {**value, key: member}


@given(OBJECTS, INDENTS, st.booleans())
def test_a_member_that_is_removed_is_the_only_one_that_goes(
    value: dict[str, Any], indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    for key in [*value, "no such key"]:
        rest = {name: member for name, member in value.items() if name != key}
        assert json.loads(without_member(text, (key,))) == rest
        assert text_at(text, (key,)) is None or json.loads(text_at(text, (key,)) or "") == value[key]


def test_the_text_around_a_member_stays() -> None:
    text = '{ "a" : 1.0e2, "\\u0062":{"c":[1 , 2]},"d":"\\/" }'
    assert with_member(text, ("b", "c"), "3") == '{ "a" : 1.0e2, "\\u0062":{"c":3},"d":"\\/" }'
    assert with_member(text, ("b", "e"), "3") == '{ "a" : 1.0e2, "\\u0062":{"e":3,"c":[1 , 2]},"d":"\\/" }'
    assert with_member(text, ("e", "f"), "3") == '{"e":{"f":3}, "a" : 1.0e2, "\\u0062":{"c":[1 , 2]},"d":"\\/" }'
    assert with_members(text, (), {"a": None, "d": "4"}) == '{ "\\u0062":{"c":[1 , 2]},"d":4 }'
    assert without_member(text, ("d",)) == '{ "a" : 1.0e2, "\\u0062":{"c":[1 , 2]} }'


def test_a_key_that_an_object_has_twice_is_noticed_at_any_depth() -> None:
    assert not is_ambiguous(read_json(b'{"a":[{"b":1},{"b":1}]}')[1])
    assert is_ambiguous(read_json(b'{"a":[{"b":1,"\\u0062":2}]}')[1])


@pytest.mark.parametrize("data", [b"{", b'{"a":NaN}', b"\xff", b"[" * 100_000, b"\xef\xbb\xbf{}", b"{} {}"])
def test_text_that_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_json(data)
