"""The one HTTP transport of all models: blocking and async, whole answers and streams.

Sending with its retries is a flow, so it is written once.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, closing, suppress
from functools import partial
from typing import Any, TypeVar

import httpx
from httpx_sse import SSEError
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from traced_tools.errors import ConfigurationError, ModelError
from traced_tools.flow.flow import Step, acall, call
from traced_tools.flow.steps import Pause
from traced_tools.models.http.clients import OURS, Clients, ignore_set_cookie
from traced_tools.models.http.failures import FAILURES, cut_in, failure_in, refusal
from traced_tools.models.http.framing import MOST_REFUSAL_BYTES, Answer, Framing, in_time
from traced_tools.models.http.options import HttpOptions, retries_of, timeouts_of
from traced_tools.models.wire import decode_answer
from traced_tools.observe.model_calls import call_here

T = TypeVar("T")

_HEADERS = {"Accept-Encoding": "gzip, deflate"}
"""httpx would ask for whatever this installation can decompress, some of which expands without limit."""
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

_PROPAGATOR = TraceContextTextMapPropagator()
"""Only `traceparent` and `tracestate` travel to a provider: baggage may hold what is none of its business."""


class HttpTransport:
    """Sends requests to one server.

    Args:
        base_url: where the API is; the path of each request is appended.
        provider: who is there, for errors.
        headers: of each request, the key among them.
        options: how to reach it, checked.

    Raises:
        ConfigurationError: for an address that is none, and options that cannot work.
    """

    def __init__(self, base_url: str, provider: str, headers: Mapping[str, str], options: HttpOptions) -> None:
        self.url = _checked_url(base_url)
        self.provider = provider
        self.address = self.url.netloc.decode()
        self.clients = Clients(options)
        self._base = str(self.url).rstrip("/")
        self._headers = _merged({**_HEADERS, **headers, **_credentials(base_url)}, options.get("headers", {}))
        self._timeouts = timeouts_of(options)
        self._retries = retries_of(options)

    def call(self, path: str, body: Mapping[str, Any], decode: Callable[[bytes], T]) -> T:
        """Send `body`, blocking, and return what `decode` returns for the answer's; raises `ModelError`."""
        deadline = self._deadline()
        answer = b"".join(self._read(path, body, Answer.pieces, deadline))
        return self._decoded(decode, answer, deadline)

    async def acall(self, path: str, body: Mapping[str, Any], decode: Callable[[bytes], T]) -> T:
        """Send `body` on asyncio and return what `decode` returns for the answer's; raises `ModelError`."""
        deadline = self._deadline()
        answer = b"".join([piece async for piece in self._aread(path, body, Answer.apieces, deadline)])
        return self._decoded(decode, answer, deadline)

    def stream(self, path: str, body: Mapping[str, Any], framing: Framing) -> Generator[str]:
        """Send `body`, blocking, and give the data of each event as it arrives; raises `ModelError`."""
        return self._read(path, body, framing.events, self._deadline())

    def astream(self, path: str, body: Mapping[str, Any], framing: Framing) -> AsyncGenerator[str]:
        """Send `body` on asyncio and give the data of each event as it arrives; raises `ModelError`."""
        return self._aread(path, body, framing.aevents, self._deadline())

    def _decoded(self, decode: Callable[[bytes], T], answer: bytes, deadline: float | None) -> T:
        decoded = decode_answer(decode, answer, self.provider)
        return decoded if deadline is None else in_time(deadline, self.provider, decoded)

    def _read(
        self,
        path: str,
        body: Mapping[str, Any],
        pieces: Callable[[Answer], Iterator[T]],
        deadline: float | None,
    ) -> Generator[T]:
        response = call(self._sent(path, body, deadline))
        failure = None
        try:
            arriving = pieces(Answer(response, deadline, self.provider))
            # one piece of the body may hold many events, so the deadline is checked before each
            yield from arriving if deadline is None else map(partial(in_time, deadline, self.provider), arriving)
        except FAILURES as error:
            failure = cut_in(error, self.provider, self.address, self._timeouts)
            if isinstance(error, SSEError) and _is_whole(response):
                failure.body = _refused(response, deadline, self.provider)
        finally:
            response.close()
        if failure is not None:
            raise failure

    async def _aread(
        self,
        path: str,
        body: Mapping[str, Any],
        pieces: Callable[[Answer], AsyncGenerator[T]],
        deadline: float | None,
    ) -> AsyncGenerator[T]:
        response = await acall(self._sent(path, body, deadline))
        failure = None
        try:
            async with aclosing(pieces(Answer(response, deadline, self.provider))) as arriving:
                async for piece in arriving:
                    yield piece if deadline is None else in_time(deadline, self.provider, piece)
        except FAILURES as error:
            failure = cut_in(error, self.provider, self.address, self._timeouts)
            if isinstance(error, SSEError) and _is_whole(response):
                failure.body = await _arefused(response, deadline, self.provider)
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
                failure = failure_in(error, self.provider, self.address, self._timeouts)
            except ModelError as error:
                failure = error
            delay = self._retries.delay(attempt, failure)
            if delay is not None and deadline is not None and time.monotonic() + delay > deadline:
                delay = None
            call_here().failed(failure, delay)
            if delay is None:
                raise failure
            await Pause(delay)
            attempt += 1
            call_here().sent_again()

    def request(
        self, client: httpx.Client | httpx.AsyncClient, path: str, body: Mapping[str, Any], deadline: float | None
    ) -> httpx.Request:
        """Return the request that carries `body`, and the current span as its parent."""
        ignore_set_cookie(client)
        headers = {"content-type": "application/json", **self._headers}
        _PROPAGATOR.inject(headers)
        return client.build_request(
            "POST",
            self._base + path,
            content=_json(body),
            headers=headers,
            timeout=self._timeout(deadline),
            extensions={OURS: True},
        )

    def _timeout(self, deadline: float | None) -> httpx.Timeout:
        connect, read = self._timeouts.connect, self._timeouts.read
        if deadline is not None:
            left = max(deadline - time.monotonic(), 0.001)
            connect, read = min(connect or left, left), min(read or left, left)
        return httpx.Timeout(read, connect=connect, pool=connect)


