"""A client that sees the raw bytes of a connection, and an event that reports when it is waited for."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

from tests.waiting import PATIENCE
from traced_tools.testing import ReplayServer

POST = b"POST /v1/chat HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n{}"
LAST_POST = POST.replace(b"Host: here", b"Host: here\r\nConnection: close")


def connect(server: ReplayServer) -> socket.socket:
    """Return a connection to `server`; what it does not send in time is a `TimeoutError`."""
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), PATIENCE)


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Return the received bytes up to and including `end`, or fewer if the connection ends first."""
    data = b""
    while not data.endswith(end) and (byte := connection.recv(1)):
        data += byte
    return data


def read_all(connection: socket.socket) -> bytes:
    """Return the bytes that are received until the server closes the connection."""
    data = b""
    while more := connection.recv(65536):
        data += more
    return data


def talk(server: ReplayServer, request: bytes = LAST_POST) -> bytes:
    """Send `request` on a connection of its own and return everything the server sends on it."""
    with connect(server) as connection:
        connection.sendall(request)
        return read_all(connection)


def head_and_body(received: bytes) -> tuple[str, Mapping[str, str], bytes]:
    """Split what was received: the status line, the header fields and the body with its framing."""
    head, _, body = received.partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    return status, dict(field.split(": ", 1) for field in fields), body


def sockets() -> int:
    """Return how many sockets this process has open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:  # the folder's own descriptor is gone by now
            continue
    return found


class Gate(threading.Event):
    """An event that signals when a thread waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.reached.set()
        return super().wait(timeout)
