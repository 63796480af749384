"""How the gateway gets tokens for its server: a person logs in with a browser, or a machine has credentials."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Final
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakSet

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from traced_tools.core.variables import ALL
from traced_tools.errors import ConfigurationError, McpUnavailable
from traced_tools.mcp.authentication import LoginFailed, RequestNotSent
from traced_tools.mcp.proxy.token_file import TokenFile
from traced_tools.mcp.proxy.url_server import ACCEPTED, VERSION
from traced_tools.mcp.sdk_logs import OURS
from traced_tools.mcp.transports import StreamableHttpTransport
from traced_tools.observe.failures import error_type
from traced_tools.observe.sanitize import safe_identifier

_LOOPBACK: Final = "127.0.0.1"
_LOGIN_SECONDS: Final = 300.0
"""How long a person may take to log in."""
_PAUSE_SECONDS: Final = 60.0
"""How long no browser is opened after a login that failed: a client that tries again would open one each time."""
_HEAD_SECONDS: Final = 10.0
"""How long a browser may take for its request."""
_PING: Final = {"jsonrpc": "2.0", "id": "traced-tools-login", "method": "ping"}
_RESOURCES_SINCE: Final = "2025-06-18"
"""The revision in whose requests the SDK names the server for which a token is."""
_HEAD: Final = b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
_DONE: Final = b"This page can be closed: the answer has reached traced-tools."
_UNKNOWN: Final = b"There is no such login."


class BrowserLogin(OAuthClientProvider):
    """Authenticates by OAuth: a person logs in with a browser, and a file keeps the tokens.

    Args:
        server: the URL of the server.
        path: the file.
        show: shows the address at which the person logs in.

    Raises:
        ConfigurationError: if the file can't be used.
    """

    def __init__(self, server: str, path: Path, show: Callable[[str], None]) -> None:
        self._file = TokenFile(path, server)
        self._redirect = self._file.read().redirect or f"http://{_LOOPBACK}:{_free_port()}/callback"
        self._show = show
        self._address = ""
        self._next_try = 0.0
        metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(self._redirect)], client_name="traced-tools")
        super().__init__(server, metadata, self._file, self._take_address, self._wait_for_answer)

    def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Read the file again, because another gateway may have refreshed its tokens; then do as the SDK does."""
        self._initialized = False
        return super().async_auth_flow(request)

    async def _initialize(self) -> None:
        """Take over the login in the file, also when and where its tokens are refreshed, which the SDK forgets."""
        login, context = self._file.read(), self.context
        context.current_tokens, context.token_expiry_time = login.tokens, login.expires_at
        context.client_info = login.client
        context.oauth_metadata = login.authorization_server or context.oauth_metadata
        context.protected_resource_metadata = login.resource or context.protected_resource_metadata
        self._initialized = True

    async def _take_address(self, address: str) -> None:
        """Keep the address, and write what the next process needs to refresh tokens, or to log in again."""
        self._address = address
        self._file.write(
            redirect=self._redirect,
            authorization_server=self.context.oauth_metadata,
            resource=self.context.protected_resource_metadata,
        )

    async def _wait_for_answer(self) -> AuthorizationCodeResult:
        """Open a browser, and return what the authorization server has it bring back."""
        if time.monotonic() < self._next_try:
            raise LoginFailed("the last login failed")
        self._next_try = time.monotonic() + _PAUSE_SECONDS
        answer = await self._log_in()
        if "code" not in answer:
            problem = safe_identifier(answer.get("error", "no code"))
            raise LoginFailed(f"the authorization server refused the login: {problem}")
        self._next_try = 0.0
        return AuthorizationCodeResult(code=answer["code"], state=answer["state"], iss=answer.get("iss"))

    async def _log_in(self) -> Mapping[str, str]:
        port, state = urlsplit(self._redirect).port, dict(parse_qsl(urlsplit(self._address).query))["state"]
        try:
            async with _answer_at(port or 0, state) as answer, _browser_at(self._address):
                self._show(self._address)
                async with asyncio.timeout(_LOGIN_SECONDS):
                    return await answer
        except TimeoutError:
            raise LoginFailed(f"nobody logged in within {_LOGIN_SECONDS:.0f} seconds") from None
        except OSError as error:
            problem = error.strerror or type(error).__name__
            raise LoginFailed(f"port {port} of {_LOOPBACK} cannot be listened at: {problem}") from None


def client_credentials(server: str, client_id: str, secret: str, issuer: str) -> OAuthClientProvider:
    """Return the authentication of a machine, which keeps its tokens in memory.

    Args:
        server: the URL of the server.
        client_id: the id that the authorization server knows the machine by.
        secret: the secret.
        issuer: the authorization server, the only one that gets the secret.

    Raises:
        ConfigurationError: if the issuer is no URL of HTTP.
    """
    if urlsplit(issuer).scheme not in ("http", "https"):
        raise ConfigurationError("--oauth-issuer must begin with http:// or https://")
    return ClientCredentialsOAuthProvider(server, _Memory(), client_id, secret, issuer=issuer)


async def log_in(transport: StreamableHttpTransport) -> None:
    """Get a token, if the server wants one, before there are requests of a client.

    Raises:
        McpUnavailable: if the server can't be reached, there is no token, or the server refuses it.
    """
    OURS.set(True)
    name = transport.endpoint.name
    headers = {**ACCEPTED, VERSION: _RESOURCES_SINCE}
    try:
        async with (
            transport.client(WeakSet()) as client,
            client.stream("POST", transport.url, json=_PING, headers=headers) as response,
        ):
            status = response.status_code
    except RequestNotSent as failure:
        raise McpUnavailable(name, f"cannot be used: {failure}") from None
    except httpx2.HTTPError as error:
        raise McpUnavailable(name, f"cannot be reached: {error_type(error)} ({transport.place})") from None
    if status in (401, 403):
        raise McpUnavailable(name, f"refuses the token: it answers with the HTTP status {status}")


class _Memory:
    """Keeps tokens until the process ends."""

    _tokens: OAuthToken | None = None
    _client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@asynccontextmanager
async def _answer_at(port: int, state: str) -> AsyncIterator[asyncio.Future[Mapping[str, str]]]:
    """Listen at a port for the browser, for the length of a block; only a request with the state is an answer."""
    answer: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, ValueError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            target = head.partition(b" ")[2].partition(b" ")[0].decode("ascii")
            query = dict(parse_qsl(urlsplit(target).query))
            is_answer = secrets.compare_digest(query.get("state", "").encode(), state.encode())
            status, text = (b"200 OK", _DONE) if is_answer else (b"404 Not Found", _UNKNOWN)
            writer.write(_HEAD % (status, len(text), text))
            await writer.drain()
            if is_answer and not answer.done():
                answer.set_result(query)
        writer.close()

    server = await asyncio.start_server(respond, _LOOPBACK, port)
    try:
        yield answer
    finally:
        server.close()


@asynccontextmanager
async def _browser_at(address: str) -> AsyncIterator[None]:
    """Open a browser, in a process of its own: a browser for terminals would write between messages of the protocol."""
    env = {key: value for key, value in os.environ.items() if key not in ALL}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "webbrowser", address), stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env=env
    )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
