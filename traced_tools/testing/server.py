"""A loopback HTTP server that answers from a list: recorded exchanges, made-up ones, and broken ones."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Received:
    """A request the server got."""

    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What the server sends back.

    Args:
        body: the body in pieces; each is sent by itself, when the iterable gives it, so a generator can pace a stream.
        status: the HTTP status.
        headers: further headers.
        content_type: what the body is.
        cut: close the connection after the last piece as if the server had died: the body is then incomplete.
    """

    body: Iterable[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    cut: bool = False

    @classmethod
    def json(cls, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Self:
        """Return a reply with `value` as JSON."""
        return cls([json.dumps(value).encode()], status, headers or {})

    @classmethod
    def sse(cls, events: Iterable[object], *, cut: bool = False) -> Self:
        """Return a stream of events, each a text as it is or a value as JSON."""
        return cls(_events(events), content_type="text/event-stream", cut=cut)


def _events(events: Iterable[object]) -> Iterator[bytes]:
    try:
        for event in events:
            yield f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
    finally:
        _close(events)


def _close(pieces: Iterable[object]) -> None:
    """Let a generator know that nobody wants more of it."""
    if isinstance(pieces, Generator):
        pieces.close()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let clients go away without a word; anything else is a fault of the server and is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class ReplayServer:
    """Answers each request with the next reply, on a free port of 127.0.0.1; use it in a `with` block.

    Args:
        replies: one per request, in order, or a function that is given the request and returns its reply.

    Attributes:
        requests: what it got, in order.
        url: its address.
    """

    def __init__(self, replies: Sequence[Reply] | Callable[[Received], Reply]) -> None:
        self.requests: list[Received] = []
        self._replies = replies
        self._lock = threading.Lock()
        self._server = _QuietServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply_to(self, request: Received) -> Reply:
        """Return the reply to the next request; a 500 that says so when there is none left."""
        with self._lock:
            self.requests.append(request)
            index = len(self.requests) - 1
        if callable(self._replies):
            return self._replies(request)
        if index < len(self._replies):
            return self._replies[index]
        return Reply.json({"error": {"code": "no_reply_left"}}, 500)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        replay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or each answer waits for the client's delayed acknowledgement

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                _send(self, replay.reply_to(Received(self.path, dict(self.headers.items()), body)))

            def log_message(self, *_: object) -> None:
                """Say nothing: a request line may hold a key."""

        return Handler


def _send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
    handler.send_response(reply.status)
    for name, value in {"Content-Type": reply.content_type, "Transfer-Encoding": "chunked", **reply.headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    try:
        for piece in reply.body:
            if piece:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                handler.wfile.flush()
        if not reply.cut:
            handler.wfile.write(b"0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass  # the client went away, which a test may want
    finally:
        _close(reply.body)
    handler.close_connection = reply.cut
