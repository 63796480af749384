"""The HTTP transport of all models: blocking and async, whole answers and streams.

Sending with retries is written once, as a flow that runs in both modes.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, closing, suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar

import httpx
from httpx_sse import SSEError
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from traced_tools.errors import ConfigurationError, ModelError
from traced_tools.flow.flow import Step, acall, call
from traced_tools.flow.steps import Pause
from traced_tools.models.http.clients import MODEL_REQUEST, Clients, ignore_set_cookie
from traced_tools.models.http.failures import FAILURES, error_for_status, failure_before_answer, failure_in_answer
from traced_tools.models.http.framing import MOST_REFUSAL_BYTES, Framing, ResponseBody, check_deadline
from traced_tools.models.http.options import HttpOptions, resolve_retry_policy, resolve_timeouts
from traced_tools.models.parsing import decode_answer
from traced_tools.observe.scopes.model_call import call_here

T = TypeVar("T")

_HEADERS = {"Accept-Encoding": "gzip, deflate"}
"""By default, httpx accepts every compression it has a library for, including ones with unlimited expansion."""
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

_CHECK_SECONDS = 10.0
_NO_LIST = (404, 405, 501)
"""The statuses of a server that has no list of models."""

_PROPAGATOR = TraceContextTextMapPropagator()
"""Sends only `traceparent` and `tracestate` to a provider: baggage can contain data not meant for it."""


class HttpTransport:
    """Sends requests to one server.

    Args:
        base_url: the base address of the API, to which the path of each request is appended.
        provider: the provider's name, for error messages.
        headers: the headers of each request, including the API key.
        options: the connection options, already checked by `check_options`.

    Raises:
        ConfigurationError: if the address or an option is invalid.
    """

    def __init__(self, base_url: str, provider: str, headers: Mapping[str, str], options: HttpOptions) -> None:
        self.url = _parse_base_url(base_url)
        self.provider = provider
        self.address = self.url.netloc.decode()
        self.clients = Clients(options)
        self._base = str(self.url).rstrip("/")
        self._headers = _merge_headers({**_HEADERS, **headers, **_basic_auth(base_url)}, options.get("headers", {}))
        self._timeouts = resolve_timeouts(options)
        self._retries = resolve_retry_policy(options)

    def call(self, path: str, body: Mapping[str, Any], decode: Callable[[bytes], T]) -> T:
        """Send `body`, blocking, and return the decoded answer; raises `ModelError`."""
        deadline = self.deadline()
        for attempt in count():
            answer = b"".join(self._read(path, body, ResponseBody.pieces, deadline))
            try:
                return self._decode(decode, answer, deadline)
            except ModelError as error:
                refusal = error
            call(self.wait_after_refusal(refusal, attempt, deadline))
        raise AssertionError("the last attempt raises")

    async def acall(self, path: str, body: Mapping[str, Any], decode: Callable[[bytes], T]) -> T:
        """Send `body` on asyncio and return the decoded answer; raises `ModelError`."""
        deadline = self.deadline()
        for attempt in count():
            answer = b"".join([piece async for piece in self._aread(path, body, ResponseBody.apieces, deadline)])
            try:
                return self._decode(decode, answer, deadline)
            except ModelError as error:
                refusal = error
            await acall(self.wait_after_refusal(refusal, attempt, deadline))
        raise AssertionError("the last attempt raises")

    def stream(self, path: str, body: Mapping[str, Any], framing: Framing, deadline: float | None) -> Generator[str]:
        """Send `body`, blocking, and yield the data of each event as it arrives; raises `ModelError`."""
        return self._read(path, body, framing.events, deadline)

    def astream(
        self, path: str, body: Mapping[str, Any], framing: Framing, deadline: float | None
    ) -> AsyncGenerator[str]:
        """Send `body` on asyncio and yield the data of each event as it arrives; raises `ModelError`."""
        return self._aread(path, body, framing.aevents, deadline)

    async def wait_after_refusal(self, failure: ModelError, attempt: int, deadline: float | None) -> None:
        """As a flow, wait before the request is sent again, or raise `failure` if the retry policy gives up.

        `failure` is the answer, or its beginning.
        """
        delay = self._delay(attempt, failure, deadline)
        if delay is None:
            raise failure
        await Pause(delay)
        call_here().sent_again()

    def _delay(self, attempt: int, failure: ModelError, deadline: float | None) -> float | None:
        """Return the seconds to wait before the next attempt, None if there is none; record the failure."""
        delay = self._retries.delay(attempt, failure)
        if delay is not None and deadline is not None and time.monotonic() + delay > deadline:
            delay = None
        call_here().failed(failure, delay)
        return delay

    async def check(self, path: str) -> None:
        """Ask for the list of models, once, as a flow; raises `ModelError` if the server can't be reached or refuses.

        A server without such a list passes, because no other request is free of charge.

        Args:
            path: the path of the list.
        """
        failure: ModelError | None = None
        try:
            await _SendAndClose(self, path, None, time.monotonic() + _CHECK_SECONDS)
        except FAILURES as error:
            failure = failure_before_answer(error, self.provider, self.address, self._timeouts)
        except ModelError as error:
            failure = None if error.status_code in _NO_LIST else error
        if failure is not None:
            raise failure

    def _decode(self, decode: Callable[[bytes], T], answer: bytes, deadline: float | None) -> T:
        response = decode_answer(decode, answer, self.provider)
        return response if deadline is None else check_deadline(deadline, self.provider, response)

    def _read(
        self,
        path: str,
        body: Mapping[str, Any],
        pieces: Callable[[ResponseBody], Iterator[T]],
        deadline: float | None,
    ) -> Generator[T]:
        response = call(self._send_with_retries(path, body, deadline))
        failure = None
        try:
            arriving = pieces(ResponseBody(response, deadline, self.provider))
            # one piece of the body can contain many events, so the deadline is checked for each event
            yield from arriving if deadline is None else map(partial(check_deadline, deadline, self.provider), arriving)
        except FAILURES as error:
            failure = failure_in_answer(error, self.provider, self.address, self._timeouts)
            if isinstance(error, SSEError) and _is_json(response):
                failure.body = _read_error_body(response, deadline, self.provider)
        finally:
            response.close()
        # Outside of `except`, so that the cause, whose text can quote the server, is not the error's `__context__`.
        if failure is not None:
            raise failure

    async def _aread(
        self,
        path: str,
        body: Mapping[str, Any],
        pieces: Callable[[ResponseBody], AsyncGenerator[T]],
        deadline: float | None,
    ) -> AsyncGenerator[T]:
        response = await acall(self._send_with_retries(path, body, deadline))
        failure = None
        try:
            async with aclosing(pieces(ResponseBody(response, deadline, self.provider))) as arriving:
                async for piece in arriving:
                    yield piece if deadline is None else check_deadline(deadline, self.provider, piece)
        except FAILURES as error:
            failure = failure_in_answer(error, self.provider, self.address, self._timeouts)
            if isinstance(error, SSEError) and _is_json(response):
                failure.body = await _aread_error_body(response, deadline, self.provider)
        finally:
            await response.aclose()
        if failure is not None:
            raise failure

    def deadline(self) -> float | None:
        """Return the time by `time.monotonic` at which an answer must be complete; None for no limit."""
        return None if self._timeouts.total is None else time.monotonic() + self._timeouts.total

    async def _send_with_retries(self, path: str, body: Mapping[str, Any], deadline: float | None) -> httpx.Response:
        """Send until an attempt succeeds or the retry policy gives up; return the open response, as a flow."""
        attempt = 0
        while True:
            try:
                return await _SendOnce(self, path, body, deadline)
            except FAILURES as error:
                failure = failure_before_answer(error, self.provider, self.address, self._timeouts)
            except ModelError as error:
                failure = error
            delay = self._delay(attempt, failure, deadline)
            if delay is None:
                raise failure
            await Pause(delay)
            attempt += 1
            call_here().sent_again()

    def build_request(
        self,
        client: httpx.Client | httpx.AsyncClient,
        path: str,
        body: Mapping[str, Any] | None,
        deadline: float | None,
    ) -> httpx.Request:
        """Return the HTTP request for `body`, or a GET; its trace context headers name the current span as parent."""
        ignore_set_cookie(client)
        headers = {**({} if body is None else {"content-type": "application/json"}), **self._headers}
        _PROPAGATOR.inject(headers)
        return client.build_request(
            "GET" if body is None else "POST",
            self._base + path,
            content=None if body is None else _encode_json(body),
            headers=headers,
            timeout=self._timeout(deadline),
            extensions={MODEL_REQUEST: True},
        )

    def _timeout(self, deadline: float | None) -> httpx.Timeout:
        connect, read = self._timeouts.connect, self._timeouts.read
        if deadline is not None:
            # In blocking mode, 0 makes connecting fail with EINPROGRESS, and less raises a ValueError.
            remaining = max(deadline - time.monotonic(), 0.001)
            connect, read = min(connect or remaining, remaining), min(read or remaining, remaining)
        return httpx.Timeout(read, connect=connect, pool=connect)


class _SendOnce(Step[httpx.Response]):
    """Send a request once and return the open response; raises `ModelError` if its HTTP status is not a success.

    Redirects are not followed, even if the caller's client does by default: they would send the key to another server.
    """

    __slots__ = ("_body", "_deadline", "_path", "_transport")

    def __init__(
        self, transport: HttpTransport, path: str, body: Mapping[str, Any] | None, deadline: float | None
    ) -> None:
        self._transport = transport
        self._path = path
        self._body = body
        self._deadline = deadline

    def run(self) -> httpx.Response:
        client = self._transport.clients.get_blocking()
        request = self._transport.build_request(client, self._path, self._body, self._deadline)
        response = client.send(request, stream=True, follow_redirects=False)
        if response.is_success:
            return response
        with closing(response):
            body = _read_error_body(response, self._deadline, self._transport.provider)
        raise error_for_status(response, body, self._transport.provider)

    async def arun(self) -> httpx.Response:
        client = await self._transport.clients.get_async()
        request = self._transport.build_request(client, self._path, self._body, self._deadline)
        response = await client.send(request, stream=True, follow_redirects=False)
        if response.is_success:
            return response
        async with aclosing(response):
            body = await _aread_error_body(response, self._deadline, self._transport.provider)
        raise error_for_status(response, body, self._transport.provider)


class _SendAndClose(_SendOnce):
    """Send a request once, and read nothing of the response to it."""

    __slots__ = ()

    def run(self) -> httpx.Response:
        response = super().run()
        response.close()
        return response

    async def arun(self) -> httpx.Response:
        response = await super().arun()
        await response.aclose()
        return response


def _read_error_body(response: httpx.Response, deadline: float | None, provider: str) -> bytes:
    """Return the body of an error answer, or the beginning of it if the rest doesn't arrive."""
    arrived = bytearray()
    with suppress(*FAILURES, ModelError):  # the HTTP status is known and is the error to report
        for piece in ResponseBody(response, deadline, provider, MOST_REFUSAL_BYTES).pieces():
            arrived += piece
    return bytes(arrived)


