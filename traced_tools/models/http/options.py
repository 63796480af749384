"""How a provider is reached: time-outs, retries, proxies, clients of one's own."""

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
    """How long to wait, in seconds.

    Args:
        connect: for a connection, one from the pool included; None for no limit, as of the others.
        read: for the answer to begin, and for each further piece of it.
        total: for the whole answer, retries and decoding included. It is checked when a piece of the body arrives,
            between the events of a stream and after decoding, so a call may outlast it by one wait of `read`, by
            decoding one body or event, and by a head that trickles in.
    """

    connect: float | None = 10.0
    read: float | None = 120.0
    total: float | None = None

    def __post_init__(self) -> None:
        for name in ("connect", "read", "total"):
            expect_positive(name, getattr(self, name))


class HttpOptions(TypedDict, total=False):
    """The keyword arguments that all models behind HTTP share.

    Args:
        timeout: a `Timeouts`, or the seconds to wait for a connection and for each further piece of an answer; None for
            no limit.
        retries: a `RetryPolicy`, or the number of further attempts; 2 by default.
        headers: sent with each request, for gateways; they win over the model's own.
        proxy: address of an HTTP or SOCKS proxy; by default what `HTTPS_PROXY` and its like say.
        http2: speak HTTP/2 with servers that can; needs the extra `http2`. Calls then share a connection: a time-out of
            one fails the others on it, and a stream that is left goes on at the server, for httpx cannot reset it.
        client: an `httpx.Client` of one's own for blocking code, with its proxies, certificates and limits. It is not
            closed with the model.
        async_client: the same for asyncio; it serves one event loop.
    """

    timeout: float | Timeouts | None
    retries: int | RetryPolicy
    headers: Mapping[str, str]
    proxy: str
    http2: bool
    client: httpx.Client
    async_client: httpx.AsyncClient


_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "timeout": ((int, float, Timeouts, type(None)), "seconds, a Timeouts or None"),
    "retries": ((int, RetryPolicy), "a whole number or a RetryPolicy"),
    "headers": ((Mapping,), "a mapping of names to values"),
    "proxy": ((str,), "a str"),
    "http2": ((bool,), "True or False"),
    "client": ((httpx.Client,), "an httpx.Client"),
    "async_client": ((httpx.AsyncClient,), "an httpx.AsyncClient"),
}


def check_options(options: HttpOptions) -> None:
    """Raise `TypeError` or `ConfigurationError` for an option that is none, or that does not go with another.

    A model calls it before it looks for its key: a misspelt `api_key` is among the options.
    """
    for name, value in options.items():
        if name not in _KINDS:
            raise TypeError(f"there is no argument {name}; beside its own a model takes {', '.join(_KINDS)}")
        expect(name, value, *_KINDS[name])
    if options.keys() & {"client", "async_client"} and options.keys() & {"proxy", "http2"}:
        raise ConfigurationError("proxy= and http2= do not reach a client of your own; give them to the client itself")


def timeouts_of(options: HttpOptions) -> Timeouts:
    """Return the time-outs that `options` ask for."""
    timeout = options.get("timeout", Timeouts())
    if isinstance(timeout, Timeouts):
        return timeout
    expect_positive("timeout", timeout)
    return Timeouts(connect=timeout, read=timeout)


def retries_of(options: HttpOptions) -> RetryPolicy:
    """Return the retry policy that `options` ask for."""
    retries = options.get("retries", RetryPolicy())
    if isinstance(retries, RetryPolicy):
        return retries
    expect_whole("retries", retries, 0)
    return RetryPolicy(retries)
