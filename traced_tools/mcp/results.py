"""What the model reads of the result of a tool of an MCP server."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

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

from traced_tools.core.images import detect_image_type
from traced_tools.core.messages import ImagePart
from traced_tools.core.result_conversion import ToolContent, content_from_converter


def content_of_result(result: CallToolResult) -> ToolContent:
    """Return the texts and the images of a result.

    Structured content is JSON after the texts, unless one of the texts is the same JSON. Sound, other binary data and
    links are described in a line each, because a model can't use them.
    """
    parts: list[str | ImagePart] = [_part(block) for block in result.content]
    if "structured_content" in result.model_fields_set:
        written = [part for part in parts if isinstance(part, str) and _is_json_of(part, result.structured_content)]
        if not written:
            parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return content_from_converter(parts or [""], "an MCP server")


def _part(block: ContentBlock) -> str | ImagePart:
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return _binary(block.data, block.mime_type, "image")
        case AudioContent():
            return _described("audio", block.mime_type, len(_decoded(block.data)))
        case ResourceLink():
            named = ", ".join(filter(None, (block.title or block.name, block.mime_type, block.description)))
            return f"[link to a resource: {block.uri} ({named})]"
        case EmbeddedResource():
            resource = block.resource
            if isinstance(resource, BlobResourceContents):
                return _binary(resource.blob, resource.mime_type, f"resource {resource.uri}")
            return f"[resource {resource.uri}]\n{resource.text}"


def _binary(data: str, media_type: str | None, what: str) -> str | ImagePart:
    """Return an image, or the description of data that is no image of a kind that models see."""
    decoded = _decoded(data)
    if (detected := detect_image_type(decoded)) is not None:
        return ImagePart(data=decoded, media_type=detected)
    return _described(what, media_type, len(decoded))


def _decoded(data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except ValueError:
        return b""


def _described(what: str, media_type: str | None, size: int) -> str:
    return f"[{what}: {media_type or 'unknown type'}, {size:,} bytes]"


def _is_json_of(text: str, value: Any) -> bool:
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
