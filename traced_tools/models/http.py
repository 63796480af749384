"""The one HTTP transport of all models: blocking and async, whole answers and server-sent events.

A provider is a pure `Codec`; `HttpChatModel` joins the two. Sending with its retries is a flow, so it is written once.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import random
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

import httpx
from httpx_sse import EventSource, SSEError
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from traced_tools._checks import expect
from traced_tools._flow import Step, acall, call
from traced_tools._steps import Pause
from traced_tools.errors import (
    AuthenticationError,
    ConfigurationError,
    InvalidRequest,
    InvalidResponse,
    ModelError,
    ModelTimeout,
    RateLimited,
)
from traced_tools.models.base import ChatChunk, ChatModel, ChatRequest, ChatResponse
from traced_tools.models.codec import Codec
from traced_tools.models.names import WireNames

_RETRYABLE_STATUSES = frozenset({408, 409, 429})
_FAILURES = (httpx.HTTPError, httpx.StreamError, SSEError, UnicodeDecodeError)
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_LONGEST_WAIT = 60.0
_PROPAGATOR = TraceContextTextMapPropagator()
"""Only `traceparent` and `tracestate` travel to a provider: baggage may hold what is none of its business."""


@dataclass(frozen=True)
class RetryPolicy:
    """When to send a request again: connections that failed before it was sent, and statuses that ask for patience.

    Args:
        attempts: further attempts after the first.
        first_delay: seconds before the second attempt; doubles each time, less a random quarter.
    """

    attempts: int = 2
    first_delay: float = 0.5

    def delay(self, attempt: int, failure: ModelError) -> float | None:
        """Return the seconds to wait after the `attempt`th failure (from 0), None to give up.

        What `Retry-After` says is honoured; when it says more than a minute, the caller is told and not kept waiting.
        """
        if attempt >= self.attempts or not failure.retryable:
            return None
        if failure.retry_after is not None:
            return failure.retry_after if failure.retry_after <= _LONGEST_WAIT else None
        longest: float = min(self.first_delay * 2**attempt, 8.0)
        return longest * random.uniform(0.75, 1.0)


class _Send(Step[httpx.Response]):
    """Send a request; a stream is left open unless it is an error's."""

    __slots__ = ("_body", "_stream", "_transport")

    def __init__(self, transport: HttpTransport, body: Mapping[str, Any], stream: bool) -> None:
        self._transport = transport
        self._body = body
        self._stream = stream

    def run(self) -> httpx.Response:
        client = self._transport.client()
        response = client.send(self._transport.request(client, self._body), stream=self._stream)
        if self._stream and not response.is_success:
            response.read()
        return response

    async def arun(self) -> httpx.Response:
        client = await self._transport.async_client()
        response = await client.send(self._transport.request(client, self._body), stream=self._stream)
        if self._stream and not response.is_success:
            await response.aread()
        return response


