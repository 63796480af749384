"""How MCP servers are reached: as a process, over its standard input and output, or over streamable HTTP."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Literal, Protocol, TextIO
from urllib.parse import urlsplit
from weakref import WeakSet

import anyio
import httpx2
from anyio.abc import ByteReceiveStream
from mcp.client import stdio
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import RequestContext, StreamableHTTPTransport, streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from traced_tools.core.checks import expect, expect_each
from traced_tools.errors import ConfigurationError
from traced_tools.flow.workers import in_thread
from traced_tools.mcp.authentication import Authentication, RequestNotSent, is_of_authentication
from traced_tools.mcp.messages import UnreadableMessage, read_message
from traced_tools.mcp.scopes import McpEndpoint
from traced_tools.mcp.sdk_functions import with_globals
from traced_tools.observe.failures import error_type

_MOST_BYTES = 64 * 1024 * 1024
"""The maximum size of one message. A larger one ends the connection to a process, and fails a request over HTTP."""
_GOODBYE_SECONDS = 2.0
"""How long a server may take to confirm the end of its session."""
_CHILDREN_SECONDS = 0.5
"""How long children may take to end that a program has left."""
_HEADER_SECONDS = 30.0
"""How long a function may take to return headers."""
_HEADERS = {"Accept-Encoding": "identity"}
_PORTS = {"http": 80, "https": 443}

Era = Literal["auto", "handshake"]
"""Whether a server is asked what it speaks, or spoken to with the handshake of the revisions before 2026-07-28."""
Headers = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers of each request, or a plain or async function that returns them for each request."""
Descriptors = Callable[[], Iterable[int]]
"""Returns the file descriptors that a connection has open."""
Streams = tuple[Any, Any, Descriptors]
"""The streams of messages from the server and to it, and their file descriptors."""


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
    exit_status: int | None
    """The exit status of the server's program, if it ended by itself; negative for the signal that ended it."""

    def open(self) -> AbstractAsyncContextManager[Streams]:
        """Connect to the server, for the length of an `async with` block."""


class _Lines:
    """Reads a server's output by whole lines, so that reading a long line takes linear time and bounded memory.

    Bytes that are not UTF-8 are replaced, because a server may print anything beside its messages.

    Args:
        stream: the output.
        encoding: its encoding.
        errors: unused.
    """

    def __init__(self, stream: ByteReceiveStream, encoding: str, errors: str) -> None:
        self._stream = stream
        self._encoding = encoding

    async def __aiter__(self) -> AsyncIterator[str]:
        line_start: list[bytes] = []
        size = 0
        async for chunk in self._stream:
            lines, newline, rest = chunk.rpartition(b"\n")
            if newline:
                yield b"".join((*line_start, lines, newline)).decode(self._encoding, "replace")
                line_start, size = [], 0
            line_start.append(rest)
            size += len(rest)
            if size > _MOST_BYTES:
                await self._stream.aclose()  # which keeps the SDK from reading the rest of the line
                raise anyio.BrokenResourceError


def _read_line(line: str) -> SessionMessage | Exception:
    message = read_message(line)
    return message if isinstance(message, UnreadableMessage) else SessionMessage(message)


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
    exit_status: int | None = None

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
        """Start the process, and end it and its children after the block."""
        _check_folder(self._parameters.cwd)
        self.exit_status = None
        processes: list[Any] = []

        async def start(**options: Any) -> Any:
            processes.append(await stdio._create_platform_compatible_process(**options))
            return processes[0]

        client = with_globals(
            stdio_client.__wrapped__,  # type: ignore[attr-defined]
            TextReceiveStream=_Lines,
            _parse_line=_read_line,
            _create_platform_compatible_process=start,
            _stop_server_process=self._stop,
        )
        with open_standard_error() as log:
            async with asynccontextmanager(client)(self._parameters, errlog=log) as streams:
                yield *streams, partial(_pipes_of, processes[0])

    async def _stop(self, process: Any) -> None:
        self.exit_status = await stop_process(process)


