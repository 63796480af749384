"""The conversion of a tool's value into what the model reads.

Numbers such as B145 are those of the reference behaviours this package is compared with.
"""

from __future__ import annotations

import io
import json
import traceback
from array import array
from collections import ChainMap, OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer

from tests.markers import MARKER
from tests.tools.returned import Modern, Stranger, text_of
from traced_tools.core.result_conversion import Collected, ToolContent, content_of


class Colour(Enum):
    """An enumeration of anything."""

    RED = "red"


class Plain(str, Enum):  # noqa: UP042
    """An enumeration of texts that inherits from str."""

    RED = "red"


class Person(BaseModel):
    """A model with an alias and a custom serializer."""

    name: str
    born: date = Field(default=date(1815, 12, 10), alias="birthDate")
    password: SecretStr = SecretStr(MARKER)

    @field_serializer("name")
    def _shout(self, name: str) -> str:
        return name.upper()


@dataclass
class Point:
    """Plain data with a name."""

    x: int
    label: Any = None


Pair = namedtuple("Pair", "first second")


# Text and nothing.


def test_none_is_done_for_a_function_annotated_none_and_null_for_others() -> None:
    assert content_of(None, returns_nothing=True) == ToolContent("Done")
    assert content_of(None) == ToolContent("null")
    assert content_of(0, returns_nothing=True) == ToolContent("0")


@pytest.mark.parametrize("text", ["", "plain", 'with "quotes"', "{}", "line\nbreak", "ü\u2028😀", "\udcff"])
def test_strings_reach_the_model_unquoted(text: str) -> None:
    assert text_of(text) == text


@pytest.mark.parametrize("text", [Modern.RED, Plain.RED, type("Markup", (str,), {})("red")])
def test_text_of_a_subclass_of_str_becomes_plain_text(text: str) -> None:
    assert text_of(text) == "red"
    assert type(text_of(text)) is str


# JSON.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Person(name="Ada"), '{"name":"ADA","birthDate":"1815-12-10","password":"**********"}'),
        (Point(1), '{"x":1,"label":null}'),
        ({"a": [1, 2.5, True, None]}, '{"a":[1,2.5,true,null]}'),
        (OrderedDict(a=1), '{"a":1}'),
        (MappingProxyType({"a": range(2)}), '{"a":[0,1]}'),
        (UserDict(a=1), '{"a":1}'),
        (ChainMap({"a": 1}), '{"a":1}'),
        ({"a": 1}.keys(), '["a"]'),
        ({"a": 1}.values(), "[1]"),
        ({"a": 1}.items(), '[["a",1]]'),
        (["a", "b"], '["a","b"]'),
        ({7}, "[7]"),
        (frozenset({7}), "[7]"),
        (deque([1]), "[1]"),
        (Pair(1, "two"), '[1,"two"]'),
        (array("i", [1, 2]), "[1,2]"),
        ([], "[]"),
        ((), "[]"),
        (set(), "[]"),
        ({}, "{}"),
        (Collected(), "[]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_mappings_and_collections_become_json_and_empty_ones_empty_json(value: Any, expected: str) -> None:
    assert text_of(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "5"),
        (True, "true"),
        (1.5, "1.5"),
        (10**30, "1" + "0" * 30),
        (float("nan"), "null"),
        ([float("inf")], "[null]"),
        (Colour.RED, '"red"'),
        ([Modern.RED], '["red"]'),
        (datetime(2024, 5, 1, tzinfo=UTC), '"2024-05-01T00:00:00Z"'),
        (timedelta(hours=1), '"PT1H"'),
        (Decimal("1.10"), '"1.10"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Path("/a/b"), '"/a/b"'),
        ({1: "a", (1, 2): "b", date(2024, 5, 1): "c"}, '{"1":"a","1,2":"b","2024-05-01":"c"}'),
    ],
    ids=repr,
)
def test_everything_else_is_json(value: Any, expected: str) -> None:
    assert text_of(value) == expected


json_data = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.none(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
)
wild_text = st.text(st.characters(), max_size=10)
wild_data = st.recursive(
    st.floats() | wild_text | st.binary(max_size=10) | wild_text.map(Path) | wild_text.map(lambda text: Point(1, text)),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.dictionaries(wild_text | st.binary(max_size=10), inner, max_size=5)
        | inner.map(lambda value: MappingProxyType({"a": value}))
    ),
)


