"""A worker process, which a test kills.

    python -m tests.durable.working ENGINE URL FOLDER NAME

It prints `ready` when it works, and works until its standard input ends. ENGINE is `dbos` or `procrastinate`. Each run
looks something up and posts it, and those whose keys begin with `w` then pay, which a person approves. Tools write to
the ledger in FOLDER, and a post does not end before there is a file `go` beside it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued
from procrastinate.jobs import Status
from sqlalchemy import URL, make_url

from tests.waiting import until
from traced_tools import ChatClient, ToolCall, UserMessage, tool
from traced_tools.approvals import PendingStore
from traced_tools.core import ToolAnnotations
from traced_tools.durable import Workers
from traced_tools.errors import RunTaken
from traced_tools.models import ChatRequest
from traced_tools.testing import ScriptedChatModel

AT_ONCE = 4
"""How many runs a worker drives at once."""


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


def on_dbos(store: PendingStore, _: str, desk: ChatClient, name: str) -> None:
    with Workers(store, [desk], name=name, at_once=AT_ONCE):
        print("ready", flush=True)
        sys.stdin.read()


def on_procrastinate(store: PendingStore, url: str, desk: ChatClient, name: str) -> None:
    asyncio.run(_on_procrastinate(store, make_url(url).set(drivername="postgresql"), desk, name))


async def _on_procrastinate(store: PendingStore, url: URL, desk: ChatClient, name: str) -> None:
    app = App(connector=PsycopgConnector(conninfo=url.render_as_string(hide_password=False)))

    @app.task(name="go")
    async def go(key: str) -> None:
        with suppress(RunTaken):
            await desk.adrive(key)

    async def look() -> None:
        """Defer the keys of runs that can go on, and those of dead workers."""
        while True:
            for key in [*store.interrupted(agent="desk"), *store.decided(agent="desk")]:
                with suppress(AlreadyEnqueued):  # the lock keeps two jobs from driving a run at once
                    await go.configure(lock=key, queueing_lock=key).defer_async(key=key)
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=2):
                await app.job_manager.finish_job(job, Status.FAILED, delete_job=True)  # the store has the key
            await asyncio.sleep(0.2)

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        options: Any = {
            "update_heartbeat_interval": 0.5,
            "stalled_worker_timeout": 2,
            "fetch_job_polling_interval": 0.2,
        }
        work = app.run_worker_async(name=name, concurrency=AT_ONCE, install_signal_handlers=False, **options)
        tasks = [asyncio.create_task(work), asyncio.create_task(look())]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    engine, url, folder, name = sys.argv[1:]
    engines: dict[str, Callable[..., Any]] = {"dbos": on_dbos, "procrastinate": on_procrastinate}
    with PendingStore(url) as store:
        engines[engine](store, url, client(store, Path(folder), name), name)


if __name__ == "__main__":
    main()
