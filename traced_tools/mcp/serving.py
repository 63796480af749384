"""Serves tools to MCP clients, over standard input and output or over HTTP, until the process is interrupted."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from traced_tools.core.checks import expect, expect_whole
from traced_tools.errors import ConfigurationError
from traced_tools.flow.workers import finished_future

try:
    import uvicorn

    from traced_tools.mcp.http_app import LOOPBACK, Message, Receive, Send, Token
    from traced_tools.mcp.http_app import McpApp as McpApp
    from traced_tools.mcp.sdk_logs import OURS
    from traced_tools.mcp.server import McpServer as McpServer
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
) -> None:
    """Serve tools to MCP clients until the client leaves (stdio), or the process gets SIGINT or SIGTERM.

        serve([WeatherTools()])

    Over stdio, what tools print goes to standard error. Over HTTP, the path is `/mcp`.

    Args:
        tools: what `tools=` of a client accepts; or an `McpServer`, which has further settings, such as advisors.
        transport: `stdio` or `http`.
        host: the address of the interface to listen at. Any other than those of the loopback interface needs a token.
        port: the port to listen at; 0 for a free one.
        token: the token that clients must send; see `McpApp`, also for the arguments after it.
        hosts: the names by which clients may address the server.
        origins: the origins of web pages that may use the server.
        stateless: whether clients of older revisions get no session.
        on_ready: called with the URL when the server listens.

    Raises:
        TypeError, ValueError: for an invalid argument.
        ConfigurationError: if other machines could call the tools without a token.
        OSError: if the address can't be listened at.
    """
    if transport not in ("stdio", "http"):
        raise ValueError("transport must be 'stdio' or 'http'")
    server = tools if isinstance(tools, McpServer) else McpServer(tools)
    if transport == "stdio":
        asyncio.run(_until_signal(lambda: _serve_stdio(server)))
        return
    expect("host", host, str, "a str")
    expect_whole("port", port, 0)
    if host not in LOOPBACK and token is None:
        raise ConfigurationError(
            f"anybody who reaches {host} could call the tools: pass a token, or the host 127.0.0.1 for this machine"
        )
    app = McpApp(server, token=token, hosts=hosts, origins=origins, stateless=stateless)
    with _listening(host, port) as listener:
        address, real_port = listener.getsockname()[:2]
        url = f"http://{f'[{address}]' if ':' in address else address}:{real_port}{PATH}"
        (on_ready or _report)(url)
        asyncio.run(_until_signal(lambda: _serve_http(app, listener)))


def _report(url: str) -> None:
    _LOG.info("serving MCP at %s", url)


async def _until_signal(begin: Callable[[], Awaitable[None]]) -> None:
    """Await `begin()`, which SIGINT and SIGTERM cancel."""
    task = asyncio.create_task(finished_future(begin))
    for each in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread, or not on this system
            asyncio.get_running_loop().add_signal_handler(each, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result().result()


async def _serve_stdio(server: McpServer) -> None:
    OURS.set(True)
    async with stdio_streams() as (read_stream, write_stream):
        await server.sdk.run(read_stream, write_stream, server.sdk.create_initialization_options())


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        yield listener


async def _serve_http(app: McpApp, listener: socket.socket) -> None:
    async def at_path(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != PATH:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, send)

    config = uvicorn.Config(
        at_path, lifespan="on", log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=_GRACE
    )
    server = _Uvicorn(config)
    serving = asyncio.create_task(finished_future(lambda: server.serve(sockets=[listener])))
    try:
        await asyncio.wait([serving])
    finally:
        server.should_exit = True
        await asyncio.wait([serving])
    serving.result().result()


class _Uvicorn(uvicorn.Server):
    """Leaves the signals alone: uvicorn would raise them again, which ends the process without cleaning up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
