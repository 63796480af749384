"""Delays and faults, as a raw connection and an HTTP client see them."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.testing.raw import LAST_POST, POST, Gate, connect, read_all, read_until, talk
from tests.waiting import PATIENCE
from traced_tools.testing import Delay, Fault, ReplayServer, Reply
from traced_tools.testing.reply import Piece

EVENTS = [b"data: one\n\n", b"data: two\n\n"]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=PATIENCE) as client:
        yield client


# Delays.


def test_nothing_is_sent_before_the_delay_is_over() -> None:
    gate = Gate()
    with ReplayServer([Reply.json("fine", delay=gate)]) as server, connect(server) as connection:
        connection.sendall(LAST_POST)
        assert gate.reached.wait(PATIENCE)
        assert select.select([connection], [], [], 0)[0] == []
        gate.set()
        assert b'"fine"' in read_all(connection)


def test_a_delay_at_the_start_of_a_body_comes_after_the_headers() -> None:
    gate = Gate()
    with ReplayServer([Reply([Delay(gate), b"body"])]) as server, connect(server) as connection:
        connection.sendall(LAST_POST)
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
        assert gate.reached.wait(PATIENCE)
        assert select.select([connection], [], [], 0)[0] == []
        gate.set()
        assert read_all(connection) == b"4\r\nbody\r\n0\r\n\r\n"


def test_an_event_controls_the_pace_of_a_stream() -> None:
    gates = [Gate(), Gate()]
    events = ["zero", Delay(gates[0]), "one", Delay(gates[1]), "two"]
    with ReplayServer([Reply.sse(events)]) as server, connect(server) as connection:
        connection.sendall(LAST_POST)
        read_until(connection, b"\r\n\r\n")
        for gate, word in zip(gates, ("zero", "one"), strict=True):
            assert read_until(connection, b"\n\n\r\n").endswith(f"data: {word}\n\n\r\n".encode())
            assert gate.reached.wait(PATIENCE)
            assert select.select([connection], [], [], 0)[0] == []
            gate.set()
        assert b"data: two" in read_all(connection)


@pytest.mark.parametrize(
    "reply",
    [Reply.json("x", delay=0.05), Reply([Delay(0.05), b"x"]), Reply([b"x", b"y", b"z"], pause=0.025)],
    ids=["before the headers", "before the body", "between the pieces"],
)
def test_a_delay_takes_its_seconds(reply: Reply) -> None:
    with ReplayServer([reply]) as server:
        started = time.monotonic()
        assert talk(server).endswith(b"0\r\n\r\n")
        assert time.monotonic() - started >= 0.05


@pytest.mark.parametrize("until", [math.inf, 60.0, threading.Event()], ids=["for good", "a minute", "an event"])
def test_a_delay_ends_when_the_client_disconnects(until: float | threading.Event) -> None:
    ended = threading.Event()

    def body() -> Iterator[Piece]:
        try:
            yield b"first"
            yield Delay(until)
        finally:
            ended.set()

    with ReplayServer([Reply(body())]) as server:
        with connect(server) as connection:
            connection.sendall(POST)
            read_until(connection, b"first\r\n")
            assert not ended.is_set()
        assert ended.wait(PATIENCE)


def test_a_client_that_sends_more_data_during_a_delay_stays_connected() -> None:
    gate = Gate()
    with ReplayServer([Reply(b"first", delay=gate), Reply(b"second")]) as server, connect(server) as connection:
        connection.sendall(POST + LAST_POST[:10])
        assert gate.reached.wait(PATIENCE)
        connection.sendall(LAST_POST[10:])
        gate.reached.clear()
        assert gate.reached.wait(PATIENCE)  # it was looked after the client, and is waited for again
        gate.set()
        received = read_all(connection)
    assert received.index(b"first") < received.index(b"second")


# Faults, as the connection sees them.


def test_a_cut_body_is_sent_without_its_end_and_the_connection_is_closed() -> None:
    for reply in (
        Reply(EVENTS, cut=True),
        Reply([*EVENTS, Fault.CUT, b"never sent"]),
        Reply.sse(["one", "two"], cut=True),
    ):
        with ReplayServer([reply]) as server:
            assert talk(server, POST).endswith(b"b\r\ndata: two\n\n\r\n")


def test_a_body_may_be_shorter_than_its_content_length() -> None:
    with ReplayServer([Reply(b"half", headers={"Content-Length": "8"}, cut=True)]) as server:
        received = talk(server, POST)
    assert b"content-length: 8\r\n" in received
    assert received.endswith(b"\r\n\r\nhalf")


def test_the_connection_is_closed_before_any_reply() -> None:
    with ReplayServer([Fault.CUT]) as server:
        assert talk(server, POST) == b""


def test_the_connection_is_reset_before_any_reply() -> None:
    with ReplayServer([Fault.RESET]) as server, pytest.raises(ConnectionResetError):
        talk(server, POST)


def test_the_connection_is_reset_in_the_middle_of_a_body() -> None:
    gate = threading.Event()
    with ReplayServer([Reply([b"half", Delay(gate), Fault.RESET])]) as server, connect(server) as connection:
        connection.sendall(POST)
        assert read_until(connection, b"half\r\n").endswith(b"half\r\n")
        gate.set()
        with pytest.raises(ConnectionResetError):
            read_all(connection)


def test_bytes_that_are_not_http_are_sent_unchanged() -> None:
    with ReplayServer([b"220 mail.example.org ESMTP\r\n"]) as server:
        assert talk(server, POST) == b"220 mail.example.org ESMTP\r\n"


def test_after_a_fault_the_next_request_is_answered_on_a_new_connection() -> None:
    with ReplayServer([Fault.CUT, b"garbage", Reply(b"fine")]) as server:
        assert [talk(server, POST), talk(server, POST)] == [b"", b"garbage"]
        assert b"fine" in talk(server)
        assert len(server.requests) == 3


# Faults, as an HTTP client sees them.


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (Fault.CUT, httpx.RemoteProtocolError, "without sending a response"),
        (Fault.RESET, httpx.ReadError, "reset"),
        (b"220 mail.example.org ESMTP\r\n\r\n", httpx.RemoteProtocolError, "illegal status line"),
        (b"HTTP/1.1 200 OK\r\nContent-", httpx.RemoteProtocolError, "without sending a response"),
        (Reply(EVENTS, cut=True), httpx.RemoteProtocolError, "incomplete chunked read"),
        (
            Reply(b"half", headers={"Content-Length": "8"}, cut=True),
            httpx.RemoteProtocolError,
            "without sending complete",
        ),
        (Reply([b"half", Fault.RESET]), httpx.ReadError, "reset"),
    ],
)
def test_a_client_gets_the_error_it_would_get_from_a_broken_server(
    client: httpx.Client, answer: Reply | Piece, error: type[Exception], says: str
) -> None:
    with ReplayServer([answer]) as server, pytest.raises(error, match=says):
        client.post(server.url, json={})


@pytest.mark.parametrize(
    "answer",
    [
        Delay(math.inf),
        Reply.json("late", delay=math.inf),
        Reply([b"half", Delay(math.inf)]),
        Reply(b"half", headers={"Content-Length": "8"}),
    ],
    ids=["no answer", "no first byte", "no end", "fewer bytes than announced"],
)
def test_a_server_that_falls_silent_is_a_timeout(client: httpx.Client, answer: Reply | Piece) -> None:
    with ReplayServer([answer]) as server, pytest.raises(httpx.ReadTimeout):
        client.post(server.url, timeout=0.05)


class PatientGate(Gate):
    """An event that signals its second wait, which follows a check of the client."""

    def __init__(self) -> None:
        super().__init__()
        self.again = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        if self.reached.is_set():
            self.again.set()
        return super().wait(timeout)


def test_a_delay_ends_however_many_files_are_open() -> None:
    gate = PatientGate()
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with ExitStack() as opened:
            for _ in range(1100):  # past the last number that select can wait for
                opened.enter_context(open(os.devnull))
            with ReplayServer([Reply.json("fine", delay=gate)]) as server, connect(server) as connection:
                connection.sendall(LAST_POST)
                assert gate.again.wait(PATIENCE)
                gate.set()
                assert b'"fine"' in read_all(connection)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
