"""The one HTTP transport of all models: blocking and async, whole answers and streams.

Sending with its retries is a flow, so it is written once.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import httpx
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from traced_tools._flow import Step, acall, call
from traced_tools._steps import Pause
from traced_tools.errors import ConfigurationError, ModelError, ModelTimeout
from traced_tools.models.http.clients import Clients
from traced_tools.models.http.failures import FAILURES, failure_in, refusal
from traced_tools.models.http.framing import Answer, Framing
from traced_tools.models.http.options import HttpOptions, check_options, retries_of, timeouts_of

T = TypeVar("T")

_PROPAGATOR = TraceContextTextMapPropagator()
"""Only `traceparent` and `tracestate` travel to a provider: baggage may hold what is none of its business."""


class HttpTransport:
    """Sends requests to one server.

    Args:
        base_url: where the API is; the path of each request is appended.
        provider: who is there, for errors.
        headers: of each request, the key among them.
        options: how to reach it.

    Raises:
        ConfigurationError: for an address that is none, and options that cannot work.
    """

    def __init__(self, base_url: str, provider: str, headers: Mapping[str, str], options: HttpOptions) -> None:
        check_options(options)
        self.url = _checked_url(base_url)
        self.provider = provider
        self.address = self.url.netloc.decode().rpartition("@")[2]
        self.clients = Clients(options)
        self._base = str(self.url).rstrip("/")
        self._headers = _merged(headers, options.get("headers", {}))
        self._timeouts = timeouts_of(options)
        self._retries = retries_of(options)

    def call(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Send `body`, blocking, and return the answer's; raises `ModelError`."""
        return b"".join(self._read(path, body, Answer.pieces))

    async def acall(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Send `body` on asyncio and return the answer's; raises `ModelError`."""
        return b"".join([piece async for piece in self._aread(path, body, Answer.apieces)])

    def stream(self, path: str, body: Mapping[str, Any], framing: Framing) -> Generator[str]:
        """Send `body`, blocking, and give the data of each event as it arrives; raises `ModelError`."""
        return self._read(path, body, framing.events)

    def astream(self, path: str, body: Mapping[str, Any], framing: Framing) -> AsyncGenerator[str]:
        """Send `body` on asyncio and give the data of each event as it arrives; raises `ModelError`."""
        return self._aread(path, body, framing.aevents)

    def _read(self, path: str, body: Mapping[str, Any], pieces: Callable[[Answer], Iterator[T]]) -> Generator[T]:
        deadline = self._deadline()
        response = call(self._sent(path, body, deadline))
        failure = None
        try:
            yield from pieces(Answer(response, deadline, self.provider))
        except FAILURES as error:
            failure = failure_in(error, self.provider, self.address)
        finally:
            response.close()
        if failure is not None:
            raise failure

    async def _aread(
        self, path: str, body: Mapping[str, Any], pieces: Callable[[Answer], AsyncGenerator[T]]
    ) -> AsyncGenerator[T]:
        deadline = self._deadline()
        response = await acall(self._sent(path, body, deadline))
        failure = None
        try:
            async with aclosing(pieces(Answer(response, deadline, self.provider))) as arriving:
                async for piece in arriving:
                    yield piece
        except FAILURES as error:
            failure = failure_in(error, self.provider, self.address)
        finally:
            await response.aclose()
        if failure is not None:
            raise failure

    def _deadline(self) -> float | None:
        return None if self._timeouts.total is None else time.monotonic() + self._timeouts.total

    async def _sent(self, path: str, body: Mapping[str, Any], deadline: float | None) -> httpx.Response:
        """Send until it succeeds or the retry policy gives up, as a flow; the answer is open."""
        attempt = 0
        while True:
            try:
                return await _Send(self, path, body, deadline)
            except FAILURES as error:
                failure = failure_in(error, self.provider, self.address)
            except ModelError as error:
                failure = error
            delay = self._retries.delay(attempt, failure)
            if delay is None or (deadline is not None and time.monotonic() + delay > deadline):
                raise failure
            await Pause(delay)
            attempt += 1

    def request(
        self, client: httpx.Client | httpx.AsyncClient, path: str, body: Mapping[str, Any], deadline: float | None
    ) -> httpx.Request:
        """Return the request that carries `body`, and the current span as its parent."""
        headers = dict(self._headers)
        _PROPAGATOR.inject(headers)
        return client.build_request(
            "POST", self._base + path, json=body, headers=headers, timeout=self._timeout(deadline)
        )

    def _timeout(self, deadline: float | None) -> httpx.Timeout:
        left = math.inf if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise ModelTimeout("no answer in time", provider=self.provider)
        connect, read = min(self._timeouts.connect, left), min(self._timeouts.read, left)
        return httpx.Timeout(read, connect=connect, pool=connect)


class _Send(Step[httpx.Response]):
    """Send a request and return the open answer; raises the `ModelError` of an answer that is a refusal."""

    __slots__ = ("_body", "_deadline", "_path", "_transport")

    def __init__(self, transport: HttpTransport, path: str, body: Mapping[str, Any], deadline: float | None) -> None:
        self._transport = transport
        self._path = path
        self._body = body
        self._deadline = deadline

    def run(self) -> httpx.Response:
        client = self._transport.clients.blocking()
        request = self._transport.request(client, self._path, self._body, self._deadline)
        response = client.send(request, stream=True)
        if response.is_success:
            return response
        try:
            said = b"".join(self._answer(response).pieces())
        finally:
            response.close()
        raise refusal(response, said, self._transport.provider)

    async def arun(self) -> httpx.Response:
        client = await self._transport.clients.of_loop()
        request = self._transport.request(client, self._path, self._body, self._deadline)
        response = await client.send(request, stream=True)
        if response.is_success:
            return response
        try:
            said = b"".join([piece async for piece in self._answer(response).apieces()])
        finally:
            await response.aclose()
        raise refusal(response, said, self._transport.provider)

    def _answer(self, response: httpx.Response) -> Answer:
        return Answer(response, self._deadline, self._transport.provider)


def _merged(headers: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return `headers` with `own` on top, in whatever case their names are written."""
    for name, value in own.items():
        if not (isinstance(value, str) and value.isascii() and value.isprintable()):
            raise ConfigurationError(f"headers must have printable ASCII texts as values; that of {name} is none")
    merged = httpx.Headers(headers)
    merged.update(own)
    return dict(merged.items())


def _checked_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
        raise ConfigurationError("base_url must be an http:// or https:// address, such as http://127.0.0.1:8000/v1")
    return parsed
