"""Servers on this machine that a worker starts and that end with it."""

from __future__ import annotations

import subprocess
import sys
import threading
from os import _exit

from tests.bench.peers.worker import LOOPBACK


def start(module: str, *arguments: str) -> int:
    """Start a server with the Python of this process and return the port that it prints as its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return int(process.stdout.readline())


def url(port: int, path: str) -> str:
    """Return the address of a server."""
    return f"http://{LOOPBACK}:{port}{path}"


def end_with_parent() -> None:
    """End this process when the pipe from the process that started it is closed."""

    def wait() -> None:
        sys.stdin.buffer.read()
        _exit(0)

    threading.Thread(target=wait, daemon=True).start()
