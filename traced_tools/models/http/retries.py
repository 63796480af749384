"""Retries: which failures are retried, and how long to wait before the next attempt.

A server that answers with HTTP 429 or 503 can ask for a delay (`Retry-After` and its variants, read by
`read_retry_after`). Without such a request, the delay grows exponentially (`RetryPolicy.delay`).
"""

from __future__ import annotations

import email.utils
import re
import time
from dataclasses import dataclass
from typing import Any

import httpx

from traced_tools.core.checks import expect, expect_positive, expect_whole
from traced_tools.core.jitter import jittered
from traced_tools.errors import ModelError
from traced_tools.models.refusals import google_retry_delay

_LONGEST_RETRY_AFTER = 60.0
"""The longest `Retry-After`, in seconds, to wait for. If the server asks for more, the call fails immediately."""
_LONGEST_BACKOFF = 8.0


@dataclass(frozen=True)
class RetryPolicy:
    """When to send a request again.

    A request is retried if it could not be sent, if the server closed the connection without an answer, if the answer's
    HTTP status is 408, 409, 429 or 500 and above, and if an answer begins with an error that stands for such a status.

    Args:
        retries: the maximum number of further attempts after the first.
        first_delay: seconds before the second attempt. The delay doubles with each attempt up to 8 seconds, and is then
            reduced by a random amount of at most a quarter. If the server sends `Retry-After`, that is the delay.
    """

    retries: int = 2
    first_delay: float = 0.5

    def __post_init__(self) -> None:
        expect_whole("retries", self.retries, 0)
        expect("first_delay", self.first_delay, (int, float), "a number of seconds")
        expect_positive("first_delay", self.first_delay)

    def delay(self, attempt: int, failure: ModelError) -> float | None:
        """Return the seconds to wait after attempt number `attempt` (from 0) failed; None to give up.

        Give up if no attempts are left, if `failure` is not retryable, or if the server asks to wait longer than 60
        seconds.
        """
        if attempt >= self.retries or not failure.retryable:
            return None
        if failure.retry_after is not None:
            return failure.retry_after if failure.retry_after <= _LONGEST_RETRY_AFTER else None
        backoff: float = self.first_delay * 2 ** min(attempt, 99)  # 2**99 is far above the limit and still a float
        return jittered(min(backoff, _LONGEST_BACKOFF), 0.75)


def read_retry_after(headers: httpx.Headers, error: Any) -> float | None:
    """Return the seconds that the server asks to wait, None if it doesn't say.

    The first of these counts: `retry-after-ms` (OpenAI), `Retry-After` (RFC 9110, section 10.2.3), and the `RetryInfo`
    in the error object `error` (Google).
    """
    delays = (_milliseconds(headers), _seconds_or_date(headers.get("retry-after")), google_retry_delay(error))
    return next((seconds for seconds in delays if seconds is not None), None)


def _milliseconds(headers: httpx.Headers) -> float | None:
    value = headers.get("retry-after-ms", "")
    return int(value) / 1000 if re.fullmatch(r"\d{1,12}", value) else None


def _seconds_or_date(value: str | None) -> float | None:
    if value is None:
        return None
    if re.fullmatch(r"-?\d{1,12}(\.\d+)?", value):
        return max(0.0, float(value))
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
