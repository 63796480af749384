"""A process that forks children for a test to kill: each runs loops on a trail until it dies.

    python -m tests.audit.crashing STORE STARTED

For each line on standard input, `NAME SINCE SECONDS`, a child is forked, killed so many seconds after its `birth` or
the start of its first `tool`, and `dead` is printed.
A tool appends its call's id to the file STARTED when it starts, and syncs it: the tool's effect on the world.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
import time

from tests.audit.trails import KEY
from traced_tools import ChatClient, ToolCall, tool
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.audit.trail import AuditTrail
from traced_tools.testing import ScriptedChatModel

_started = -1


@tool
def act(name: str) -> str:
    """Do something that cannot be undone."""
    os.write(_started, f"{name}\n".encode())
    os.fsync(_started)
    return name


def client(trail: AuditTrail, name: str) -> ChatClient:
    """A client whose model wants two calls at once, then a third."""
    one, two, three = (ToolCall("act", {"name": f"{name}-{n}"}, f"{name}-{n}") for n in range(3))
    return ChatClient(ScriptedChatModel([[one, two], [three], "Done."]), tools=[act], advisors=[AuditAdvisor(trail)])


async def keep_going(trail: AuditTrail, name: str) -> None:
    """Run one client after the other on asyncio."""
    for number in itertools.count():
        await client(trail, f"{name}-{number}").prompt("Go.").acall()


def keep_going_blocking(trail: AuditTrail, name: str) -> None:
    """Run one client after the other in a thread."""
    for number in itertools.count():
        client(trail, f"{name}-{number}").prompt("Go.").call()


async def work(trail: AuditTrail, name: str) -> None:
    """Run four clients at a time until the process dies."""
    threading.Thread(target=keep_going_blocking, args=(trail, f"{name}-thread"), daemon=True).start()
    await asyncio.gather(*(keep_going(trail, f"{name}-{loop}") for loop in range(3)))


def main() -> None:
    """Fork a child, kill it and report it, until standard input ends."""
    global _started
    store, started = sys.argv[1:]
    _started = os.open(f"{store}.warmed", os.O_CREAT | os.O_WRONLY)
    with AuditTrail(f"{store}.warm", key=KEY) as trail:  # so that no child imports anything
        client(trail, "warm").prompt("Go.").call()
    _started = os.open(started, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    for line in sys.stdin:
        name, since, seconds = line.split()
        size = os.fstat(_started).st_size
        child = os.fork()
        if not child:
            try:
                asyncio.run(work(AuditTrail(store, key=KEY, checkpoint_every=20), name))
            finally:
                os._exit(1)
        while since == "tool" and os.fstat(_started).st_size == size:
            time.sleep(0.0005)
        time.sleep(float(seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        print("dead" if os.WIFSIGNALED(status) else "ended", flush=True)


if __name__ == "__main__":
    main()
