"""Runs the gateway over standard input and output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Protocol

from traced_tools.flow.workers import finished_future
from traced_tools.mcp.proxy.gate import ConnectionLost, Gate
from traced_tools.mcp.proxy.relay import Relay
from traced_tools.mcp.proxy.url_server import SchemaOf
from traced_tools.mcp.sdk_logs import OURS
from traced_tools.mcp.signals import run_until_signal
from traced_tools.mcp.stdio import StandardPipes, lines_of

_LAST_ANSWERS: Final = 2.0
"""Seconds that a server has for its answers when the client is gone, and a client to read the last ones."""
_MOST_QUEUED: Final = 64
"""How many messages may wait for a slow client."""


class ServerConnection(Protocol):
    """A connection to the server."""

    exit_status: int | None

    async def send(self, data: bytes) -> None:
        """Send a message; raises `ConnectionLost`."""

    async def exchange(self, data: bytes) -> None:
        """Send a request whose answer is awaited; raises `ConnectionLost`, at the latest if no answer comes."""

    def messages(self) -> AsyncIterator[bytes]:
        """Yield the messages of the server until the connection ends."""

    async def finish(self) -> None:
        """Tell the server that no more messages come."""


class ProxiedServer(Protocol):
    """The server behind the gateway."""

    def open(self, schema_of: SchemaOf) -> AbstractAsyncContextManager[ServerConnection]:
        """Connect to the server, for the length of an `async with` block.

        Args:
            schema_of: returns the schema of a tool.
        """


def proxy_stdio(gate: Gate, server: ProxiedServer) -> int | None:
    """Stand between the client on standard input and output and a server, until one of them leaves.

    Returns:
        the exit status of a server that has ended by itself, negative for a signal; None if the client has left, or the
        process was interrupted.

    Raises:
        OSError: if the server can't be started.
    """
    statuses: list[int | None] = []

    async def relay() -> None:
        statuses.append(await _relay(gate, server))

    run_until_signal(relay)
    return statuses[0] if statuses else None


async def _relay(gate: Gate, server: ProxiedServer) -> int | None:
    OURS.set(True)
    with StandardPipes() as pipes:
        async with server.open(gate.tools.schema_of) as connection:
            has_server_left = await _Session(gate, pipes, connection).run()
        return connection.exit_status if has_server_left else None


class _Session:
    """The messages between the client on standard input and output and a server."""

    def __init__(self, gate: Gate, pipes: StandardPipes, server: ServerConnection) -> None:
        self._pipes = pipes
        self._server = server
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_QUEUED)
        self._relay = Relay(gate, self._queue.put, server.send, server.exchange)

    async def run(self) -> bool:
        """Pass messages on until one side leaves; return whether it was the server."""
        reading, serving, writing = map(_start, (self._read_client, self._read_server, self._write_client))
        try:
            await asyncio.wait([reading, serving, writing], return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, serving, writing):
                if task.done():
                    task.result().result()  # raises what has ended it
            has_server_left = serving.done()
            if not has_server_left:
                self._relay.leave()
                await self._server.finish()
                await asyncio.wait([serving], timeout=_LAST_ANSWERS)
            return has_server_left
        finally:
            await self._relay.close()
            await self._end(reading, serving, writing)

    async def _end(
        self, reading: asyncio.Task[Future[None]], serving: asyncio.Task[Future[None]], writing: Any
    ) -> None:
        serving.cancel()
        await asyncio.wait([serving])
        with suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)
        await asyncio.wait([writing], timeout=_LAST_ANSWERS)
        for task in (reading, writing):
            task.cancel()
        await asyncio.wait([reading, writing])

    async def _read_client(self) -> None:
        async for line in lines_of(self._pipes.read):
            with suppress(ConnectionLost):  # reading the server notices it as well
                await self._relay.from_client(line)

    async def _read_server(self) -> None:
        async for data in self._server.messages():
            await self._relay.from_server(data)

    async def _write_client(self) -> None:
        """Write messages to the client: in a task of its own, because a call that is cancelled must not cut a line."""
        with suppress(OSError):  # the client is gone
            while (data := await self._queue.get()) is not None:
                await self._pipes.write(data + b"\n")


def _start(begin: Callable[[], Awaitable[None]]) -> asyncio.Task[Future[None]]:
    return asyncio.create_task(finished_future(begin))
