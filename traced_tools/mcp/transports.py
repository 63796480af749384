"""How MCP servers are reached: as a process, over its standard input and output, or over streamable HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TextIO
from urllib.parse import urlsplit

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from traced_tools.errors import ConfigurationError
from traced_tools.observe.scopes.mcp import McpEndpoint

_MOST_BYTES = 64 * 1024 * 1024
"""The maximum size of one message over HTTP. A larger one is an error of the request that it answers."""
_PORTS = {"http": 80, "https": 443}

Streams = tuple[Any, Any]
"""What the server sends, and what is sent to it."""


class Transport(Protocol):
    """The way to one MCP server."""

    endpoint: McpEndpoint
    key: tuple[str, ...]
    """Identifies the server in this process: its command or its URL."""

    def open(self) -> AbstractAsyncContextManager[Streams]:
        """Connect to the server, for the length of an `async with` block."""


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
    """

    def __init__(
        self,
        name: str,
        command: str,
        args: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | os.PathLike[str] | None,
    ) -> None:
        self.endpoint = McpEndpoint(name, "pipe")
        self.key: tuple[str, ...] = ("stdio", command, *args, str(cwd))
        self._parameters = StdioServerParameters(
            command=command,
            args=list(args),
            env=None if env is None else dict(env),
            cwd=None if cwd is None else os.fspath(cwd),
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Start the process, and end it after the block."""
        with _standard_error() as log:
            async with stdio_client(self._parameters, errlog=log) as streams:
                yield streams


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

    Raises:
        ConfigurationError: if the URL is not one of HTTP.
    """

    def __init__(self, name: str, url: str, headers: Mapping[str, str] | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or parts.hostname is None:
            raise ConfigurationError(
                f"the URL of the MCP server {name!r} must begin with http:// or https:// and a host"
            )
        self.endpoint = McpEndpoint(name, "tcp", parts.hostname, parts.port or _PORTS[parts.scheme])
        self.key: tuple[str, ...] = ("http", parts.scheme, parts.netloc, parts.path)
        self._url = url
        self._headers = dict(headers or {})

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Open a client for the block. The first request connects it."""
        # no limit for reading: a server may think as long as the time-out of the call lets it
        timeout = httpx2.Timeout(30.0, read=None)
        async with (
            httpx2.AsyncClient(headers=self._headers, timeout=timeout) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=_MOST_BYTES) as streams,
        ):
            yield streams
