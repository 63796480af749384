"""Who may reach tools that are served over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.mcp.serving import calling, client_of, in_each_era, listening, serving_http, text_of
from tests.waiting import patiently, until
from traced_tools import ConfigurationError, ToolContext
from traced_tools.mcp import McpApp, McpServer, McpToolset, http_app, serve
from traced_tools.tools import tool_callbacks

ANA, BEN = "a-token-of-ana-0123456789", "a-token-of-ben-0123456789"
HEADERS = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


def whose(context: ToolContext) -> str:
    """Return on whose behalf the call is."""
    return str(context.principal)


@pytest.fixture(scope="module")
def open_url() -> Iterator[str]:
    """The URL of a server without a token."""
    with serving_http([whose]) as url:
        yield url


@pytest.fixture(scope="module")
def closed_url() -> Iterator[str]:
    """The URL of a server that wants the token of Ana."""
    with serving_http([whose], app={"token": ANA}) as url:
        yield url


def post(url: str, headers: dict[str, str] | None = None, body: Any = INITIALIZE) -> httpx.Response:
    return httpx.post(url, json=body, headers={**HEADERS, **(headers or {})}, trust_env=False)


@in_each_era
def test_without_a_token_calls_have_no_principal(era: str, open_url: str) -> None:
    assert text_of(calling(open_url, era, "whose")) == "None"


@in_each_era
def test_the_principal_of_a_call_is_the_holder_of_its_token(era: str) -> None:
    with serving_http([whose], app={"token": {"ana": ANA, "ben": BEN}}) as url:
        assert text_of(calling(url, era, "whose", token=ANA)) == "ana"
        assert text_of(calling(url, era, "whose", token=BEN)) == "ben"
        with McpToolset.http(url, name="shop", headers={"Authorization": f"Bearer {ANA}"}) as toolset:
            assert tool_callbacks(toolset)[0].call("{}") == "ana"
    with serving_http([whose], app={"token": ANA}) as url:
        assert text_of(calling(url, era, "whose", token=ANA)) == "None"


@pytest.mark.parametrize(
    "given", [None, "", f"Basic {ANA}", "Bearer", f"Bearer {ANA}x", f"Bearer {ANA[:-1]}", "Bearer \xe4"]
)
def test_without_a_valid_token_the_answer_says_that_one_is_required(given: str | None, closed_url: str) -> None:
    answer = post(closed_url, {} if given is None else {"Authorization": given.encode("latin-1")})  # type: ignore[dict-item]
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert ANA not in answer.text


def test_a_session_belongs_to_the_token_that_began_it() -> None:
    with serving_http([whose], app={"token": {"ana": ANA, "ben": BEN}}) as url:
        begun = post(url, {"Authorization": f"Bearer {ANA}"})
        session = {"mcp-session-id": begun.headers["mcp-session-id"]}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert post(url, {"Authorization": f"Bearer {ANA}", **session}, body).status_code == 200
        assert post(url, {"Authorization": f"Bearer {BEN}", **session}, body).status_code == 404
        assert post(url, session, body).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Host": "[bad"}, 421),
        ({"Host": "user@localhost"}, 421),
        ({"Host": "localhost:80@evil.example"}, 421),
        ({"Host": "localhost/evil.example"}, 421),
        ({"Host": "localhost?x"}, 421),
        ({"Host": "local\thost"}, 421),
        ({"Host": "localhost:x"}, 421),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1]:3000"}, 200),
        ({"Origin": "https://user@localhost"}, 403),
        ({"Origin": "https://user:secret@127.0.0.1:3000"}, 403),
        ({"Origin": "https://evil.example@localhost"}, 403),
        ({"Origin": "https://localhost@evil.example"}, 403),
        ({"Origin": "https://localhost#@evil.example"}, 403),
        ({"Origin": "https://localhost\\\\evil.example"}, 403),
        ({"Origin": "https://localhost/"}, 403),
        ({"Origin": "https://localhost?"}, 403),
        ({"Origin": "https://local\thost"}, 403),
        ({"Origin": "https:localhost"}, 403),
        ({"Origin": "://localhost"}, 403),
        ({"Origin": "localhost"}, 403),
        ({"Origin": "http://localhost http://evil.example"}, 403),
        ({"Origin": "http://localhost, http://evil.example"}, 403),
        ({"Origin": ""}, 403),
    ],
)
def test_pages_of_other_origins_and_names_of_other_hosts_reach_nothing(
    headers: dict[str, str], status: int, open_url: str
) -> None:
    assert post(open_url, headers).status_code == status


@pytest.mark.parametrize("header", ["Origin", "Host"])
def test_a_header_that_comes_twice_is_refused_unless_both_may(header: str) -> None:
    async def status(*values: str) -> int:
        statuses: list[int] = []
        headers = [(header.lower().encode(), value.encode()) for value in values]
        headers += [] if header == "Host" else [(b"host", b"localhost")]
        scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": ("127.0.0.1", 1)}

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        await McpApp(McpServer([whose]))(scope, None, send)  # type: ignore[arg-type]
        return statuses[0]

    refused = {"Origin": 403, "Host": 421}[header]
    for values in (("http://localhost", "http://evil.example"), ("http://evil.example", "http://localhost")):
        given = values if header == "Origin" else tuple(value.removeprefix("http://") for value in values)
        assert asyncio.run(patiently(status(*given))) == refused


def test_with_a_token_any_host_reaches_the_server_and_only_named_origins() -> None:
    allowed = "https://app.example"
    with serving_http([whose], app={"token": ANA, "origins": [allowed]}) as url:
        token = {"Authorization": f"Bearer {ANA}"}
        assert post(url, {**token, "Host": "tools.example", "Origin": allowed}).status_code == 200
        assert post(url, {**token, "Origin": "http://localhost:3000"}).status_code == 403
    with serving_http([whose], app={"hosts": ["tools.example"]}) as url:
        assert post(url, {"Host": "tools.example"}).status_code == 200
        assert post(url).status_code == 421


# Sessions.


def begun(url: str) -> dict[str, str]:
    """Begin a session, and return the header of its requests."""
    return {"Mcp-Session-Id": post(url).headers["mcp-session-id"]}


LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


def test_the_number_of_sessions_is_limited_and_others_begin_when_one_ends() -> None:
    with serving_http([whose], app={"max_sessions": 2}) as url:
        first, _ = begun(url), begun(url)
        for _ in range(3):
            assert post(url).status_code == 503
        assert post(url, first, LIST).status_code == 200
        assert text_of(calling(url, "modern", "whose")) == "None"  # has no session
        assert httpx.delete(url, headers={**HEADERS, **first}, trust_env=False).status_code == 200
        assert post(url, begun(url), LIST).status_code == 200
        assert post(url).status_code == 503


def test_a_request_that_begins_no_session_leaves_none_behind() -> None:
    with serving_http([whose], app={"max_sessions": 1}) as url:
        for _ in range(3):
            assert post(url, body=LIST).status_code == 400
        assert post(url, begun(url), LIST).status_code == 200


def test_a_session_without_requests_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app, "_IDLE", 0.05)
    with serving_http([whose], app={"max_sessions": 1}) as url:
        session = begun(url)
        until(lambda: post(url).status_code == 200)  # there is room for another one
        assert post(url, session, LIST).status_code == 404


def test_one_application_serves_several_event_loops_each_with_its_sessions() -> None:
    app = McpApp(McpServer([whose]))
    with listening(app) as first, listening(app) as second:
        sessions = begun(first), begun(second)
        for _ in range(2):
            for url, session, other in ((first, *sessions), (second, *reversed(sessions))):
                assert post(url, session, LIST).status_code == 200
                assert post(url, other, LIST).status_code == 404
    assert app._sessions == {}


def test_an_application_keeps_nothing_of_event_loops_that_are_closed() -> None:
    app = McpApp(McpServer([whose]))

    async def ask() -> int:
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.post("/", json=INITIALIZE, headers=HEADERS)).status_code

    for _ in range(3):
        assert asyncio.run(patiently(ask())) == 200
    assert len(app._sessions) == 1


def test_a_large_request_is_refused() -> None:
    with serving_http([whose], app={"max_body": 1000}) as url:
        body = {**INITIALIZE, "params": {**INITIALIZE["params"], "_meta": {"x": "y" * 2000}}}  # type: ignore[dict-item]
        assert post(url, body=body).status_code == 413

        def chunks() -> Any:
            yield from (b"x" * 600 for _ in range(100))

        headers = {**HEADERS, "Content-Type": "application/json"}
        try:
            status = httpx.post(url, content=chunks(), headers=headers, trust_env=False).status_code
        except httpx.TransportError:  # the server has answered and closed before everything was sent
            status = 413
        assert status == 413
        assert post(url).status_code == 200


@pytest.mark.parametrize("body", [b"no json", b"[]", b"[1]", b"null", b'{"id": {}}', b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28", "1999-01-01"])
def test_malformed_requests_are_refused_and_the_server_goes_on(body: bytes, version: str, open_url: str) -> None:
    headers = {**HEADERS, "Content-Type": "application/json", "MCP-Protocol-Version": version}
    assert httpx.post(open_url, content=body, headers=headers, trust_env=False).status_code == 400
    assert post(open_url).status_code == 200


def test_other_machines_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.1"):
        with pytest.raises(ConfigurationError, match=rf"anybody who reaches {host} could call the tools: pass a token"):
            serve([whose], transport="http", host=host)


@pytest.mark.parametrize(("client", "status"), [("10.0.0.5", 403), ("127.0.0.1", 200), ("::1", 200), ("a-socket", 200)])
def test_a_client_of_another_machine_needs_a_token_whatever_host_it_names(client: str, status: int) -> None:
    async def ask() -> int:
        app = McpApp(McpServer([whose]))
        transport = httpx.ASGITransport(app, client=(client, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.post("/", json=INITIALIZE, headers=HEADERS)).status_code

    assert asyncio.run(patiently(ask())) == status


def test_wrong_settings_are_errors_that_quote_no_token() -> None:
    server = McpServer([whose])
    for token in ("short", {"ana": "short"}, {}):
        with pytest.raises(ConfigurationError, match="at least 16 characters") as caught:
            McpApp(server, token=token)
        assert "short" not in str(caught.value)
    for token in (f"{ANA}\n", {"ana": f"{ANA} {ANA}"}, "ä" * 16):
        with pytest.raises(ConfigurationError, match="characters that no client can send") as caught:
            McpApp(server, token=token)
        assert str(token) not in str(caught.value)
    wrong: tuple[dict[str, Any], ...] = (
        {"token": 7},
        {"token": {"ana": 7}},
        {"hosts": "localhost"},
        {"origins": [1]},
        {"max_body": "1"},
        {"max_sessions": "1"},
        {"stateless": 1},
    )
    for options in wrong:
        with pytest.raises(TypeError):
            McpApp(server, **options)
    for origin in (
        "https://app.example/",
        "https://ana@app.example",
        "https://App.example",
        "app.example",
        "*",
        "null",
    ):
        with pytest.raises(ValueError, match="no browser sends the origin"):
            McpApp(server, origins=[origin])
    with pytest.raises(TypeError, match="McpServer"):
        McpApp([whose])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an McpServer has its own settings: pass name to it"):
        serve(server, name="shop")
    with pytest.raises(ValueError, match="transport must be"):
        serve([whose], transport="sse")  # type: ignore[arg-type]


def test_a_client_without_a_token_cannot_connect() -> None:
    async def connecting(url: str) -> None:
        client: Client = client_of(url, "modern")
        async with client:
            pass

    with serving_http([whose], app={"token": ANA}) as url:
        with pytest.raises((MCPError, ExceptionGroup)):
            asyncio.run(patiently(connecting(url)))
