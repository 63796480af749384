"""The gateway over HTTP: requests and responses pass as they came, and calls pass the gate."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.mcp.serving import listening
from tests.waiting import PATIENCE, in_time
from traced_tools import Policy, PolicyAdvisor, Rule
from traced_tools.errors import ConfigurationError
from traced_tools.mcp.pinning import PinFile
from traced_tools.mcp.proxy.gate import Gate
from traced_tools.mcp.proxy.http_front import ProxyApp
from traced_tools.mcp.transports import StreamableHttpTransport

ANSWER = b'{"jsonrpc":"2.0", "id":1,"result":{"content":[{"type":"text","text":"\\u00e9"}],"x":1.0}}'
EVENTS = b': a comment\n\nid: 7\r\nevent: message\r\ndata: {"jsonrpc":"2.0","method":"x",\r\ndata: "params":{}}\r\n\r\n'
NO_SECRETS = Policy([Rule("no-secrets", tool="echo", then="deny", where={"text": {"in": ["secret"]}})], default="allow")


class Server:
    """A server that is written by hand; it keeps the requests, and streams the answers to calls."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.description = "Echoes."
        self.over = threading.Event()

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.requests.append((request.method, dict(request.headers), body))
        method = json.loads(body)["method"] if body else ""
        if method == "tools/list":
            tools = [{"name": "echo", "description": self.description, "inputSchema": {"type": "object"}}]
            request_id = json.loads(body)["id"]
            return Response(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {"tools": tools}}), 200, JSON)
        if b'"wait"' in body:
            return StreamingResponse(endless(self.over), media_type="text/event-stream")
        if method == "tools/call":
            stream = {"content-type": "text/event-stream"}
            return Response(EVENTS + b"event: message\ndata: %s\n\n" % ANSWER, 200, stream)
        if method == "gone":
            return Response("no such session", 404, {"mcp-session-id": "s", "x-of-server": "1"})
        return Response(ANSWER, 200, {**JSON, "mcp-session-id": "session-1"})

    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.requests]


async def endless(over: threading.Event) -> AsyncIterator[bytes]:
    yield EVENTS
    try:
        await asyncio.sleep(600)
    finally:
        over.set()


JSON = {"content-type": "application/json"}


@contextmanager
def proxying(server: Server, *, token: str | None = None, headers: Any = None, **gate: Any) -> Iterator[str]:
    """Serve the gateway before a server, and return its URL."""
    app = Starlette(routes=[Route("/mcp", server.answer, methods=["GET", "POST", "DELETE"])])
    with listening(app) as url:
        transport = StreamableHttpTransport("shop", url, headers)
        with listening(ProxyApp(Gate("shop", transport.endpoint, **gate), transport, token=token)) as front:
            yield front


@pytest.fixture
def server() -> Server:
    return Server()


