"""What servers send that is no message: it ends its own call at once, or is repaired, and costs nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.markers import MARKER
from tests.mcp.fake_http import faking
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import raw_server, tools_of
from tests.mcp.test_failures import result_of
from tests.modes import MODES
from tests.sweeps import check_each
from traced_tools import ToolCall
from traced_tools.errors import McpRequestError
from traced_tools.testing import Received, Reply

UNREADABLE = {
    "no result": '{"jsonrpc": "2.0", "id": <id>}',
    "null": '{"jsonrpc": "2.0", "id": <id>, "result": null}',
    "list": f'{{"jsonrpc": "2.0", "id": <id>, "result": ["{MARKER}"]}}',
    "error without code": '{"jsonrpc": "2.0", "id": <id>, "error": "no"}',
    "other version": '{"jsonrpc": "1.0", "id": <id>, "result": {}}',
    "no version": '{"id": <id>, "result": {}}',
    "id as a float": '{"jsonrpc": "2.0", "id": <id>.0, "result": {}}',
    "id as a text": '{"jsonrpc": "2.0", "id": "<id>", "result": 1}',
    "batch": '[{"jsonrpc": "2.0", "id": <id>, "result": {}}]',
    "cut": f'{{"jsonrpc": "2.0", "id": <id>, "result": {{"content": [{{"text": "{MARKER}',
    "cut before the id": '{"jsonrpc": "2.0", "result": {"content": [',
    "quote inside": '{"jsonrpc": "2.0", "result": {"text": "a " b"}, "id": <id>}',
    "nested too deeply": f'{{"jsonrpc": "2.0", "id": <id>, "result": {"[" * 100_000}',
    "too many digits": f'{{"jsonrpc": "2.0", "id": <id>, "result": {{"n": {"9" * 5000}}}}}',
}
BEGINNING = '{"jsonrpc": "2.0", "id": <id>, "result": {"content": [{"type": "text", "text": "'
REPAIRED = {
    "lone surrogate": (f'{BEGINNING}cut \\ud83d"}}]}}}}', "cut ?"),
    "surrogates in the wrong order": (f'{BEGINNING}\\ude00\\ud83d"}}]}}}}', "??"),
    "no UTF-8": (f'{BEGINNING}a\xff"}}]}}}}', "a\ufffd"),
    "half a character": (f'{BEGINNING}\xc3"}}]}}}}', "\ufffd"),
    "byte order mark": (f'\xef\xbb\xbf{BEGINNING}x"}}]}}}}', "x"),
    "carriage return": (f'{BEGINNING}x"}}]}}}}\r', "x"),
}


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_cannot_be_read_ends_its_call_at_once(mode: str) -> None:
    with raw_server(timeout=120) as toolset:

        def check(line: str) -> None:
            result = result_of(mode, toolset, ToolCall("prints", {"text": line}))
            assert str(result.error) == "the MCP server 'raw' gave an answer that cannot be read"
            assert isinstance(result.error, McpRequestError) and MARKER not in result.content

        check_each(UNREADABLE, check)
        assert result_of(mode, toolset, ToolCall("echo", {"text": "x"})).content == "echo: x"
    assert tasks_left() == []


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_with_broken_characters_is_read(mode: str) -> None:
    with raw_server("modern") as toolset:

        def check(case: tuple[str, str]) -> None:
            assert result_of(mode, toolset, ToolCall("prints", {"text": case[0]})).content == case[1]

        check_each(
            {
                name: (line.replace('{"content"', '{"resultType": "complete", "content"'), text)
                for name, (line, text) in REPAIRED.items()
            },
            check,
        )


def test_what_is_no_answer_to_a_call_ends_none() -> None:
    beside = (
        '{"jsonrpc": "2.0", "id": <id>, "method": "ping", "params": [1]}',  # a request of the server
        '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "cut \\ud83d',
        '{"id": <id>, "level": "info"}',  # a log line
        '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "?"}}',
        '{"jsonrpc": "2.0", "id": 99, "result": null}',
        "<id>",
    )
    line = "\n".join((*beside, f'{BEGINNING}fine"}}]}}}}'))
    with raw_server() as toolset:
        assert result_of("call", toolset, ToolCall("prints", {"text": line})).content == "fine"


def _body(line: str, request: Received) -> bytes:
    return line.replace("<id>", str(request.json()["id"])).encode("latin-1")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "json"])
def test_a_response_over_http_that_cannot_be_read_ends_its_call_at_once(mode: str, is_stream: bool) -> None:
    others = {"no JSON": "<html>", "nothing": "", "another message": '{"jsonrpc": "2.0", "method": "notifications/x"}'}
    with faking() as fake, fake.tools(timeout=120) as toolset:
        tools_of(toolset)

        def check(line: str) -> None:
            def reply(request: Received) -> Reply:
                body = _body(line, request)
                if is_stream:
                    return Reply(b"data: " + body + b"\n\n", content_type="text/event-stream")
                return Reply(body, content_type="application/json")

            fake.replies["tools/call"] = reply
            error = result_of(mode, toolset, ToolCall("echo")).error
            assert str(error) == "the MCP server 'fake' gave an answer that cannot be read"

        check_each({**UNREADABLE, **({} if is_stream else others)}, check)
    assert tasks_left() == []


def test_a_response_over_http_with_broken_characters_or_another_id_is_read() -> None:
    lines = {**REPAIRED, "another id": (f'{BEGINNING}x"}}]}}}}'.replace("<id>", "99"), "x")}
    del lines["carriage return"]
    with faking() as fake, fake.tools() as toolset:
        tools_of(toolset)

        def check(case: tuple[str, str]) -> None:
            fake.replies["tools/call"] = lambda request: Reply(_body(case[0], request), content_type="application/json")
            assert result_of("call", toolset, ToolCall("echo")).content == case[1]

        check_each(lines, check)


def test_an_event_that_is_not_the_answer_does_not_end_the_call() -> None:
    def reply(request: Received) -> Reply:
        events: list[Any] = ['{"jsonrpc": "2.0", "method": "notifications/message", "params": [1]}']
        events.append(json.dumps({"jsonrpc": "2.0", "id": request.json()["id"], "result": {"content": []}}))
        return Reply("".join(f"data: {each}\n\n" for each in events).encode(), content_type="text/event-stream")

    with faking() as fake, fake.tools() as toolset:
        fake.replies["tools/call"] = reply
        assert result_of("call", toolset, ToolCall("echo")).outcome == "ok"


BLOCKS: dict[str, tuple[Any, str]] = {
    "unknown type": ({"type": "video", "data": MARKER}, "[content of the type 'video' that cannot be read]"),
    "text that is a number": ({"type": "text", "text": 5}, "[content of the type 'text' that cannot be read]"),
    "image without type": ({"type": "image", "data": "eA=="}, "[content of the type 'image' that cannot be read]"),
    "no object": (MARKER, "[content that cannot be read]"),
    "nothing": (None, "[content that cannot be read]"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
def test_a_block_that_cannot_be_read_is_described_and_the_others_are_read(mode: str, modern: bool) -> None:
    with faking(modern=modern) as fake, fake.tools() as toolset:
        tools_of(toolset)

        def check(case: tuple[Any, str]) -> None:
            blocks = [{"type": "text", "text": "before"}, case[0], {"type": "text", "text": "after"}]
            fake.replies["tools/call"] = lambda request: Reply.json(
                {"jsonrpc": "2.0", "id": request.json()["id"], "result": {"content": blocks}}
            )
            result = result_of(mode, toolset, ToolCall("echo"))
            assert result.content.splitlines() == ["before", case[1], "after"]

        check_each(BLOCKS, check)
