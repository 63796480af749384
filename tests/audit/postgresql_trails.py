"""Trails on a PostgreSQL: what tests write to them, and what is in the database then."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from tests.audit.postgresql import READER, Database
from tests.modes import run
from traced_tools import ChatClient, tool
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.audit.records import GENESIS, AuditRecord, Content, Draft, Subject
from traced_tools.audit.trail import AuditTrail
from traced_tools.core.messages import ToolCall
from traced_tools.testing import ScriptedChatModel

KEY = b"k" * 32
LONG = 30.0
"""Seconds for what restarts servers."""


def intent(name: str, **changes: Any) -> Draft:
    """Return an intent of a run of that name."""
    subject = {"agent": "agent", "run_id": name, "call_id": "c1", "tool": "search", "iteration": 1, "batch_index": 0}
    contents = {"arguments": Content('{"q": 1}', may_be_stored=True, is_json=True)}
    return Draft("intent", time.time_ns(), Subject(**{**subject, **changes}), {"source": "local"}, contents)


def write(trail: AuditTrail, *names: str) -> None:
    for name in names:
        trail.write(intent(name)).run()


def settle(trail: AuditTrail, name: str) -> None:
    """Write an intent, however little time the trail gives to those who wait: the first one waits for a connection."""
    trail.write(intent(name), LONG).run()


def soon(look: Callable[[], bool], seconds: float = LONG) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.01)


def stored(database: Database) -> list[AuditRecord]:
    """Return all records, chain by chain, and check that each chain is whole."""
    columns = "chain_id, sequence, time, kind, hash, body"
    with closing(database.connect(READER)) as reader:
        rows = reader.execute(f"SELECT {columns} FROM audit_records ORDER BY chain_id, sequence, time").fetchall()
    records = [AuditRecord(*row) for row in rows]
    ends: dict[str, tuple[int, str]] = {}
    for record in records:
        sequence, head = ends.get(record.chain_id, (0, GENESIS))
        assert (record.sequence, record.fields["previous"]) == (sequence + 1, head)
        assert hashlib.sha256(record.body.encode()).hexdigest() == record.hash
        ends[record.chain_id] = record.sequence, record.hash
    return records


def intents(database: Database) -> list[str]:
    """Return the runs of the intents, each as often as it is there."""
    return [record.fields["run_id"] for record in stored(database) if record.kind == "intent"]


def tools_that_run(trail: AuditTrail, on_failure: Any, mode: str) -> int:
    """Run a loop with one call of a tool, and return how often the tool ran."""
    started: list[str] = []

    @tool
    def note() -> str:
        """Note that it runs."""
        started.append("it")
        return "noted"

    model = ScriptedChatModel([ToolCall("note", "{}"), "done"])
    client = ChatClient(model, tools=[note], advisors=[AuditAdvisor(trail, on_failure=on_failure)])
    assert run(mode, client.prompt("?")).content == "done"
    return len(started)
