"""The server behind the gateway at a URL, for a client on standard input and output."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from weakref import WeakSet

import httpx2
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, PROTOCOL_VERSION_META_KEY
from pydantic_core import from_json

from traced_tools.flow.workers import finished_future
from traced_tools.mcp.authentication import RequestNotSent
from traced_tools.mcp.proxy.client_message import ClientMessage, read_client_message, request_key
from traced_tools.mcp.proxy.gate import ConnectionLost
from traced_tools.mcp.proxy.server_events import read_end, server_events
from traced_tools.mcp.transports import StreamableHttpTransport
from traced_tools.observe.names import TOOLS_CALL

_LOG = logging.getLogger(__name__)
ACCEPTED: Final = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
SESSION: Final = "mcp-session-id"
VERSION: Final = "mcp-protocol-version"
_PAUSE: Final = 1.0
"""Seconds before the stream of the server's own messages is opened again."""
_GOODBYE: Final = 2.0
"""Seconds that a server has to confirm the end of its session."""
_MOST_RESUMED: Final = 5
"""How often the stream of an answer is resumed without a new event."""
FAILURES: Final = (httpx2.HTTPError, httpx2.StreamError, RequestNotSent, OSError)
SchemaOf = Callable[[str], Mapping[str, Any] | None]
"""Returns the schema of the arguments of a tool; None if it is not known."""


class UrlServer:
    """A server at a URL.

    Args:
        transport: the way to the server.
    """

    def __init__(self, transport: StreamableHttpTransport) -> None:
        self._transport = transport

    @asynccontextmanager
    async def open(self, schema_of: SchemaOf) -> AsyncIterator[UrlConnection]:
        """Open an HTTP client, and end the session after the block. The first message connects it."""
        async with self._transport.client(WeakSet()) as client:
            connection = UrlConnection(client, self._transport.url, schema_of)
            try:
                yield connection
            finally:
                await connection.close()