class _Send(Step[httpx.Response]):
    """Send a request and return the open answer; raises the `ModelError` of an answer that is a refusal.

    A client of the caller's may follow redirects by default: not here, or they would take the key to another server.
    """

    __slots__ = ("_body", "_deadline", "_path", "_transport")

    def __init__(self, transport: HttpTransport, path: str, body: Mapping[str, Any], deadline: float | None) -> None:
        self._transport = transport
        self._path = path
        self._body = body
        self._deadline = deadline

    def run(self) -> httpx.Response:
        client = self._transport.clients.blocking()
        request = self._transport.request(client, self._path, self._body, self._deadline)
        response = client.send(request, stream=True, follow_redirects=False)
        if response.is_success:
            return response
        with closing(response):
            said = _refused(response, self._deadline, self._transport.provider)
        raise refusal(response, said, self._transport.provider)

    async def arun(self) -> httpx.Response:
        client = await self._transport.clients.of_loop()
        request = self._transport.request(client, self._path, self._body, self._deadline)
        response = await client.send(request, stream=True, follow_redirects=False)
        if response.is_success:
            return response
        async with aclosing(response):
            said = await _arefused(response, self._deadline, self._transport.provider)
        raise refusal(response, said, self._transport.provider)


def _refused(response: httpx.Response, deadline: float | None, provider: str) -> bytes:
    """Return the body of an answer that is an error, as far as it arrives."""
    arrived = bytearray()
    with suppress(*FAILURES, ModelError):  # what is known of the error says enough
        for piece in Answer(response, deadline, provider, MOST_REFUSAL_BYTES).pieces():
            arrived += piece
    return bytes(arrived)


async def _arefused(response: httpx.Response, deadline: float | None, provider: str) -> bytes:
    """As `_refused`, on asyncio."""
    arrived = bytearray()
    with suppress(*FAILURES, ModelError):
        async for piece in Answer(response, deadline, provider, MOST_REFUSAL_BYTES).apieces():
            arrived += piece
    return bytes(arrived)


def _is_whole(response: httpx.Response) -> bool:
    """Whether an answer that is no stream is one JSON value; anything else may go on for long before it ends."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == "application/json"


def _merged(headers: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return `headers` with `own` on top, in whatever case their names are written."""
    for name, value in own.items():
        if not (isinstance(name, str) and _HEADER_NAME.fullmatch(name)):
            raise ConfigurationError(f"headers must have names as in RFC 9110, 5.1; {name!r} is none")
        if not (isinstance(value, str) and value.isascii() and value.isprintable()):
            raise ConfigurationError(f"headers must have printable ASCII texts as values; that of {name} is none")
    merged = httpx.Headers(headers)
    merged.update(own)
    return dict(merged.items())


def _json(body: Mapping[str, Any]) -> bytes:
    """Return `body` as JSON, with `?` for what UTF-8 cannot hold; raises `ConfigurationError` that quotes nothing."""
    try:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        problem = error if isinstance(error, TypeError) else "a number is not finite, or it is nested too deeply"
    else:
        return text.encode("utf-8", "replace")
    raise ConfigurationError(f"the request cannot be written as JSON: {problem}")


def _credentials(url: str) -> dict[str, str]:
    """Return the header for the name and password in an address; httpx logs the whole address of each request."""
    parsed = httpx.URL(url)
    if not parsed.userinfo:
        return {}
    both = f"{parsed.username}:{parsed.password}"
    return {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}


def _checked_url(url: str) -> httpx.URL:
    """Return the address without a name and password."""
    try:
        parsed = httpx.URL(url)
        parsed.raw_host.decode().encode("idna")  # or a label that is empty or too long would fail at each request
    except (httpx.InvalidURL, TypeError, UnicodeError):
        parsed = httpx.URL("")
    known = parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 0) < 2**16
    if not known or "?" in str(parsed) or parsed.fragment:
        raise ConfigurationError(
            "base_url must be an http:// or https:// address without a query, such as http://127.0.0.1:8000/v1"
        )
    return parsed.copy_with(userinfo=b"")