class HttpTransport:
    """Sends requests to one endpoint; one connection pool for blocking code and one per event loop.

    Args:
        url: where to POST.
        codec: headers and error codes.
        timeout: seconds to wait for a connection, and for each further piece of an answer.
        retries: when to send again.
    """

    def __init__(self, url: str, codec: Codec, *, timeout: float, retries: RetryPolicy) -> None:
        self.url = _checked_url(url)
        self.address = httpx.URL(url).netloc.decode().rpartition("@")[2]
        self._codec = codec
        self._timeout = httpx.Timeout(timeout)
        self._retries = retries
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._async_clients: dict[asyncio.AbstractEventLoop, _LoopClient] = {}
        self._inherited: list[object] = []
        _TRANSPORTS.add(self)

    def client(self) -> httpx.Client:
        """Return the pool for blocking code."""
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(timeout=self._timeout)
            return self._client

    async def async_client(self) -> httpx.AsyncClient:
        """Return the pool of the running event loop; it is closed with the loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            for closed in [each for each in self._async_clients if each.is_closed()]:
                del self._async_clients[closed]
            client = httpx.AsyncClient(timeout=self._timeout)
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

    def forget(self) -> None:
        """Leave all connections to the process this one was forked from: two must not talk on one."""
        self._inherited += [self._client, self._async_clients]  # kept, since letting go of them would close them
        self._lock = threading.Lock()
        self._client, self._async_clients = None, {}

    def request(self, client: httpx.Client | httpx.AsyncClient, body: Mapping[str, Any]) -> httpx.Request:
        """Return the request that carries `body`, and the current span as its parent."""
        headers = dict(self._codec.headers())
        _PROPAGATOR.inject(headers)
        return client.build_request("POST", self.url, json=body, headers=headers)

    def call(self, body: Mapping[str, Any]) -> bytes:
        """Send `body`, blocking, and return the answer's body; raises `ModelError`."""
        return call(self._sent(body, stream=False)).content

    async def acall(self, body: Mapping[str, Any]) -> bytes:
        """Send `body` on asyncio and return the answer's body; raises `ModelError`."""
        return (await acall(self._sent(body, stream=False))).content

    def stream(self, body: Mapping[str, Any]) -> Iterator[str]:
        """Send `body`, blocking, and give the data of each event as it arrives; raises `ModelError`."""
        response = call(self._sent(body, stream=True))
        failure = None
        try:
            for event in EventSource(response).iter_sse():
                yield event.data
        except _FAILURES as error:
            failure = self._failure_in(error)
        finally:
            response.close()
        if failure is not None:
            raise failure

    async def astream(self, body: Mapping[str, Any]) -> AsyncIterator[str]:
        """Send `body` on asyncio and give the data of each event as it arrives; raises `ModelError`."""
        response = await acall(self._sent(body, stream=True))
        failure = None
        try:
            async for event in EventSource(response).aiter_sse():
                yield event.data
        except _FAILURES as error:
            failure = self._failure_in(error)
        finally:
            await response.aclose()
        if failure is not None:
            raise failure

    async def _sent(self, body: Mapping[str, Any], *, stream: bool) -> httpx.Response:
        """Send until it succeeds or the retry policy gives up, as a flow."""
        attempt = 0
        while True:
            try:
                response = await _Send(self, body, stream)
            except _FAILURES as error:
                failure = self._failure_in(error)
            else:
                if response.is_success:
                    return response
                failure = self._failure(response)
            delay = self._retries.delay(attempt, failure)
            if delay is None:
                raise failure
            await Pause(delay)
            attempt += 1

    def _failure_in(self, error: Exception) -> ModelError:
        """Return the error for what went wrong while an answer was read; it says what happened and quotes nothing.

        To be raised after the `except` and not inside it: httpx's own errors hold the request, and with it the key.
        """
        provider, unsent = self._codec.provider, isinstance(error, _UNSENT)
        if isinstance(error, httpx.TimeoutException):
            return ModelTimeout("no answer in time", provider=provider, retryable=unsent)
        if isinstance(error, SSEError):
            return InvalidResponse("a stream was asked for and something else came", provider=provider)
        if str(error).startswith("Server disconnected"):  # mostly a kept connection that the server has just closed
            return ModelError("the server closed the connection", provider=provider, retryable=True)
        if isinstance(error, httpx.RemoteProtocolError):
            return InvalidResponse("the answer was cut short", provider=provider)
        if isinstance(error, httpx.DecodingError | UnicodeDecodeError):
            return InvalidResponse("the answer's bytes cannot be decoded", provider=provider)
        problem = f"the connection to {self.address} failed ({type(error).__name__})"
        return ModelError(problem, provider=provider, retryable=unsent)

    def _failure(self, response: httpx.Response) -> ModelError:
        """Return the error an HTTP status stands for."""
        status = response.status_code
        hint = "; is base_url right? It mostly ends in /v1" if status in (404, 405) or status < 400 else ""
        return _error_class(status)(
            f"the request failed{hint}",
            provider=self._codec.provider,
            status_code=status,
            retryable=status in _RETRYABLE_STATUSES or status >= 500,
            request_id=response.headers.get("x-request-id") or response.headers.get("request-id"),
            code=self._codec.error_code(response.content),
            retry_after=_retry_after(response.headers),
        )

    def close(self) -> None:
        """Close the pool for blocking code."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the pool of the running event loop."""
        opened = self._async_clients.get(asyncio.get_running_loop())
        if opened is not None:
            await opened[1].aclose()


_LoopClient = tuple[httpx.AsyncClient, AsyncGenerator[None, None]]
_TRANSPORTS: WeakSet[HttpTransport] = WeakSet()


def _forget_connections() -> None:
    for transport in list(_TRANSPORTS):
        transport.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections)


class HttpChatModel(ChatModel):
    """A chat model behind HTTP: a codec and the transport. `with` or `async with` closes its connections."""

    def __init__(self, model: str, codec: Codec, transport: HttpTransport) -> None:
        expect("model", model, str, "a str")
        self.model = model
        self.provider = codec.provider
        url = httpx.URL(transport.url)
        self.server_address = url.host
        self.server_port = url.port or (443 if url.scheme == "https" else 80)
        self._codec = codec
        self._transport = transport

    def call(self, request: ChatRequest) -> ChatResponse:
        """Answer `request`, blocking; raises `ModelError`."""
        names = WireNames(request)
        body = self._transport.call(self._codec.encode(names.request, stream=False))
        return names.response(self._codec.decode(body))

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Answer `request` on asyncio; raises `ModelError`."""
        names = WireNames(request)
        body = await self._transport.acall(self._codec.encode(names.request, stream=False))
        return names.response(self._codec.decode(body))

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        """Answer `request` in chunks; raises `ModelError`."""
        names, decoder = WireNames(request), self._codec.decoder()
        events = self._transport.stream(self._codec.encode(names.request, stream=True))
        try:
            for data in events:
                if (chunk := decoder.chunk(data)) is not None:
                    yield names.chunk(chunk)
        finally:
            events.close()  # type: ignore[attr-defined]
        decoder.end()

    async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
        """Answer `request` in chunks on asyncio; raises `ModelError`."""
        names, decoder = WireNames(request), self._codec.decoder()
        events = self._transport.astream(self._codec.encode(names.request, stream=True))
        try:
            async for data in events:
                if (chunk := decoder.chunk(data)) is not None:
                    yield names.chunk(chunk)
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        decoder.end()

    def close(self) -> None:
        """Close the connections of blocking code."""
        self._transport.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._transport.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model} at {self.server_address}>"


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
        raise ConfigurationError("base_url must be an http:// or https:// address, such as http://127.0.0.1:8000/v1")
    return url


def _error_class(status: int) -> type[ModelError]:
    if status in (401, 403):
        return AuthenticationError
    if status == 408:
        return ModelTimeout
    if status == 429:
        return RateLimited
    return InvalidRequest if 400 <= status < 500 and status != 409 else ModelError


def _retry_after(headers: httpx.Headers) -> float | None:
    """Return the seconds `Retry-After` asks for: a number, or a date (RFC 9110, 10.2.3)."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