async def stop_process(process: Any) -> int | None:
    """End a process with its process group; return its exit status if it has ended by itself.

    The SDK leaves the children of a process that ends by itself. On Windows, it ends all processes of the job.
    """
    await stdio._close_pipe(process.stdin)
    has_ended = await stdio._wait_for_process_exit(process, stdio.PROCESS_TERMINATION_TIMEOUT)
    exit_status: int | None = process.returncode if has_ended else None
    if sys.platform != "win32":
        await terminate_posix_process_tree(process, _CHILDREN_SECONDS if has_ended else stdio.FORCE_KILL_TIMEOUT)
    await stdio._stop_server_process(process)
    return exit_status


def _pipes_of(process: Any) -> Iterator[int]:
    """Return the file descriptors of a process's standard input and output, as far as asyncio has them."""
    transport = getattr(getattr(process, "_process", None), "_transport", None)  # as the SDK reads it
    if isinstance(transport, asyncio.SubprocessTransport):
        for pipe in map(transport.get_pipe_transport, (0, 1)):
            if pipe is not None and not pipe.is_closing():
                yield pipe.get_extra_info("pipe").fileno()


def _check_folder(folder: str | os.PathLike[str] | None) -> None:
    """Raise an error for a missing folder, because otherwise the program seems to be missing."""
    if folder is not None and not os.path.isdir(folder):
        raise NotADirectoryError(folder)


def open_standard_error() -> TextIO:
    """Return a file that a process can write to: in notebooks and tests, `sys.stderr` may be none."""
    try:
        return os.fdopen(os.dup((sys.__stderr__ or sys.stderr).fileno()), "w")
    except (OSError, AttributeError, ValueError):
        return open(os.devnull, "w")


