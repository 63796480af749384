"""Digests of contents: equal for what is the same JSON, different for anything else, and silent about the key."""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import pickle
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.trails import KEY
from traced_tools.audit.digests import AuditKey
from traced_tools.core.canonical import canonical_json, canonical_text
from traced_tools.core.tool_definition import ToolDefinition, definition_digest
from traced_tools.errors import ConfigurationError

OTHER = AuditKey(b"another key, as long as the one")
PLAIN = AuditKey(KEY)

texts = st.text(st.characters(exclude_categories=["Cs"]))
wild = st.text(st.characters())
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any) -> Any:
    """The same value with the keys of its objects the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(each) for each in value] if isinstance(value, list) else value


@given(values)
def test_a_value_has_one_digest_for_all_ways_to_write_its_json(value: Any) -> None:
    first = PLAIN.content(json.dumps(value), is_json=True)
    for text in (json.dumps(shuffled(value), indent=3, ensure_ascii=False), f" \n{json.dumps(value)}\t"):
        again = PLAIN.content(text, is_json=True)
        assert (again["digest"], again["form"]) == (first["digest"], "json")
        assert PLAIN.matches(first, text)


@given(values)
def test_the_canonical_form_is_the_one_of_rfc8785(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert canonical_json(text) == rfc8785.dumps(json.loads(text))
    assert canonical_json(json.dumps(value)) == rfc8785.dumps(json.loads(text))
    assert canonical_text(json.loads(text)).encode() == rfc8785.dumps(json.loads(text))


@pytest.mark.parametrize("number", [0.0001, 9.999e-5, 1e-7, 0.1 + 0.2, 123456789012345.6, 1e15 + 0.5, 1e16, 1e21, -0.0])
def test_a_number_is_written_as_rfc8785_does(number: float) -> None:
    for text in (repr(number), f"{number:.20e}", repr(-number)):
        assert canonical_json(f"[{text}]") == rfc8785.dumps([float(text)])
        assert canonical_text([float(text)]).encode() == rfc8785.dumps([float(text)])


@pytest.mark.parametrize("keys", ["\ue000\U00010000", "\uffff\U0010ffff", "é\ud7ff\ue000", "z\x7f\x80"])
def test_keys_are_sorted_as_rfc8785_does(keys: str) -> None:
    value = dict.fromkeys(keys, 1)
    for escaped in (True, False):
        assert canonical_json(json.dumps(value, ensure_ascii=escaped)) == rfc8785.dumps(value)
    assert canonical_text(value).encode() == rfc8785.dumps(value)


@given(values)
def test_a_canonical_text_is_its_own_canonical_form(value: Any) -> None:
    canonical = canonical_text(value)
    assert canonical_json(canonical) == canonical_json(str(canonical))


@pytest.mark.parametrize("value", [2**53 + 1, -(10**30), "\ud800"])
def test_a_value_beyond_the_canonical_form_is_written_with_sorted_keys(value: Any) -> None:
    assert canonical_text({"b": 1, "a": value}) == f'{{"a":{json.dumps(value)},"b":1}}'


@given(values, values)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    first, second = (PLAIN.content(json.dumps(each), is_json=True)["digest"] for each in (one, other))
    assert (first == second) == (rfc8785.dumps(one) == rfc8785.dumps(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
        ('{"days": 1.0}', '{"days": 1}'),
        ("1e2", "100"),
        ('"\\u00e9\\/"', '"é/"'),
        ("-0", "0.0"),
        ('{"\\u0061": 1}', '{"a": 1}'),
    ],
)
def test_equal_values_in_different_json_have_equal_digests(one: str, other: str) -> None:
    assert PLAIN.content(one, is_json=True)["digest"] == PLAIN.content(other, is_json=True)["digest"]
    assert PLAIN.matches(PLAIN.content(one, is_json=True), other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", '"1"'), ("[1, 2]", "[2, 1]"), ("null", "{}"), ('{"a": null}', "{}"), ("true", "1"), ('"é"', '"e\\u0301"')],
)
def test_different_json_values_do_not_match(one: str, other: str) -> None:
    content = PLAIN.content(one, is_json=True)
    assert PLAIN.content(other, is_json=True)["digest"] != content["digest"]
    assert not PLAIN.matches(content, other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "{",
        "NaN",
        "[Infinity]",
        "1e999",
        str(2**53),
        '{"a": 1, "a": 2}',
        '"\\ud800"',
        '{"\\udfff": 1}',
        "\ud800",
        "[" * 129 + "]" * 129,
        "[" * 100_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        "9" * 5_000,
        "[1] 2",
        "\ufeff{}",
    ],
)
def test_a_content_without_a_canonical_form_is_digested_as_text(text: str) -> None:
    content = PLAIN.content(text, is_json=True)
    assert content["form"] == "text"
    assert content == PLAIN.content(text)
    assert PLAIN.matches(content, text)
    assert not PLAIN.matches(content, text + " ")


def test_the_form_of_a_digest_does_not_depend_on_the_depth_of_the_stack() -> None:
    deepest = "[" * 128 + "]" * 128
    found: list[str] = []

    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
        else:
            found.append(PLAIN.content(deepest, is_json=True)["form"])

    descend(300)
    assert found == ["json"]


@given(wild)
def test_any_text_has_a_digest_and_a_size(text: str) -> None:
    written = text.encode("utf-8", "surrogatepass")
    expected = hmac.new(KEY, b"text\0" + written, hashlib.sha256).hexdigest()
    assert PLAIN.content(text) == {"digest": expected, "form": "text", "size": len(written), "key_id": PLAIN.id}


def test_the_digest_of_json_can_be_made_without_the_package() -> None:
    expected = hmac.new(KEY, b'json\0{"a":[1,"\xc3\xa9"],"b":null}', hashlib.sha256).hexdigest()
    assert PLAIN.content('{"b": null, "a": [1.0, "\\u00e9"]}', is_json=True)["digest"] == expected


def test_a_text_that_reads_as_json_is_not_the_same_content_as_the_json() -> None:
    assert PLAIN.content("{}")["digest"] != PLAIN.content("{}", is_json=True)["digest"]


def test_another_key_makes_another_digest_and_has_another_id() -> None:
    content = PLAIN.content("{}", is_json=True)
    assert OTHER.content("{}", is_json=True)["digest"] != content["digest"]
    assert not OTHER.matches(content, "{}")
    assert OTHER.id != PLAIN.id
    assert len(bytes.fromhex(PLAIN.id)) == 8


def test_a_key_reveals_nothing_about_itself() -> None:
    assert KEY.decode() not in repr(PLAIN)
    assert repr(PLAIN) == f"AuditKey(id={PLAIN.id!r})"
    with pytest.raises(TypeError):
        pickle.dumps(PLAIN)
    with pytest.raises(TypeError):
        copy.copy(PLAIN)


def test_a_short_key_is_refused() -> None:
    AuditKey(b"k" * 16)
    with pytest.raises(ConfigurationError, match="at least 16 bytes, it has 15"):
        AuditKey(b"k" * 15)


def test_a_definition_has_the_plain_digest_of_its_canonical_form() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    fields: dict[str, Any] = {"name": "get_weather", "description": "Look it up.", "input_schema": schema}
    expected = hashlib.sha256(rfc8785.dumps(fields)).hexdigest()
    assert definition_digest(ToolDefinition(**fields)) == expected
    assert definition_digest(ToolDefinition(**{**fields, "description": "Look it up!"})) != expected


def test_a_definition_without_a_canonical_form_has_a_digest_too() -> None:
    wide = [ToolDefinition(name="wide", input_schema={"maximum": 2**63 - each, "default": {1}}) for each in (1, 1, 2)]
    found = [definition_digest(each) for each in wide]
    assert found[0] == found[1] != found[2]


def test_plain_json_is_canonicalized_without_rfc8785(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rfc8785, "dumps", None)
    assert canonical_json('{"b": [1, true, null], "a": "x"}') == b'{"a":"x","b":[1,true,null]}'
    assert canonical_json('{"ü": -0.25, "b": 2.50}') == '{"b":2.5,"ü":-0.25}'.encode()
