"""An HTTP server on 127.0.0.1 that answers requests with prepared replies, delays and faults."""

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
"""Seconds between two checks of whether the client still waits during a delay."""
_GRACE = 1.0
"""Seconds that closing waits for replies that are being generated. Delays end immediately."""


class _Headers(Mapping[str, str]):
    """Header fields by case-insensitive name; fields with the same name are joined by commas (RFC 9110, 5.3)."""

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
    """A request that the server received.

    Attributes:
        method: the HTTP method, such as `POST`.
        path: the path with the query, if there is one.
        headers: the headers by case-insensitive name.
        body: the body.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)

    def __repr__(self) -> str:
        # Without the query, which may contain a key.
        return f"<{type(self).__name__} {self.method} {self.path.partition('?')[0]}>"


class ReplayServer:
    """An HTTP/1.1 server on a free port of 127.0.0.1 that answers each request with the next reply.

    Use it in a `with` block. Each connection has its own thread. The end of the block closes all connections, even
    within a reply, and raises the first exception that your function or generator raised.

    Args:
        replies: one reply per request, in order, or a function that takes the request and returns its reply. If no
            reply is left, the server answers with status 500 and the code `no_reply_left`. Instead of a reply you may
            use `bytes`, which are sent unchanged, a `Fault` or a `Delay`; after them the connection closes.

    Attributes:
        requests: the requests that the server received, in order.
        url: the server's base URL.
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
        """Return the answer to a request; status 500 if no reply is left."""
        with self._lock:
            self.requests.append(request)
            index = len(self.requests) - 1
        if callable(self._replies):
            return self._replies(request)
        if index < len(self._replies):
            return self._replies[index]
        return Reply.json({"error": {"code": "no_reply_left"}}, 500)


class _Server(socketserver.TCPServer):
    """A TCP server that serves each connection in a thread and can close all of them."""

    request_queue_size = 128  # many clients may connect at once

    def __init__(self, answer: Callable[[Received], Reply | Piece]) -> None:
        super().__init__(("127.0.0.1", 0), _ConnectionHandler)
        self.answer = answer
        self.failures: list[BaseException] = []
        self._threads: dict[socket.socket, threading.Thread] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        self._threads = {connection: thread for connection, thread in self._threads.items() if thread.is_alive()}
        self._threads[request] = threading.Thread(target=self._serve, args=(request, client_address), daemon=True)
        self._threads[request].start()

    def _serve(self, connection: socket.socket, client_address: object) -> None:
        try:
            self.finish_request(connection, client_address)
        except ConnectionError:
            pass  # the client disconnected, which may be part of a test
        except BaseException as error:  # a test may fail with an exception that is not an `Exception`
            self.failures.append(error)
        finally:
            self.shutdown_request(connection)

    def close_connections(self) -> None:
        """Stop listening and close all connections. Call it after `shutdown`."""
        self.server_close()
        for connection in self._threads:
            with suppress(OSError):  # the connection has already ended
                connection.shutdown(socket.SHUT_RDWR)
        latest = time.monotonic() + _GRACE
        for thread in self._threads.values():
            thread.join(max(0.0, latest - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads.values()):
            warnings.warn(
                "a reply is still being generated; use a Delay instead of waiting in it", RuntimeWarning, stacklevel=3
            )


class _ConnectionHandler(BaseHTTPRequestHandler):
    """One connection: reads requests and sends their answers until either side closes it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits for the client's delayed acknowledgement
    server: _Server

    def handle_one_request(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(65537)
        if self.raw_requestline and self.parse_request():
            request = Received(self.command, self.path, _Headers(self.headers), self._body())
            self._send(wire_pieces(self.server.answer(request), self.command))

    def log_message(self, *_: object) -> None:
        """Log nothing, because a request line may contain a key."""

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return b"".join(iter(self._chunk, b""))
        return self._read(int(self.headers.get("Content-Length", 0)))

    def _chunk(self) -> bytes:
        size = self.rfile.readline().partition(b";")[0]
        chunk = self._read(int(size or b"0", 16))
        self._read(2)  # the line end
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
        """Wait for a time or an event; raises if the client disconnects or the server closes the connection."""
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
            self.connection.close()  # otherwise the server would close it gracefully
