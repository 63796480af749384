"""A way to a server that breaks at the worst instant: when it has done what it was asked, and before it can say so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event

from tests.waiting import PATIENCE

_BYTES = 1 << 16


class Proxy:
    """Carries connections to a port of this machine.

    Attributes:
        port: where it listens, on 127.0.0.1.
        broken: how many connections it has broken.
    """

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._swallowed: bytes | None = None
        self._break = Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.broken = 0

    def swallow(self, answer: bytes) -> None:
        """Break the connection on which the server next gives such an answer; the client does not get it."""
        self._break.clear()
        self._swallowed = answer

    def wait_until_broken(self, seconds: float) -> bool:
        """Wait until it has."""
        return self._break.wait(seconds)

    def cut(self) -> None:
        """Break all connections; a server that is busy notices when it answers."""
        for each in self._sockets:
            _end(each)

    def serve(self) -> None:
        """Take connections until it is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to_port))
                self._sockets += client, server
                for arguments in ((client, server, False), (server, client, True)):
                    self._threads.append(threading.Thread(target=self._carry, args=arguments))
                    self._threads[-1].start()

    def close(self) -> None:
        """Take no more connections, and end those there are."""
        _end(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _carry(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                if answers and self._swallowed is not None and self._swallowed in data:
                    self._swallowed = None
                    self.broken += 1
                    self._break.set()
                    break
                sink.sendall(data)
        _end(source)
        _end(sink)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(to_port: int) -> Iterator[Proxy]:
    """Run a proxy until the block ends."""
    proxy = Proxy(to_port)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join(PATIENCE)
