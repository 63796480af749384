"""Converts what a tool returned into what the model reads.

Text stays as it is, images stay images, everything else becomes JSON. Pydantic models are written by their own
serializers and with their field aliases, as in the schema of a tool that takes such a model.
"""

from __future__ import annotations

import io
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set, ValuesView
from typing import Any, NamedTuple

from pydantic_core import to_json, to_jsonable_python

from traced_tools.core.checks import expect, expect_each
from traced_tools.core.images import detect_image_type
from traced_tools.core.messages import ImagePart, TextPart, encodable

MOST_ITEMS = 1_000
"""The maximum number of items taken from an iterator."""

_DATA = frozenset({bool, dict, float, int})
_PARTS = (str, TextPart, ImagePart)
_COLLECTIONS = (Sequence, Set, ValuesView)
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B")
_NEAREST_PNG_MODE = {"PA": "RGBA", "RGBa": "RGBA", "La": "LA", "I": "I;16"}


class ToolContent(NamedTuple):
    """What the model reads of a tool's value: a text, and images if there are any."""

    text: str
    images: tuple[ImagePart, ...] = ()

    def __repr__(self) -> str:
        return f"<ToolContent: {len(self.text)} characters, {len(self.images)} images>"


ResultConverter = Callable[[Any], str | ToolContent | TextPart | ImagePart | list[str | TextPart | ImagePart]]


class Collected(list[Any]):
    """The first items of an iterator; `cut` is true if there were more."""

    cut = False


def content_of(value: Any, *, returns_nothing: bool = False) -> ToolContent:
    """Return what the model reads of a tool's value.

    Bytes with the signature of an image are an image. Other bytes are text: UTF-8 if they decode, else base64. Bytes
    inside data are always text. Bytes in a pydantic model are written as its `ser_json_bytes` setting says.

    Args:
        value: what the tool returned.
        returns_nothing: whether the tool is annotated `-> None`; None is then converted to `Done`.

    Raises:
        TypeError: if JSON cannot represent the value; the text contains only names of types.
    """
    if value is None:
        return ToolContent("Done" if returns_nothing else "null")
    kind = type(value)
    if kind is str:
        return ToolContent(value)
    if kind in _DATA:
        return ToolContent(_json(value))
    content = _content_of_object(value)
    if isinstance(value, Collected) and value.cut:
        return content._replace(text=f"{content.text}\n[cut: only the first {len(value):,} items are shown]")
    return content


def content_from_converter(value: Any, tool: str) -> ToolContent:
    """Return the content for the value that a `result_converter` returned.

    Args:
        value: a text, a part, a list or tuple of these, or a `ToolContent`.
        tool: the tool's name, for the error.

    Raises:
        TypeError: for any other value.
    """
    returned = f"what the result_converter of {tool} returns"
    if isinstance(value, list | tuple):
        expect_each(returned, _parts(value), _PARTS, "a str, a TextPart or an ImagePart")
    else:
        expect(returned, value, _PARTS, "a str, a TextPart, an ImagePart or a list of these")
    return _join_parts(_parts(value))


def collect(items: Iterator[Any]) -> Collected:
    """Take at most `MOST_ITEMS` items; an iterator that has more is closed, if it can be."""
    collected = Collected()
    for item in items:
        if len(collected) == MOST_ITEMS:
            collected.cut = True
            break
        collected.append(item)
    if collected.cut and hasattr(items, "close"):
        items.close()
    return collected


async def acollect(items: AsyncIterator[Any]) -> Collected:
    """Take at most `MOST_ITEMS` items; an iterator that has more is closed, if it can be."""
    collected = Collected()
    async for item in items:
        if len(collected) == MOST_ITEMS:
            collected.cut = True
            break
        collected.append(item)
    if collected.cut and hasattr(items, "aclose"):
        await items.aclose()
    return collected


def truncate_content(content: ToolContent, max_characters: int) -> ToolContent:
    """Return `content` with at most `max_characters` of text, including a notice if it is cut."""
    text = content.text
    if len(text) <= max_characters:
        return content
    length = max_characters - len(_cut_notice(max_characters, len(text)))
    short = text[:max_characters] if length < 0 else text[:length] + _cut_notice(length, len(text))
    return content._replace(text=short)


