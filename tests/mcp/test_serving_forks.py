"""Served tools that fork: the children end as they should, and the server goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import Client, StdioServerParameters

from tests.mcp.servers import is_alive
from tests.mcp.serving import calling, text_of
from tests.mcp.test_serving_stdio import Program
from tests.waiting import PATIENCE, in_time, patiently

FORKING = str(Path(__file__).parent / "forking.py")
RESULTS = {
    "pool": "[1, 2]",
    "terminate": "[-15, -15, -15, -15, -15]",
    "terminate_async": "[-15, -15, -15, -15, -15]",
    "prepare": "-15",
    "fork_and_return": "waited",
    "fork_and_return_async": "waited",
    "fork_and_exit": "waited",
}


@contextmanager
def forking(transport: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, FORKING, transport], stdin=pipe, stdout=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def url_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return in_time(process.stdout.readline).decode().strip()


def use(server: Any) -> dict[str, str]:
    async def talk() -> dict[str, str]:
        async with Client(server) as client:
            results = {name: text_of(await client.call_tool(name, {})) for name in RESULTS}
            assert text_of(await client.call_tool("ping", {})) == "pong"
            return results

    return asyncio.run(patiently(talk()))


@pytest.mark.slow
def test_children_of_tools_over_stdio_end_and_the_server_answers_each_call_once() -> None:
    assert use(StdioServerParameters(command=sys.executable, args=[FORKING, "stdio"])) == RESULTS


@pytest.mark.slow
def test_children_of_tools_over_http_end_and_the_server_answers_each_call_once() -> None:
    with forking("http") as process:
        assert use(url_of(process)) == RESULTS


@contextmanager
def left_behind(child: int) -> Iterator[None]:
    try:
        assert is_alive(child)
        yield
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_a_child_that_outlives_the_server_keeps_no_client_over_stdio_waiting() -> None:
    with forking("stdio") as process:
        shop = Program(process)
        shop.call(1, "stay_behind")
        with left_behind(int(shop.answer()["result"]["content"][0]["text"])):
            process.terminate()
            assert process.wait(PATIENCE) == 0
            assert process.stdout is not None and in_time(process.stdout.read) == b""


@pytest.mark.slow
def test_a_child_that_outlives_the_server_does_not_keep_its_port() -> None:
    with forking("http") as process:
        url = url_of(process)
        with left_behind(int(text_of(calling(url, "modern", "stay_behind")))):
            process.terminate()
            assert process.wait(PATIENCE) == 0
            socket.create_server(("127.0.0.1", urlsplit(url).port or 0)).close()
