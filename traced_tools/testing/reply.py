"""What a replay server sends: replies, the pieces they are made of, and what goes wrong on the way."""

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
    """Silence; it ends early when the client goes away (or says that it has no more to send) or the server is closed.

    Args:
        until: so many seconds (`math.inf`: for good), or an event that is waited for.
    """

    until: float | threading.Event


class Fault(Enum):
    """How a connection ends before its time.

    `CUT` closes it: the client reads its end. `RESET` aborts it (a TCP RST): the client gets an error, and may lose
    what was sent just before.
    """

    CUT = "cut"
    RESET = "reset"


Piece = bytes | Delay | Fault
"""What a body consists of, and what may stand in place of a reply."""


@dataclass(frozen=True)
class Reply:
    """What the server sends back.

    The body is sent in chunks, one per piece, unless the headers hold a `Content-Length`: then it is sent as it is,
    whether or not that is its length.

    Args:
        body: all of it, or pieces: `bytes`, each sent by itself when the iterable gives it, and among them a `Delay` or
            a `Fault`, which happens where it stands.
        status: the HTTP status.
        headers: further headers, such as those of a recorded reply.
        content_type: what the body is, unless the headers say so.
        cut: close the connection after the last piece as if the server had died: the body is then incomplete.
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
        """Return a stream of events, each a text as it is, a value as JSON, or a piece of a body."""
        return cls(_Events(events), content_type="text/event-stream", cut=cut, delay=delay, pause=pause)


@dataclass(frozen=True)
class _Events:
    """Server-sent events as pieces, as often as the events can be gone through."""

    events: Iterable[object]

    def __iter__(self) -> Iterator[Piece]:
        with _closing(self.events) as events:
            yield from map(_event, events)


def _event(event: object) -> Piece:
    if isinstance(event, Piece):
        return event
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()


def split(data: bytes, *, every: int | None = None, after: bytes | None = None, at: Iterable[int] = ()) -> list[bytes]:
    r"""Return recorded bytes as pieces for the body of a reply.

    Args:
        data: what was recorded.
        every: split after so many bytes, and again, and again.
        after: split after each of these, such as `b"\n\n"` for the events of a stream.
        at: split at these offsets; those outside the data count for nothing.

    Raises:
        ValueError: `every` is less than 1.
    """
    places = {0, len(data), *(place for place in at if 0 < place < len(data))}
    if every is not None:
        expect_whole("every", every, 1)
        places.update(range(0, len(data), every))
    if after:
        places.update(found.end() for found in re.finditer(re.escape(after), data))
    return [data[start:end] for start, end in itertools.pairwise(sorted(places))]


def wire_pieces(answer: Reply | Piece, method: str) -> Generator[Piece]:
    """Give what goes over the connection in answer to a request made with `method`.

    A piece in place of a reply is the last thing of its connection.
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
    """Give the body as RFC 9112, 7.1 frames it; an empty chunk would be its end."""
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
    """Give an iterator, and let a generator know when nobody wants more of it."""
    iterator = iter(items)
    try:
        yield iterator
    finally:
        if isinstance(iterator, Generator):
            iterator.close()
