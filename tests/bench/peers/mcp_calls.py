"""Calls over MCP: of a peer's client to a server of the SDK, and of a client of the SDK to a peer's server.

Servers are processes of their own. The CPU time of a call is that of this process where the client is the peer's, and
that of the server's process where the server is.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Literal

from mcp import Client, StdioServerParameters

from tests.bench.peers.servers import url
from tests.bench.peers.worker import LOOPBACK, Run, Setup, count, serve

Server = Literal["sdk", "fastmcp", "serve"]
Target = StdioServerParameters | str
"""The command of a server, or its address."""
Call = Callable[[str, dict[str, Any]], Awaitable[str]]
"""Takes the name of a tool and arguments, and returns the text of the result."""
Connect = Callable[[Target], AbstractAsyncContextManager[Call]]
TEXT = "x"


def serve_calls(version: str, server: Server, connect: Connect) -> None:
    """Answer the driver's requests.

    Args:
        version: the peer's version.
        server: what serves the peer's tools.
        connect: connects the peer's client.
    """
    makers = {}
    for transport, target_of in (("stdio", _stdio), ("HTTP", _http)):
        makers[f"client, {transport}"] = partial(_client_run, target_of, connect)
        makers[f"server, {transport}"] = partial(_server_run, target_of, server)
    serve(Setup(version, makers))


@asynccontextmanager
async def connect_sdk(target: Target) -> AsyncIterator[Call]:
    """Connect the client of the SDK."""
    async with Client(target) as client:

        async def call(name: str, arguments: dict[str, Any]) -> str:
            content: Any = (await client.call_tool(name, arguments)).content
            text: str = content[0].text
            return text

        yield call


def _client_run(target_of: Callable[[Server], Target], connect: Connect, calls: int) -> Run:
    connection = Connection(lambda: connect(target_of("sdk")))
    return Run(partial(_echo, connection, calls))


def _server_run(target_of: Callable[[Server], Target], server: Server, calls: int) -> Run:
    connection = Connection(lambda: connect_sdk(target_of(server)))
    return Run(partial(_echo, connection, calls), connection.server_cpu_ns)


class Connection:
    """A connection that is opened by the first call, in a task of its own, and stays open."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Call]]) -> None:
        self._connect = connect
        self._call: asyncio.Future[Call] | None = None
        self._server_clock: int | None = None

    async def call(self) -> Call:
        """Return what calls a tool."""
        if self._call is None:
            self._call = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._stay(self._call))
            process_id = int(await (await self._call)("process_id", {}))
            self._server_clock = (~process_id << 3) | 2  # as `clock_getcpuclockid` makes it on Linux
        return await self._call

    def server_cpu_ns(self) -> int:
        """Return the CPU time of the server's process."""
        return 0 if self._server_clock is None else time.clock_gettime_ns(self._server_clock)

    async def _stay(self, connected: asyncio.Future[Call]) -> None:
        async with self._connect() as call:
            connected.set_result(call)
            await asyncio.Event().wait()


async def _echo(connection: Connection, calls: int) -> None:
    call = await connection.call()
    for _ in range(calls):
        count(await call("echo", {"text": TEXT}) == TEXT)


def _stdio(server: Server) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=["-m", "tests.bench.echo_server", server], cwd=".")


def _http(server: Server) -> str:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
    command = [sys.executable, "-m", "tests.bench.echo_server", server, str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        with suppress(ConnectionRefusedError), socket.create_connection((LOOPBACK, port)):
            return url(port, "/mcp")
        time.sleep(0.05)
    raise RuntimeError(f"{' '.join(command)} ended with exit status {process.returncode}")
