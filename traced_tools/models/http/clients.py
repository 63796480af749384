"""Connections: one client for blocking code, one per event loop, and none shared with a forked child."""

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
    """The httpx clients of one model, made when first needed."""

    def __init__(self, options: HttpOptions) -> None:
        self._settings = _settings(options)
        self._own = options.get("client")
        self._own_async = options.get("async_client")
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._async_clients: dict[asyncio.AbstractEventLoop, _LoopClient] = {}
        self._inherited: list[object] = []
        on_fork(self.forget)

    def blocking(self) -> httpx.Client:
        """Return the client for blocking code."""
        if self._own is not None:
            return self._own
        if self._own_async is not None:
            raise _one_sided("client", "blocking code")
        with self._lock:
            if self._client is None:
                self._client = _made(httpx.Client, self._settings)
            return self._client

    async def of_loop(self) -> httpx.AsyncClient:
        """Return the client of the running event loop; it is closed with the loop."""
        if self._own_async is not None:
            return self._own_async
        if self._own is not None:
            raise _one_sided("async_client", "asyncio")
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            for closed in [each for each in list(self._async_clients) if each.is_closed()]:
                self._async_clients.pop(closed, None)  # threads with loops of their own do the same
            client = _made(httpx.AsyncClient, self._settings)
            # an event loop that ends (`asyncio.run`) closes its async generators, and this one closes the client
            keeper = self._open_while(loop, client)
            self._async_clients[loop] = (client, keeper)
            await anext(keeper)
        return self._async_clients[loop][0]

    async def _open_while(
        self, loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._async_clients.pop(loop, None)
            await client.aclose()

    def close(self) -> None:
        """Close the client for blocking code, unless it is the caller's own."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the client of the running event loop, unless it is the caller's own."""
        opened = self._async_clients.get(asyncio.get_running_loop())
        if opened is not None:
            await opened[1].aclose()

    def forget(self) -> None:
        """Leave all connections to the process this one was forked from: two must not talk on one."""
        self._inherited += [self._client, self._async_clients]  # kept, since letting go of them would close them
        self._lock = threading.Lock()
        self._client, self._async_clients = None, {}


_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
"""As many connections as there are threads and tasks that ask: an answer takes long, a stream as long as its reader."""

for _revealing in map(logging.getLogger, ("hpack", "httpcore.socks")):  # at DEBUG they write keys and passwords
    _revealing.setLevel(max(_revealing.level, logging.INFO))


def _settings(options: HttpOptions) -> dict[str, Any]:
    """Return what our own clients are made with; raises `ConfigurationError` for what cannot work."""
    http2 = options.get("http2", False)
    if http2 and importlib.util.find_spec("h2") is None:
        raise ConfigurationError("http2=True needs the extra http2: pip install 'traced_tools[http2]'")
    settings: dict[str, Any] = {"http2": http2, "limits": _LIMITS}
    if "proxy" in options:
        settings["proxy"] = _checked_proxy(options["proxy"])
    return settings


def _made(kind: type[C], settings: dict[str, Any]) -> C:
    """Return a client; raises `ConfigurationError` for what the environment names and httpx cannot use, unquoted."""
    try:
        return kind(verify=_certificates(settings["http2"]), **settings)
    except OSError:
        problem = "the certificates of SSL_CERT_FILE or SSL_CERT_DIR cannot be read"
    except (ValueError, httpx.InvalidURL, ImportError):
        problem = "a proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names, or NO_PROXY, cannot be used; see proxy="
    raise ConfigurationError(problem)


def _certificates(http2: bool) -> ssl.SSLContext:
    """Return the certificates to trust, which take longer to load than most requests take."""
    return _loaded_certificates(http2, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _loaded_certificates(http2: bool, file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return a context for each kind of client: httpx writes into it what it will negotiate."""
    return httpx.create_ssl_context()


def _checked_proxy(address: str) -> httpx.Proxy:
    """Return the proxy at `address`, which may hold a password and is not quoted."""
    try:
        proxy = httpx.Proxy(address)
    except (ValueError, httpx.InvalidURL):
        proxy = None
    if proxy is None or not proxy.url.host:
        raise ConfigurationError("proxy must be an address such as http://127.0.0.1:3128")
    if proxy.url.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ConfigurationError("a SOCKS proxy needs another package: pip install 'httpx[socks]'")
    return proxy


OURS: Final = "traced_tools"
"""The extension of an `httpx.Request` that marks a request of a model."""


def ignore_set_cookie(client: httpx.Client | httpx.AsyncClient) -> None:
    """Keep `Set-Cookie` headers of answers to a model's requests out of the cookies of `client`.

    A cookie would tie the calls of all users of a model together, and one that is not ASCII would break every later
    call. httpx has no setting for it, and a client that the caller passes keeps its cookies for its other requests.
    """
    cookies = client.cookies
    if "extract_cookies" in vars(cookies):
        return
    extract = cookies.extract_cookies

    def extract_cookies(response: httpx.Response) -> None:
        if OURS not in response.request.extensions:
            extract(response)

    vars(cookies)["extract_cookies"] = extract_cookies


def _one_sided(missing: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"this model was given an httpx client, but none for {what}: pass {missing}= as well")
