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

    Structured content is JSON after the texts, unless the texts say the same. Sound, other binary data and
    links are described in a line each, because a model can't use them.
    """
    parts: list[str | ImagePart] = [_part(block) for block in result.content]
    if "structured_content" in result.model_fields_set:
        texts = [block.text for block in result.content if isinstance(block, TextContent)]
        if not _says_the_same(texts, result.structured_content):
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


def _says_the_same(texts: list[str], structured: Any) -> bool:
    """Return whether the texts are the structured content: its JSON, or what a server wraps as `{"result": ...}`.

    Servers wrap a value because older revisions allow objects only. Each chooses the name, such as `content`.
    """
    wanted = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        wanted += structured.values()
    read = [_from_json(text) for text in texts]
    said = {_canonical(each) for each in (*texts, *read, read)}
    return any(_canonical(each) in said for each in wanted)


def _canonical(value: Any) -> str:
    """Return a JSON value as text, because `==` of Python takes `True` for 1."""
    return json.dumps(value, sort_keys=True)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
