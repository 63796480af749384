"""The HTTP session that OTLP exporters send with: bounded in time and size, whatever a collector answers.

The exporters take any `requests.Session`. The plain one waits anew for each byte, keeps whatever comes and reads all of
it, so that a collector which answers slowly enough, or endlessly, would hold a pipeline for good. This one takes the
time-out of a request as its whole time, reads no more of an answer than could be OTLP, and remembers what was answered.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

MAX_BYTES = 65_536
"""How much of an answer is read; the longest that OTLP knows is an error message."""


class CollectorSession(requests.Session):
    """A session that remembers the last answer.

    Attributes:
        status: its HTTP status; None when there was none.
        body: its first bytes, as they came.
        error: the class of what was raised instead of an answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget()
        self.headers["Accept-Encoding"] = "identity"  # nothing is unpacked here
        for scheme in ("http://", "https://"):
            self.mount(scheme, _BoundedAdapter())

    def forget(self) -> None:
        """Remember no answer."""
        self.status: int | None = None
        self.body = b""
        self.error: str | None = None

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """Send a request and return the answer, which is all there by then."""
        if isinstance(self.verify, str):  # else requests lets its own variables win over the exporters'
            options.setdefault("verify", self.verify)
        try:
            response = super().request(*args, **options)
        except Exception as error:
            self.status, self.body, self.error = None, b"", type(error).__name__
            raise
        self.status, self.body, self.error = response.status_code, response.content, None
        return response


class _BoundedAdapter(HTTPAdapter):
    """Uses connections that keep to a deadline, and reads a bounded part of the answer's body."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def close(self) -> None:
        for key in self.poolmanager.pools.keys():  # noqa: SIM118  # it is no mapping to iterate over
            if (pool := self.poolmanager.pools.get(key)) is not None:
                pool.close()  # urllib3 leaves it to finalizers, which have run when the process ends
        super().close()

    def send(self, *args: Any, **options: Any) -> requests.Response:
        response = super().send(*args, **options)
        body = _read(response.raw)
        response.raw.close()  # gives a connection back that has been read to its end, and closes any other
        response.raw = io.BytesIO(body)
        return response


def _read(raw: BaseHTTPResponse) -> bytes:
    """Return the beginning of a body; raises when the connection breaks before that is there."""
    body = b""
    while len(body) < MAX_BYTES and (part := raw.read(MAX_BYTES - len(body), decode_content=False)):
        body += part
    return body


class _TimedResponse(http.client.HTTPResponse):
    """An answer that must be there within the time-out of its socket, all of it."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self._reader = _TimedReader(sock)
        self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        """Read the headers; a connection that ends among them is an error, which the standard library overlooks."""
        super().begin()
        if self._reader.ended:
            raise http.client.IncompleteRead(b"")


class _TimedReader(io.RawIOBase):
    """Reads from a socket until its time-out, counted from now, has passed.

    Attributes:
        ended: whether the other side has closed the connection.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.ended = False
        self._raw = sock.makefile("rb", buffering=0)
        self._sock = sock
        timeout = sock.gettimeout()
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
        count = self._raw.readinto(buffer)
        self.ended = count == 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedConnection(HTTPConnection):
    response_class = _TimedResponse


class _TimedTlsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _TimedConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TimedTlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}