async def _aread_error_body(response: httpx.Response, deadline: float | None, provider: str) -> bytes:
    """Do the same as `_read_error_body` on asyncio."""
    arrived = bytearray()
    with suppress(*FAILURES, ModelError):
        async for piece in ResponseBody(response, deadline, provider, MOST_REFUSAL_BYTES).apieces():
            arrived += piece
    return bytes(arrived)


def _is_json(response: httpx.Response) -> bool:
    """Return whether the content type is JSON. Other bodies can take long to end, so they are not read for an error."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == "application/json"


def _merge_headers(headers: Mapping[str, str], own_headers: Mapping[str, str]) -> dict[str, str]:
    """Return `headers` overridden by `own_headers`; names are compared without case. Raises `ConfigurationError`."""
    for name, value in own_headers.items():
        if not (isinstance(name, str) and _HEADER_NAME.fullmatch(name)):
            raise ConfigurationError(f"invalid header name {name!r} in headers= (see RFC 9110, section 5.1)")
        if not (isinstance(value, str) and value.isascii() and value.isprintable()):
            raise ConfigurationError(f"invalid value of the header {name} in headers=: pass printable ASCII text")
    merged = httpx.Headers(headers)
    merged.update(own_headers)
    return dict(merged.items())


def _encode_json(body: Mapping[str, Any]) -> bytes:
    """Return `body` as JSON, with `?` for what UTF-8 can't encode; a `ConfigurationError` quotes nothing."""
    try:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        problem = error if isinstance(error, TypeError) else "it has a number that is not finite, or too many levels"
    else:
        return text.encode("utf-8", "replace")
    raise ConfigurationError(f"the request cannot be encoded as JSON: {problem}")


def _basic_auth(url: str) -> dict[str, str]:
    """Return the header for the user name and password in `url`; they leave the URL because httpx logs it."""
    parsed = httpx.URL(url)
    if not parsed.userinfo:
        return {}
    credentials = f"{parsed.username}:{parsed.password}"
    return {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


def _parse_base_url(url: str) -> httpx.URL:
    """Return the parsed address without user name and password; raises `ConfigurationError` if it is invalid."""
    try:
        parsed = httpx.URL(url)
        parsed.raw_host.decode().encode("idna")  # fails now, not at each request, if a label is empty or too long
    except (httpx.InvalidURL, TypeError, UnicodeError):
        parsed = httpx.URL("")
    is_http = parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 0) < 2**16
    if not is_http or "?" in str(parsed) or parsed.fragment:
        raise ConfigurationError(
            "base_url must be an http:// or https:// address without a query, such as http://127.0.0.1:8000/v1"
        )
    return parsed.copy_with(userinfo=b"")
