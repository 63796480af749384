"""The standard input and output of this process as the connection to an MCP client."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import wait
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from pydantic_core import PydanticSerializationError

from traced_tools.core.fork import on_fork
from traced_tools.core.messages import encodable_json
from traced_tools.flow.workers import wait_until_done, workers

T = TypeVar("T")
_CHUNK = 64 * 1024
_MOST_BYTES = 64 * 1024 * 1024
"""The maximum size of one message. A larger one is dropped."""
_LAST_WORDS = 1.0
"""Seconds that a client has at the end to read the pending messages."""


@asynccontextmanager
async def stdio_streams() -> AsyncIterator[tuple[Any, Any]]:
    """Read messages from standard input and write messages to standard output, for the length of an `async with` block.

    In the block, what else writes to standard output writes to standard error, and standard input is empty, so that
    tools and their processes do not disturb the protocol. The block ends also if no message comes.
    """
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    with StandardPipes() as pipes:
        async with anyio.create_task_group() as group:
            last_write = anyio.Event()
            group.start_soon(_read, pipes, incoming)
            group.start_soon(_write, pipes, outgoing, last_write)
            try:
                yield read_stream, write_stream
            finally:
                write_stream.close()
                with anyio.move_on_after(_LAST_WORDS, shield=True):
                    await last_write.wait()
                group.cancel_scope.cancel()


async def _read(pipes: StandardPipes, incoming: Any) -> None:
    async with incoming:
        async for line in lines_of(pipes.read):
            try:
                message: SessionMessage | Exception = SessionMessage(
                    jsonrpc_message_adapter.validate_json(line, by_name=False)
                )
            except ValueError as error:
                message = error
            try:
                await incoming.send(message)
            except anyio.BrokenResourceError:  # the server has stopped reading
                return


async def lines_of(read: Callable[[], Awaitable[bytes]]) -> AsyncIterator[bytes]:
    """Yield the lines that are not blank, without their line feeds; a line beyond the maximum size is dropped.

    Args:
        read: returns the next bytes; none at the end.
    """
    line, is_too_long = bytearray(), False
    while chunk := await read():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line += end
            if not is_too_long and line.strip():
                yield bytes(line)
            line, is_too_long = bytearray(), False
        line += rest
        if len(line) > _MOST_BYTES:
            line, is_too_long = bytearray(), True


async def _write(pipes: StandardPipes, outgoing: Any, last_write: anyio.Event) -> None:
    with suppress(OSError):  # the client is gone
        async with outgoing:
            async for session_message in outgoing:
                await pipes.write(encoded(session_message.message) + b"\n")
    last_write.set()


def encoded(message: JSONRPCMessage) -> bytes:
    """Return a message as UTF-8."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except PydanticSerializationError:  # it has lone surrogates
        values = encodable_json(message.model_dump(by_alias=True, exclude_unset=True))
        return json.dumps(values, ensure_ascii=False).encode()


class StandardPipes:
    """Takes standard input and output for the length of a `with` block, and reads and writes them in threads."""

    _descriptors: tuple[int, ...] = ()

    def __enter__(self) -> StandardPipes:
        _flush()
        self._input, self._output = os.dup(0), os.dup(1)
        self._wake, self._waker = os.pipe()
        with _open_null() as nothing:
            os.dup2(nothing, 0)
        os.dup2(2, 1)
        self._descriptors = (self._input, self._output, self._wake, self._waker)
        on_fork(self._close)  # otherwise the client sees no end for as long as a forked child of a tool lives
        return self

    def __exit__(self, *_: object) -> None:
        _flush()
        os.dup2(self._input, 0)
        os.dup2(self._output, 1)
        self._close()

    def _close(self) -> None:
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = ()

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        return await self._in_thread(self._read_now)

    async def write(self, data: bytes) -> None:
        """Write all of `data`: at once if that does not block, else in a thread."""
        if len(data) <= select.PIPE_BUF and select.select([], [self._output], [], 0)[1]:
            os.write(self._output, data)
        else:
            await self._in_thread(partial(self._write_now, data))

    async def _in_thread(self, function: Callable[[], T]) -> T:
        future = workers().submit(function, beyond=True)
        try:
            await wait_until_done(future)
        except BaseException:
            os.write(self._waker, b".")
            wait([future])  # it ends at once
            raise
        return future.result()

    def _read_now(self) -> bytes:
        readable, _, _ = select.select([self._input, self._wake], [], [])
        return b"" if self._wake in readable else os.read(self._input, _CHUNK)

    def _write_now(self, data: bytes) -> None:
        remaining = memoryview(data)
        while remaining:
            woken, _, _ = select.select([self._wake], [self._output], [])
            if woken:
                return
            remaining = remaining[
                os.write(self._output, remaining[: select.PIPE_BUF]) :
            ]  # a ready pipe takes PIPE_BUF bytes without blocking


@contextmanager
def _open_null() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