class UrlConnection:
    """The messages between one client and a server at a URL.

    Args:
        client: the HTTP client.
        url: the URL.
        schema_of: returns the schema of a tool, which says what headers repeat of its arguments.
    """

    exit_status: int | None = None

    def __init__(self, client: httpx2.AsyncClient, url: str, schema_of: SchemaOf) -> None:
        self._client = client
        self._url = url
        self._schema_of = schema_of
        self._headers: dict[str, str] = {}
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def send(self, data: bytes) -> None:
        """Send a message; the server's answer, or an error in its place, is among the messages."""
        message = read_client_message(data)
        task = asyncio.create_task(finished_future(lambda: self._send(message)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if message.key is None or message.method is None:  # notifications and answers arrive in order
            await asyncio.wait([task])

    async def exchange(self, data: bytes) -> None:
        """Send a request and receive until its answer is among the messages; raises `ConnectionLost`."""
        message = read_client_message(data)
        if not await self._post(message):
            raise ConnectionLost

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the messages of the server."""
        while (message := await self._messages.get()) is not None:
            yield message

    async def finish(self) -> None:
        """End the stream of messages, after those that have come."""
        self._messages.put_nowait(None)

    async def close(self) -> None:
        """End all requests and the session."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if SESSION in self._headers:
            with suppress(*FAILURES, TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self._client.delete(self._url, headers=self._headers)

    async def _send(self, message: ClientMessage) -> None:
        try:
            is_answered = await self._post(message)
        except ConnectionLost:
            is_answered = False
        if not is_answered and message.key is not None and message.method is not None:
            self._messages.put_nowait(message.error(INTERNAL_ERROR, "the server did not answer"))

    async def _post(self, message: ClientMessage) -> bool:
        """Send a message, and return whether it was answered."""
        headers = {**ACCEPTED, **self._headers, **headers_of(message, self._schema_of)}
        try:
            async with self._client.stream("POST", self._url, content=message.data, headers=headers) as response:
                if response.is_success:
                    self._begin(message, response)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    return await self._receive(message, response)
                return self._take_body(message, response.status_code, await response.aread())
        except FAILURES as error:
            raise connection_lost(error) from None

    def _begin(self, message: ClientMessage, response: httpx2.Response) -> None:
        """Take over the session that the server begins, and listen to its own messages once it has begun."""
        if message.method == "initialize" and SESSION in response.headers:
            self._headers[SESSION] = response.headers[SESSION]
        if message.method == "notifications/initialized":
            self._tasks.add(asyncio.create_task(finished_future(self._listen)))

    def _take_body(self, message: ClientMessage, status: int, body: bytes) -> bool:
        is_request = message.key is not None and message.method is not None
        if not is_request:
            return True
        value = read_answer(body)
        is_message = isinstance(value, dict) and ("result" in value or "error" in value)
        if is_message and request_key(value.get("id")) == message.key:
            self._put(message, body, value)
        elif is_message and isinstance(value.get("error"), dict):  # for a request whose id the server has not read
            error = value["error"]
            self._messages.put_nowait(message.error(error.get("code"), error.get("message"), error.get("data")))
        else:
            self._messages.put_nowait(message.error(INVALID_REQUEST, f"the server answered with the status {status}"))
        return True

    def _put(self, request: ClientMessage, body: bytes, value: Mapping[str, Any]) -> None:
        result = value.get("result")
        if request.method == "initialize" and isinstance(result, dict):
            self._headers[VERSION] = str(result.get("protocolVersion"))
        self._messages.put_nowait(body.translate(_LINE_ENDS).strip())

    async def _receive(self, message: ClientMessage, response: httpx2.Response) -> bool:
        """Receive the events of a response; resume a stream that ends before the answer."""
        last = await self._take_events(message, response, None)
        for _ in range(_MOST_RESUMED):
            if last is None or last is _ANSWERED:
                break
            await asyncio.sleep(_PAUSE)
            headers = {**ACCEPTED, **self._headers, "Last-Event-ID": last}
            async with self._client.stream("GET", self._url, headers=headers) as resumed:
                if not resumed.is_success:
                    return False
                last = await self._take_events(message, resumed, last)
        return last is _ANSWERED

    async def _take_events(
        self, message: ClientMessage | None, response: httpx2.Response, last: str | None
    ) -> str | None:
        """Take the messages of a stream, and return the id of its last event; `_ANSWERED` after the answer."""
        events = server_events(response.aiter_bytes())
        async for event in events:
            last = event.event_id or last
            if event.message is None:
                continue
            if message is not None and (value := answer_to(message, event.message)) is not None:
                self._put(message, event.message, value)
                await read_end(events)
                return _ANSWERED
            self._messages.put_nowait(event.message.translate(_LINE_ENDS).strip())
        return last

    async def _listen(self) -> None:
        """Receive the messages that belong to no request, if the server sends any."""
        last: str | None = None
        while True:
            headers = {"Accept": "text/event-stream", **self._headers}
            if last is not None:
                headers["Last-Event-ID"] = last
            try:
                async with self._client.stream("GET", self._url, headers=headers) as response:
                    if not response.is_success:
                        return
                    last = await self._take_events(None, response, last)
            except RequestNotSent:  # there is no token, and a request of the client has to get one
                return
            except FAILURES:
                pass
            await asyncio.sleep(_PAUSE)


_ANSWERED: Final = "answered, which no id of an event is: \n"
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


def connection_lost(error: Exception) -> ConnectionLost:
    """Return the error for a request that failed, and log why it was not sent, if it was not."""
    if isinstance(error, RequestNotSent):
        _LOG.warning("the MCP server was not sent a request: %s", error)
    return ConnectionLost()


def read_answer(data: bytes) -> Any:
    """Return the value of a message of the server; None if it is not JSON."""
    try:
        return from_json(data)
    except ValueError:
        return None


def answer_to(request: ClientMessage, data: bytes) -> Mapping[str, Any] | None:
    """Return the value of the message that answers a request; None for any other message."""
    value = read_answer(data)
    is_answer = isinstance(value, dict) and "method" not in value and request_key(value.get("id")) == request.key
    return value if is_answer else None


def headers_of(message: ClientMessage, schema_of: SchemaOf) -> dict[str, str]:
    """Return the headers that repeat what is in a message, as the revision 2026-07-28 wants them."""
    version, method, params = message.meta.get(PROTOCOL_VERSION_META_KEY), message.method, message.params
    if not isinstance(version, str) or method is None:
        return {}
    headers = {VERSION: version, MCP_METHOD_HEADER: method}
    name = params.get(NAME_BEARING_METHODS.get(method, ""))
    if isinstance(name, str):
        headers[MCP_NAME_HEADER] = encode_header_value(name)
    schema, arguments = schema_of(str(name)) if method == TOOLS_CALL else None, params.get("arguments")
    if schema is not None and isinstance(arguments, dict):
        headers |= mcp_param_headers(x_mcp_header_map(schema), arguments)
    return headers
