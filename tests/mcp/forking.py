"""Serves tools that fork: over `stdio`, or over `http` at a URL that it prints."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from traced_tools import tool
from traced_tools.mcp import serve

_FORK = multiprocessing.get_context("fork")


def pool() -> str:
    """Use a pool, which ends its workers with SIGTERM."""
    with _FORK.Pool(2) as workers:
        return str(workers.map(abs, [-1, -2]))


def _ended(number: int) -> int | None:
    child = _FORK.Process(target=time.sleep, args=(600,))
    child.start()
    os.kill(child.pid or 0, number)  # at once, when the child may not have begun to run
    child.join(30)
    return child.exitcode


def terminate() -> str:
    """End children with SIGTERM."""
    return str([_ended(signal.SIGTERM) for _ in range(5)])


async def terminate_async() -> str:
    """End children with SIGTERM, from the thread of the event loop."""
    return terminate()


def prepare() -> str:
    """End a child that Python code prepares before it runs a program."""
    with subprocess.Popen(["sleep", "600"], preexec_fn=lambda: None) as child:
        child.terminate()
        return str(child.wait(30))


def _in_child(leave: Callable[[], str]) -> str:
    child = os.fork()
    if child == 0:
        return leave()
    os.waitpid(child, 0)
    return "waited"


def fork_and_return() -> str:
    """Fork a child that returns from the tool."""
    return _in_child(lambda: "the result of the child")


async def fork_and_return_async() -> str:
    """Fork a child that returns from the tool, in the thread of the event loop."""
    return fork_and_return()


def fork_and_exit() -> str:
    """Fork a child that leaves as a program does."""
    return _in_child(lambda: sys.exit(3))


@tool(timeout=30)
async def stay_behind() -> int:
    """Fork a child that outlives the server, and return its id."""
    child = os.fork()
    if child == 0:
        signal.pause()
    return child


def ping() -> str:
    """Answer."""
    return "pong"


TOOLS = [
    pool,
    terminate,
    terminate_async,
    prepare,
    fork_and_return,
    fork_and_return_async,
    fork_and_exit,
    stay_behind,
    ping,
]

if __name__ == "__main__":
    if sys.argv[1] == "http":
        serve(TOOLS, transport="http", port=0, on_ready=lambda url: print(url, flush=True))
    else:
        serve(TOOLS)
