"""Reads the body of an answer: splits a streamed body into events, and limits the size and duration of any body."""

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
"""The maximum size of an answer; protects the memory from a server that never stops sending."""
MOST_REFUSAL_BYTES: Final = 2**20
"""The maximum size of an error body, of which only a code is read."""
MOST_EXPANDED: Final = 16 * 2**20
"""A compressed answer larger than this may be at most 100 times its compressed size."""
_EXPANSION = 100
_SLICE = 2**16
"""The maximum bytes to split into events at once; a compressed piece can expand to a thousand times its size."""


class ResponseBody:
    """The body of an answer as it arrives, limited in size and, with a deadline, in time.

    Args:
        response: the open response, of which the headers have arrived.
        deadline: the time by `time.monotonic` at which the body must be complete; None for no deadline.
        provider: the provider's name, for error messages.
        most_bytes: the maximum size in bytes.
    """

    def __init__(
        self, response: httpx.Response, deadline: float | None, provider: str, most_bytes: int = MOST_BYTES
    ) -> None:
        _check_compression(response.headers, provider)
        arriving = _SizeLimit(deadline, provider, most_bytes) if "content-encoding" in response.headers else None
        response.stream = _RawBody(response.stream, arriving)
        self.headers = response.headers
        self._response = response
        self._count_piece = _SizeLimit(deadline, provider, most_bytes, arriving).count

    def pieces(self) -> Iterator[bytes]:
        """Yield the pieces of the body."""
        for piece in self._response.iter_bytes():
            yield self._count_piece(piece)

    async def apieces(self) -> AsyncGenerator[bytes]:
        """Yield the pieces of the body."""
        async for piece in self._response.aiter_bytes():
            yield self._count_piece(piece)

    def iter_text(self) -> Iterator[str]:
        """Yield the pieces of the body as text."""
        decoder = _utf8_decoder()
        for piece in self._response.iter_bytes():
            for part in _slices(self._count_piece(piece)):
                if text := decoder.decode(part):
                    yield text

    async def aiter_text(self) -> AsyncGenerator[str]:
        """Yield the pieces of the body as text."""
        decoder = _utf8_decoder()
        async for piece in self._response.aiter_bytes():
            for part in _slices(self._count_piece(piece)):
                if text := decoder.decode(part):
                    yield text


def _slices(piece: bytes) -> Iterable[bytes]:
    """Return `piece` in slices no larger than a usual read from a connection."""
    if len(piece) <= _SLICE:
        return (piece,)
    return (piece[start : start + _SLICE] for start in range(0, len(piece), _SLICE))


class _RawBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body as the connection delivers it, before decompression.

    A compressed body gets a limit here as well: compressed bytes that expand to nothing never reach the limit after
    decompression.
    """

    def __init__(self, stream: Any, limit: _SizeLimit | None) -> None:
        self._stream = stream
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream) if self._limit is None else map(self._limit.count, self._stream)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream) if self._limit is None else _count_async(self._stream, self._limit)

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        # if the task were cancelled here, httpcore's pool would count the connection as in use forever
        await asyncio.shield(self._stream.aclose())


async def _count_async(stream: Any, limit: _SizeLimit) -> AsyncIterator[bytes]:
    async for piece in stream:
        yield limit.count(piece)


class _SizeLimit:
    """Counts the bytes of a body; raises if there are too many, or if they arrive after the deadline."""

    def __init__(self, deadline: float | None, provider: str, most: int, compressed: _SizeLimit | None = None) -> None:
        self._deadline = deadline
        self._provider = provider
        self._most = most
        self._compressed = compressed
        self._size = 0

    def count(self, piece: bytes) -> bytes:
        """Count and return `piece`; raises `InvalidResponse` or `ModelTimeout`."""
        self._size += len(piece)
        if self._size > self._most:
            raise InvalidResponse(f"the answer is larger than {self._most} bytes", provider=self._provider)
        if self._compressed and self._size > max(MOST_EXPANDED, _EXPANSION * self._compressed._size):
            problem = f"the answer is more than {_EXPANSION} times as large as its compressed form"
            raise InvalidResponse(problem, provider=self._provider)
        return piece if self._deadline is None else check_deadline(self._deadline, self._provider, piece)


def check_deadline(deadline: float, provider: str, value: T) -> T:
    """Return `value`; raises `ModelTimeout` if `deadline` has passed."""
    if time.monotonic() > deadline:
        raise ModelTimeout("the answer was not complete in time (total)", provider=provider)
    return value


def _check_compression(headers: httpx.Headers, provider: str) -> None:
    """Raise `InvalidResponse` for compressions whose expansion is unlimited; gzip and deflate expand at most 1:1032."""
    ways = headers.get_list("content-encoding", split_commas=True)
    if len(ways) > 1 or {way.strip().lower() for way in ways} & {"br", "zstd"}:
        raise InvalidResponse("the answer is compressed, and not with gzip or deflate alone", provider=provider)


def _utf8_decoder() -> Any:
    """Return an incremental UTF-8 decoder that drops a byte order mark; both framings prescribe UTF-8."""
    return codecs.getincrementaldecoder("utf-8-sig")("replace")


class Framing(Protocol):
    """Splits a body into events."""

    def events(self, answer: ResponseBody) -> Iterator[str]:
        """Yield the data of each event."""

    def aevents(self, answer: ResponseBody) -> AsyncGenerator[str]:
        """Yield the data of each event."""


class ServerSentEvents:
    """Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html.

    Event names are ignored, as are events without data.
    """

    def events(self, answer: ResponseBody) -> Iterator[str]:
        """Yield the data of each event."""
        for event in EventSource(cast(httpx.Response, answer)).iter_sse():
            if event.data:
                yield event.data

    async def aevents(self, answer: ResponseBody) -> AsyncGenerator[str]:
        """Yield the data of each event."""
        async with aclosing(EventSource(cast(httpx.Response, answer)).aiter_sse()) as events:
            async for event in events:
                if event.data:
                    yield event.data


class JsonLines:
    """One JSON value per line (https://github.com/ndjson/ndjson-spec), the format of Ollama's streams."""

    def events(self, answer: ResponseBody) -> Iterator[str]:
        """Yield each line."""
        lines = _LineSplitter(answer)
        for text in answer.iter_text():
            yield from lines.add(text)
        yield from lines.add("\n")

    async def aevents(self, answer: ResponseBody) -> AsyncGenerator[str]:
        """Yield each line."""
        lines = _LineSplitter(answer)
        async with aclosing(answer.aiter_text()) as texts:
            async for text in texts:
                for line in lines.add(text):
                    yield line
        for line in lines.add("\n"):
            yield line


class _LineSplitter:
    """Splits text that arrives in pieces into lines.

    Only a line feed ends a line: the other line separators of Unicode can occur inside JSON strings.
    """

    def __init__(self, answer: ResponseBody) -> None:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("application/x-ndjson", "application/json", "application/jsonl"):
            raise SSEError("the answer is not a stream of lines")
        self._unfinished: list[str] = []

    def add(self, text: str) -> list[str]:
        """Add `text` and return the lines that it completes, except blank ones."""
        first, *rest = text.split("\n")
        self._unfinished.append(first)
        if not rest:
            return []
        lines = ["".join(self._unfinished), *rest]
        self._unfinished = [lines.pop()]
        return [line for raw_line in lines if (line := raw_line.strip())]
