"""An MCP server as an ASGI application: who may reach it, and the sessions of clients of older revisions."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from contextvars import Context
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.responses import Response

from traced_tools.core.checks import expect, expect_each, expect_whole
from traced_tools.core.identity import check_principal
from traced_tools.errors import ConfigurationError
from traced_tools.flow.workers import finished_future
from traced_tools.mcp.sdk_logs import OURS
from traced_tools.mcp.server import PRINCIPAL, McpServer
from traced_tools.observe.failures import error_type

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Token = str | Mapping[str, str]
"""The token that clients must send; or several, by the names of their holders."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOG = logging.getLogger(__name__)
_LEAST_TOKEN = 16
_IDLE = 30 * 60
"""Seconds without a request after which a session ends."""
_AUTHORITY: Final = r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?"
"""A host, with or without a port. A URL may have more there, such as the name of a user."""
_HOST: Final = re.compile(_AUTHORITY, re.IGNORECASE)
_ORIGIN: Final = re.compile(rf"[a-z][a-z0-9+.-]*://{_AUTHORITY}")


class GuardedApp:
    """An ASGI application that answers the clients who may reach it.

    Args:
        token: the token that clients must send, or several by the names of their holders.
        hosts: the names by which clients may address the server.
        origins: the origins of web pages that may use the server.
        max_body: the maximum size of a request in bytes.

    Raises:
        TypeError, ValueError: for an invalid argument.
        ConfigurationError: for a token that is too short, or that no client can send.
    """

    def __init__(self, token: Token | None, hosts: Collection[str], origins: Collection[str], max_body: int) -> None:
        for what, texts in (("hosts", hosts), ("origins", origins)):
            if isinstance(texts, str):
                raise TypeError(f"{what} must be a collection of str, not one str: pass [text]")
            expect_each(what, tuple(texts), str, "a str")
        expect_whole("max_body", max_body, 1)
        self._holders = _token_holders(token)
        self._hosts = {host.lower() for host in hosts} or (None if self._holders else {*LOOPBACK})
        self._origins = _checked_origins(origins)
        self._max_body = max_body

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan of the application."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "lifespan.startup":
            await self._begin()
            await send({"type": "lifespan.startup.complete"})
        await self._end()
        await send({"type": "lifespan.shutdown.complete"})

    async def _begin(self) -> None:
        """Begin what requests need."""

    async def _end(self) -> None:
        """End it."""

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer the request of a client who may reach the server."""
        raise NotImplementedError("every application answers requests")

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = self._refusal(headers)
        if not self._holders and _is_remote(scope.get("client")):
            refusal = Response("without a token, this server answers programs of its own machine only", 403)
        holder = None if refusal is not None else self._find_holder(headers)
        if refusal is None and holder is None:
            refusal = Response("a valid bearer token is required", 401, {"WWW-Authenticate": "Bearer"})
        if holder is None or refusal is not None:
            assert refusal is not None
            await refusal(scope, receive, send)
            return
        authenticated_scope = {**scope, PRINCIPAL: holder.name}
        if holder.digest:  # the SDK serves a session only to the user who began it
            authenticated_scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=holder.digest, scopes=[]))
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        OURS.set(True)
        try:
            await self._handle(authenticated_scope, receive, send_on)
            return
        except Exception as error:  # whose traceback the server of the application would log
            _LOG.error("an HTTP request of an MCP client failed: %s", error_type(error))
        if not has_begun:
            await Response("the request failed", 500)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        """Return the refusal of a request that a web page may have sent without its user; None for other requests."""
        if self._hosts is not None:
            hosts = [_parse_host(_HOST, header) for header in headers.getlist("host")]
            if len(hosts) != 1 or hosts[0] not in self._hosts:
                return Response("this server is not addressed by that host", 421)
        if not all(map(self._may_use, headers.getlist("origin"))):
            return Response("pages of that origin may not use this server", 403)
        return None

    def _may_use(self, origin: str) -> bool:
        return origin in self._origins or (not self._holders and _parse_host(_ORIGIN, origin) in LOOPBACK)

    def _find_holder(self, headers: Headers) -> _Holder | None:
        """Return the holder of a request's token; None if it has no valid token."""
        if not self._holders:
            return _Holder("", None)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        digest = _digest(token.strip())
        matches = [holder for holder in self._holders if hmac.compare_digest(holder.digest, digest)]
        return matches[0] if matches and scheme.lower() == "bearer" else None