def call(text: str) -> bytes:
    params = {"name": "echo", "arguments": {"text": text}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def test_other_requests_and_their_responses_pass_as_they_came(server: Server) -> None:
    body = b'{"id":1, "jsonrpc":"2.0",\n"method":"future/\\u0061","params":{"n":1.50}}'
    with proxying(server) as url:
        response = httpx.post(url, content=body, headers={"Mcp-Session-Id": "s", "X-Of-Client": "1"})
        gone = httpx.post(url, json={"jsonrpc": "2.0", "id": 2, "method": "gone"})
        assert httpx.delete(url, headers={"Mcp-Session-Id": "s"}).status_code == 200
    assert response.content == ANSWER and response.headers["mcp-session-id"] == "session-1"
    method, headers, received = server.requests[0]
    assert (method, received, headers["mcp-session-id"], headers["x-of-client"]) == ("POST", body, "s", "1")
    assert (gone.status_code, gone.text, gone.headers["x-of-server"]) == (404, "no such session", "1")
    assert server.requests[-1][0] == "DELETE"


def test_the_stream_of_a_call_passes_as_it_came(server: Server) -> None:
    with proxying(server) as url:
        response = httpx.post(url, content=call("a"))
    assert response.headers["content-type"] == "text/event-stream"
    assert response.content == EVENTS + b"event: message\ndata: %s\n\n" % ANSWER
    assert server.bodies()[-1] == call("a")


def test_a_call_that_is_cancelled_ends_here_and_its_cancellation_reaches_the_server(server: Server) -> None:
    cancellation = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
    with proxying(server) as url, httpx.stream("POST", url, content=call("wait")) as response:
        chunks = response.iter_raw()
        assert next(chunks)
        httpx.post(url, content=cancellation)
        assert in_time(lambda: list(chunks)) is not None
    assert server.bodies()[-1] == cancellation


def test_a_client_of_the_newer_era_cancels_a_call_by_leaving(server: Server) -> None:
    body = json.loads(call("wait"))
    body["params"]["_meta"] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    with proxying(server) as url:
        with httpx.stream("POST", url, json=body) as response:
            assert next(response.iter_raw())
        assert server.over.wait(PATIENCE)


def test_a_denied_call_never_reaches_the_server(server: Server) -> None:
    with proxying(server, advisors=[PolicyAdvisor(NO_SECRETS)]) as url:
        answer = httpx.post(url, content=call("secret")).json()
        twice = httpx.post(url, content=call("secret").replace(b'"method"', b'"method": "ping", "method"'))
        batch = httpx.post(url, content=b"[%s]" % call("secret"))
        notified = httpx.post(url, content=call("secret").replace(b'"id": 1,', b""))
    assert answer["result"]["isError"] is True
    assert [response.status_code for response in (twice, batch, notified)] == [400, 400, 202]
    assert not any(b"secret" in body for body in server.bodies())


def test_changed_tools_are_refused(server: Server, tmp_path: Path) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    with proxying(server, pins=PinFile(tmp_path / "pins.json")) as url:
        assert "result" in httpx.post(url, json=request).json()
        server.description = "Sends the text to somebody."
        assert "echo: description" in httpx.post(url, json=request).json()["error"]["message"]
        assert httpx.post(url, content=call("b")).json()["result"]["isError"] is True
        server.description = "Echoes."
        assert "result" in httpx.post(url, json=request).json()
        assert httpx.post(url, content=call("c")).status_code == 200
    assert [json.loads(body)["params"]["arguments"] for body in server.bodies() if b"arguments" in body] == [
        {"text": "c"}
    ]


def test_the_token_is_for_the_gateway_and_the_headers_for_the_server_are_its_own(server: Server) -> None:
    token, body = "0c5d5bb7a0d14d1c", {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with proxying(server, token=token, headers={"X-Key": "of the gateway"}) as url:
        assert httpx.post(url, json=body).status_code == 401
        headers = {"Authorization": f"Bearer {token}", "X-Key": "of the client"}
        assert httpx.post(url, json=body, headers=headers).status_code == 200
    ((_, received, _),) = server.requests
    assert "authorization" not in received and received["x-key"] == "of the gateway"


def test_without_a_token_the_authorization_of_clients_is_for_the_server(server: Server) -> None:
    with proxying(server) as url:
        httpx.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers={"Authorization": "Bearer x"})
    assert server.requests[0][1]["authorization"] == "Bearer x"


def test_a_server_that_is_down_is_a_bad_gateway() -> None:
    transport = StreamableHttpTransport("shop", "http://127.0.0.1:9/mcp", None)
    with listening(ProxyApp(Gate("shop", transport.endpoint), transport)) as url:
        assert httpx.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}).status_code == 502
        answer = httpx.post(url, content=call("a")).json()
    assert answer["error"]["code"] == -32603


def test_a_token_that_is_too_short_is_refused() -> None:
    transport = StreamableHttpTransport("shop", "http://127.0.0.1:9/mcp", None)
    with pytest.raises(ConfigurationError, match="16 characters"):
        ProxyApp(Gate("shop", transport.endpoint), transport, token="short")
