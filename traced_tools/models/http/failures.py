"""Converts exceptions of httpx and HTTP error answers to `ModelError`s."""

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

from traced_tools.errors import InvalidRequest, InvalidResponse, ModelError, ModelTimeout
from traced_tools.models.http.options import Timeouts
from traced_tools.models.http.retries import read_retry_after
from traced_tools.models.refusals import error_code, error_kind


def _find_transport_errors() -> Iterator[type[Exception]]:
    """Yield the errors of installed lower-level libraries that httpx doesn't wrap in its own."""
    yield ssl.SSLError
    for module, name in (("h2.exceptions", "H2Error"), ("socksio.exceptions", "SOCKSError")):
        with suppress(ImportError):
            yield getattr(import_module(module), name)


_TRANSPORT_ERRORS: tuple[type[Exception], ...] = tuple(_find_transport_errors())
FAILURES: tuple[type[Exception], ...] = (
    httpx.HTTPError,
    httpx.StreamError,
    httpx.InvalidURL,
    SSEError,
    UnicodeError,
    *_TRANSPORT_ERRORS,
)
"""All exceptions that httpx can raise while it sends a request and reads the answer."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.WriteError)
_CUT_SHORT: tuple[type[Exception], ...] = (httpx.NetworkError, httpx.ProtocolError, *_TRANSPORT_ERRORS)
_CLOSED = re.compile(r"Server disconnected|<ConnectionTerminated|<StreamReset .*(REFUSED_STREAM|error_code:7\b)")


def failure_before_answer(error: Exception, provider: str, address: str, timeouts: Timeouts) -> ModelError:
    """Return the `ModelError` for an exception raised before the answer began. Its message quotes nothing.

    Raise it after the `except` block, not inside it: httpx's exceptions hold the request, which contains the API key,
    and must not become the context of the `ModelError`.
    """
    unsent = isinstance(error, _NOT_SENT)
    if isinstance(error, httpx.TimeoutException):
        stage = "connection" if unsent else "answer"
        return ModelTimeout(f"no {stage} in time ({_describe_timeouts(timeouts)})", provider=provider, retryable=unsent)
    if isinstance(error, SSEError):
        return InvalidResponse("the answer is not a stream, although one was requested", provider=provider)
    if _CLOSED.match(str(error)) or _is_reset(error):  # usually a pooled connection that the server has just closed
        return ModelError("the server closed the connection", provider=provider, retryable=True)
    if isinstance(error, httpx.DecodingError | UnicodeDecodeError):
        return InvalidResponse("the answer's bytes cannot be decoded", provider=provider)
    if isinstance(error, UnicodeEncodeError):  # the headers were checked when the model was created
        return InvalidRequest("a cookie of the httpx client is not ASCII", provider=provider)
    if isinstance(error, httpx.InvalidURL | UnicodeError) or str(error).startswith("Invalid URL in location"):
        problem = "the address of the server's redirect or of the proxy is invalid"
        return InvalidResponse(problem, provider=provider)
    if isinstance(error, httpx.RemoteProtocolError):
        return InvalidResponse("the server's answer is not valid HTTP", provider=provider)
    problem = f"the connection to {address} failed ({_describe_cause(error)})"
    return ModelError(problem, provider=provider, retryable=unsent)


def _is_reset(error: Exception) -> bool:
    return isinstance(error, httpx.ReadError) and _describe_cause(error).endswith("ECONNRESET")


def failure_in_answer(error: Exception, provider: str, address: str, timeouts: Timeouts) -> ModelError:
    """Return the `ModelError` for an exception raised after the answer began; see `failure_before_answer`."""
    if isinstance(error, _CUT_SHORT):
        return InvalidResponse(f"the answer was cut short ({_describe_cause(error)})", provider=provider)
    return failure_before_answer(error, provider, address, timeouts)


def _describe_timeouts(timeouts: Timeouts) -> str:
    limits = asdict(timeouts)
    return ", ".join(f"{name} {seconds:g} s" for name, seconds in limits.items() if seconds is not None)


def _describe_cause(error: BaseException) -> str:
    """Return the error's class name and, if a system error caused it, that error's code, such as ECONNREFUSED."""
    kind = type(error).__name__
    system = next((cause for cause in _causes(error) if isinstance(cause, OSError) and cause.errno), None)
    if system is None:
        return kind
    # OpenSSL has its own error numbers
    name = system.reason if isinstance(system, ssl.SSLError) else errno.errorcode.get(system.errno or 0)
    return f"{kind}, {name or type(system).__name__}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield `error` and its causes. The last ones can be an exception that the caller is handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def error_for_status(response: httpx.Response, body: bytes, provider: str) -> ModelError:
    """Return the `ModelError` for an answer whose HTTP status isn't a success."""
    status, parsed = response.status_code, _parse_error_body(body)
    hint = "; check base_url and the model's name" if status in (404, 405) or status < 400 else ""
    error = _error_object(parsed)
    kind, retryable = error_kind(status, error)
    return kind(
        f"the request failed{hint}",
        provider=provider,
        status_code=status,
        retryable=retryable,
        request_id=_request_id(response.headers) or parsed.get("request_id"),
        code=error_code(error),
        retry_after=read_retry_after(response.headers, error),
        body=body,
    )


def _parse_error_body(body: bytes) -> dict[str, Any]:
    """Return an error body as an object, empty if it isn't one. Google wraps the error of a stream in a list."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    return parsed if isinstance(parsed, dict) else {}


def _error_object(body: dict[str, Any]) -> dict[str, Any]:
    """Return the error object: the field `error`, the first item of `detail` (FastAPI), or the body itself."""
    match body:
        case {"error": dict() as error} | {"detail": [dict() as error, *_]}:
            return error
    return body


_REQUEST_IDS = ("x-request-id", "request-id", "mistral-correlation-id", "x-ds-trace-id")


def _request_id(headers: httpx.Headers) -> str | None:
    return next(filter(None, map(headers.get, _REQUEST_IDS)), None)
