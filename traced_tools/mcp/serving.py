"""Serves tools to MCP clients, over standard input and output or over HTTP, until the process is interrupted."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Literal, Unpack

from traced_tools.core.checks import expect, expect_whole
from traced_tools.errors import ConfigurationError
from traced_tools.flow.workers import finished_future

try:
    import uvicorn
    from starlette.responses import Response

    from traced_tools.mcp.http_app import LOOPBACK as LOOPBACK
    from traced_tools.mcp.http_app import GuardedApp, Message, Receive, Send, Token
    from traced_tools.mcp.http_app import McpApp as McpApp
    from traced_tools.mcp.sdk_logs import OURS
    from traced_tools.mcp.server import McpServer as McpServer
    from traced_tools.mcp.server import ServerSettings
    from traced_tools.mcp.signals import run_until_signal
    from traced_tools.mcp.stdio import stdio_streams
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] not in ("mcp", "mcp_types", "starlette", "uvicorn"):
        raise
    raise ConfigurationError("serving tools needs an extra: pip install 'traced_tools[mcp]'") from None

Transport = Literal["stdio", "http"]
PATH = "/mcp"
_LOG = logging.getLogger(__name__)
_GRACE = 5
"""Seconds that open HTTP requests have to end."""


def serve(
    tools: object,
    *,
    transport: Transport = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    token: Token | None = None,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    stateless: bool = False,
    on_ready: Callable[[str], object] | None = None,
    **settings: Unpack[ServerSettings],
) -> None:
    """Serve tools to MCP clients until the client leaves (stdio), or the process gets SIGINT or SIGTERM.

        serve([WeatherTools()], name="weather", advisors=[AuditAdvisor(trail)])

    Over stdio, what tools print goes to standard error. Over HTTP, the path is `/mcp`.

    Args:
        tools: what `tools=` of a client accepts; or an `McpServer`.
        transport: `stdio` or `http`.
        host: the address of the interface to listen at. Any other than those of the loopback interface needs a token.
        port: the port to listen at; 0 for a free one.
        token: the token that clients must send; see `McpApp`, also for the arguments after it.
        hosts: the names by which clients may address the server.
        origins: the origins of web pages that may use the server.
        stateless: whether clients of older revisions get no session.
        on_ready: called with the URL when the server listens.
        settings: the settings of the `McpServer` that is made of the tools.

    Raises:
        TypeError, ValueError: for an invalid argument.
        ConfigurationError: if other machines could call the tools without a token.
        OSError: if the address can't be listened at.
    """
    if transport not in ("stdio", "http"):
        raise ValueError("transport must be 'stdio' or 'http'")
    if isinstance(tools, McpServer) and settings:
        raise TypeError(f"an McpServer has its own settings: pass {', '.join(settings)} to it")
    server = tools if isinstance(tools, McpServer) else McpServer(tools, **settings)
    if transport == "stdio":
        run_until_signal(lambda: _serve_stdio(server))
        return
    expect("host", host, str, "a str")
    expect_whole("port", port, 0)
    if host not in LOOPBACK and token is None:
        raise ConfigurationError(
            f"anybody who reaches {host} could call the tools: pass a token, or the host 127.0.0.1 for this machine"
        )
    serve_app(McpApp(server, token=token, hosts=hosts, origins=origins, stateless=stateless), host, port, on_ready)


def serve_app(app: GuardedApp, host: str, port: int, on_ready: Callable[[str], object] | None = None) -> None:
    """Serve an application at `/mcp` until the process gets SIGINT or SIGTERM.

    Args:
        app: the application.
        host: the address of the interface to listen at.
        port: the port to listen at; 0 for a free one.
        on_ready: called with the URL when the server listens.

    Raises:
        OSError: if the address can't be listened at.
    """
    with listening(host, port) as listener:
        address, real_port = listener.getsockname()[:2]
        url = f"http://{f'[{address}]' if ':' in address else address}:{real_port}{PATH}"
        (on_ready or _report)(url)
        run_until_signal(lambda: _serve_http(app, listener))


def _report(url: str) -> None:
    _LOG.info("serving MCP at %s", url)


async def _serve_stdio(server: McpServer) -> None:
    OURS.set(True)
    async with stdio_streams() as (read_stream, write_stream):
        await server.sdk.run(read_stream, write_stream, server.sdk.create_initialization_options())


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at an address until the block ends."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # asyncio sets TCP_NODELAY only if the listener names its protocol, which that of `create_server` does not.
    # Without it, the second packet of each answer waits for the client to acknowledge the first one: 40 ms on Linux.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach()) as listener:
        yield listener


async def _serve_http(app: GuardedApp, listener: socket.socket) -> None:
    async def at_path(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            with suppress(asyncio.CancelledError):
                await app(scope, receive, send)
        elif scope["path"] != PATH:
            await Response(status_code=404)(scope, receive, send)
        else:
            await _answer_in_time(app, scope, receive, send)

    config = uvicorn.Config(
        at_path, lifespan="on", log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=_GRACE
    )
    server = _Uvicorn(config)
    serving = asyncio.create_task(finished_future(lambda: server.serve(sockets=[listener])))
    while not serving.done():
        try:
            await asyncio.wait([serving])
        except asyncio.CancelledError:  # a signal; the second one ends requests at once
            server.force_exit = server.should_exit
            server.should_exit = True
    serving.result().result()


async def _answer_in_time(app: GuardedApp, scope: Message, receive: Receive, send: Send) -> None:
    """Answer a request, also if the server ends first: uvicorn would log the traceback of the cancellation."""
    has_begun = False

    async def send_on(message: Message) -> None:
        nonlocal has_begun
        has_begun = True
        await send(message)

    try:
        await app(scope, receive, send_on)
    except asyncio.CancelledError:
        if has_begun:
            await send({"type": "http.response.body"})
        else:
            await Response("the server ends", 503)(scope, receive, send)


class _Uvicorn(uvicorn.Server):
    """Leaves the signals alone: uvicorn would raise them again, which ends the process without cleaning up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
