"""What went wrong between us and a provider, as the package's errors."""

from __future__ import annotations

import email.utils
import json
import re
import time
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
from traced_tools.models.wire import code_of

FAILURES = (httpx.HTTPError, httpx.StreamError, SSEError, UnicodeDecodeError)
"""What httpx raises while it sends and reads."""

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_RETRYABLE_STATUSES = frozenset({408, 409, 429})
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")


def failure_in(error: Exception, provider: str, address: str) -> ModelError:
    """Return the error for what went wrong while an answer was read; it says what happened and quotes nothing.

    To be raised after the `except` and not inside it: httpx's own errors hold the request, and with it the key.
    """
    unsent = isinstance(error, _UNSENT)
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
    problem = f"the connection to {address} failed ({type(error).__name__})"
    return ModelError(problem, provider=provider, retryable=unsent)


def refusal(response: httpx.Response, body: bytes, provider: str) -> ModelError:
    """Return the error that an answer of another status than success stands for."""
    status, said = response.status_code, _said(body)
    hint = "; are base_url and the model's name right?" if status in (404, 405) or status < 400 else ""
    error = _error(said)
    return _error_class(status)(
        f"the request failed{hint}",
        provider=provider,
        status_code=status,
        retryable=status in _RETRYABLE_STATUSES or status >= 500,
        request_id=_request_id(response.headers) or said.get("request_id"),
        code=code_of(error),
        retry_after=_retry_after(response.headers, error),
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


def _retry_after(headers: httpx.Headers, error: Any) -> float | None:
    """Return the seconds to wait: milliseconds (OpenAI), a number or a date (RFC 9110, 10.2.3), or Google's detail."""
    waits = (_milliseconds(headers), _seconds(headers.get("retry-after")), _google_delay(error))
    return next((seconds for seconds in waits if seconds is not None), None)


def _milliseconds(headers: httpx.Headers) -> float | None:
    value = headers.get("retry-after-ms", "")
    return int(value) / 1000 if re.fullmatch(r"\d{1,12}", value) else None


def _seconds(value: str | None) -> float | None:
    if value is None:
        return None
    if re.fullmatch(r"-?\d{1,12}(\.\d+)?", value):
        return max(0.0, float(value))
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _google_delay(error: Any) -> float | None:
    """Return the delay of a `google.rpc.RetryInfo` among an error's details."""
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (found := _SECONDS.fullmatch(delay)):
            return float(found[1])
    return None
