"""The gateway over HTTP, before a server at a URL: it passes requests on, and calls of tools through the gate."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Any, Final
from weakref import WeakSet

import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, REQUEST_TIMEOUT
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from traced_tools.core.enums import McpTransport
from traced_tools.mcp.http_app import GuardedApp, Message, Receive, Send, Token
from traced_tools.mcp.proxy.client_message import (
    ClientFacts,
    ClientMessage,
    InvalidMessage,
    read_client_message,
    request_key,
)
from traced_tools.mcp.proxy.gate import ConnectionLost, Gate, ServerAnswer
from traced_tools.mcp.proxy.relay import CANCELLED, CHANGED, list_all, request_of_gateway, resolve
from traced_tools.mcp.proxy.server_events import ServerEvent, as_event, read_end, server_events
from traced_tools.mcp.proxy.url_server import ACCEPTED, FAILURES, SESSION, answer_to, connection_lost, read_answer
from traced_tools.mcp.server import principal_of_scope
from traced_tools.mcp.transports import StreamableHttpTransport
from traced_tools.observe import names

_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_SESSIONS: Final = 10_000
"""Of how many sessions the gateway knows what the client has said when they began."""
_OWN: Final = frozenset(
    (
        *("host", "content-length", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"),
        *("accept-encoding", "content-encoding", "proxy-authenticate", "proxy-authorization", "origin", "date"),
        "server",
    )
)
"""Headers that belong to one of the two connections alone."""


class ProxyApp(GuardedApp):
    """The gateway as an ASGI application.

    Args:
        gate: decides about calls.
        transport: the way to the server.
        token: the token that clients must send, or several by the names of their holders. Without one, the header
            `Authorization` of clients is for the server, and passes, unless the gateway has a token for the server.
    """

    def __init__(self, gate: Gate, transport: StreamableHttpTransport, *, token: Token | None = None) -> None:
        super().__init__(token, (), (), _MOST_BYTES)
        self.gate = gate
        self.ids = map(f"traced-tools-{secrets.token_hex(8)}-{{}}".format, count(1))
        self.questions: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self.calls: dict[tuple[str | None, str | None], asyncio.Task[Any]] = {}
        self._transport = transport
        own_headers = {name.lower() for name in transport.header_names}
        is_authorized = token is not None or transport.auth is not None
        self._withheld = _OWN | own_headers | ({"authorization"} if is_authorized else set())
        self._sessions: OrderedDict[str, ClientFacts] = OrderedDict()
        self._opened = AsyncExitStack()
        self._client: httpx2.AsyncClient | None = None

    async def _begin(self) -> None:
        self._client = await self._opened.enter_async_context(self._transport.client(WeakSet()))

    async def _end(self) -> None:
        await self._opened.aclose()

    @asynccontextmanager
    async def ask_server(
        self, method: str, headers: Mapping[str, str], data: bytes | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request to the server, and return the response for the block; raises `ConnectionLost`."""
        assert self._client is not None  # since the lifespan has begun
        try:
            async with self._client.stream(method, self._transport.url, content=data, headers=headers) as response:
                yield response
        except FAILURES as error:
            raise connection_lost(error) from None

    def facts_of(self, session: str | None) -> ClientFacts:
        """Return what the client of a session has said."""
        return self._sessions.get(session or "", ClientFacts())

    def remember(self, session: str | None, facts: ClientFacts) -> None:
        """Remember what the client of a session has said when it began."""
        if session is not None:
            self._sessions[session] = facts
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)

    # Requests.

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        headers = {name: value for name, value in request.headers.items() if name not in self._withheld}
        try:
            if request.method == "POST":
                await self._post(request, headers, send)
            else:
                await self._pass(request.method, headers, None, send)
        except ConnectionLost:
            await Response("the server cannot be reached", 502)(scope, receive, send)
        except ClientDisconnect:
            pass

    async def _post(self, request: Request, headers: dict[str, str], send: Send) -> None:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > self._max_body:
                await _respond(send, 413, {}, b"")
                return
        try:
            message = read_client_message(bytes(data))
        except InvalidMessage as problem:
            await _respond(send, 400, _JSON, problem.answers[0] if problem.answers else b"")
            return
        method, key, session = message.method, message.key, request.headers.get(SESSION)
        if method is None and key in self.questions:
            resolve(self.questions.pop(key), message.value)
            await _respond(send, 202, {}, b"")
        elif method == names.TOOLS_CALL and "id" not in message.value:  # which a server might run all the same
            await _respond(send, 202, {}, b"")
        elif method == names.TOOLS_CALL:
            await self._call(Exchange(self, request, headers, send), message, (session, key))
        elif method in ("tools/list", "initialize") and key is not None:
            await Exchange(self, request, headers, send).watch(message)
        else:
            if method == CANCELLED:
                call = self.calls.get((session, request_key(message.params.get("requestId"))))
                if call is not None:  # first, because the server may answer the call before it has got the message
                    call.cancel()
            await self._pass("POST", headers, bytes(data), send)

    async def _call(self, exchange: Exchange, message: ClientMessage, call: tuple[str | None, str | None]) -> None:
        task = asyncio.create_task(exchange.call(message))
        if call[1] is not None:
            self.calls[call] = task
        tasks = [task]
        if exchange.facts.of(message).is_modern:  # such a client cancels a call by closing its connection
            tasks.append(asyncio.create_task(exchange.wait_for_disconnect()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self.calls.get(call) is task:
                del self.calls[call]
            for pending in tasks:
                pending.cancel()
        await asyncio.wait(tasks)
        if task.cancelled():  # by the client, which does not wait for the answer
            await exchange.end()
        else:
            task.result()

    async def _pass(self, method: str, headers: Mapping[str, str], data: bytes | None, send: Send) -> None:
        """Pass a request on, and the response as it comes."""
        async with self.ask_server(method, headers, data) as response:
            passed_headers = _passed(response.headers)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                await _respond(send, response.status_code, passed_headers, await response.aread())
                return
            await _start(send, response.status_code, passed_headers)
            with suppress(*FAILURES):
                async for event in server_events(response.aiter_bytes()):
                    if self.may_pass(event):
                        await send({"type": "http.response.body", "body": event.raw, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    def may_pass(self, event: ServerEvent) -> bool:
        """Note a change of the tools, and return whether an event may pass: not with tools that aren't compared."""
        value = None if event.message is None else read_answer(event.message)
        if not isinstance(value, dict):
            return event.message is None or not self.gate.tools.is_pinned
        if value.get("method") == CHANGED:
            self.gate.tools.is_stale = True
        result = value.get("result")
        return not (self.gate.tools.is_pinned and isinstance(result, dict) and "tools" in result)


class Exchange:
    """One request of a client that the gateway reads, and the response.

    Args:
        app: the application.
        request: the request.
        headers: its headers for the server.
        send: sends the response.
    """

    transport: McpTransport = "tcp"
    can_be_asked = True

    def __init__(self, app: ProxyApp, request: Request, headers: Mapping[str, str], send: Send) -> None:
        self.principal = principal_of_scope(request.scope)
        self.facts = app.facts_of(request.headers.get(SESSION))
        self._app = app
        self._request = request
        self._headers = headers
        self._send = send
        self._is_stream = False
        self._is_over = False
        self._head: tuple[int, Mapping[str, str]] = (200, _JSON)
        self._answer: tuple[bytes, bytes] | None = None
        self._other: bytes | None = None

    async def call(self, message: ClientMessage) -> None:
        """Answer a call of a tool."""
        answer = await self._app.gate.answer(message, self)
        if self._is_over:  # the server has ended the stream, and the client may resume it
            await self.end()
        elif self._other is not None:
            await _respond(self._send, *self._head, self._other)
        else:
            await self._finish(answer)

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has closed its connection."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    async def watch(self, message: ClientMessage) -> None:
        """Pass a request on whose answer the gateway reads."""
        try:
            answer = await self.forward(message, message.data)
        except ConnectionLost:
            if self._is_over:
                await self.end()
            elif self._other is not None:
                await _respond(self._send, *self._head, self._other)
            else:
                raise
            return
        result, refusal = answer.value.get("result"), None
        if message.method == "initialize":
            facts = ClientFacts()
            facts.introduced(message.params)
            facts.agreed(result)
            self._app.remember(self._head[1].get(SESSION), facts)
        elif isinstance(result, dict):
            refusal = await self._app.gate.listed(message, result, self)
        await self._finish(answer.data if refusal is None else refusal)

    # What a call needs of its peers.

    async def forward(self, message: ClientMessage, data: bytes) -> ServerAnswer:
        """Send a request to the server, pass on what comes before its answer, and return the answer."""
        async with self._app.ask_server("POST", self._headers, data) as response:
            self._head = response.status_code, _passed(response.headers)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                self._other = await response.aread()
                value = answer_to(message, self._other)
                if value is None:
                    raise ConnectionLost
                answer, self._other = self._other, None
                return ServerAnswer(answer, value)
            await self._begin_stream()
            events = server_events(response.aiter_bytes())
            async for event in events:
                value = None if event.message is None else answer_to(message, event.message)
                if value is not None and event.message is not None:
                    self._answer = event.message, event.raw
                    await read_end(events)
                    return ServerAnswer(event.message, value)
                if self._app.may_pass(event):
                    await self._write(event.raw)
        self._is_over = True
        raise ConnectionLost

    async def list_tools(self, message: ClientMessage) -> Sequence[Any]:
        """Have the server list all of its tools."""

        async def page(params: Mapping[str, Any]) -> Any:
            data = request_of_gateway(next(self._app.ids), "tools/list", params)
            request = read_client_message(data)
            headers = {name: value for name, value in self._headers.items() if not name.startswith("mcp-param-")}
            if "mcp-method" in headers:
                headers = {**headers, "mcp-method": "tools/list"}
                headers.pop("mcp-name", None)
            async with self._app.ask_server("POST", {**headers, **_ACCEPTED}, data) as response:
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    return (answer_to(request, await response.aread()) or {}).get("result")
                async for event in server_events(response.aiter_bytes()):
                    value = None if event.message is None else answer_to(request, event.message)
                    if value is not None:
                        return value.get("result")
            return None

        return await list_all(self._app.gate.name, message, page)

    async def elicit(self, message: ClientMessage, params: Mapping[str, Any], seconds: float) -> Any:
        """Ask the user of the client on the stream of the response."""
        request_id = next(self._app.ids)
        future = self._app.questions[request_id] = asyncio.get_running_loop().create_future()
        try:
            await self._begin_stream()
            await self._write(as_event(request_of_gateway(request_id, "elicitation/create", params)))
            async with asyncio.timeout(seconds):
                answer = await future
        except TimeoutError:
            raise MCPError(REQUEST_TIMEOUT, "the client did not answer in time") from None
        finally:
            self._app.questions.pop(request_id, None)
        if not isinstance(answer.get("result"), dict):
            raise MCPError(INTERNAL_ERROR, "the client refused the question")
        return answer["result"]

    # The response.

    async def _begin_stream(self) -> None:
        if not self._is_stream:
            self._is_stream = True
            headers = {**self._head[1], "content-type": "text/event-stream", "cache-control": "no-cache"}
            await _start(self._send, self._head[0], headers)

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _finish(self, answer: bytes) -> None:
        if not self._is_stream:
            await _respond(self._send, *self._head, answer)
            return
        is_of_server = self._answer is not None and self._answer[0] == answer
        await self._write(self._answer[1] if is_of_server and self._answer is not None else as_event(answer))
        await self.end()

    async def end(self) -> None:
        """End the response without an answer."""
        await self._begin_stream()
        await self._send({"type": "http.response.body", "body": b""})


_JSON: Final = {"content-type": "application/json"}
_ACCEPTED: Final = {name.lower(): value for name, value in ACCEPTED.items()}


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower() not in _OWN}


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def _respond(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    await _start(send, status, {**headers, "content-length": str(len(body))})
    await send({"type": "http.response.body", "body": body})
