"""From a provider's error object to a `ModelError`: the same class whether it comes with an HTTP status or in a stream.

Providers name a failure by an HTTP status, a code, a type, or only by a message. A code or a type stands for the HTTP
status that providers send with it. A message is only searched for words about the length of the request, and,
without a code, about the load of the server; it is never quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from traced_tools.errors import (
    AuthenticationError,
    ContextOverflow,
    InvalidRequest,
    InvalidResponse,
    ModelError,
    ModelTimeout,
    RateLimited,
)

_CODE_FIELDS: Final = ("status", "code", "type", "error_type")
_RETRYABLE_STATUSES: Final = frozenset({408, 409, 429})
_STATUS_OF_CODES: Final = (
    (re.compile(r"rate_?limit|too_?many_?requests|throttl|quota|resource_?exhausted|^(requests|tokens)$"), 429),
    (re.compile(r"overload|unavailable|capacity|busy|slow_?down|not_?ready"), 503),
    (re.compile(r"time_?out|deadline"), 504),
    (re.compile(r"billing|payment|insufficient_(balance|credit)"), 402),
    (re.compile(r"authenticat|api_?key|unauthorized"), 401),
    (re.compile(r"permission|forbidden|access_?denied"), 403),
    (re.compile(r"not_?found"), 404),
    (re.compile(r"too_large"), 413),
    (re.compile(r"server_?error|^(api_error|internal|internal_error|unknown|data_loss)$"), 500),
    (re.compile(r"^abort|conflict"), 409),
    (
        re.compile(r"^invalid_(request|argument|prompt|image|base64|schema)|bad_?request|precondition|^out_of_range"),
        400,
    ),
)
"""Codes and types of errors, and the HTTP status that providers send with each.

OpenAI: https://platform.openai.com/docs/guides/error-codes. Anthropic: https://docs.anthropic.com/en/api/errors.
Google: https://cloud.google.com/apis/design/errors#handling_errors.
"""
_STATUS_OF_WORDS: Final = (
    (re.compile(r"rate_limit|too_many_requests"), 429),
    (re.compile(r"overloaded|server_busy"), 503),
)
"""Words in an error without a code, and the HTTP status that providers send with such an error."""
_ABOUT_THE_ANSWER: Final = re.compile(r"(tool_use|validate|parse)_failed$")
"""Codes of Groq for an answer that it could not read; the type beside them blames the request."""
_OVERFLOW_CODES: Final = re.compile(
    r"context_?(length|size|window)|exceed_context|(prompt|request|input)_too_(large|long)"
)
_OVERFLOW: Final = re.compile(
    r"(prompt|input|request) (is |was )?too (long|large)"
    r"|reduce the length of the (messages|prompt|input)"
    r"|exceed(s|ed)? (the )?(model'?s? |max |maximum |available )*(context|input length|prompt length|token limit)"
    r"|(max|maximum|model'?s) (context|prompt|input|sequence) (length|window|size)"
    r"|context (length|window|limit|size) exceed"
    r"|(longer|greater|larger) than the (model'?s? |maximum )*(context|model) length"
    r"|token count .{0,99}exceeds|input length .{0,99}exceed|range of input length|prompt exceeds max length"
    r"|token limit exceeded|too many (input )?tokens|`inputs` (tokens|must have less)",
    re.IGNORECASE,
)
"""What providers write about a request with more tokens than the model accepts; several have no code for it.

Anthropic: `prompt is too long: 2 tokens > 1 maximum`; Gemini: `The input token count (2) exceeds the maximum number of
tokens allowed (1)`; vLLM, DeepSeek, OpenRouter: `This model's maximum context length is 1 tokens`; Mistral: `too large
for model with 1 maximum context length`; llama.cpp: `the request exceeds the available context size`.
"""
_OVERFLOW_STATUSES: Final = frozenset({400, 422, 500})
"""The statuses that an overflow of the context can have, apart from 413; Ollama and llama.cpp have sent 500."""
_SEARCHED_CHARACTERS: Final = 4_000
_GOOGLE_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")


def error_code(error: object) -> object:
    """Return the short code in a provider's error object: its `status` (Google), `code`, `type` or `error_type`.

    A name is preferred to a number, because many servers repeat the HTTP status as the code.
    """
    return next(iter(_codes(error)), None)


def error_in_answer(problem: str, provider: str, error: object) -> ModelError:
    """Return the `ModelError` for an error object in an answer whose HTTP status was a success.

    An error without a known code is an `InvalidResponse`, and so is one about what the model wrote.
    """
    codes = _codes(error)
    is_about_answer = any(_ABOUT_THE_ANSWER.search(str(code)) for code in codes)
    status = None if is_about_answer else next(filter(None, map(status_of_code, codes)), None)
    if not codes:  # Ollama sends only a text
        words = (re.sub(r"\W+", "_", text.lower()) for text in _texts(error))
        status = next((status for text in words for pattern, status in _STATUS_OF_WORDS if pattern.search(text)), None)
    kind, retryable = (InvalidResponse, False) if status is None else error_kind(status, error)
    if _is_overflow(error) and kind is InvalidResponse:
        kind = ContextOverflow
    return kind(
        problem,
        provider=provider,
        code=error_code(error),
        retryable=retryable,
        retry_after=google_retry_delay(error),
    )


def error_kind(status: int, error: object) -> tuple[type[ModelError], bool]:
    """Return the class of the error for an HTTP status and the error object, and whether to retry the request."""
    if status == 413 or (status in _OVERFLOW_STATUSES and _is_overflow(error)):
        return ContextOverflow, False
    return _error_class(status), status in _RETRYABLE_STATUSES or status >= 500


def _error_class(status: int) -> type[ModelError]:
    if status in (401, 403):
        return AuthenticationError
    if status == 408:
        return ModelTimeout
    if status == 429:
        return RateLimited
    return InvalidRequest if 400 <= status < 500 and status != 409 else ModelError


def status_of_code(code: object) -> int | None:
    """Return the HTTP status that a provider's code stands for; None if that is not known."""
    text = str(code)
    if text.isdecimal():
        return int(text) if len(text) == 3 and text[0] in "45" else None
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()
    if _OVERFLOW_CODES.search(name):
        return 413
    return next((status for pattern, status in _STATUS_OF_CODES if pattern.search(name)), None)


def google_retry_delay(error: object) -> float | None:
    """Return the seconds in the `google.rpc.RetryInfo` among the details of an error object; None without one."""
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (match := _GOOGLE_DURATION.fullmatch(delay)):
            return float(match[1])
    return None


def _codes(error: object) -> list[str | int]:
    """Return the codes in an error object, names before numbers."""
    if not isinstance(error, Mapping):
        return []
    codes = [code for code in map(error.get, _CODE_FIELDS) if code and isinstance(code, str | int)]
    return sorted(codes, key=lambda code: str(code).isdecimal())


def _is_overflow(error: object) -> bool:
    """Return whether an error object says that the request is longer than the model accepts."""
    if any(status_of_code(code) == 413 for code in _codes(error)):
        return True
    return any(_OVERFLOW.search(text) is not None for text in _texts(error))


def _texts(error: object) -> Iterator[str]:
    """Yield the beginnings of the texts in an error object."""
    for text in map(error.get, ("message", "error", "detail")) if isinstance(error, Mapping) else (error,):
        if isinstance(text, str):
            yield text[:_SEARCHED_CHARACTERS]
