"""The httpx clients of a model: one for blocking code and one per event loop. A forked child opens its own."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import ssl
import threading
from collections.abc import AsyncGenerator
from functools import cache
from typing import Any, Final, TypeVar

import httpx

from traced_tools.core.fork import on_fork
from traced_tools.errors import ConfigurationError
from traced_tools.models.http.options import HttpOptions

C = TypeVar("C", httpx.Client, httpx.AsyncClient)
_LoopClient = tuple[httpx.AsyncClient, AsyncGenerator[None, None]]


class Clients:
    """The httpx clients of one model, created when first needed."""

    def __init__(self, options: HttpOptions) -> None:
        self._settings = _client_settings(options)
        self._custom_client = options.get("client")
        self._custom_async_client = options.get("async_client")
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._async_clients: dict[asyncio.AbstractEventLoop, _LoopClient] = {}
        self._inherited: list[object] = []
        on_fork(self.abandon_connections)

    def get_blocking(self) -> httpx.Client:
        """Return the client for blocking code; raises `ConfigurationError` if it cannot be created."""
        if self._custom_client is not None:
            return self._custom_client
        if self._custom_async_client is not None:
            raise _missing_client_error("client", "blocking code")
        with self._lock:
            if self._client is None:
                self._client = _make_client(httpx.Client, self._settings)
            return self._client

    async def get_async(self) -> httpx.AsyncClient:
        """Return the client of the running event loop, which is closed with the loop; raises as `get_blocking`."""
        if self._custom_async_client is not None:
            return self._custom_async_client
        if self._custom_client is not None:
            raise _missing_client_error("async_client", "asyncio")
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            for closed in [event_loop for event_loop in list(self._async_clients) if event_loop.is_closed()]:
                self._async_clients.pop(closed, None)  # not `del`: a thread with another loop may do the same
            client = _make_client(httpx.AsyncClient, self._settings)
            # when `asyncio.run` ends, it closes the loop's async generators; this generator then closes the client
            keeper = self._close_with_loop(loop, client)
            self._async_clients[loop] = (client, keeper)
            await anext(keeper)
        return self._async_clients[loop][0]

    async def _close_with_loop(
        self, loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._async_clients.pop(loop, None)
            await client.aclose()

    def close(self) -> None:
        """Close the client for blocking code, unless the caller passed it."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the client of the running event loop, unless the caller passed it."""
        opened = self._async_clients.get(asyncio.get_running_loop())
        if opened is not None:
            await opened[1].aclose()

    def abandon_connections(self) -> None:
        """Stop using the connections inherited from the parent process: two processes must not share a connection."""
        self._inherited += [self._client, self._async_clients]  # referenced, because deleting them would close them
        self._lock = threading.Lock()
        self._client, self._async_clients = None, {}


_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
"""No limit on concurrent connections: each call holds one until its answer, or its stream's reader, is done."""

for _logger in map(logging.getLogger, ("hpack", "httpcore.socks")):  # at DEBUG they log API keys and passwords
    _logger.setLevel(max(_logger.level, logging.INFO))


def _client_settings(options: HttpOptions) -> dict[str, Any]:
    """Return the arguments for the clients this package creates; raises `ConfigurationError` for invalid options."""
    http2 = options.get("http2", False)
    if http2 and importlib.util.find_spec("h2") is None:
        raise ConfigurationError("http2=True needs the extra http2: pip install 'traced_tools[http2]'")
    settings: dict[str, Any] = {"http2": http2, "limits": _LIMITS}
    if "proxy" in options:
        settings["proxy"] = _parse_proxy(options["proxy"])
    return settings


def _make_client(kind: type[C], settings: dict[str, Any]) -> C:
    """Create a client; raises `ConfigurationError`, without quoting values, for invalid environment variables."""
    try:
        return kind(verify=_load_certificates(settings["http2"]), **settings)
    except OSError:
        problem = "the certificates of SSL_CERT_FILE or SSL_CERT_DIR cannot be read"
    except (ValueError, httpx.InvalidURL, ImportError):
        problem = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY has an invalid value: correct it, or pass proxy="
    raise ConfigurationError(problem)


def _load_certificates(http2: bool) -> ssl.SSLContext:
    """Return the certificates to trust, cached because loading them takes longer than most requests."""
    return _cached_certificates(http2, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _cached_certificates(http2: bool, file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return an SSL context. Clients with and without HTTP/2 need separate ones: httpx stores its protocols in it."""
    return httpx.create_ssl_context()


def _parse_proxy(address: str) -> httpx.Proxy:
    """Return the proxy at `address`; errors don't quote the address, which may contain a password."""
    try:
        proxy = httpx.Proxy(address)
    except (ValueError, httpx.InvalidURL):
        proxy = None
    if proxy is None or not proxy.url.host:
        raise ConfigurationError("proxy must be an address such as http://127.0.0.1:3128")
    if proxy.url.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ConfigurationError("a SOCKS proxy needs another package: pip install 'httpx[socks]'")
    return proxy


MODEL_REQUEST: Final = "traced_tools"
"""The key in `httpx.Request.extensions` that marks a request as sent by a model."""


def ignore_set_cookie(client: httpx.Client | httpx.AsyncClient) -> None:
    """Make `client` ignore `Set-Cookie` headers in answers to a model's requests.

    A cookie would link the calls of all users of a model, and a cookie that isn't ASCII would break every later call.
    httpx has no setting for this. A client that the caller passed still accepts cookies for its other requests.
    """
    cookies = client.cookies
    if "extract_cookies" in vars(cookies):
        return
    extract = cookies.extract_cookies

    def extract_cookies(response: httpx.Response) -> None:
        if MODEL_REQUEST not in response.request.extensions:
            extract(response)

    vars(cookies)["extract_cookies"] = extract_cookies


def _missing_client_error(missing: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"this model has a custom httpx client, but none for {what}: pass {missing}= as well")