def _cut_notice(length: int, total: int) -> str:
    return f"\n[cut: {length:,} of {total:,} characters are shown]"


def _content_of_object(value: Any) -> ToolContent:
    if isinstance(value, str) or _holds_parts(value):
        return _join_parts(_parts(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _content_of_bytes(bytes(value))
    if isinstance(value, getattr(sys.modules.get("PIL.Image"), "Image", ())):
        return _join_parts([_png(value)])
    return ToolContent(_json(value))


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, ToolContent):
        return (value.text, *value.images)
    return value if isinstance(value, list | tuple) else (value,)


def _holds_parts(value: Any) -> bool:
    """Return whether `value` consists of parts; a list of only texts is data."""
    parts = _parts(value)
    if not all(isinstance(part, _PARTS) for part in parts):
        return False
    return isinstance(value, ToolContent) or not all(isinstance(part, str) for part in parts)


def _join_parts(parts: Sequence[str | TextPart | ImagePart]) -> ToolContent:
    """Return the content of parts. If there is no text, it describes the images, because some providers require one."""
    images = tuple(part for part in parts if isinstance(part, ImagePart))
    texts = [part.text if isinstance(part, TextPart) else part for part in parts if not isinstance(part, ImagePart)]
    return ToolContent("\n".join(texts) or "\n".join(map(_describe, images)), images)


def _describe(image: ImagePart) -> str:
    return "[image]" if image.data is None else f"[{image.media_type}, {len(image.data):,} bytes]"


def _content_of_bytes(data: bytes) -> ToolContent:
    media_type = detect_image_type(data)
    return (
        ToolContent(_text(data)) if media_type is None else _join_parts([ImagePart(data=data, media_type=media_type)])
    )


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return b64encode(data).decode()


def _png(image: Any) -> ImagePart:
    if image.mode not in _PNG_MODES:
        image = image.convert(_NEAREST_PNG_MODE.get(image.mode, "RGB"))
    file = io.BytesIO()
    image.save(file, "PNG")
    return ImagePart(data=file.getvalue(), media_type="image/png")


class _Unwritable(Exception):
    """Carries an object that JSON cannot represent."""


def _json(value: Any) -> str:
    culprit = value
    for write in (_to_json, _to_json_with_repairs):
        try:
            return write(value)
        except _Unwritable as found:
            (culprit,) = found.args
        except Exception:  # its text may quote the value: raise the error below outside of this block, unchained
            continue
    holder = "" if culprit is value else f"{type(value).__name__} holding a "
    raise TypeError(
        f"returned a {holder}{type(culprit).__name__}, which cannot be written as JSON: "
        "return str, a pydantic model, a dataclass or plain data, or pass result_converter="
    )


def _to_json(value: Any) -> str:
    if type(value) not in _DATA and isinstance(value, io.IOBase):  # pydantic would read its lines
        raise _Unwritable(value)
    return to_json(value, inf_nan_mode="null", fallback=_to_plain).decode()


def _to_json_with_repairs(value: Any) -> str:
    """Write a value that contains bytes or strings that are not valid UTF-8; slower than `_to_json`."""
    # repaired twice: first the plain data, which pydantic would reject, then what pydantic took out of models
    data = to_jsonable_python(_with_valid_text(value), bytes_mode="base64", fallback=_to_plain)
    return to_json(_with_valid_text(data), inf_nan_mode="null").decode()


def _with_valid_text(value: Any) -> Any:
    """Return plain data in which all bytes and strings are text that UTF-8 can encode."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _text(bytes(value))
    if isinstance(value, Mapping):
        return {_with_valid_text(key): _with_valid_text(item) for key, item in value.items()}
    if isinstance(value, _COLLECTIONS):
        return tuple([_with_valid_text(item) for item in value])
    if hasattr(value, "__next__"):  # the first attempt has consumed it
        raise _Unwritable(value)
    return value


def _to_plain(value: Any) -> Any:
    """Return plain data for an object that pydantic cannot write."""
    if isinstance(value, memoryview):
        return value.tobytes()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, _COLLECTIONS):
        return list(value)
    raise _Unwritable(value)
