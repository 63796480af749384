"""How the body of a streamed answer is cut into events, and how large an answer may grow."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeVar, cast

import httpx
from httpx_sse import EventSource, SSEError

from traced_tools.errors import InvalidResponse, ModelTimeout

T = TypeVar("T")

MOST_BYTES: Final = 256 * 2**20
"""The size of an answer above which it is given up: no memory is large enough for a server that never stops."""
MOST_REFUSAL_BYTES: Final = 2**20
"""The limit for an error body, from which only a code is read."""
MOST_EXPANDED: Final = 16 * 2**20
"""A compressed answer larger than this may be at most 100 times its compressed size."""
_EXPANSION = 100
_SLICE = 2**16
"""The most bytes of text to cut into events at once; a compressed piece may expand to a thousand times its size."""


class Answer:
    """The body of an answer as it arrives, up to its deadline and the size that is still an answer.

    Args:
        response: whose head has arrived.
        deadline: by `time.monotonic`; None for no other limit than that of each piece.
        provider: for errors.
        most_bytes: the size.
    """

    def __init__(
        self, response: httpx.Response, deadline: float | None, provider: str, most_bytes: int = MOST_BYTES
    ) -> None:
        _check_compression(response.headers, provider)
        arriving = _Limit(deadline, provider, most_bytes) if "content-encoding" in response.headers else None
        response.stream = _Arriving(response.stream, arriving)
        self.headers = response.headers
        self._response = response
        self._counted = _Limit(deadline, provider, most_bytes, arriving).counted

    def pieces(self) -> Iterator[bytes]:
        """Give the body, piece by piece."""
        for piece in self._response.iter_bytes():
            yield self._counted(piece)

    async def apieces(self) -> AsyncGenerator[bytes]:
        """Give the body, piece by piece."""
        async for piece in self._response.aiter_bytes():
            yield self._counted(piece)

    def iter_text(self) -> Iterator[str]:
        """Give the body as text, piece by piece."""
        decoder = _utf8()
        for piece in self._response.iter_bytes():
            for part in _sliced(self._counted(piece)):
                if text := decoder.decode(part):
                    yield text

    async def aiter_text(self) -> AsyncGenerator[str]:
        """Give the body as text, piece by piece."""
        decoder = _utf8()
        async for piece in self._response.aiter_bytes():
            for part in _sliced(self._counted(piece)):
                if text := decoder.decode(part):
                    yield text


def _sliced(piece: bytes) -> Iterable[bytes]:
    """Return `piece` in slices of a size that reading from a connection gives."""
    if len(piece) <= _SLICE:
        return (piece,)
    return (piece[start : start + _SLICE] for start in range(0, len(piece), _SLICE))


class _Arriving(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body as it comes off the connection; with a limit where what decompresses to nothing may have no end."""

    def __init__(self, stream: Any, limit: _Limit | None) -> None:
        self._stream = stream
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream) if self._limit is None else map(self._limit.counted, self._stream)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream) if self._limit is None else _counted(self._stream, self._limit)

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        # httpcore's pool would for ever count a connection as taken whose task is cancelled while it gives it back
        await asyncio.shield(self._stream.aclose())


async def _counted(stream: Any, limit: _Limit) -> AsyncIterator[bytes]:
    async for piece in stream:
        yield limit.counted(piece)


class _Limit:
    """Counts bytes until they are too many for an answer, or too late."""

    def __init__(self, deadline: float | None, provider: str, most: int, compressed: _Limit | None = None) -> None:
        self._deadline = deadline
        self._provider = provider
        self._most = most
        self._compressed = compressed
        self._size = 0

    def counted(self, piece: bytes) -> bytes:
        """Return `piece`; raises `InvalidResponse` or `ModelTimeout`."""
        self._size += len(piece)
        if self._size > self._most:
            raise InvalidResponse(f"the answer is larger than {self._most} bytes", provider=self._provider)
        if self._compressed and self._size > max(MOST_EXPANDED, _EXPANSION * self._compressed._size):
            problem = f"the answer is more than {_EXPANSION} times as large as it was compressed"
            raise InvalidResponse(problem, provider=self._provider)
        return piece if self._deadline is None else in_time(self._deadline, self._provider, piece)


def in_time(deadline: float, provider: str, value: T) -> T:
    """Return `value`; raises `ModelTimeout` if `deadline` is over."""
    if time.monotonic() > deadline:
        raise ModelTimeout("the answer was not complete in time (total)", provider=provider)
    return value


def _check_compression(headers: httpx.Headers, provider: str) -> None:
    """Raise `InvalidResponse` for what one read may blow up to more than any memory holds; gzip is at most 1:1032."""
    ways = headers.get_list("content-encoding", split_commas=True)
    if len(ways) > 1 or {way.strip().lower() for way in ways} & {"br", "zstd"}:
        raise InvalidResponse("the answer is compressed in another way than gzip or deflate", provider=provider)


def _utf8() -> Any:
    """Return a decoder for text in UTF-8, which both framings prescribe, without a byte order mark."""
    return codecs.getincrementaldecoder("utf-8-sig")("replace")


class Framing(Protocol):
    """Cuts a body into the texts that are one event each."""

    def events(self, answer: Answer) -> Iterator[str]:
        """Give the data of each event."""

    def aevents(self, answer: Answer) -> AsyncGenerator[str]:
        """Give the data of each event."""


class ServerSentEvents:
    """Events as in https://html.spec.whatwg.org/multipage/server-sent-events.html.

    Their names are not needed, and those without data count for nothing.
    """

    def events(self, answer: Answer) -> Iterator[str]:
        """Give the data of each event."""
        for event in EventSource(cast(httpx.Response, answer)).iter_sse():
            if event.data:
                yield event.data

    async def aevents(self, answer: Answer) -> AsyncGenerator[str]:
        """Give the data of each event."""
        async with aclosing(EventSource(cast(httpx.Response, answer)).aiter_sse()) as events:
            async for event in events:
                if event.data:
                    yield event.data


class JsonLines:
    """One JSON value a line (https://github.com/ndjson/ndjson-spec), as Ollama streams."""

    def events(self, answer: Answer) -> Iterator[str]:
        """Give each line."""
        lines = _Lines(answer)
        for text in answer.iter_text():
            yield from lines.ended_by(text)
        yield from lines.ended_by("\n")

    async def aevents(self, answer: Answer) -> AsyncGenerator[str]:
        """Give each line."""
        lines = _Lines(answer)
        async with aclosing(answer.aiter_text()) as texts:
            async for text in texts:
                for line in lines.ended_by(text):
                    yield line
        for line in lines.ended_by("\n"):
            yield line


class _Lines:
    """Joins pieces of text to lines. Only a line feed ends one: strings may hold what else Unicode takes for an end."""

    def __init__(self, answer: Answer) -> None:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("application/x-ndjson", "application/json", "application/jsonl"):
            raise SSEError("a stream of lines was asked for")
        self._begun: list[str] = []

    def ended_by(self, text: str) -> list[str]:
        """Return the lines that `text` ends, but none with nothing in it."""
        first, *rest = text.split("\n")
        self._begun.append(first)
        if not rest:
            return []
        lines = ["".join(self._begun), *rest]
        self._begun = [lines.pop()]
        return [line for each in lines if (line := each.strip())]
