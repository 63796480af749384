"""A stream is split into events, however it arrives, and ends where it must."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import pairwise

import httpx
import pytest
from httpx_sse import SSEError
from hypothesis import given
from hypothesis import strategies as st

from traced_tools import ModelTimeout
from traced_tools.errors import InvalidResponse
from traced_tools.models.http.framing import Framing, JsonLines, ResponseBody, ServerSentEvents

SSE, NDJSON = "text/event-stream", "application/x-ndjson"
LINES, EVENTS = JsonLines(), ServerSentEvents()
COLOURS = ("blocking", "asyncio")
FRAMINGS = [pytest.param(EVENTS, SSE, id="sse"), pytest.param(LINES, NDJSON, id="lines")]

each_colour = pytest.mark.parametrize("colour", COLOURS)


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that arrives in these pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def cut_from(
    framing: Framing, pieces: Sequence[bytes], kind: str, colour: str = "blocking", deadline: float | None = None
) -> list[str]:
    """Return what `framing` cuts from a body that arrives in `pieces`."""
    answer = ResponseBody(httpx.Response(200, headers={"Content-Type": kind}, stream=Body(pieces)), deadline, "someone")
    if colour == "blocking":
        return list(framing.events(answer))

    async def on_asyncio() -> list[str]:
        return [event async for event in framing.aevents(answer)]

    return asyncio.run(on_asyncio())


def split(body: bytes, places: Iterable[int]) -> list[bytes]:
    """Return `body` split at `places`, each a number of bytes; it begins anew past the end."""
    bounds = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [body[start:end] for start, end in pairwise(bounds)]


def one_by_one(body: bytes) -> list[bytes]:
    return split(body, range(len(body)))


# Lines of JSON.


@each_colour
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_line_is_an_event(colour: str, end: str) -> None:
    body = f'{{"a": 1}}{end}[2]{end}"drei"{end}'.encode()
    for pieces in ([body], one_by_one(body)):
        assert cut_from(LINES, pieces, NDJSON, colour) == ['{"a": 1}', "[2]", '"drei"']


@each_colour
def test_a_line_without_a_line_feed_is_the_last(colour: str) -> None:
    assert cut_from(LINES, [b'{"a": 1}\n{"b"', b": 2}"], NDJSON, colour) == ['{"a": 1}', '{"b": 2}']


@each_colour
def test_blank_lines_are_skipped(colour: str) -> None:
    assert cut_from(LINES, [b"\n\n  \n1\n\r\n", b"\r", b"\n2\n\t"], NDJSON, colour) == ["1", "2"]
    assert cut_from(LINES, [], NDJSON, colour) == []


def test_unicode_line_separators_in_a_string_do_not_end_a_line() -> None:
    text = '"a\u2028b\u2029c\x85d\x0be\x1cf\rg"'
    assert cut_from(LINES, one_by_one(f"{text}\n1\n".encode()), NDJSON) == [text, "1"]


@pytest.mark.parametrize("kind", [NDJSON, "application/json; charset=utf-8", "application/jsonl", "Application/JSON"])
def test_several_content_types_are_accepted_for_lines(kind: str) -> None:
    assert cut_from(LINES, [b"1\n"], kind) == ["1"]


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=6), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)
PLACES = st.lists(st.integers(0, 2**16), max_size=30)


@given(values=st.lists(VALUES, max_size=6), ends=st.lists(st.sampled_from(["\n", "\r\n", "\n\n"])), places=PLACES)
def test_lines_do_not_depend_on_where_the_body_is_split(
    values: list[object], ends: list[str], places: list[int]
) -> None:
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    body = "".join(text + (ends[place % len(ends)] if ends else "\n") for place, text in enumerate(texts)).encode()
    assert cut_from(LINES, split(body, places), NDJSON) == texts


# Server-sent events.


@each_colour
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_data_of_each_event_is_yielded(colour: str, end: str) -> None:
    body = end.join(["event: delta", "data: one", "id: 7", "", "data:two", "data: lines", "", ""]).encode()
    for pieces in ([body], one_by_one(body)):
        assert cut_from(EVENTS, pieces, SSE, colour) == ["one", "two\nlines"]


@each_colour
def test_comments_and_events_without_data_are_skipped(colour: str) -> None:
    body = b": keep-alive\n\nevent: ping\n\nid: 1\nretry: 10\n\ndata: one\n: in between\n\n:\n\ndata\n\nunknown: x\n\n"
    assert cut_from(EVENTS, one_by_one(body), SSE, colour) == ["one"]


@each_colour
def test_an_unfinished_event_is_dropped(colour: str) -> None:
    assert cut_from(EVENTS, [b"data: one\n\ndata: tw"], SSE, colour) == ["one"]
    assert cut_from(EVENTS, [b"data: one\n\ndata: two\n"], SSE, colour) == ["one"]


def test_unicode_line_separators_do_not_end_an_event() -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x1cf"
    assert cut_from(EVENTS, one_by_one(f"data: {text}\n\n".encode()), SSE) == [text]


DATA = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")), min_size=1, max_size=3)


@given(events=st.lists(DATA.filter(any), max_size=4), end=st.sampled_from(["\n", "\r\n", "\r"]), places=PLACES)
def test_events_do_not_depend_on_where_the_body_is_split(events: list[list[str]], end: str, places: list[int]) -> None:
    lines = [line for event in events for line in (": comment", *(f"data: {each}" for each in event), "")]
    body = "".join(line + end for line in lines).encode()
    assert cut_from(EVENTS, split(body, places), SSE) == ["\n".join(event) for event in events]


# Both.


@each_colour
def test_a_character_may_arrive_in_pieces(colour: str) -> None:
    text = "snø ❄ \U0001f327 é"
    assert cut_from(EVENTS, one_by_one(f"data: {text}\n\n".encode()), SSE, colour) == [text]
    assert cut_from(LINES, one_by_one(f"{text}\n".encode()), NDJSON, colour) == [text]


@each_colour
def test_a_byte_order_mark_is_not_part_of_the_first_event(colour: str) -> None:
    for cut in (split, lambda body, _: one_by_one(body)):
        assert cut_from(EVENTS, cut(b"\xef\xbb\xbfdata: one\n\n", []), SSE, colour) == ["one"]
        assert cut_from(LINES, cut(b"\xef\xbb\xbf1\n", []), NDJSON, colour) == ["1"]


@each_colour
@pytest.mark.parametrize("kind", ["text/html", "text/plain; charset=utf-8", ""])
@pytest.mark.parametrize("framing", [EVENTS, LINES])
def test_a_body_of_another_content_type_is_refused(framing: Framing, kind: str, colour: str) -> None:
    with pytest.raises(SSEError):
        cut_from(framing, [b"<html>"], kind, colour)


@each_colour
@pytest.mark.parametrize(("framing", "kind"), FRAMINGS)
def test_a_stream_above_the_maximum_size_is_refused(
    framing: Framing, kind: str, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResponseBody.__init__, "__defaults__", (20,))
    body = b"data: one\n\n"
    assert cut_from(framing, [body[:10], body[10:], b"12345678\n"], kind, colour)
    with pytest.raises(InvalidResponse, match="larger than 20 bytes") as caught:
        cut_from(framing, [body, body], kind, colour)
    assert caught.value.provider == "someone"


@each_colour
@pytest.mark.parametrize(("framing", "kind"), FRAMINGS)
def test_a_piece_after_the_deadline_raises_model_timeout(framing: Framing, kind: str, colour: str) -> None:
    pieces = [b"data: one\n\n"]
    assert cut_from(framing, pieces, kind, colour, deadline=time.monotonic() + 60)
    with pytest.raises(ModelTimeout, match="not complete in time"):
        cut_from(framing, pieces, kind, colour, deadline=time.monotonic() - 1)
    assert cut_from(framing, [], kind, colour, deadline=time.monotonic() - 1) == []


@pytest.mark.parametrize(("framing", "kind"), FRAMINGS)
def test_an_event_is_yielded_before_the_next_arrives(framing: Framing, kind: str) -> None:
    asked: list[int] = []

    class Watched(Body):
        def __iter__(self) -> Iterator[bytes]:
            for place in range(3):
                asked.append(place)
                yield b"data: %d\n\n" % place

    answer = ResponseBody(httpx.Response(200, headers={"Content-Type": kind}, stream=Watched([])), None, "someone")
    events = framing.events(answer)
    for place in range(3):
        assert next(events).endswith(str(place))
        assert asked == list(range(place + 1))
