"""How MCP servers are reached: as a process, over its standard input and output, or over streamable HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, Protocol, TextIO
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import ByteReceiveStream
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from traced_tools.errors import ConfigurationError
from traced_tools.mcp.sdk_functions import with_globals
from traced_tools.observe.scopes.mcp import McpEndpoint

_MOST_BYTES = 64 * 1024 * 1024
"""The maximum size of one message. A larger one ends the connection to a process, and fails a request over HTTP."""
_HEADERS = {"Accept-Encoding": "identity"}
_PORTS = {"http": 80, "https": 443}

Era = Literal["auto", "handshake"]
"""Whether a server is asked what it speaks, or spoken to with the handshake of the revisions before 2026-07-28."""
Streams = tuple[Any, Any]
"""What the server sends, and what is sent to it."""


class Transport(Protocol):
    """The way to one MCP server."""

    endpoint: McpEndpoint
    place: str
    """Where the server is, for errors: the name of its program, or its host and port."""
    era: Era
    key: tuple[str, ...]
    """Identifies the server in this process: its command or its URL."""
    refusal: int | None
    """The HTTP status of the last response to a message that is an error, if there was one."""

    def open(self) -> AbstractAsyncContextManager[Streams]:
        """Connect to the server, for the length of an `async with` block."""


class _Lines:
    """Reads a server's output by whole lines, so that reading a long line takes linear time and bounded memory.

    Bytes that are no UTF-8 are replaced, because a server may print anything beside its messages.

    Args:
        stream: the output.
        encoding: its encoding.
        errors: unused.
    """

    def __init__(self, stream: ByteReceiveStream, encoding: str, errors: str) -> None:
        self._stream = stream
        self._encoding = encoding

    async def __aiter__(self) -> AsyncIterator[str]:
        begun: list[bytes] = []
        size = 0
        async for chunk in self._stream:
            lines, newline, rest = chunk.rpartition(b"\n")
            if newline:
                yield b"".join((*begun, lines, newline)).decode(self._encoding, "replace")
                begun, size = [], 0
            begun.append(rest)
            size += len(rest)
            if size > _MOST_BYTES:
                await self._stream.aclose()  # which keeps the SDK from reading the rest of the line
                raise anyio.BrokenResourceError


_stdio_client = asynccontextmanager(with_globals(stdio_client.__wrapped__, TextReceiveStream=_Lines))  # type: ignore[attr-defined]


class StdioTransport:
    """A server that runs as a process of this machine, for as long as the connection.

    The process writes its log to the standard error of this one. It inherits `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`
    and `TERM` alone.

    Args:
        name: the configured name of the server.
        command: the program.
        args: its arguments.
        env: further variables of its environment.
        cwd: its working directory; None for the current one.
        era: how to speak with it.
    """

    refusal: int | None = None

    def __init__(
        self,
        name: str,
        command: str,
        args: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | os.PathLike[str] | None,
        era: Era = "auto",
    ) -> None:
        self.endpoint = McpEndpoint(name, "pipe")
        self.place = f"the program {os.path.basename(command)!r}"
        self.era: Era = era
        self.key: tuple[str, ...] = ("stdio", era, command, *args, str(cwd))
        self._parameters = StdioServerParameters(
            command=command,
            args=list(args),
            env=None if env is None else dict(env),
            cwd=None if cwd is None else os.fspath(cwd),
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Start the process, and end it after the block."""
        _check_folder(self._parameters.cwd)
        with _standard_error() as log:
            async with _stdio_client(self._parameters, errlog=log) as streams:
                yield streams


def _check_folder(folder: str | os.PathLike[str] | None) -> None:
    """Raise an error for a missing folder, because otherwise the program seems to be missing."""
    if folder is not None and not os.path.isdir(folder):
        raise NotADirectoryError(folder)


def _standard_error() -> TextIO:
    """Return a file that a process can write to: in notebooks and tests, `sys.stderr` may be none."""
    try:
        return os.fdopen(os.dup((sys.__stderr__ or sys.stderr).fileno()), "w")
    except (OSError, AttributeError, ValueError):
        return open(os.devnull, "w")


class HttpTransport:
    """A server at a URL.

    Args:
        name: the configured name of the server.
        url: the URL of its endpoint.
        headers: headers of each request, such as those with a key.
        era: how to speak with it.

    Raises:
        ConfigurationError: if the URL is not one of HTTP, or a header has characters that no header has.
    """

    def __init__(self, name: str, url: str, headers: Mapping[str, str] | None, era: Era = "auto") -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # whose text quotes the URL
            raise ConfigurationError(f"the URL of the MCP server {name!r} has an invalid host or port") from None
        if parts.scheme not in _PORTS or parts.hostname is None:
            raise ConfigurationError(
                f"the URL of the MCP server {name!r} must begin with http:// or https:// and a host"
            )
        for header, value in (headers or {}).items():
            if not (value.isascii() and value.isprintable()) or value != value.strip():
                problem = "must be printable ASCII text, without spaces or line feeds around it"
                raise ConfigurationError(f"the header {header!a} of the MCP server {name!r} {problem}")
        self.endpoint = McpEndpoint(name, "tcp", parts.hostname, port or _PORTS[parts.scheme])
        self.place = f"{self.endpoint.address}:{self.endpoint.port}"
        self.era: Era = era
        self.key: tuple[str, ...] = ("http", era, parts.scheme, parts.netloc, parts.path)
        self.refusal: int | None = None
        self._url = url
        self._headers = dict(headers or {})

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Open a client for the block. The first request connects it."""
        # no limit for reading: a server may think as long as the time-out of the call lets it
        timeout = httpx2.Timeout(30.0, read=None)
        self.refusal = None
        hooks = {"response": [self._see]}
        async with (
            httpx2.AsyncClient(headers={**_HEADERS, **self._headers}, timeout=timeout, event_hooks=hooks) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=_MOST_BYTES) as streams,
        ):
            yield streams

    async def _see(self, response: httpx2.Response) -> None:
        """Keep the status of a response, and limit its size unless it is a stream: the SDK does neither."""
        if response.status_code >= 400 and response.request.method == "POST":
            self.refusal = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("the response is compressed, which was not asked for", request=response.request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Limited(response.stream)


class _Limited(httpx2.AsyncByteStream):
    """The body of a response, which fails when it becomes too large."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > _MOST_BYTES:
                raise httpx2.ReadError("the response is too large")
            yield chunk

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()
