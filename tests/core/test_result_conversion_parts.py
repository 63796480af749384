"""The conversion of bytes, images and parts, from a tool or its converter."""

from __future__ import annotations

import io
import json
import sys
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest

from tests.markers import MARKER
from tests.tools.returned import IMAGE, Modern, Stranger, text_of
from traced_tools.core.messages import ImagePart, TextPart
from traced_tools.core.result_conversion import Collected, ToolContent, content_from_converter, content_of

OTHER = ImagePart(url="https://example.org/a.png")
SIGNED = {
    "image/png": b"\x89PNG\r\n\x1a\n....",
    "image/jpeg": b"\xff\xd8\xff\xe0....",
    "image/gif": b"GIF89a....",
    "image/webp": b"RIFF\n\x00\x00\x00WEBPVP8 ",
}


# Bytes and images.


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_become_text_if_they_decode_and_base64_otherwise(kind: Callable[[bytes], Any]) -> None:
    assert text_of(kind("grün".encode())) == "grün"
    assert text_of(kind(b"")) == ""
    assert b64decode(text_of(kind(b"\xff\x00")), validate=True) == b"\xff\x00"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("media_type", SIGNED)
def test_bytes_with_an_image_signature_become_an_image(media_type: str, kind: Callable[[bytes], Any]) -> None:
    data = SIGNED[media_type]
    expected = ImagePart(data=data, media_type=media_type)
    assert content_of(kind(data)) == (f"[{media_type}, {len(data)} bytes]", (expected,))


@pytest.mark.parametrize("data", [b"RIFF\n\x00\x00\x00WAVEfmt ", b"PNG", b"GIF", b"RIFF", b"\x0a\x89PNG\r\n\x1a\n"])
def test_bytes_without_an_image_signature_are_not_an_image(data: bytes) -> None:
    assert content_of(data).images == ()


def test_the_description_of_a_large_image_has_its_size() -> None:
    assert content_of(SIGNED["image/gif"].ljust(12_345)).text == "[image/gif, 12,345 bytes]"


def test_an_image_becomes_a_png_part_that_decodes_to_the_same_image() -> None:
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


def test_images_are_recognised_without_importing_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(TypeError, match="Stranger"):
        content_of(Stranger())
    assert "PIL.Image" not in sys.modules


# Parts.


@pytest.mark.parametrize("kind", [list, tuple, Collected])
def test_parts_are_texts_joined_by_newlines_with_the_images_in_order(kind: Callable[[list[Any]], Any]) -> None:
    assert content_of(kind([TextPart("a"), OTHER, "b", IMAGE])) == ("a\nb", (OTHER, IMAGE))
    assert content_of(kind(["a", TextPart("b")])) == ("a\nb", ())


def test_a_single_part_becomes_content_unchanged() -> None:
    assert content_of(TextPart('"a"')) == ToolContent('"a"')
    assert content_of(IMAGE) == ToolContent("[image/png, 5 bytes]", (IMAGE,))


def test_images_without_text_are_described_in_the_text() -> None:
    assert content_of([IMAGE, OTHER]) == ("[image/png, 5 bytes]\n[image]", (IMAGE, OTHER))


def test_tool_content_stays_as_it_is() -> None:
    assert content_of(ToolContent("a", (IMAGE,))) == ToolContent("a", (IMAGE,))
    assert content_of(ToolContent("a")) == ToolContent("a")


def test_parts_among_data_are_data() -> None:
    assert json.loads(text_of([TextPart("a"), 1])) == [{"type": "text", "text": "a"}, 1]
    assert json.loads(text_of({"image": IMAGE}))["image"]["media_type"] == "image/png"


def test_the_repr_of_content_shows_only_its_size() -> None:
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
    assert content_from_converter(value, "draw") == expected


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
def test_another_value_from_a_converter_raises_an_error_that_names_the_tool_and_the_type(value: Any, says: str) -> None:
    with pytest.raises(TypeError) as caught:
        content_from_converter(value, "draw")
    assert str(caught.value) == f"what the result_converter of draw returns{says}"
