"""A real Redis: a server on a free port of this machine, which is gone in the end."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.judges.programs import free_port, program, running, until

PACKAGE = "apt-get install redis-server"
_SECONDS_TO_START = 30


class RedisServer:
    """A server that runs; each database of it is one of 16 numbers."""

    def __init__(self, port: int, password: str) -> None:
        self._port, self.password = port, password

    def url(self, database: int = 0, password: str | None = None) -> str:
        return f"redis://:{password or self.password}@127.0.0.1:{self._port}/{database}"

    def client(self, database: int = 0) -> redis.Redis:
        return redis.Redis.from_url(self.url(database))


@contextmanager
def serving() -> Iterator[RedisServer]:
    """Run a server until the block ends."""
    found = Path(program("redis-server", PACKAGE))
    libraries = [
        str(each) for each in (found.parents[1] / "lib").glob("*-linux-gnu")
    ]  # where it is unpacked, beside it
    server = RedisServer(free_port(), secrets.token_hex())
    settings = ("--bind", "127.0.0.1", "--port", str(server._port), "--requirepass", server.password, "--save", "")
    variables = {"LD_LIBRARY_PATH": os.pathsep.join(libraries)} if libraries else {}
    folder = Path(tempfile.mkdtemp(prefix="traced_tools"))
    try:
        with running([str(found), *settings], folder, variables) as process:
            until(lambda: answers(server), _SECONDS_TO_START, "Redis that answers", process)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def answers(server: RedisServer) -> bool:
    client = server.client()
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
    finally:
        client.close()
