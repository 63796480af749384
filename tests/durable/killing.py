"""Drives a durable run whose processes are killed, and prints what a ledger outside the engine says of it.

    python -m tests.durable.killing FOLDER MEMORY POINTS ...

Each argument POINTS is a run: where its lives are killed, with commas between them, such as `after-store-3,in-pay-1`.
Lives after the last point are not killed. MEMORY is `none`, `inside` or `outside`. It prints a line of JSON for each
run: the lines of the ledger, and the results that the model has read.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.memory.conversations import INSIDE, OUTSIDE, assert_well_formed
from traced_tools import (
    Approve,
    AuditAdvisor,
    AuditTrail,
    ChatClient,
    MemoryAdvisor,
    ToolCall,
    ToolMessage,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.approvals.run_logs import RunLogs
from traced_tools.core import ToolAnnotations
from traced_tools.durable_run import DurableRun
from traced_tools.memory import MessageWindowChatMemory
from traced_tools.memory.sql import SqlChatMemoryRepository
from traced_tools.models import ChatRequest
from traced_tools.testing import ScriptedChatModel

MOST_LIVES = 30
ANSWERS: tuple[list[ToolCall] | str, ...] = (
    [ToolCall("look", {"account": "a"}, id="look-1"), ToolCall("post", {"text": "one"}, id="post-1")],
    [ToolCall("pay", {"amount": 5}, id="pay-1"), ToolCall("post", {"text": "two"}, id="post-2")],
    [ToolCall("post", {"text": "three"}, id="post-3")],
    "done",
)


class Ledger:
    """What has happened, in a file that outlives each process.

    Args:
        path: the file.
        point: where the process is killed; empty for nowhere.
    """

    def __init__(self, path: Path, point: str) -> None:
        self._path, self._point = path, point
        self._writes = 0

    def note(self, event: str) -> None:
        with self._path.open("a") as file:
            print(event, file=file, flush=True)
            os.fsync(file.fileno())

    def die_at(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that writes to the log, with a point to die at before and after it."""

        def numbered(*arguments: Any, **options: Any) -> Any:
            self._writes += 1
            self.die_at(f"before-store-{self._writes}")
            result = write(*arguments, **options)
            self.die_at(f"after-store-{self._writes}")
            return result

        return numbered


def client(folder: Path, memory: str, ledger: Ledger, store: PendingStore) -> tuple[ChatClient, ScriptedChatModel]:
    """Return a client of one life, and its model."""

    def effect(name: str) -> str:
        ledger.note(f"began {name}")
        ledger.die_at(f"in-{name}")
        ledger.note(f"ended {name}")
        return f"{name} worked"

    @tool(annotations=ToolAnnotations(idempotent=True))
    def look(account: str) -> str:
        """Look something up."""
        return effect("look-1")

    @tool
    def post(text: str) -> str:
        """Post a text."""
        return effect({"one": "post-1", "two": "post-2", "three": "post-3"}[text])

    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return effect("pay-1")

    def answer(request: ChatRequest) -> Any:
        asked = [message for message in request.messages if getattr(message, "tool_calls", ())]
        ledger.note(f"asked {len(asked)}")
        ledger.die_at(f"in-model-{len(asked)}")
        return ANSWERS[len(asked)]

    advisors: list[Any] = [AuditAdvisor(AuditTrail(folder / "audit.db"))]
    if memory != "none":
        window = MessageWindowChatMemory(SqlChatMemoryRepository(folder / "memory.db"), 50)
        advisors.append(MemoryAdvisor(window, order=INSIDE if memory == "inside" else OUTSIDE))
    model = ScriptedChatModel([answer] * 20)
    return ChatClient(model, name="desk", tools=[look, post, pay], advisors=advisors, pending_store=store), model


def live(folder: Path, memory: str, point: str) -> DurableRun[Any]:
    """Drive the run in this process."""
    ledger = Ledger(folder / "ledger", point)
    for name in ("submit", "append", "pause", "claim"):
        setattr(RunLogs, name, ledger.around(getattr(RunLogs, name)))
    with PendingStore(folder / "runs.db") as store:
        desk, model = client(folder, memory, ledger, store)
        desk.submit("Go.", key="k", conversation_id=None if memory == "none" else "c")
        run = desk.drive("k")
        for request in model.requests:
            assert_well_formed(request.messages)
        if run.status == "finished" and run.response is not None:
            ledger.note(f"finished {run.content}")
        if model.requests:
            messages = [message for message in model.requests[-1].messages if isinstance(message, ToolMessage)]
            parts = [part for message in messages for part in message.results]
            (folder / "read").write_text(json.dumps({part.call_id: part.content for part in parts}))
        return run


def decide(folder: Path) -> None:
    """Approve what waits, in a process that has not begun the run."""
    with PendingStore(folder / "runs.db") as store:
        for call in store.pending():
            store.decide(call.call_id, Approve(by="ana"))


def in_child(work: Callable[[], object]) -> int:
    """Do something in a child process, and return its status: negative for the signal that killed it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    folder, memory, *runs = sys.argv[1:]
    for index, points in enumerate(runs):
        of_run = Path(folder) / str(index)
        of_run.mkdir()
        print(json.dumps(outcome(of_run, memory, points.split(","))))


def outcome(folder: Path, memory: str, points: Sequence[str]) -> dict[str, Any]:
    """Drive a run to its end through lives that are killed at some points, and return what is known of it."""
    deaths = 0
    for place in range(MOST_LIVES):
        point = points[place] if place < len(points) else ""
        status = in_child(partial(live, folder, memory, point))
        assert status in (0, -signal.SIGKILL), f"a life ended with {status}"
        deaths += status != 0
        assert in_child(partial(decide, folder)) == 0
        lines = (folder / "ledger").read_text().splitlines() if (folder / "ledger").exists() else []
        if lines and lines[-1].startswith("finished"):
            return {"ledger": lines, "read": json.loads((folder / "read").read_text()), "deaths": deaths}
    raise AssertionError("the run never ends")


if __name__ == "__main__":
    main()
