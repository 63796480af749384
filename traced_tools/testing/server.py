"""A loopback HTTP server that answers from a list: recorded exchanges, made-up ones, and broken ones."""

from __future__ import annotations

import json
import math
import socket
import socketserver
import struct
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self

from traced_tools.core.checks import expect
from traced_tools.testing.reply import Delay, Fault, Piece, Reply, wire_pieces

_TICK = 0.02
"""Seconds between two looks at whether a client still waits for the end of a delay."""
_GRACE = 1.0
"""Seconds that closing gives to replies that are being made; those that are only delayed end at once."""


class _Headers(Mapping[str, str]):
    """Header fields by name, in any case; several of one name are joined by commas (RFC 9110, 5.3)."""

    def __init__(self, message: Message) -> None:
        self._fields = {name.lower(): ", ".join(message.get_all(name, ())) for name in message}

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


@dataclass(frozen=True, repr=False)
class Received:
    """A request the server got.

    Attributes:
        method: such as `POST`.
        path: with the query, if there is one.
        headers: by name, in any case.
        body: its bytes.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.method} {self.path.partition('?')[0]}>"  # a query may hold a key


class ReplayServer:
    """Answers each HTTP/1.1 request with the next reply, on a free port of 127.0.0.1; use it in a `with` block.

    Each connection has a thread of its own. The end of the block closes them all, also in the middle of a reply, and
    raises what a function or a generator of yours has raised meanwhile.

    Args:
        replies: one per request, in order, or a function that is given the request and returns its reply; requests that
            none is left for get a 500 with the code `no_reply_left`. In place of a reply may stand what breaks with
            HTTP, and then the connection ends: `bytes` that are sent as they are, a `Fault` or a `Delay`.

    Attributes:
        requests: what it got, in order.
        url: its address.
    """

    def __init__(self, replies: Sequence[Reply | Piece] | Callable[[Received], Reply | Piece]) -> None:
        if not callable(replies):
            expect("replies", replies, Sequence, "a sequence of replies or a function")
        self.requests: list[Received] = []
        self._replies = replies
        self._lock = threading.Lock()
        self._server = _Server(self._answer)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.close_connections()
        if self._server.failures and isinstance(error, Exception | None):
            raise self._server.failures[0]

    def _answer(self, request: Received) -> Reply | Piece:
        """Return the answer to the next request; a 500 that says so when there is none left."""
        with self._lock:
            self.requests.append(request)
            index = len(self.requests) - 1
        if callable(self._replies):
            return self._replies(request)
        if index < len(self._replies):
            return self._replies[index]
        return Reply.json({"error": {"code": "no_reply_left"}}, 500)


class _Server(socketserver.TCPServer):
    """Serves each connection in a thread, and can end them all."""

    request_queue_size = 128  # many clients may connect at once

    def __init__(self, answer: Callable[[Received], Reply | Piece]) -> None:
        super().__init__(("127.0.0.1", 0), _ConnectionHandler)
        self.answer = answer
        self.failures: list[BaseException] = []
        self._threads: dict[socket.socket, threading.Thread] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        self._threads = {each: thread for each, thread in self._threads.items() if thread.is_alive()}
        self._threads[request] = threading.Thread(target=self._serve, args=(request, client_address), daemon=True)
        self._threads[request].start()

    def _serve(self, connection: socket.socket, client_address: object) -> None:
        try:
            self.finish_request(connection, client_address)
        except ConnectionError:
            pass  # the client went away, which a test may want
        except BaseException as error:  # a test's way to fail need not be an Exception
            self.failures.append(error)
        finally:
            self.shutdown_request(connection)

    def close_connections(self) -> None:
        """Stop listening and end all connections; to be called when nothing is accepted any more."""
        self.server_close()
        for connection in self._threads:
            with suppress(OSError):  # it has ended by itself
                connection.shutdown(socket.SHUT_RDWR)
        latest = time.monotonic() + _GRACE
        for thread in self._threads.values():
            thread.join(max(0.0, latest - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads.values()):
            warnings.warn("a reply is still being made; give it a Delay to wait in", RuntimeWarning, stacklevel=3)


class _ConnectionHandler(BaseHTTPRequestHandler):
    """One connection: reads requests and sends what answers them, until either side has enough."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits for the client's delayed acknowledgement
    server: _Server

    def handle_one_request(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(65537)
        if self.raw_requestline and self.parse_request():
            request = Received(self.command, self.path, _Headers(self.headers), self._body())
            self._send(wire_pieces(self.server.answer(request), self.command))

    def log_message(self, *_: object) -> None:
        """Say nothing: a request line may hold a key."""

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return b"".join(iter(self._chunk, b""))
        return self._read(int(self.headers.get("Content-Length", 0)))

    def _chunk(self) -> bytes:
        size = self.rfile.readline().partition(b";")[0]
        chunk = self._read(int(size or b"0", 16))
        self._read(2)  # its line ends
        return chunk

    def _read(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionAbortedError
        return data

    def _send(self, pieces: Generator[Piece]) -> None:
        with closing(pieces):
            for piece in pieces:
                if isinstance(piece, Fault):
                    return self._end(piece)
                if isinstance(piece, Delay):
                    self._wait(piece.until)
                else:
                    self.wfile.write(piece)

    def _wait(self, until: float | threading.Event) -> None:
        """Wait; a client that goes away ends it, and to end it is also what closing does to a connection."""
        ready, seconds = (until, math.inf) if isinstance(until, threading.Event) else (threading.Event(), until)
        latest = time.monotonic() + seconds
        while not ready.wait(min(_TICK, latest - time.monotonic())) and time.monotonic() < latest:
            if self._client_is_gone():
                raise ConnectionAbortedError

    def _client_is_gone(self) -> bool:
        self.connection.setblocking(False)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        finally:
            self.connection.setblocking(True)

    def _end(self, fault: Fault) -> None:
        self.close_connection = True
        if fault is Fault.RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()  # or the server would end it in order