@given(json_data.filter(lambda value: not isinstance(value, str)))
def test_json_data_survives_a_round_trip(value: Any) -> None:
    assert json.loads(text_of(value)) == value


@given(st.lists(wild_data, max_size=4))
def test_any_mixture_of_bytes_and_undecodable_text_becomes_valid_utf8_json(value: Any) -> None:
    text = text_of(value)
    assert len(json.loads(text.encode())) == len(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["caf\udce9"], '["caf?"]'),
        ({"caf\udce9": "\udce9"}, '{"caf?":"?"}'),
        ({(1, "\udce9"): float("nan")}, '{"1,?":null}'),
        ([Point(1, "\udce9"), float("nan")], '[{"x":1,"label":"?"},null]'),
        ({"person": Person(name="\udce9")}, '{"person":{"name":"?","birthDate":"1815-12-10","password":"**********"}}'),
        ([b"text", bytearray(b"text"), memoryview(b"text")], '["text","text","text"]'),
        ({b"key": b"text", "other": b"\xff"}, '{"key":"text","other":"/w=="}'),
        ([memoryview(b"\xff"), b"\xfb\xff"], '["/w==","+/8="]'),
        ([Point(1, b"\xff")], '[{"x":1,"label":"_w=="}]'),
    ],
)
def test_text_that_utf8_cannot_encode_is_replaced_inside_data(value: Any, expected: str) -> None:
    assert text_of(value) == expected


def test_bytes_in_a_pydantic_model_are_written_as_its_settings_say() -> None:
    class Encoded(BaseModel):
        model_config = ConfigDict(ser_json_bytes="hex")

        raw: bytes

    class Bare(BaseModel):
        raw: bytes

    assert text_of(Encoded(raw=b"\xff")) == '{"raw":"ff"}'
    assert text_of(Bare(raw=b"text")) == '{"raw":"text"}'
    with pytest.raises(TypeError, match="returned a Bare"):
        content_of(Bare(raw=b"\xff"))


# What JSON cannot hold.


class Failing(BaseModel):
    """Its serializer quotes the value in its error."""

    name: str = MARKER

    @field_serializer("name")
    def _fail(self, name: str) -> str:
        raise ValueError(name)


def cyclic_list() -> list[Any]:
    value: list[Any] = [MARKER]
    value.append(value)
    return value


def cyclic_point() -> Point:
    value = Point(1)
    value.label = {MARKER: value}
    return value


def too_deep() -> list[Any]:
    value: list[Any] = [MARKER]
    for _ in range(100_000):
        value = [value]
    return value


def used_up() -> list[Any]:
    return [(MARKER for _ in range(3)), b"\xff"]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (Stranger, "a Stranger"),
        (lambda: [{"a": Stranger()}], "a list holding a Stranger"),
        (lambda: Point(1, Stranger()), "a Point holding a Stranger"),
        (lambda: {Stranger(): 1}, "a dict holding a Stranger"),
        (lambda: Stranger, "a type"),
        (lambda: ValueError(MARKER), "a ValueError"),
        (lambda: io.StringIO(MARKER), "a StringIO"),
        (lambda: io.BytesIO(MARKER.encode()), "a BytesIO"),
        (Failing, "a Failing"),
        (cyclic_list, "a list"),
        (cyclic_point, "a Point"),
        (too_deep, "a list"),
        (used_up, "a list holding a generator"),
    ],
)
def test_a_value_that_json_cannot_represent_raises_an_error_that_names_its_type(
    make: Callable[[], Any], named: str
) -> None:
    with pytest.raises(TypeError) as caught:
        content_of(make())
    assert str(caught.value) == (
        f"returned {named}, which cannot be written as JSON: "
        "return str, a pydantic model, a dataclass or plain data, or pass result_converter="
    )
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert MARKER not in "".join(traceback.format_exception(caught.value))


def test_an_open_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("line\n")
    with path.open() as file:
        with pytest.raises(TypeError, match="returned a TextIOWrapper"):
            content_of(file)
        assert file.read() == "line\n"
