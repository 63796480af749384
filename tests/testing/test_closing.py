"""The end of the server's block closes everything and raises errors of replies."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.testing.raw import POST, Gate, connect, sockets, talk
from tests.waiting import PATIENCE
from traced_tools.testing import Delay, Fault, Received, ReplayServer, Reply
from traced_tools.testing import server as server_module
from traced_tools.testing.reply import Piece

needs_proc = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="counts the sockets in /proc, which this system lacks"
)


class Busy:
    """Replies that leave a connection in each state it can be in when the server is closed."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.left = 0

    def __call__(self, request: Received) -> Reply | Piece:
        replies: dict[str, Reply | Piece] = {
            "/whole": Reply(b"all"),
            "/streaming": Reply(self._endless()),
            "/late": Reply(b"never", delay=self.gate),
            "/silent": Reply([b"first", Delay(self.gate)]),
            "/reset": Fault.RESET,
        }
        return replies[request.path]

    def _endless(self) -> Iterator[bytes]:
        try:
            while True:
                yield b"word " * 10_000
        finally:
            self.left += 1


def begin(server: ReplayServer, path: str) -> socket.socket:
    """Send a request and wait until the reply to it has begun."""
    connection = connect(server)
    connection.sendall(POST.replace(b"/v1/chat", path.encode()))
    if path == "/reset":
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    elif path != "/late":
        connection.recv(1)
    return connection


@needs_proc
def test_closing_leaves_no_thread_and_no_socket() -> None:
    threads, open_sockets = set(threading.enumerate()), sockets()
    busy = Busy()
    with ExitStack() as clients:
        with ReplayServer(busy) as server:
            for path in ("/whole", "/streaming", "/late", "/silent", "/reset"):
                clients.enter_context(begin(server, path))
            for begun in (b"", POST[:20], POST[:-1]):
                clients.enter_context(connect(server)).sendall(begun)
            assert busy.gate.reached.wait(PATIENCE)
        assert set(threading.enumerate()) <= threads
        assert busy.left == 1
    assert sockets() <= open_sockets


@pytest.mark.parametrize("path", ["/whole", "/streaming", "/late", "/silent"])
def test_closing_ends_the_connection_of_a_client_that_is_still_there(path: str) -> None:
    with ReplayServer(Busy()) as server:
        connection = begin(server, path)
    with connection:
        connection.setblocking(False)  # it has ended by now: what is left can be read at once
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            pass
        assert connection.recv(1) == b""


def test_a_closed_server_takes_no_connection() -> None:
    with ReplayServer([]) as server:
        pass
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_closing_does_not_wait_for_a_blocked_reply_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_GRACE", 0.01)
    before, gate = set(threading.enumerate()), Gate()

    def stubborn(request: Received) -> Reply:
        gate.wait()
        return Reply()

    with pytest.warns(RuntimeWarning, match="a reply is still being generated"):
        with ReplayServer(stubborn) as server:
            connection = begin(server, "/late")
            assert gate.reached.wait(PATIENCE)
    gate.set()
    connection.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()


# What goes wrong in a reply.


class Broken(Exception):
    """What a test's own code raises in these tests."""


class Outcome(BaseException):
    """As pytest's own outcomes, no `Exception`."""


def function_that(raises: BaseException) -> Callable[[Received], Reply]:
    def reply(request: Received) -> Reply:
        raise raises

    return reply


def body_that(raises: BaseException) -> Callable[[Received], Reply]:
    def body() -> Iterator[bytes]:
        yield b"first"
        raise raises

    return lambda request: Reply(body())


@pytest.mark.parametrize("error", [Broken(), Outcome()])
@pytest.mark.parametrize("replies", [function_that, body_that])
def test_an_error_of_a_reply_function_is_raised_at_the_end_of_the_block(
    replies: Callable[[BaseException], Callable[[Received], Reply]],
    error: BaseException,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(type(error)) as caught:
        with ReplayServer(replies(error)) as server:
            assert not talk(server, POST).endswith(b"0\r\n\r\n")
    assert caught.value is error
    assert capfd.readouterr() == ("", "")


def test_an_invalid_reply_is_raised_at_the_end_of_the_block() -> None:
    with pytest.raises(TypeError, match="must be a Reply"):
        with ReplayServer(lambda request: "text") as server:  # type: ignore[arg-type, return-value]
            assert talk(server, POST) == b""


def test_an_error_of_a_reply_is_raised_instead_of_the_client_error_it_caused() -> None:
    with pytest.raises(Broken) as caught:
        with ReplayServer(function_that(raises=Broken())) as server:
            assert talk(server, POST) == b"an answer"
    assert isinstance(caught.value.__context__, AssertionError)


def test_an_interrupt_takes_precedence_over_a_reply_error() -> None:
    with pytest.raises(KeyboardInterrupt):
        with ReplayServer(function_that(raises=Broken())) as server:
            talk(server, POST)
            raise KeyboardInterrupt
