"""What a tool returned, as the model reads it.

Numbers such as B145 are those of the reference behaviours this package is compared with.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import traceback
from array import array
from base64 import b64decode
from collections import ChainMap, OrderedDict, UserDict, deque, namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer

from traced_tools.messages import ImagePart, TextPart
from traced_tools.tools.conversion import (
    MOST_ITEMS,
    Collected,
    ToolContent,
    acollect,
    collect,
    content_of,
    converted,
    shortened,
)

MARKER = "mArKeR-in-the-value"
IMAGE = ImagePart(data=b"12345", media_type="image/png")
OTHER = ImagePart(url="https://example.org/a.png")
SIGNED = {
    "image/png": b"\x89PNG\r\n\x1a\n....",
    "image/jpeg": b"\xff\xd8\xff\xe0....",
    "image/gif": b"GIF89a....",
    "image/webp": b"RIFF\n\x00\x00\x00WEBPVP8 ",
}


class Colour(Enum):
    """An enumeration of anything."""

    RED = "red"


class Plain(str, Enum):  # noqa: UP042
    """An enumeration of text, made the old way."""

    RED = "red"


class Modern(StrEnum):
    """An enumeration of text."""

    RED = "red"


class Person(BaseModel):
    """A model with an alias and a serializer of its own."""

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


class Stranger:
    """What JSON has no form for."""

    def __repr__(self) -> str:
        return MARKER


Pair = namedtuple("Pair", "first second")


def text_of(value: Any) -> str:
    """The text of a value that has no images."""
    content = content_of(value)
    assert content.images == ()
    return content.text


# Text and nothing.


def test_b145_none_of_a_function_that_returns_nothing_is_done_and_other_none_is_null() -> None:
    assert content_of(None, returns_nothing=True) == ToolContent("Done")
    assert content_of(None) == ToolContent("null")
    assert content_of(0, returns_nothing=True) == ToolContent("0")


@pytest.mark.parametrize("text", ["", "plain", 'with "quotes"', "{}", "line\nbreak", "ü\u2028😀", "\udcff"])
def test_b146_strings_reach_the_model_unquoted(text: str) -> None:
    assert text_of(text) == text


@pytest.mark.parametrize("text", [Modern.RED, Plain.RED, type("Markup", (str,), {})("red")])
def test_text_of_a_class_of_its_own_becomes_plain_text(text: str) -> None:
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
def test_b147_models_mappings_and_collections_become_json_and_empty_ones_empty_json(value: Any, expected: str) -> None:
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
def test_json_data_comes_back_as_it_was(value: Any) -> None:
    assert json.loads(text_of(value)) == value


@given(st.lists(wild_data, max_size=4))
def test_any_mixture_of_bytes_and_undecodable_text_is_json_that_utf8_can_hold(value: Any) -> None:
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
def test_what_utf8_cannot_hold_is_replaced_inside_data(value: Any, expected: str) -> None:
    assert text_of(value) == expected


def test_a_models_bytes_are_what_the_model_says() -> None:
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
    """Its serializer quotes what it could not write."""

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
def test_a_value_that_json_cannot_hold_is_an_error_that_names_its_type(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(TypeError) as caught:
        content_of(make())
    assert str(caught.value) == (
        f"returned {named}, which cannot be written as JSON: "
        "return str, a pydantic model, a dataclass or plain data, or give result_converter="
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


# Bytes and images.


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_text_where_they_decode_and_base64_where_not(kind: Callable[[bytes], Any]) -> None:
    assert text_of(kind("grün".encode())) == "grün"
    assert text_of(kind(b"")) == ""
    assert b64decode(text_of(kind(b"\xff\x00")), validate=True) == b"\xff\x00"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("media_type", SIGNED)
def test_bytes_that_begin_like_an_image_are_an_image(media_type: str, kind: Callable[[bytes], Any]) -> None:
    data = SIGNED[media_type]
    expected = ImagePart(data=data, media_type=media_type)
    assert content_of(kind(data)) == (f"[{media_type}, {len(data)} bytes]", (expected,))


@pytest.mark.parametrize("data", [b"RIFF\n\x00\x00\x00WAVEfmt ", b"PNG", b"GIF", b"RIFF", b"\x0a\x89PNG\r\n\x1a\n"])
def test_other_bytes_are_no_image(data: bytes) -> None:
    assert content_of(data).images == ()


def test_large_images_are_named_with_their_size() -> None:
    assert content_of(SIGNED["image/gif"].ljust(12_345)).text == "[image/gif, 12,345 bytes]"


def test_b148_an_image_becomes_a_png_part_that_decodes_to_the_same_image() -> None:
    pillow = pytest.importorskip("PIL.Image")
    image = pillow.new("RGBA", (3, 2), (10, 20, 30, 40))
    image.putpixel((1, 1), (200, 100, 50, 255))
    text, (part,) = content_of(image)
    data = part.data or b""
    assert part.media_type == "image/png"
    assert text == f"[image/png, {len(data)} bytes]"
    with pillow.open(io.BytesIO(data)) as decoded:
        assert (decoded.format, decoded.mode, decoded.size) == ("PNG", "RGBA", (3, 2))
        assert decoded.tobytes() == image.tobytes()


@pytest.mark.parametrize(
    ("mode", "written"),
    [
        *((mode, mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
        *((mode, "RGB") for mode in ("RGBX", "CMYK", "YCbCr", "HSV", "LAB", "F")),
        *((mode, "RGBA") for mode in ("PA", "RGBa")),
        ("La", "LA"),
        ("I", "I;16"),
    ],
)
def test_an_image_of_any_mode_becomes_the_png_that_shows_it_best(mode: str, written: str) -> None:
    pillow = pytest.importorskip("PIL.Image")
    image = pillow.new(mode, (4, 3), 1)
    (part,) = content_of(image).images
    with pillow.open(io.BytesIO(part.data or b"")) as decoded:
        assert (decoded.mode, decoded.size) == (written, (4, 3))
        assert mode != written or decoded.tobytes() == image.tobytes()


def test_images_are_recognised_without_importing_what_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(TypeError, match="Stranger"):
        content_of(Stranger())
    assert "PIL.Image" not in sys.modules


# Parts.


@pytest.mark.parametrize("kind", [list, tuple, Collected])
def test_parts_are_texts_joined_by_newlines_with_the_images_in_order(kind: Callable[[list[Any]], Any]) -> None:
    assert content_of(kind([TextPart("a"), OTHER, "b", IMAGE])) == ("a\nb", (OTHER, IMAGE))
    assert content_of(kind(["a", TextPart("b")])) == ("a\nb", ())


def test_a_part_alone_is_itself() -> None:
    assert content_of(TextPart('"a"')) == ToolContent('"a"')
    assert content_of(IMAGE) == ToolContent("[image/png, 5 bytes]", (IMAGE,))


def test_images_without_text_are_named_in_the_text() -> None:
    assert content_of([IMAGE, OTHER]) == ("[image/png, 5 bytes]\n[image]", (IMAGE, OTHER))


def test_content_is_itself() -> None:
    assert content_of(ToolContent("a", (IMAGE,))) == ToolContent("a", (IMAGE,))
    assert content_of(ToolContent("a")) == ToolContent("a")


def test_parts_among_data_are_data() -> None:
    assert json.loads(text_of([TextPart("a"), 1])) == [{"type": "text", "text": "a"}, 1]
    assert json.loads(text_of({"image": IMAGE}))["image"]["media_type"] == "image/png"


def test_the_repr_of_content_shows_its_shape_only() -> None:
    assert repr(ToolContent(MARKER, (IMAGE,))) == f"<ToolContent: {len(MARKER)} characters, 1 images>"


# What a result converter returned.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", ToolContent("a")),
        (Modern.RED, ToolContent("red")),
        (TextPart("a"), ToolContent("a")),
        (IMAGE, ToolContent("[image/png, 5 bytes]", (IMAGE,))),
        (["a", "b"], ToolContent("a\nb")),
        (("a", IMAGE, TextPart("b")), ToolContent("a\nb", (IMAGE,))),
        ([], ToolContent("")),
        (ToolContent("a", (IMAGE,)), ToolContent("a", (IMAGE,))),
    ],
)
def test_a_converter_may_return_text_parts_and_lists_of_them(value: Any, expected: ToolContent) -> None:
    assert converted(value, "draw") == expected


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (3, " must be a str, a TextPart, an ImagePart or a list of these, not int"),
        (None, " must be a str, a TextPart, an ImagePart or a list of these, not None"),
        ({"a": MARKER}, " must be a str, a TextPart, an ImagePart or a list of these, not dict"),
        (b"bytes", " must be a str, a TextPart, an ImagePart or a list of these, not bytes"),
        (["a", {"a": MARKER}], "[1] must be a str, a TextPart or an ImagePart, not dict"),
        (ToolContent("a", (b"png",)), "[1] must be a str, a TextPart or an ImagePart, not bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_else_a_converter_returns_is_an_error_that_names_the_tool_and_the_type(value: Any, says: str) -> None:
    with pytest.raises(TypeError) as caught:
        converted(value, "draw")
    assert str(caught.value) == f"what the result_converter of draw returns{says}"


# Iterators.


class Numbers:
    """Counts, in blocking code and on asyncio, and tells what was taken and whether it was closed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.closed = False

    def each(self) -> Iterator[int]:
        try:
            yield from range(self.most)
        finally:
            self.closed = True

    async def aeach(self) -> AsyncIterator[int]:
        try:
            for number in range(self.most):
                yield number
        finally:
            await asyncio.sleep(0)
            self.closed = True

    def collected(self, way: str) -> Collected:
        return collect(self.each()) if way == "collect" else asyncio.run(self._acollected())

    async def _acollected(self) -> Collected:
        """Collect, and let nothing but the collecting itself close the iterator."""
        items = self.aeach()
        found = await acollect(items)
        assert self.closed
        return found


