"""The connection options of all models behind HTTP: time-outs, retries, headers, proxies and custom httpx clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import httpx

from traced_tools.core.checks import expect, expect_positive, expect_whole
from traced_tools.errors import ConfigurationError
from traced_tools.models.http.retries import RetryPolicy


@dataclass(frozen=True)
class Timeouts:
    """Time limits of a call, in seconds; None means no limit.

    Args:
        connect: the limit for opening a connection or getting one from the pool.
        read: the limit for the answer to begin, and for each further piece of it.
        total: the limit for the whole answer, including retries and decoding. It is checked when a piece of the body
            arrives, between the events of a stream and after decoding. So a call can exceed it by one `read` limit, by
            the time to decode one body or event, and by the time in which headers arrive piece by piece.
    """

    connect: float | None = 10.0
    read: float | None = 120.0
    total: float | None = None

    def __post_init__(self) -> None:
        for name in ("connect", "read", "total"):
            expect_positive(name, getattr(self, name))


class HttpOptions(TypedDict, total=False):
    """The keyword arguments that all models behind HTTP accept.

    Args:
        timeout: a `Timeouts`, or the seconds to wait for a connection and for each piece of an answer; None for no
            limit.
        retries: a `RetryPolicy`, or the number of further attempts; 2 by default.
        headers: headers sent with each request, for example for a gateway. They override the model's own.
        proxy: the address of an HTTP or SOCKS proxy; by default `HTTPS_PROXY` and related variables apply.
        http2: whether to use HTTP/2 with servers that support it; needs the extra `http2`. Calls then share a
            connection: if one times out, the others on that connection fail, and if a stream is closed early, the
            server keeps sending it, because httpx cannot reset it.
        client: a custom `httpx.Client` for blocking code, with its own proxies, certificates and limits. The model
            doesn't close it.
        async_client: a custom `httpx.AsyncClient` for asyncio; it serves one event loop. The model doesn't close it.
    """

    timeout: float | Timeouts | None
    retries: int | RetryPolicy
    headers: Mapping[str, str]
    proxy: str
    http2: bool
    client: httpx.Client
    async_client: httpx.AsyncClient


_ACCEPTED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "timeout": ((int, float, Timeouts, type(None)), "seconds, a Timeouts or None"),
    "retries": ((int, RetryPolicy), "a whole number or a RetryPolicy"),
    "headers": ((Mapping,), "a mapping of names to values"),
    "proxy": ((str,), "a str"),
    "http2": ((bool,), "True or False"),
    "client": ((httpx.Client,), "an httpx.Client"),
    "async_client": ((httpx.AsyncClient,), "an httpx.AsyncClient"),
}


def check_options(options: HttpOptions) -> None:
    """Raise `TypeError` for an unknown option or type, and `ConfigurationError` for options that exclude each other.

    A model calls this before it looks for its API key, because a misspelled `api_key` is among these options.
    """
    for name, value in options.items():
        if name not in _ACCEPTED:
            raise TypeError(f"unknown argument {name}; the arguments of all models are {', '.join(_ACCEPTED)}")
        expect(name, value, *_ACCEPTED[name])
    if options.keys() & {"client", "async_client"} and options.keys() & {"proxy", "http2"}:
        raise ConfigurationError("proxy= and http2= don't apply to a custom client; pass them to the client itself")


def resolve_timeouts(options: HttpOptions) -> Timeouts:
    """Return the time-outs set in `options`, else the defaults."""
    timeout = options.get("timeout", Timeouts())
    if isinstance(timeout, Timeouts):
        return timeout
    expect_positive("timeout", timeout)
    return Timeouts(connect=timeout, read=timeout)


def resolve_retry_policy(options: HttpOptions) -> RetryPolicy:
    """Return the retry policy set in `options`, else the default."""
    retries = options.get("retries", RetryPolicy())
    if isinstance(retries, RetryPolicy):
        return retries
    expect_whole("retries", retries, 0)
    return RetryPolicy(retries)
