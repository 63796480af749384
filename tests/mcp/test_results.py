"""What the model reads of a result."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

from tests.mcp.server import PIXEL
from tests.mcp.servers import HttpServer, in_each_mode_and_era
from tests.mcp.test_runs import calling
from tests.modes import run
from traced_tools import ToolCall
from traced_tools.mcp.results import content_of_result


def text_of(*content: ContentBlock, **fields: Any) -> str:
    return content_of_result(CallToolResult(content=list(content), **fields)).text


@in_each_mode_and_era
def test_each_kind_of_content_reaches_the_model(mode: str, era: str, http_server: HttpServer) -> None:
    with http_server.tools() as toolset:
        (result,) = run(mode, calling(ToolCall("parts")).prompt("?", tools=[toolset])).tool_results
    assert result.content.splitlines() == [
        "a text",
        "[audio: audio/wav, 5 bytes]",
        "[link to a resource: file:///notes.txt (notes, text/plain)]",
        "[resource file:///a.txt]",
        "inside",
    ]
    assert [(image.media_type, image.data) for image in result.images] == [("image/png", PIXEL)]


@pytest.mark.parametrize("value", [None, True, 1.5, "text", [1, [2]], {"a": {"b": None}}, "é"])
def test_structured_content_of_any_json_is_read_as_json(value: Any) -> None:
    assert json.loads(text_of(structured_content=value)) == value


def test_structured_content_is_not_read_twice() -> None:
    assert text_of(TextContent(text='{"a": 1}'), structured_content={"a": 1}) == '{"a": 1}'
    assert text_of(TextContent(text="3"), structured_content={"result": 3}) == "3"
    assert text_of(TextContent(text="x"), structured_content={"result": "x"}) == "x"
    assert text_of(TextContent(text="x"), structured_content={"content": "x"}) == "x"
    assert text_of(TextContent(text="1"), TextContent(text="2"), structured_content={"result": [1, 2]}) == "1\n2"


def test_structured_content_that_the_texts_do_not_have_is_read_after_them() -> None:
    assert text_of(TextContent(text="2 found"), structured_content={"n": 2}) == '2 found\n{"n": 2}'


def test_a_result_without_content_is_an_empty_text() -> None:
    assert text_of() == ""


def test_binary_data_that_is_no_image_for_models_is_described() -> None:
    image = ImageContent(data=base64.b64encode(b"<svg/>").decode(), mime_type="image/svg+xml")
    blob = BlobResourceContents(uri="file:///a.bin", blob=base64.b64encode(b"abc").decode())
    assert text_of(image) == "[image: image/svg+xml, 6 bytes]"
    assert text_of(EmbeddedResource(resource=blob)) == "[resource file:///a.bin: unknown type, 3 bytes]"
    assert text_of(ImageContent(data="no base64!", mime_type="image/png")) == "[image: image/png, 0 bytes]"


PICTURE = base64.b64encode(PIXEL + bytes(200)).decode()
BLOCK = {"type": "image", "data": PICTURE, "mimeType": "image/png"}
SHOWN = f"[image: image/png, {len(PIXEL) + 200} bytes]"


@pytest.mark.parametrize(
    ("structured", "text"),
    [
        ({"content": [BLOCK]}, ""),
        ({"result": BLOCK}, ""),
        ({"name": "a.png", "data": PICTURE}, f'{{"name": "a.png", "data": "{SHOWN}"}}'),
        ({"url": f"data:image/png;base64,{PICTURE}"}, f'{{"url": "data:image/png;base64,{SHOWN}"}}'),
        ([1, [{"a": PICTURE.rstrip("=")}]], f'[1, [{{"a": "{SHOWN}"}}]]'),
        ({"lines": base64.encodebytes(PIXEL + bytes(200)).decode()}, f'{{"lines": "{SHOWN}"}}'),
        ({"page": f"<img src='data:image/png;base64,{PICTURE}'>"}, f"<img src='data:image/png;base64,{SHOWN}'>"),
        ({"json": json.dumps({"data": PICTURE})}, SHOWN),
        ({"safe": PICTURE.replace("+", "-").replace("/", "_")}, f'{{"safe": "{SHOWN}"}}'),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("is_block", [True, False])
def test_an_image_in_structured_content_is_an_image_and_no_text(structured: Any, text: str, is_block: bool) -> None:
    content = [ImageContent(data=PICTURE, mime_type="image/png")] if is_block else []
    read = content_of_result(CallToolResult(content=[*content], structured_content=structured))
    assert [image.data for image in read.images] == [PIXEL + bytes(200)]
    assert PICTURE[:60] not in read.text
    if is_block or text:
        assert text in read.text


def test_an_image_in_a_text_that_repeats_the_structured_content_is_an_image() -> None:
    structured = {"name": "a.png", "data": PICTURE}
    block = TextContent(text=json.dumps(structured))
    read = content_of_result(CallToolResult(content=[block], structured_content=structured))
    assert read.text == f'{{"name": "a.png", "data": "{SHOWN}"}}'
    assert len(read.images) == 1


def test_binary_data_of_a_block_is_described_in_structured_content_too_and_other_base64_stays() -> None:
    data, key = base64.b64encode(bytes(100)).decode(), base64.b64encode(bytes(99)).decode()
    sound = AudioContent(data=data, mime_type="audio/wav")
    read = content_of_result(CallToolResult(content=[sound], structured_content={"sound": data, "key": key}))
    assert read.text == f'[audio: audio/wav, 100 bytes]\n{{"sound": "[audio: audio/wav, 100 bytes]", "key": "{key}"}}'


def test_a_resource_that_is_not_said_to_be_an_image_is_described() -> None:
    blob = BlobResourceContents(uri="file:///a.bin", blob=PICTURE, mime_type="application/octet-stream")
    read = content_of_result(CallToolResult(content=[EmbeddedResource(resource=blob)]))
    assert not read.images and read.text.startswith("[resource file:///a.bin: application/octet-stream")