class StreamableHttpTransport:
    """A server at a URL.

    Args:
        name: the configured name of the server.
        url: the URL of its endpoint.
        headers: headers of each request, such as those with a key, or a function that returns them.
        era: how to speak with it.
        auth: authenticates each request, such as by OAuth.

    Raises:
        ConfigurationError: if the URL is not one of HTTP, or a header has characters that no header has.
    """

    exit_status: int | None = None

    def __init__(
        self, name: str, url: str, headers: Headers | None, era: Era = "auto", auth: httpx2.Auth | None = None
    ) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # whose text quotes the URL
            raise ConfigurationError(f"the URL of the MCP server {name!r} has an invalid host or port") from None
        if parts.scheme not in _PORTS or parts.hostname is None:
            raise ConfigurationError(
                f"the URL of the MCP server {name!r} must begin with http:// or https:// and a host"
            )
        self._renew = headers if callable(headers) else None
        self._headers = {} if headers is None or callable(headers) else _checked_headers(name, headers)
        self.auth = None if auth is None else Authentication(auth)
        self.endpoint = McpEndpoint(name, "tcp", parts.hostname, port or _PORTS[parts.scheme])
        self.place = f"{self.endpoint.address}:{self.endpoint.port}"
        self.era: Era = era
        self.key: tuple[str, ...] = ("http", era, parts.scheme, parts.netloc, parts.path)
        self.refusal: int | None = None
        self.url = url

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Open a client for the block. The first request connects it."""
        sockets: WeakSet[Any] = WeakSet()
        async with (
            self.client(sockets) as client,
            _http_client(self.url, http_client=client, max_sse_event_size=_MOST_BYTES) as streams,
        ):
            yield *streams, partial(_descriptors_of, sockets)

    @property
    def header_names(self) -> Iterable[str]:
        """The names of the headers of each request."""
        return self._headers

    @asynccontextmanager
    async def client(self, sockets: WeakSet[Any]) -> AsyncIterator[httpx2.AsyncClient]:
        """Open an HTTP client with the headers for the block; `sockets` gets the streams of its connections."""
        # no limit for reading: a server may think as long as the time-out of the call lets it
        timeout = httpx2.Timeout(30.0, read=None)
        self.refusal = None
        headers = {**_HEADERS, **self._headers}
        async with httpx2.AsyncClient(headers=headers, auth=self.auth, timeout=timeout) as client:
            client.event_hooks = {"response": [partial(self._see, sockets)]}
            if self._renew is not None:
                client.event_hooks |= {"request": [partial(self._add_headers, client, self._renew)]}
            yield client

    async def _add_headers(
        self, client: httpx2.AsyncClient, function: Callable[[], Any], request: httpx2.Request
    ) -> None:
        """Add the headers that the application's function returns for this request, except those of the protocol."""
        if is_of_authentication(request):  # the headers are for the server alone
            return
        try:
            with anyio.fail_after(_HEADER_SECONDS):
                renewed: Any = function() if _is_async(function) else await in_thread(function)
                if inspect.isawaitable(renewed):
                    renewed = await renewed
            headers = _checked_headers(self.endpoint.name, renewed)
        except Exception as error:  # whose text may quote a token
            raise RequestNotSent(f"the function of headers= raised {error_type(error)}") from None
        for name, value in headers.items():
            if request.headers.get(name) == client.headers.get(name):
                request.headers[name] = value

    async def _see(self, sockets: WeakSet[Any], response: httpx2.Response) -> None:
        """Keep the socket and the status of a response, and limit its size unless it is a stream: the SDK does not."""
        if (stream := response.extensions.get("network_stream")) is not None:
            sockets.add(stream)
        request = response.request
        if response.status_code >= 400 and request.method == "POST" and not is_of_authentication(request):
            self.refusal = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("the response is compressed, which was not asked for", request=request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Limited(response.stream)


def _descriptors_of(streams: Iterable[Any]) -> Iterator[int]:
    """Return the file descriptors of the HTTP client's connections that are open."""
    for stream in streams:
        connection = stream.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            yield connection.fileno()


def _is_async(function: Callable[[], Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _checked_headers(server: str, headers: Any) -> dict[str, str]:
    """Return a copy of headers; raise an error for those that HTTP does not allow, without their values."""
    expect("headers", headers, Mapping, "a mapping of str to str, a function that returns such a mapping, or None")
    expect_each("headers", [*headers, *headers.values()], str, "a str")
    for header, value in headers.items():
        if not (value.isascii() and value.isprintable()) or value != value.strip():
            problem = "must be printable ASCII text, without spaces or line feeds around it"
            raise ConfigurationError(f"the header {header!a} of the MCP server {server!r} {problem}")
    return dict(headers)


class _HttpSession(StreamableHTTPTransport):
    """Reads the responses of a server, and answers a request itself if it could not be sent or its answer be read."""

    async def _handle_post_request(self, ctx: RequestContext) -> None:
        try:
            await super()._handle_post_request(ctx)
        except RequestNotSent as failure:  # which must not end the session with all of its calls
            message = ctx.session_message.message
            if isinstance(message, JSONRPCRequest):
                error = ErrorData(code=INTERNAL_ERROR, message=str(failure), data=failure)
                answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
                await ctx.read_stream_writer.send(SessionMessage(answer))

    async def _handle_json_response(
        self, response: httpx2.Response, read_stream_writer: Any, *, request_id: RequestId
    ) -> None:
        message = read_message(await response.aread())
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            message = UnreadableMessage().as_answer(request_id)
        await self._deliver(message, read_stream_writer, request_id)

    async def _handle_sse_event(
        self,
        sse: httpx2.ServerSentEvent,
        read_stream_writer: Any,
        original_request_id: RequestId | None = None,
        resumption_callback: Callable[[str], Awaitable[None]] | None = None,
    ) -> bool:
        if sse.event != "message" or not sse.data:
            return False
        message = read_message(sse.data)
        if isinstance(message, UnreadableMessage):
            if message.has_method:
                return False
            if original_request_id is None:
                await read_stream_writer.send(message)
                return False
            message = message.as_answer(original_request_id)
        return await self._deliver(message, read_stream_writer, original_request_id)

    async def _deliver(self, message: JSONRPCMessage, read_stream_writer: Any, request_id: RequestId | None) -> bool:
        """Pass a message on, and return whether it is the answer to the request."""
        is_answer = isinstance(message, JSONRPCResponse | JSONRPCError)
        if isinstance(message, JSONRPCResponse | JSONRPCError) and request_id is not None:
            message.id = request_id
        await read_stream_writer.send(SessionMessage(message))
        return is_answer

    async def terminate_session(self, client: httpx2.AsyncClient) -> None:
        """Tell the server that the session ends, and wait a short time for its answer."""
        with anyio.move_on_after(_GOODBYE_SECONDS):
            await super().terminate_session(client)


_http_client = asynccontextmanager(
    with_globals(streamable_http_client.__wrapped__, StreamableHTTPTransport=_HttpSession)  # type: ignore[attr-defined]
)


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
