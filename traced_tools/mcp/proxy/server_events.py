"""The events of a server's response over HTTP, as they came."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_END_SECONDS: Final = 0.005
_LONGEST_END: Final = 4
_MOST_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of one event. A larger one ends the response."""


@dataclass(frozen=True)
class ServerEvent:
    """An event of a stream.

    Args:
        raw: the event as it came, with the blank line at its end.
        message: the message in it; None if there is none.
        event_id: the id with which a stream can be resumed after the event; None if it has none.
    """

    raw: bytes = field(repr=False)
    message: bytes | None = field(repr=False)
    event_id: str | None = None


async def server_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[ServerEvent]:
    """Yield the events in the body of a response; one that is not complete is dropped."""
    buffer, searched = bytearray(), 0
    async for chunk in chunks:
        buffer += chunk
        while end := _END.search(buffer, max(0, searched - _LONGEST_END)):
            yield _read(bytes(buffer[: end.end()]))
            del buffer[: end.end()]
            searched = 0
        searched = len(buffer)
        if searched > _MOST_BYTES:
            return


async def read_end(events: AsyncIterator[ServerEvent]) -> None:
    """Read the end of a stream after the answer, if it comes at once: else, its connection can't be used again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            async for _ in events:
                pass


def _read(raw: bytes) -> ServerEvent:
    data: list[bytes] = []
    event_id, kind = None, b"message"
    for line in _LINE_END.split(raw):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"id":
            event_id = value.decode("utf-8", "replace")
        elif name == b"event":
            kind = value
    message = b"\n".join(data)
    return ServerEvent(raw, message if kind == b"message" and message else None, event_id)


def as_event(message: bytes) -> bytes:
    """Return an event with a message."""
    lines = b"".join(b"data: %s\n" % line for line in _LINE_END.split(message))
    return b"event: message\n%s\n" % lines