WAYS = ("collect", "acollect")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("most", [0, 1, MOST_ITEMS])
def test_an_iterator_of_few_items_is_collected_whole(most: int, way: str) -> None:
    found = Numbers(most).collected(way)
    assert (found, found.cut) == (list(range(most)), False)
    assert text_of(found) == text_of(list(range(most)))


@pytest.mark.parametrize("way", WAYS)
def test_an_iterator_of_more_items_is_cut_and_closed(way: str) -> None:
    numbers = Numbers(MOST_ITEMS + 1)
    found = numbers.collected(way)
    assert (found, found.cut, numbers.closed) == (list(range(MOST_ITEMS)), True, True)


def test_an_endless_iterator_that_cannot_be_closed_is_cut() -> None:
    found = collect(count())
    assert (len(found), found.cut) == (MOST_ITEMS, True)


def test_an_endless_iterator_on_asyncio_that_cannot_be_closed_is_cut() -> None:
    class Endless:
        def __aiter__(self) -> Endless:
            return self

        async def __anext__(self) -> int:
            return 1

    found = asyncio.run(acollect(Endless()))
    assert (len(found), found.cut) == (MOST_ITEMS, True)


def test_the_model_reads_that_items_are_missing() -> None:
    data, _, mark = text_of(collect(count())).rpartition("\n")
    assert json.loads(data) == list(range(MOST_ITEMS))
    assert mark == "[cut: only the first 1,000 items are shown]"


