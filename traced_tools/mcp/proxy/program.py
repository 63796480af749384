"""The server behind the gateway as a process, over its standard input and output."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from mcp.client import stdio

from traced_tools.core.variables import ALL
from traced_tools.mcp.proxy.gate import ConnectionLost
from traced_tools.mcp.stdio import lines_of
from traced_tools.mcp.transports import open_standard_error, stop_process

_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


class ProgramServer:
    """A server that runs as a process of this machine.

    The process has the environment of this one, without the variables of this package, some of which are keys. It
    writes its log to the standard error of this process.

    Args:
        command: the program and its arguments.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    @asynccontextmanager
    async def open(self, schema_of: object) -> AsyncIterator[ProgramConnection]:
        """Start the process, and end it and its children after the block; raises `OSError` if it can't be started."""
        program, *args = self._command
        env = {key: value for key, value in os.environ.items() if key not in ALL}
        with open_standard_error() as log:
            process = await stdio._create_platform_compatible_process(program, args, env=env, errlog=log)
        connection = ProgramConnection(process)
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                connection.exit_status = await stop_process(process)


class ProgramConnection:
    """The standard input and output of a server.

    Args:
        process: the process.

    Attributes:
        exit_status: the exit status of a process that has ended by itself, negative for a signal; else None.
    """

    def __init__(self, process: Any) -> None:
        self._process = process
        self.exit_status: int | None = None

    async def send(self, data: bytes) -> None:
        """Send a message, on a line of its own; raises `ConnectionLost` if the process has ended."""
        line, end = (data[:-1], b"\r\n") if data.endswith(b"\r") else (data, b"\n")
        if b"\n" in line or b"\r" in line:  # between tokens, where any blank is the same
            line = line.translate(_LINE_ENDS)
        try:
            await self._process.stdin.send(line + end)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ConnectionLost from None

    exchange = send

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield what the process writes, by lines, until it closes its output."""
        async for line in lines_of(self._read):
            yield line

    async def _read(self) -> bytes:
        try:
            chunk: bytes = await self._process.stdout.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return b""
        return chunk

    async def finish(self) -> None:
        """Close the input of the process, which then should end."""
        await stdio._close_pipe(self._process.stdin)