class McpApp(GuardedApp):
    """An MCP server as an ASGI application, for streamable HTTP at any path.

    It works below another application, which need not know that it has a lifespan.

    Args:
        server: the server.
        token: the token that clients must send as `Authorization: Bearer …`. If it is a mapping, it has the tokens by
            the names of their holders, and the name of the holder is the principal of the calls: 1 to 256 characters.
        hosts: the names by which clients may address the server. With a token, by default any; without one, those of
            the loopback interface.
        origins: the origins of web pages that may use the server, such as `https://example.org`. Without a token, also
            those of the loopback interface.
        max_body: the maximum size of a request in bytes.
        max_sessions: the maximum number of sessions of clients of older revisions. If there are as many, no further one
            begins until one ends.
        stateless: whether clients of older revisions get no session, so that any process can answer each request; the
            server can't ask them for approvals then.

    Raises:
        TypeError, ValueError: for an invalid argument.
        ConfigurationError: for a token that is too short, or that no client can send.
    """

    def __init__(
        self,
        server: McpServer,
        *,
        token: Token | None = None,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        max_body: int = 4 * 1024 * 1024,
        max_sessions: int = 1000,
        stateless: bool = False,
    ) -> None:
        expect("server", server, McpServer, "an McpServer")
        super().__init__(token, hosts, origins, max_body)
        expect_whole("max_sessions", max_sessions, 1)
        expect("stateless", stateless, bool, "True or False")
        self._server = server
        self._max_sessions = max_sessions
        self._stateless = stateless
        self._sessions: dict[asyncio.AbstractEventLoop, _Sessions] = {}

    async def _begin(self) -> None:
        await self._current().started()

    async def _end(self) -> None:
        if (sessions := self._sessions.pop(asyncio.get_running_loop(), None)) is not None:
            await sessions.close()

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        await (await self._current().started()).handle_request(scope, receive, send)

    def _current(self) -> _Sessions:
        """Return the sessions on the current event loop. They begin with the first request, if not before."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions or not self._sessions[loop].are_open:
            for other_loop in [*self._sessions]:
                if other_loop.is_closed():
                    del self._sessions[other_loop]
            self._sessions[loop] = _Sessions(self._server, self._stateless, self._max_body, self._max_sessions)
        return self._sessions[loop]


class _Holder(NamedTuple):
    """The holder of a token.

    Args:
        digest: identifies the token.
        name: the name of the holder, if it has one.
    """

    digest: str
    name: str | None


class _Sessions:
    """The SDK's sessions of clients on one event loop. A task of their own holds them."""

    def __init__(self, server: McpServer, stateless: bool, max_body: int, max_sessions: int) -> None:
        self._manager = StreamableHTTPSessionManager(
            server.sdk,
            stateless=stateless,
            max_request_body_size=max_body,
            max_sessions=max_sessions,
            session_idle_timeout=_IDLE,
        )
        self._is_started = asyncio.Event()
        self._over = asyncio.Event()
        self._task = asyncio.create_task(finished_future(self._hold), context=Context())

    @property
    def are_open(self) -> bool:
        """Whether they can take requests."""
        return not self._task.done()

    async def started(self) -> StreamableHTTPSessionManager:
        """Return what answers requests, once it can."""
        await self._is_started.wait()
        return self._manager

    async def _hold(self) -> None:
        OURS.set(True)
        async with self._manager.run():
            self._is_started.set()
            await self._over.wait()

    async def close(self) -> None:
        """End them, with the calls that are under way."""
        self._over.set()
        await asyncio.wait([self._task])


def _token_holders(token: Token | None) -> tuple[_Holder, ...]:
    expect("token", token, (str, Mapping, type(None)), "a str, a mapping of names to str, or None")
    if token is None:
        return ()
    named_tokens: list[tuple[str | None, str]] = [(None, token)] if isinstance(token, str) else [*token.items()]
    expect_each("token", [text for pair in named_tokens for text in pair if text is not None], str, "a str")
    for name, _ in named_tokens:
        check_principal("the name of each token's holder", name)
    if not named_tokens or any(len(text) < _LEAST_TOKEN for _, text in named_tokens):
        raise ConfigurationError(
            f"a token must have at least {_LEAST_TOKEN} characters: `openssl rand -hex 32` prints a good one"
        )
    if not all(text.isascii() and text.isprintable() and " " not in text for _, text in named_tokens):
        raise ConfigurationError("a token contains characters that no client can send, such as a space or a line feed")
    return tuple(_Holder(_digest(text), name) for name, text in named_tokens)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _is_remote(client: Any) -> bool:
    """Return whether a client, if it is known, has an address of another machine."""
    return client is not None and not _is_local(client[0])


@lru_cache(maxsize=128)
def _is_local(address: str) -> bool:
    """Return whether an address is one of this machine; true for anything that is no address."""
    try:
        return ip_address(address).is_loopback
    except ValueError:  # such as that of a test client or a socket of Unix
        return True


def _checked_origins(origins: Collection[str]) -> set[str]:
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"no browser sends the origin {origin!r}: pass scheme://host or scheme://host:port, in lower case"
            )
    return {*origins}


def _parse_host(pattern: re.Pattern[str], header: str) -> str | None:
    """Return the host in a `Host` or `Origin` header, without its port; None if the header is anything else."""
    match = pattern.fullmatch(header)
    return None if match is None else match[1].strip("[]").lower()
