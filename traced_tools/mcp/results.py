"""What the model reads of the result of a tool of an MCP server."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable
from typing import Any, Final

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)
from pydantic import TypeAdapter

from traced_tools.core.images import detect_image_type
from traced_tools.core.messages import ImagePart
from traced_tools.core.result_conversion import ToolContent, content_from_converter

_SHORTEST_DATA: Final = 64
"""The length from which a text in structured content may be base64 of an image. A multiple of 4."""
_DATA: Final = re.compile(rf"[A-Za-z0-9+/_-]{{{_SHORTEST_DATA},}}={{0,2}}")
_LINES_OF_DATA: Final = re.compile(r"[A-Za-z0-9+/_\s-]+={0,2}\s*")
_STANDARD_ALPHABET: Final = str.maketrans("-_", "+/")

_BLOCK: Final[TypeAdapter[ContentBlock]] = TypeAdapter(ContentBlock)


def describe_unreadable_blocks(result: dict[str, Any]) -> None:
    """Put a description in place of the blocks of a result that cannot be read, which otherwise cost the whole result.

    Args:
        result: the result of a call, as the server sent it.
    """
    content = result.get("content")
    if isinstance(content, list):
        result["content"] = [block if _is_readable(block) else _unreadable(block) for block in content]


def _is_readable(block: Any) -> bool:
    try:
        _BLOCK.validate_python(block, by_name=False)
    except ValueError:
        return False
    return True


def _unreadable(block: Any) -> dict[str, str]:
    kind = block.get("type") if isinstance(block, dict) else None
    of_type = f" of the type {kind[:64]!a}" if isinstance(kind, str) else ""
    return {"type": "text", "text": f"[content{of_type} that cannot be read]"}


def content_of_result(result: CallToolResult) -> ToolContent:
    """Return the texts and the images of a result.

    Structured content is JSON after the texts, unless the content says the same. Images in it are images for the model
    and not base64. Sound, other binary data and links are described in a line each, because a model can't use them.
    """
    parts: list[str | ImagePart] = [_part(block) for block in result.content]
    if "structured_content" in result.model_fields_set:
        data, structured = _BinaryData(result.content), result.structured_content
        if _texts_say_the_same(result.content, structured):
            parts = [data.replaced(part) if isinstance(part, str) else part for part in parts]
        elif not _blocks_are_the_same(result.content, structured):
            parts.append(json.dumps(data.replaced(structured), ensure_ascii=False))
        parts += data.images
    return content_from_converter(parts or [""], "an MCP server")


class _BinaryData:
    """Replaces base64 in structured content by a description: that of images, and what the blocks have as well.

    Args:
        content: the blocks beside the structured content.

    Attributes:
        images: the images that the blocks do not have.
    """

    def __init__(self, content: Iterable[ContentBlock]) -> None:
        self._descriptions: dict[str, str] = {}
        self.images: list[ImagePart] = []
        for block in content:
            if isinstance(block, ImageContent | AudioContent):
                self._add(block.data, block.mime_type, block.type)
            elif isinstance(block, EmbeddedResource) and isinstance(block.resource, BlobResourceContents):
                self._add(block.resource.blob, block.resource.mime_type, f"resource {block.resource.uri}")

    def _add(self, data: str, media_type: str | None, what: str) -> None:
        self._descriptions[_normal(data)] = _describe(what, media_type, len(_decode(data)))

    def replaced(self, value: Any) -> Any:
        """Return a JSON value with descriptions in place of binary data."""
        if isinstance(value, dict):
            return {key: self.replaced(member) for key, member in value.items()}
        if isinstance(value, list):
            return [self.replaced(item) for item in value]
        if not isinstance(value, str) or len(value) < _SHORTEST_DATA:
            return value
        if _LINES_OF_DATA.fullmatch(value):
            return self._description("".join(value.split())) or value
        return _DATA.sub(lambda data: self._description(data[0]) or data[0], value)

    def _description(self, data: str) -> str | None:
        """Return the description of an image or of data of a block; None for other texts."""
        data = _normal(data)
        if data not in self._descriptions:
            if detect_image_type(_decode(data[:_SHORTEST_DATA])) is None:
                return None
            image = _decode(data + "=" * (-len(data) % 4))
            if (detected := detect_image_type(image)) is None:
                return None
            self.images.append(ImagePart(data=image, media_type=detected))
            self._descriptions[data] = _describe("image", detected, len(image))
        return self._descriptions[data]


def _normal(data: str) -> str:
    """Return base64 in the alphabet of RFC 4648, section 4, without line feeds and padding."""
    return "".join(data.split()).translate(_STANDARD_ALPHABET).rstrip("=")


def _part(block: ContentBlock) -> str | ImagePart:
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return _binary(block.data, block.mime_type, "image")
        case AudioContent():
            return _describe("audio", block.mime_type, len(_decode(block.data)))
        case ResourceLink():
            description = ", ".join(filter(None, (block.title or block.name, block.mime_type, block.description)))
            return f"[link to a resource: {block.uri} ({description})]"
        case EmbeddedResource():
            resource = block.resource
            if isinstance(resource, BlobResourceContents):
                return _binary(resource.blob, resource.mime_type, f"resource {resource.uri}")
            return f"[resource {resource.uri}]\n{resource.text}"


def _binary(data: str, media_type: str | None, what: str) -> str | ImagePart:
    """Return an image, or the description of data that is not, or not said to be, an image that models see."""
    image = _decode(data)
    is_image = media_type is None or media_type.lower().startswith("image/")
    if is_image and (detected := detect_image_type(image)) is not None:
        return ImagePart(data=image, media_type=detected)
    return _describe(what, media_type, len(image))


def _decode(data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except ValueError:
        return b""


def _describe(what: str, media_type: str | None, size: int) -> str:
    return f"[{what}: {media_type or 'unknown type'}, {size:,} bytes]"


def _texts_say_the_same(content: Iterable[ContentBlock], structured: Any) -> bool:
    """Return whether the texts are the structured content, as JSON or as they are."""
    texts = [block.text for block in content if isinstance(block, TextContent)]
    values = [_from_json(text) for text in texts]
    expected = {_canonical(text) for text in (*texts, *values, values)}
    return any(_canonical(value) in expected for value in _unwrap(structured))


def _blocks_are_the_same(content: Iterable[ContentBlock], structured: Any) -> bool:
    """Return whether the structured content is the blocks again."""
    blocks = [block.model_dump(mode="json", by_alias=True, exclude_unset=True) for block in content]
    expected = {_canonical(block) for block in (*blocks, blocks)}
    return any(_canonical(value) in expected for value in _unwrap(structured))


def _unwrap(structured: Any) -> list[Any]:
    """Return structured content, and what a server wraps as `{"result": ...}`.

    Servers wrap a value because older revisions allow objects only. Each chooses the name, such as `content`.
    """
    return [structured, *(structured.values() if isinstance(structured, dict) and len(structured) == 1 else ())]


def _canonical(value: Any) -> str:
    """Return a JSON value as text, because `==` of Python takes `True` for 1."""
    return json.dumps(value, sort_keys=True)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
