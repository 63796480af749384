"""Passes messages between one client and the server, and calls of tools through the gate."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, REQUEST_TIMEOUT
from pydantic_core import from_json

from traced_tools.core.enums import McpTransport
from traced_tools.errors import McpRequestError
from traced_tools.mcp.proxy.client_message import (
    ClientFacts,
    ClientMessage,
    InvalidMessage,
    read_client_message,
    request_key,
)
from traced_tools.mcp.proxy.gate import ConnectionLost, Gate, ServerAnswer
from traced_tools.observe import names

Send = Callable[[bytes], Awaitable[None]]
_LOG = logging.getLogger(__name__)
_CLEAN_UP: Final = 5.0
"""Seconds that cancelled calls have to end."""
_MOST_PAGES: Final = 1000
CHANGED: Final = "notifications/tools/list_changed"
CANCELLED: Final = "notifications/cancelled"
_OF_REQUEST: Final = "io.modelcontextprotocol/"
"""Begins the keys with which each request states what its client is, from the revision 2026-07-28 on."""


@dataclass
class _ActiveCall:
    """A call that is not answered.

    Attributes:
        task: answers it.
        is_forwarded: whether the server has got it.
        is_cancelled: whether the client has cancelled it, so that it has no use for an answer of the server.
    """

    task: asyncio.Task[None]
    is_forwarded: bool = False
    is_cancelled: bool = False


class Relay:
    """The messages between one client and the server.

    Args:
        gate: decides about calls.
        to_client: sends a message to the client.
        to_server: sends a message to the server.
        exchange: sends a request to the server whose answer is awaited.
    """

    transport: McpTransport = "pipe"
    principal: str | None = None
    can_be_asked = True

    def __init__(self, gate: Gate, to_client: Send, to_server: Send, exchange: Send) -> None:
        self.facts = ClientFacts()
        self._gate = gate
        self._to_client = to_client
        self._to_server = to_server
        self._exchange = exchange
        self._ids = map(f"traced-tools-{secrets.token_hex(8)}-{{}}".format, count(1))
        self._calls: dict[str, _ActiveCall] = {}
        self._requests: dict[str, asyncio.Future[ServerAnswer]] = {}  # to the server
        self._questions: dict[str, asyncio.Future[Mapping[str, Any]]] = {}  # to the client
        self._watched: dict[str, ClientMessage] = {}
        self._lists: set[asyncio.Task[None]] = set()
        self._is_lost = False

    # From the client.

    async def from_client(self, data: bytes) -> None:
        """Take a message of the client."""
        try:
            message = read_client_message(data)
        except InvalidMessage as problem:
            for answer in problem.answers:
                await self._to_client(answer)
            return
        method, key = message.method, message.key
        if method == names.TOOLS_CALL:
            await self._begin_call(message)
        elif method == CANCELLED:
            await self._cancel(message)
        elif method is None and key in self._questions:
            resolve(self._questions.pop(key), message.value)
        else:
            if key is not None and method in ("initialize", "tools/list"):
                self._watched[key] = message
                if method == "initialize":
                    self.facts.introduced(message.params)
            await self._to_server(data)

    async def _begin_call(self, message: ClientMessage) -> None:
        if "id" not in message.value:  # which a server might run all the same
            _LOG.warning("a call of a tool without an id was dropped")
            return
        key = message.key
        if key in self._calls or key in self._watched:
            await self._to_client(message.error(INVALID_REQUEST, "Invalid Request: the id is in use"))
            return
        task = asyncio.create_task(self._answer(message))
        if key is not None:
            self._calls[key] = _ActiveCall(task)
        else:
            await task

    async def _answer(self, message: ClientMessage) -> None:
        try:
            answer = await self._gate.answer(message, self)
            if not self._is_lost:
                await self._to_client(answer)
        finally:
            self._calls.pop(message.key or "", None)

    async def _cancel(self, message: ClientMessage) -> None:
        call = self._calls.get(request_key(message.params.get("requestId")) or "")
        if call is None:
            await self._to_server(message.data)
            return
        call.is_cancelled = True  # first, because the server may answer the call before it has confirmed the message
        try:
            if call.is_forwarded:
                await self._to_server(message.data)
        finally:
            call.task.cancel()

    # From the server.

    async def from_server(self, data: bytes) -> None:
        """Take a message of the server."""
        try:
            value = from_json(data)
        except ValueError:
            value = None
        if not isinstance(value, dict) or ("method" in value and "result" in value):
            if self._may_pass(value):
                await self._to_client(data)
            return
        key = None if "method" in value else request_key(value.get("id"))
        request = self._requests.pop(key, None) if key is not None else None
        call = self._calls.get(key or "")
        if request is not None and not request.done() and (call is None or not call.is_cancelled):
            request.set_result(ServerAnswer(data, value))
        elif key in self._watched:
            await self._answer_watched(self._watched.pop(key), ServerAnswer(data, value))
        else:
            if value.get("method") == CHANGED:
                self._gate.tools.is_stale = True
            await self._to_client(data)

    def _may_pass(self, value: Any) -> bool:
        """Return whether what is not a message may reach the client: it must not be a list of tools, nor an answer."""
        if isinstance(value, list):
            keys = {request_key(member.get("id")) for member in value if isinstance(member, dict)}
            return keys.isdisjoint(self._requests) and keys.isdisjoint(self._watched)
        return not self._gate.tools.is_pinned

    async def _answer_watched(self, request: ClientMessage, answer: ServerAnswer) -> None:
        result = answer.value.get("result")
        if request.method == "initialize":
            self.facts.agreed(result)
        elif isinstance(result, dict):
            if self._gate.tools.is_pinned:  # may need requests of its own, whose answers the caller has to read
                task = asyncio.create_task(self._send_checked(request, answer, result))
                self._lists.add(task)
                task.add_done_callback(self._lists.discard)
                return
            await self._gate.listed(request, result, self)
        await self._to_client(answer.data)

    async def _send_checked(self, request: ClientMessage, answer: ServerAnswer, result: Mapping[str, Any]) -> None:
        refusal = await self._gate.listed(request, result, self)
        if not self._is_lost:
            await self._to_client(answer.data if refusal is None else refusal)

    # What a call needs of its peers.

    async def forward(self, message: ClientMessage, data: bytes) -> ServerAnswer:
        """Send a call to the server, and return the answer."""
        key = message.key or ""
        self._calls[key].is_forwarded = True
        return await self._ask_server(key, data)

    async def _ask_server(self, key: str, data: bytes) -> ServerAnswer:
        if self._is_lost:
            raise ConnectionLost
        future: asyncio.Future[ServerAnswer] = asyncio.get_running_loop().create_future()
        self._requests[key] = future
        try:
            await self._exchange(data)
            return await future
        finally:
            if self._requests.get(key) is future:
                del self._requests[key]

    async def list_tools(self, message: ClientMessage) -> Sequence[Any]:
        """Have the server list all of its tools."""
        return await list_all(self._gate.name, message, self._page)

    async def _page(self, params: Mapping[str, Any]) -> Any:
        request_id = next(self._ids)
        data = request_of_gateway(request_id, "tools/list", params)
        return (await self._ask_server(request_id, data)).value.get("result")

    async def elicit(self, message: ClientMessage, params: Mapping[str, Any], seconds: float) -> Any:
        """Ask the user of the client while a call waits."""
        request_id = next(self._ids)
        future = self._questions[request_id] = asyncio.get_running_loop().create_future()
        try:
            await self._to_client(request_of_gateway(request_id, "elicitation/create", params))
            async with asyncio.timeout(seconds):
                answer = await future
        except (TimeoutError, asyncio.CancelledError) as error:
            with suppress(asyncio.CancelledError):
                await self._to_client(request_of_gateway(None, CANCELLED, {"requestId": request_id}))
            if isinstance(error, TimeoutError):
                raise MCPError(REQUEST_TIMEOUT, "the client did not answer in time") from None
            raise
        finally:
            self._questions.pop(request_id, None)
        if not isinstance(answer.get("result"), dict):
            raise MCPError(INTERNAL_ERROR, "the client refused the question")
        return answer["result"]

    # The end.

    def leave(self) -> None:
        """End the calls that the server has not got, because the client is gone."""
        for call in self._calls.values():
            if not call.is_forwarded:
                call.task.cancel()

    async def close(self) -> None:
        """End all calls, because the server is gone; their outcomes are recorded."""
        self._is_lost = True
        for request in self._requests.values():
            if not request.done():
                request.set_exception(ConnectionLost())
        tasks = {*self._lists, *(call.task for call in self._calls.values())}
        self.leave()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=_CLEAN_UP)
            for task in pending:
                task.cancel()


def resolve(question: asyncio.Future[Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
    """Resolve a question to the client with its answer."""
    if not question.done():  # the call may be cancelled
        question.set_result(answer)


def request_of_gateway(request_id: str | None, method: str, params: Mapping[str, Any]) -> bytes:
    """Return a request of the gateway itself; without an id, a notification."""
    identified = {} if request_id is None else {"id": request_id}
    return json.dumps({"jsonrpc": "2.0", **identified, "method": method, "params": params}).encode()


async def list_all(
    server: str, message: ClientMessage, page: Callable[[Mapping[str, Any]], Awaitable[Any]]
) -> Sequence[Any]:
    """Return all tools of a server, as it describes them.

    Args:
        server: the configured name of the server.
        message: the request of the client that needs them.
        page: sends `tools/list` with parameters, and returns the result.

    Raises:
        McpRequestError: if the server refuses to list them, or has too many pages.
    """
    meta = {key: value for key, value in message.meta.items() if key.startswith(_OF_REQUEST)}
    params: dict[str, Any] = {"_meta": meta} if meta else {}
    tools: list[Any] = []
    for _ in range(_MOST_PAGES):
        result = await page(params)
        if not isinstance(result, dict) or not isinstance(result.get("tools"), list):
            raise McpRequestError(server, "does not list its tools")
        tools += result["tools"]
        cursor = result.get("nextCursor")
        if cursor is None:
            return tools
        params["cursor"] = cursor
    raise McpRequestError(server, "lists its tools on too many pages")
