"""A reply on the wire: its head, its framing, and pieces with chosen boundaries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.markers import MARKER
from traced_tools.testing import Delay, Fault, Reply, split
from traced_tools.testing.reply import Piece, wire_pieces

STREAM = b'event: one\ndata: {"a": 1}\n\ndata: two\n\ndata: [DONE]\n\n'


def wire(answer: Reply | Piece, method: str = "POST") -> list[Piece]:
    """The pieces that are sent, without zero delays."""
    return [piece for piece in wire_pieces(answer, method) if piece != Delay(0.0)]


def sent(answer: Reply | Piece, method: str = "POST") -> bytes:
    return b"".join(piece for piece in wire(answer, method) if isinstance(piece, bytes))


# Head and framing.


def test_a_reply_is_framed_in_one_chunk_for_each_piece() -> None:
    assert wire(Reply([b"first ", b"second"])) == [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        b"6\r\nfirst \r\n",
        b"6\r\nsecond\r\n",
        b"0\r\n\r\n",
    ]


def test_an_empty_piece_does_not_end_the_body() -> None:
    assert sent(Reply([b"", b"all", b""])).endswith(b"\r\n\r\n3\r\nall\r\n0\r\n\r\n")


def test_a_json_reply_is_one_piece() -> None:
    head, body, _ = wire(Reply.json({"a": 1}, 429, {"Retry-After": "1"}))
    assert head == (
        b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    assert body == b'8\r\n{"a": 1}\r\n'


@pytest.mark.parametrize("name", ["Content-Type", "content-type", "CONTENT-TYPE"])
def test_a_recorded_header_replaces_the_default_one_in_any_letter_case(name: str) -> None:
    head = wire(Reply(b"x", headers={name: "text/plain", "Transfer-Encoding": "chunked"}))[0]
    assert head == b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"


def test_a_status_without_a_name_is_sent_without_one() -> None:
    assert sent(Reply(status=529)).startswith(b"HTTP/1.1 529 \r\n")


@pytest.mark.parametrize("length", ["6", "1000"])
def test_with_a_content_length_the_body_is_sent_unchanged(length: str) -> None:
    recorded = wire(Reply([b"abc", b"def"], headers={"content-length": length}))
    assert recorded == [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %s\r\n\r\n" % length.encode(),
        b"abc",
        b"def",
    ]


@pytest.mark.parametrize(("status", "method"), [(200, "HEAD"), (204, "POST"), (304, "GET")])
def test_a_reply_whose_status_forbids_a_body_has_none(status: int, method: str) -> None:
    (head,) = wire(Reply(b"body", status), method)
    assert isinstance(head, bytes)
    assert b"transfer-encoding" not in head


def test_a_reply_with_connection_close_closes_the_connection() -> None:
    assert wire(Reply(b"x", headers={"Connection": "Close"}))[-2:] == [b"0\r\n\r\n", Fault.CUT]


def test_a_cut_body_has_no_end() -> None:
    assert wire(Reply(b"half", cut=True))[1:] == [b"4\r\nhalf\r\n", Fault.CUT]


@pytest.mark.parametrize("piece", [b"220 smtp.example.org ESMTP\r\n", Fault.RESET, Fault.CUT, Delay(1.0)])
def test_a_piece_instead_of_a_reply_is_sent_unchanged_and_ends_the_connection(piece: Piece) -> None:
    assert wire(piece) == [piece, Fault.CUT]


# Delays and faults stand where they happen.


def test_the_delay_comes_before_the_head() -> None:
    assert wire(Reply.json({}, delay=0.5))[0] == Delay(0.5)
    assert wire(Reply.sse([], delay=0.5))[0] == Delay(0.5)


def test_the_pause_comes_between_the_pieces() -> None:
    body = wire(Reply([b"a", b"b", b"c"], pause=0.5))[1:]
    assert body == [b"1\r\na\r\n", Delay(0.5), b"1\r\nb\r\n", Delay(0.5), b"1\r\nc\r\n", b"0\r\n\r\n"]


def test_delays_and_faults_keep_their_position_in_a_body_and_among_events() -> None:
    gate = threading.Event()
    expected = [Delay(0.5), b"9\r\ndata: 1\n\n\r\n", Delay(gate), b"9\r\n: alive\n\n\r\n", Fault.RESET]
    body: list[Piece] = [Delay(0.5), b"data: 1\n\n", Delay(gate), b": alive\n\n", Fault.RESET]
    assert wire(Reply(body))[1:-1] == expected
    assert wire(Reply.sse([Delay(0.5), 1, Delay(gate), b": alive\n\n", Fault.RESET]))[1:-1] == expected


# Server-sent events.


def test_server_sent_events_are_texts_or_values_as_json() -> None:
    body = list(Reply.sse(["[DONE]", {"a": None}, [1], 2.5, True, None]).body)
    assert body == [
        b"data: [DONE]\n\n",
        b'data: {"a": null}\n\n',
        b"data: [1]\n\n",
        b"data: 2.5\n\n",
        b"data: true\n\n",
        b"data: null\n\n",
    ]


def test_a_list_of_events_can_be_sent_again() -> None:
    reply = Reply.sse(["one", "two"])
    assert sent(reply) == sent(reply)
    assert b"two" in sent(reply)


@pytest.mark.parametrize("of", [Reply, Reply.sse])
def test_an_unfinished_generator_of_a_reply_is_closed(of: Any) -> None:
    closed = []

    def endless() -> Iterator[bytes]:
        try:
            while True:
                yield b"again"
        finally:
            closed.append(True)

    pieces = wire_pieces(of(endless()), "POST")
    while next(pieces) != b"5\r\nagain\r\n":
        assert closed == []
    pieces.close()
    assert closed == [True]


# Splitting.


def test_recorded_bytes_are_split_into_equal_sizes() -> None:
    assert split(b"abcdefg", every=3) == [b"abc", b"def", b"g"]
    assert split(b"abc", every=1) == [b"a", b"b", b"c"]
    assert split(b"abc", every=3) == split(b"abc", every=9) == [b"abc"]


def test_recorded_bytes_are_split_after_a_separator() -> None:
    assert split(STREAM, after=b"\n\n") == [b'event: one\ndata: {"a": 1}\n\n', b"data: two\n\n", b"data: [DONE]\n\n"]
    assert split(b"one\ntwo", after=b"\n") == [b"one\n", b"two"]
    assert split(b"1.2.", after=b".") == [b"1.", b"2."]


def test_recorded_bytes_are_split_at_offsets_in_any_order() -> None:
    assert split(b"abcdef", at=[4, 1, 4]) == [b"a", b"bcd", b"ef"]
    assert split(b"abc", at=[0, 3, 9, -1]) == [b"abc"]


def test_ways_to_split_can_be_combined_and_the_default_is_one_piece() -> None:
    assert split(b"abcdef", every=4, after=b"b", at=[1]) == [b"a", b"b", b"cd", b"ef"]
    assert split(STREAM) == [STREAM]
    assert split(b"", every=1) == []


@pytest.mark.parametrize("every", [0, -1])
def test_a_split_of_less_than_one_byte_is_refused(every: int) -> None:
    with pytest.raises(ValueError, match="every must be at least 1"):
        split(b"abc", every=every)


@given(
    st.binary(max_size=50),
    st.none() | st.integers(1, 60),
    st.none() | st.binary(max_size=2),
    st.lists(st.integers(-5, 60)),
)
def test_deltas_join_to_the_whole_text_and_none_is_empty(
    data: bytes, every: int | None, after: bytes | None, at: list[int]
) -> None:
    pieces = split(data, every=every, after=after, at=at)
    assert b"".join(pieces) == data
    assert all(pieces)


# Mistakes, and what is kept to oneself.


@pytest.mark.parametrize("body", [MARKER, [MARKER], [{"text": MARKER}], [None]])
def test_a_piece_of_a_wrong_type_is_refused_by_its_type_name(body: Any) -> None:
    with pytest.raises(TypeError, match="a piece of a body must be bytes, a Delay or a Fault, not ") as caught:
        wire(Reply(body))
    assert MARKER not in str(caught.value)


def test_an_answer_of_a_wrong_type_is_refused_by_its_type_name() -> None:
    answer: Any = {"text": MARKER}
    with pytest.raises(TypeError, match="the answer must be a Reply, bytes, a Delay or a Fault, not dict"):
        wire(answer)


def test_the_repr_of_a_reply_hides_headers_and_body() -> None:
    text = repr(Reply(MARKER.encode(), 404, {"X-Key": MARKER}))
    assert MARKER not in text
    assert "404" in text
