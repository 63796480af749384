"""The HTTP session of OTLP exporters, which limits the time and size of a collector's response.

The exporters accept any `requests.Session`. A plain session restarts its time-out with each byte and reads the whole
response, so a slow or endless response would block a pipeline forever. This session applies the time-out to the whole
request, reads no more of a response than OTLP can need, and remembers the last response.
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
"""Bytes that are read of a response body. The longest OTLP response is an error message."""


class CollectorSession(requests.Session):
    """A session that limits each response in time and size, and remembers the last one.

    Attributes:
        status: the HTTP status of the last response; None if there was none.
        body: the first bytes of its body, not decompressed.
        error: the name of the exception class that the last request raised instead; None if it raised none.
        date: its header `Date`; None if there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget()
        self.headers["Accept-Encoding"] = "identity"  # responses are not decompressed here
        for scheme in ("http://", "https://"):
            self.mount(scheme, _BoundedAdapter())

    def forget(self) -> None:
        """Forget the last response."""
        self.status: int | None = None
        self.body = b""
        self.error: str | None = None
        self.date: str | None = None

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """Send a request, and return its response with the body already read."""
        if isinstance(self.verify, str):  # otherwise variables of requests would override those of the exporters
            options.setdefault("verify", self.verify)
        try:
            response = super().request(*args, **options)
        except Exception as error:
            self.status, self.body, self.error = None, b"", type(error).__name__
            raise
        self.status, self.body, self.error = response.status_code, response.content, None
        self.date = response.headers.get("Date")
        return response


class _BoundedAdapter(HTTPAdapter):
    """An adapter whose connections have a deadline and that reads only the beginning of a response body."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def close(self) -> None:
        for key in self.poolmanager.pools.keys():  # noqa: SIM118  # the container is not iterable
            if (pool := self.poolmanager.pools.get(key)) is not None:
                pool.close()  # urllib3 closes pools in finalizers, which have already run at process exit
        super().close()

    def send(self, *args: Any, **options: Any) -> requests.Response:
        response = super().send(*args, **options)
        body = _read_body(response.raw)
        response.raw.close()  # returns a fully read connection to the pool, and closes any other
        response.raw = io.BytesIO(body)
        return response


def _read_body(raw: BaseHTTPResponse) -> bytes:
    """Return the first `MAX_BYTES` of a body; raises if the connection breaks before."""
    body = b""
    while len(body) < MAX_BYTES and (part := raw.read(MAX_BYTES - len(body), decode_content=False)):
        body += part
    return body


class _TimedResponse(http.client.HTTPResponse):
    """A response that must arrive completely within the time-out of its socket."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self._reader = _TimedReader(sock)
        self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        """Read the headers; raises if the connection ends within them, which the standard library does not detect."""
        super().begin()
        if self._reader.ended:
            raise http.client.IncompleteRead(b"")


class _TimedReader(io.RawIOBase):
    """Reads from a socket until its time-out, measured from the creation of the reader.

    Attributes:
        ended: whether the peer has closed the connection.
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
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._sock.settimeout(remaining)
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
