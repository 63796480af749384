"""What went wrong between us and a provider, as the package's errors."""

from __future__ import annotations

import errno
import json
import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from typing import Any

import httpx
from httpx_sse import SSEError

from traced_tools.errors import (
    AuthenticationError,
    InvalidRequest,
    InvalidResponse,
    ModelError,
    ModelTimeout,
    RateLimited,
)
from traced_tools.models.http.options import Timeouts
from traced_tools.models.http.retries import is_retryable_status, read_retry_after
from traced_tools.models.wire import error_code


def _unwrapped() -> Iterator[type[Exception]]:
    """Give what httpx lets through from below it, as far as that is installed."""
    yield ssl.SSLError
    for module, name in (("h2.exceptions", "H2Error"), ("socksio.exceptions", "SOCKSError")):
        with suppress(ImportError):
            yield getattr(import_module(module), name)


_UNWRAPPED: tuple[type[Exception], ...] = tuple(_unwrapped())
FAILURES: tuple[type[Exception], ...] = (
    httpx.HTTPError,
    httpx.StreamError,
    httpx.InvalidURL,
    SSEError,
    UnicodeError,
    *_UNWRAPPED,
)
"""What is raised while httpx sends and reads."""

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.WriteError)
_CUT: tuple[type[Exception], ...] = (httpx.NetworkError, httpx.ProtocolError, *_UNWRAPPED)
_CLOSED = re.compile(r"Server disconnected|<ConnectionTerminated|<StreamReset .*(REFUSED_STREAM|error_code:7\b)")


def failure_in(error: Exception, provider: str, address: str, timeouts: Timeouts) -> ModelError:
    """Return the error for what went wrong before an answer began; it says what happened and quotes nothing.

    To be raised after the `except` and not inside it: httpx's own errors hold the request, and with it the key.
    """
    unsent = isinstance(error, _UNSENT)
    if isinstance(error, httpx.TimeoutException):
        what = "connection" if unsent else "answer"
        return ModelTimeout(f"no {what} in time ({_limits(timeouts)})", provider=provider, retryable=unsent)
    if isinstance(error, SSEError):
        return InvalidResponse("a stream was asked for and something else came", provider=provider)
    if _CLOSED.match(str(error)) or _is_reset(error):  # mostly a kept connection that the server has just closed
        return ModelError("the server closed the connection", provider=provider, retryable=True)
    if isinstance(error, httpx.DecodingError | UnicodeDecodeError):
        return InvalidResponse("the answer's bytes cannot be decoded", provider=provider)
    if isinstance(error, UnicodeEncodeError):  # headers are checked when the model is made
        return InvalidRequest("a cookie of the httpx client is not ASCII", provider=provider)
    if isinstance(error, httpx.InvalidURL | UnicodeError) or str(error).startswith("Invalid URL in location"):
        problem = "the address that the server redirects to, or that of the proxy, is not valid"
        return InvalidResponse(problem, provider=provider)
    if isinstance(error, httpx.RemoteProtocolError):
        return InvalidResponse("what came back is no HTTP answer", provider=provider)
    problem = f"the connection to {address} failed ({_cause(error)})"
    return ModelError(problem, provider=provider, retryable=unsent)


def _is_reset(error: Exception) -> bool:
    return isinstance(error, httpx.ReadError) and _cause(error).endswith("ECONNRESET")


def cut_in(error: Exception, provider: str, address: str, timeouts: Timeouts) -> ModelError:
    """Return the error for what went wrong once an answer had begun; as `failure_in`."""
    if isinstance(error, _CUT):
        return InvalidResponse(f"the answer was cut short ({_cause(error)})", provider=provider)
    return failure_in(error, provider, address, timeouts)


def _limits(timeouts: Timeouts) -> str:
    limits = asdict(timeouts)
    return ", ".join(f"{name} {seconds:g} s" for name, seconds in limits.items() if seconds is not None)


def _cause(error: BaseException) -> str:
    """Return what kind of error it is, and what the system calls the one that led to it."""
    kind = type(error).__name__
    system = next((each for each in _chain(error) if isinstance(each, OSError) and each.errno), None)
    if system is None:
        return kind
    # OpenSSL counts its errors in a way of its own
    name = system.reason if isinstance(system, ssl.SSLError) else errno.errorcode.get(system.errno or 0)
    return f"{kind}, {name or type(system).__name__}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Give `error` and those it came from; the last may be the caller's, who handles them."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def refusal(response: httpx.Response, body: bytes, provider: str) -> ModelError:
    """Return the error that an answer of another status than success stands for."""
    status, said = response.status_code, _said(body)
    hint = "; are base_url and the model's name right?" if status in (404, 405) or status < 400 else ""
    error = _error(said)
    return _error_class(status)(
        f"the request failed{hint}",
        provider=provider,
        status_code=status,
        retryable=is_retryable_status(status),
        request_id=_request_id(response.headers) or said.get("request_id"),
        code=error_code(error),
        retry_after=read_retry_after(response.headers, error),
        body=body,
    )


def _said(body: bytes) -> dict[str, Any]:
    """Return an error body as an object; Google wraps that of a stream in a list."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if isinstance(said, list) and said:
        said = said[0]
    return said if isinstance(said, dict) else {}


def _error(said: dict[str, Any]) -> dict[str, Any]:
    """Return the error object: in a field of its own, the first of what FastAPI found wrong, or the body itself."""
    match said:
        case {"error": dict() as error} | {"detail": [dict() as error, *_]}:
            return error
    return said


def _error_class(status: int) -> type[ModelError]:
    if status in (401, 403):
        return AuthenticationError
    if status == 408:
        return ModelTimeout
    if status == 429:
        return RateLimited
    return InvalidRequest if 400 <= status < 500 and status != 409 else ModelError


_REQUEST_IDS = ("x-request-id", "request-id", "mistral-correlation-id", "x-ds-trace-id")


def _request_id(headers: httpx.Headers) -> str | None:
    return next(filter(None, map(headers.get, _REQUEST_IDS)), None)