def test_the_model_reads_that_parts_are_missing() -> None:
    content = content_of(collect(TextPart(str(number)) for number in count()))
    assert content.text.endswith("998\n999\n[cut: only the first 1,000 items are shown]")


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_of_an_iterator_passes_through(way: str) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise LookupError("gone")

    async def afailing() -> AsyncIterator[int]:
        yield 1
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        collect(failing()) if way == "collect" else asyncio.run(acollect(afailing()))


# Shortened.


def test_a_text_that_fits_is_the_same_object() -> None:
    content = ToolContent("x" * 50, (IMAGE,))
    assert shortened(content, 50) is content


def test_a_cut_text_ends_in_a_line_that_says_so_and_keeps_its_images() -> None:
    short, images = shortened(ToolContent("x" * 2_345_678, (IMAGE,)), 100_000)
    text, mark = short.split("\n")
    assert mark == f"[cut: {len(text):,} of 2,345,678 characters are shown]"
    assert 99_990 <= len(short) <= 100_000
    assert images == (IMAGE,)


@given(st.text(max_size=300), st.integers(0, 300))
def test_a_shortened_text_keeps_the_limit_and_is_a_beginning(text: str, most: int) -> None:
    short = shortened(ToolContent(text), most)
    beginning, found, mark = short.text.rpartition("\n[cut: ")
    assert len(short.text) <= most
    assert shortened(short, most) is short
    if short.text != text and found:
        assert text.startswith(beginning)
        assert mark == f"{len(beginning):,} of {len(text):,} characters are shown]"
    else:  # it fits, or there is no room for the mark
        assert text.startswith(short.text)
