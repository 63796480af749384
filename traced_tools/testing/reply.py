"""The replies of a replay server, with their delays and faults."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Self, TypeVar

from traced_tools.core.checks import expect, expect_whole

T = TypeVar("T")


@dataclass(frozen=True)
class Delay:
    """A pause in which nothing is sent. It ends early if the client closes its sending side or the server is closed.

    Args:
        until: the duration in seconds (`math.inf` for no end), or an event to wait for.
    """

    until: float | threading.Event


class Fault(Enum):
    """How a connection ends early.

    `CUT` closes the connection: the client reads the end of the stream. `RESET` aborts it with a TCP RST: the client
    gets an error, and may lose what was sent just before.
    """

    CUT = "cut"
    RESET = "reset"


Piece = bytes | Delay | Fault
"""A part of a body; also accepted instead of a reply."""


@dataclass(frozen=True)
class Reply:
    """An HTTP response of the server.

    The body is sent with chunked encoding, one chunk per piece. With a `Content-Length` header it is sent unchanged,
    even if its length is different.

    Args:
        body: the whole body as `bytes`, or an iterable of pieces. Each `bytes` piece is sent when the iterable yields
            it; a `Delay` or a `Fault` takes effect at its position.
        status: the HTTP status.
        headers: additional headers, such as those of a recorded response.
        content_type: the content type, unless the headers contain one.
        cut: whether the connection closes after the last piece without the end of the body, as if the server crashed.
        delay: seconds before the first byte, or an event to wait for.
        pause: seconds between two pieces.
    """

    body: bytes | Iterable[Piece] = field(default=b"", repr=False)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    content_type: str = "application/json"
    cut: bool = False
    delay: float | threading.Event = 0.0
    pause: float = 0.0

    @classmethod
    def json(
        cls,
        value: object,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        delay: float | threading.Event = 0.0,
    ) -> Self:
        """Return a reply with `value` as JSON."""
        return cls(json.dumps(value).encode(), status, headers or {}, delay=delay)

    @classmethod
    def sse(
        cls,
        events: Iterable[object],
        *,
        cut: bool = False,
        delay: float | threading.Event = 0.0,
        pause: float = 0.0,
    ) -> Self:
        """Return a reply that streams server-sent events.

        Args:
            events: the data of each event, as a str or as a value to encode as JSON; or a piece to send unchanged.
            cut: as in `Reply`.
            delay: as in `Reply`.
            pause: as in `Reply`.
        """
        return cls(_Events(events), content_type="text/event-stream", cut=cut, delay=delay, pause=pause)


@dataclass(frozen=True)
class _Events:
    """Server-sent events as pieces; iterable as often as `events` is."""

    events: Iterable[object]

    def __iter__(self) -> Iterator[Piece]:
        with _closing(self.events) as events:
            yield from map(_event, events)


def _event(event: object) -> Piece:
    if isinstance(event, Piece):
        return event
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()


def split(data: bytes, *, every: int | None = None, after: bytes | None = None, at: Iterable[int] = ()) -> list[bytes]:
    r"""Split recorded bytes into pieces for the body of a reply.

    Args:
        data: the recorded bytes.
        every: the size in bytes after which the data is split repeatedly.
        after: a separator after which the data is split, such as `b"\n\n"` for server-sent events.
        at: offsets at which the data is split; offsets outside the data are ignored.

    Raises:
        ValueError: `every` is less than 1.
    """
    places = {0, len(data), *(place for place in at if 0 < place < len(data))}
    if every is not None:
        expect_whole("every", every, 1)
        places.update(range(0, len(data), every))
    if after:
        places.update(match.end() for match in re.finditer(re.escape(after), data))
    return [data[start:end] for start, end in itertools.pairwise(sorted(places))]


def wire_pieces(answer: Reply | Piece, method: str) -> Generator[Piece]:
    """Yield the pieces that are sent on the connection as the answer to a request with the HTTP method `method`.

    After a piece that is used instead of a reply, the connection is closed.
    """
    expect("the answer", answer, (Reply, bytes, Delay, Fault), "a Reply, bytes, a Delay or a Fault")
    if isinstance(answer, Reply):
        yield from _reply(answer, method)
    else:
        yield from (answer, Fault.CUT)


def _reply(reply: Reply, method: str) -> Iterator[Piece]:
    fields = {"content-type": reply.content_type, **{name.lower(): value for name, value in reply.headers.items()}}
    has_body = method != "HEAD" and reply.status not in (204, 304)  # RFC 9112, 6.3
    chunked = has_body and "content-length" not in fields
    if chunked:
        fields["transfer-encoding"] = "chunked"
    yield Delay(reply.delay)
    yield _head(reply.status, fields)
    if has_body:
        yield from _chunks(reply) if chunked else _pieces(reply)
    if reply.cut or fields.get("connection", "").lower() == "close":
        yield Fault.CUT


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _chunks(reply: Reply) -> Iterator[Piece]:
    """Yield the body with chunked encoding (RFC 9112, section 7.1), without empty chunks, because one ends the body."""
    with _closing(_pieces(reply)) as pieces:
        for piece in pieces:
            yield b"%x\r\n%s\r\n" % (len(piece), piece) if isinstance(piece, bytes) and piece else piece
    if not reply.cut:
        yield b"0\r\n\r\n"


def _pieces(reply: Reply) -> Iterator[Piece]:
    with _closing([reply.body] if isinstance(reply.body, bytes) else reply.body) as pieces:
        for index, piece in enumerate(pieces):
            expect("a piece of a body", piece, (bytes, Delay, Fault), "bytes, a Delay or a Fault")
            if index:
                yield Delay(reply.pause)
            yield piece


@contextmanager
def _closing(items: Iterable[T]) -> Iterator[Iterator[T]]:
    """Provide an iterator, and close it at the end if it is a generator."""
    iterator = iter(items)
    try:
        yield iterator
    finally:
        if isinstance(iterator, Generator):
            iterator.close()
