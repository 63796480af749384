"""Headers that a function returns, such as those with a token that expires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.markers import MARKER
from tests.mcp.fake_http import faking
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import tools_of
from tests.mcp.test_failures import result_of
from tests.modes import MODES
from traced_tools import ToolCall
from traced_tools.errors import McpUnavailable
from traced_tools.mcp import McpToolset, transports
from traced_tools.testing import Received, Reply


class Tokens:
    """Returns headers with the current token, and counts its calls."""

    def __init__(self) -> None:
        self.token = "first"
        self.calls = 0

    def __call__(self) -> dict[str, str]:
        self.calls += 1
        return {"Authorization": f"Bearer {self.token}"}

    async def later(self) -> dict[str, str]:
        await asyncio.sleep(0)
        return self()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [lambda each: each, lambda each: each.later, lambda each: lambda: each.later()])
@pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
def test_a_function_for_headers_is_called_for_each_request(
    mode: str, kind: Callable[[Tokens], Any], modern: bool
) -> None:
    tokens = Tokens()
    with faking(modern=modern) as fake, fake.tools(headers=kind(tokens)) as toolset:
        assert result_of(mode, toolset, ToolCall("echo")).content == "fine"
        tokens.token = "second"
        assert result_of(mode, toolset, ToolCall("echo")).content == "fine"
    sent = [each.headers["authorization"] for each in fake.server.requests]
    assert sent[0] == "Bearer first" and sent[-1] == "Bearer second"
    assert [each.headers["authorization"] for each in fake.sent("tools/call")] == ["Bearer first", "Bearer second"]
    assert tokens.calls == len(sent)


def test_headers_of_the_protocol_are_those_of_the_protocol() -> None:
    def headers() -> dict[str, str]:
        return {"Mcp-Session-Id": MARKER, "Content-Type": MARKER, "Accept": MARKER, "User-Agent": "mine"}

    with faking() as fake, fake.tools(headers=headers) as toolset:
        assert result_of("call", toolset, ToolCall("echo")).content == "fine"
    (call,) = fake.sent("tools/call")
    assert call.headers["mcp-session-id"] == "s-1" and call.headers["user-agent"] == "mine"
    assert MARKER not in str([*call.headers.values()])


def fails() -> dict[str, str]:
    raise RuntimeError(MARKER)


async def fails_later() -> dict[str, str]:
    raise LookupError(MARKER)


FAILURES = {
    "RuntimeError": fails,
    "LookupError": fails_later,
    "TypeError": lambda: MARKER,
    "traced_tools.errors.ConfigurationError": lambda: {"Authorization": f"{MARKER}\n"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("problem", FAILURES)
def test_a_function_for_headers_that_fails_costs_its_call_and_not_the_session(mode: str, problem: str) -> None:
    function: Any = dict
    with faking() as fake, fake.tools(headers=lambda: function()) as toolset:
        tools_of(toolset)
        function = FAILURES[problem]
        result = result_of(mode, toolset, ToolCall("echo"))
        assert isinstance(result.error, McpUnavailable)
        text = f"the MCP server 'fake' was not sent the request: the function of headers= raised {problem}"
        assert str(result.error) == text and MARKER not in result.content + repr(result.error)
        function = dict
        assert result_of(mode, toolset, ToolCall("echo")).content == "fine"
        assert len(fake.sent("initialize")) == 1 and len(fake.sent("tools/call")) == 1
    assert tasks_left() == []


def test_a_function_for_headers_that_fails_at_first_is_an_error_without_its_text() -> None:
    with faking() as fake, fake.tools(headers=fails) as toolset, pytest.raises(McpUnavailable) as caught:
        tools_of(toolset)
    place = fake.server.url.removeprefix("http://")
    assert str(caught.value) == (
        f"the MCP server 'fake' cannot be reached: the function of headers= raised RuntimeError ({place})"
    )
    assert MARKER not in repr(caught.value) and caught.value.__cause__ is None
    assert fake.server.requests == []


def test_a_function_for_headers_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "_HEADER_SECONDS", 0.2)

    async def hangs() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    with faking() as fake, fake.tools(headers=hangs) as toolset:
        with pytest.raises(McpUnavailable, match="the function of headers= raised TimeoutError"):
            tools_of(toolset)
    assert tasks_left() == []


def test_headers_that_are_neither_texts_nor_a_function_are_an_error() -> None:
    for wrong in (5, "Bearer", {"a": 1}, [("a", "b")]):
        with pytest.raises(TypeError, match="headers"):
            McpToolset.http("http://127.0.0.1/mcp", name="x", headers=wrong)  # type: ignore[arg-type]


def test_a_token_that_is_refused_is_renewed_for_the_next_request() -> None:
    tokens = Tokens()

    def gate(request: Received) -> Reply:
        valid = request.headers["authorization"] == "Bearer second"
        answer = {"jsonrpc": "2.0", "id": request.json()["id"], "result": {"content": []}}
        return Reply.json(answer) if valid else Reply(b"", 401)

    with faking() as fake, fake.tools(headers=tokens) as toolset:
        tools_of(toolset)
        fake.replies["tools/call"] = gate
        assert "HTTP status 401" in str(result_of("call", toolset, ToolCall("echo")).error)
        tokens.token = "second"
        assert result_of("call", toolset, ToolCall("echo")).outcome == "ok"
