"""A worker process, which a test kills.

    python -m tests.durable.working ENGINE URL FOLDER NAME

It prints `ready` when it works, and works until its standard input ends. ENGINE is `dbos` or `procrastinate`. Each run
looks something up and posts it, and those whose keys begin with `w` then pay, which a person approves. Tools write to
the ledger in FOLDER, and a post does not end before there is a file `go` beside it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import until
from traced_tools import ChatClient, ToolCall, UserMessage, tool
from traced_tools.approvals import PendingStore
from traced_tools.core import ToolAnnotations
from traced_tools.durable import Workers
from traced_tools.models import ChatRequest
from traced_tools.testing import ScriptedChatModel


def client(store: PendingStore, folder: Path, name: str) -> ChatClient:
    """Return a client that notes what its tools do, with the name of the worker."""

    def note(event: str) -> None:
        with (folder / "ledger").open("a") as ledger:
            print(event, name, file=ledger, flush=True)
            os.fsync(ledger.fileno())

    @tool(annotations=ToolAnnotations(idempotent=True))
    def look(key: str) -> str:
        """Look something up."""
        note(f"look {key}")
        return "seen"

    @tool
    def post(key: str) -> str:
        """Post it."""
        note(f"post {key}")
        until((folder / "go").exists)
        return "posted"

    @tool(requires_approval=True)
    def pay(key: str) -> str:
        """Pay."""
        note(f"pay {key}")
        return "paid"

    def answer(request: ChatRequest) -> Any:
        [key] = [message.text for message in request.messages if isinstance(message, UserMessage)]
        turns = sum(bool(getattr(message, "tool_calls", ())) for message in request.messages)
        names = [["look", "post"], ["pay"] if key.startswith("w") else [], []][turns]
        return [ToolCall(name, {"key": key}, id=f"{name}-{key}") for name in names] or "done"

    return ChatClient(ScriptedChatModel([answer] * 1_000), name="desk", tools=[look, post, pay], pending_store=store)


def on_dbos(store: PendingStore, url: str, desk: ChatClient, name: str) -> None:
    with Workers(store, [desk], name=name, at_once=4):
        print("ready", flush=True)
        sys.stdin.read()


def main() -> None:
    engine, url, folder, name = sys.argv[1:]
    engines: dict[str, Callable[..., Any]] = {"dbos": on_dbos}
    with PendingStore(url) as store:
        engines[engine](store, url, client(store, Path(folder), name), name)


if __name__ == "__main__":
    main()
