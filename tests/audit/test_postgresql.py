"""The trail on a real PostgreSQL, while the server does what servers do: end connections, restart, stay away."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.audit.postgresql import READER, WRITER, Database
from tests.audit.proxy import proxied
from tests.support import MODES, PATIENCE, run
from traced_tools import ChatClient, tool
from traced_tools.advisors.audit import AuditAdvisor
from traced_tools.audit.reading import AuditReader
from traced_tools.audit.records import GENESIS, AuditRecord, Content, Draft, Subject
from traced_tools.audit.trail import AuditTrail
from traced_tools.errors import AuditUnavailable, ConfigurationError
from traced_tools.messages import ToolCall
from traced_tools.testing import ScriptedChatModel

KEY = b"k" * 32
LONG = 30.0
"""Seconds for what restarts servers."""


@pytest.fixture(autouse=True)
def emptied(database: Database) -> None:
    with closing(database.connect()) as owner:
        owner.execute("TRUNCATE audit_records")


@pytest.fixture
def opened(database: Database, tmp_path: Path) -> Iterator[Callable[..., AuditTrail]]:
    """Opens trails on the database, and closes them."""
    trails: list[AuditTrail] = []

    def open_trail(url: str = "", **options: Any) -> AuditTrail:
        options = {"key": KEY, "checkpoints": tmp_path / "checkpoints", "timeout": LONG, **options}
        trails.append(AuditTrail(url or database.url(), **options))
        return trails[-1]

    yield open_trail
    for trail in trails:
        trail.close(1)


def intent(name: str, **told: Any) -> Draft:
    """Return an intent of a run of that name."""
    subject = {"agent": "agent", "run_id": name, "call_id": "c1", "tool": "search", "iteration": 1, "batch_index": 0}
    contents = {"arguments": Content('{"q": 1}', may_be_told=True, is_json=True)}
    return Draft("intent", time.time_ns(), Subject(**{**subject, **told}), {"source": "local"}, contents)


def write(trail: AuditTrail, *names: str) -> None:
    for name in names:
        trail.write(intent(name)).run()


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


def kinds(database: Database) -> list[str]:
    return [record.kind for record in stored(database)]


def soon(look: Callable[[], bool], seconds: float = LONG) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.01)


class Traffic:
    """Threads that write intents one after the other, and keep which of them were acknowledged."""

    def __init__(self, trail: AuditTrail, threads: int = 8) -> None:
        self._trail = trail
        self._changed = threading.Condition()
        self._is_over = False
        self.sent: list[str] = []
        self.acknowledged: list[str] = []
        self._threads = [threading.Thread(target=self._write, args=(f"thread{n}",)) for n in range(threads)]

    def _write(self, name: str) -> None:
        count = 0
        while not self._is_over:
            count += 1
            run_id = f"{name}-{count}"
            self.sent.append(run_id)
            with suppress(AuditUnavailable):
                write(self._trail, run_id)
                with self._changed:
                    self.acknowledged.append(run_id)
                    self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Wait until so many more were acknowledged."""
        with self._changed:
            enough = len(self.acknowledged) + more
            assert self._changed.wait_for(lambda: len(self.acknowledged) >= enough, LONG), "nothing is acknowledged"

    @contextmanager
    def flowing(self) -> Iterator[Traffic]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._is_over = True
            for thread in self._threads:
                thread.join(LONG)

    def check(self, database: Database) -> None:
        """Assert that all that was sent is there once, which holds of what was acknowledged in any case."""
        found = intents(database)
        assert len(found) == len(set(found))
        assert set(self.acknowledged) <= set(found)
        assert set(self.sent) == set(found)


def end_sessions(owner: psycopg.Connection[Any]) -> int:
    ended = owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [WRITER])
    return len(ended.fetchall())


def test_a_written_record_is_in_the_store_and_closing_adds_a_checkpoint(
    database: Database, opened: Callable[..., AuditTrail], tmp_path: Path
) -> None:
    trail = opened()
    write(trail, "one", "two")
    assert intents(database) == ["one", "two"]
    trail.close()
    records = stored(database)
    assert [record.kind for record in records] == ["intent", "intent", "checkpoint"]
    (line,) = (tmp_path / "checkpoints").read_text().splitlines()
    assert json.loads(line)["hash"] == records[-1].hash


def test_a_store_is_verified_with_the_reading_role(database: Database, opened: Callable[..., AuditTrail]) -> None:
    trail = opened()
    write(trail, *(f"run{n}" for n in range(50)))
    trail.close()
    reader = opened(database.url(READER))
    assert reader.verify().ok
    with closing(database.connect()) as owner:
        owner.execute("UPDATE audit_records SET tool = 'other' WHERE sequence = 17")
    problem = reader.verify().problem
    assert problem is not None
    assert problem.sequence == 17


def test_calls_are_found_and_runs_are_read_with_the_reading_role(
    database: Database, opened: Callable[..., AuditTrail]
) -> None:
    trail = opened()
    assert [tools_that_run(trail, "deny", mode) for mode in MODES] == [1, 1, 1, 1]
    trail.close()
    reader = AuditReader(database.url(READER))
    calls = reader.calls(tool="note", outcome="ok")
    assert len({call.run_id for call in calls}) == 4
    assert reader.calls(decision="allowed", limit=2) == calls[:2]
    assert reader.calls(outcome="unfinished") == reader.calls(tool="other") == []
    assert [call.state for call in reader.run(calls[0].run_id).calls] == ["ok"]


def test_two_processes_write_one_database(database: Database) -> None:
    with ProcessPoolExecutor(3, get_context("spawn")) as pool:
        list(pool.map(write_many, [database.url()] * 3, ["a", "b", "c"], timeout=2 * LONG))
    found = stored(database)
    assert len({record.chain_id for record in found}) == 3
    assert sorted(intents(database)) == sorted(f"{name}{n}" for name in "abc" for n in range(200))


def write_many(url: str, name: str) -> None:
    with AuditTrail(url, key=KEY, checkpoint_every=50) as trail:
        write(trail, *(f"{name}{n}" for n in range(200)))


def test_hostile_texts_are_stored_and_hold_nothing_up(database: Database, opened: Callable[..., AuditTrail]) -> None:
    trail = opened()
    hostile = (
        "a\0b",
        "\ud800",
        "\x1b[31m",
        "'; DROP TABLE audit_records; --",
        "=1+1",
        "\\N",
        "\\.",
        "a\tb\nc",
        "x" * 10**6,
        "".join(chr(0x20000 + n * 137 % 42_000) for n in range(600)),  # which PostgreSQL cannot pack
    )
    for text in hostile:
        told = {"agent": text, "call_id": text, "tool": text, "conversation_id": text}
        trail.write(intent("hostile", **told)).run()
    write(trail, "after")
    assert intents(database) == ["hostile"] * len(hostile) + ["after"]
    trail.close()
    assert opened(database.url(READER)).verify().ok


def test_a_record_that_the_server_refuses_is_lost_alone_and_counted(
    database: Database, opened: Callable[..., AuditTrail]
) -> None:
    with closing(database.connect()) as owner:
        owner.execute("ALTER TABLE audit_records ADD CONSTRAINT no_odd CHECK (coalesce(run_id, '') NOT LIKE 'odd%')")
    try:
        trail = opened()
        write(trail, "before")
        for name in ("first", "odd 1", "second", "odd 2", "odd 3", "third"):
            trail.submit(intent(name))
        write(trail, "after")
        trail.close()
    finally:
        with closing(database.connect()) as owner:
            owner.execute("ALTER TABLE audit_records DROP CONSTRAINT no_odd")
    assert intents(database) == ["before", "first", "second", "third", "after"]
    assert sum(record.fields["lost"] for record in stored(database) if record.kind == "gap") == 3


def test_no_record_is_lost_or_doubled_while_connections_are_ended(
    database: Database, opened: Callable[..., AuditTrail]
) -> None:
    trail = opened()
    with closing(database.connect()) as owner, Traffic(trail).flowing() as traffic:
        ended = 0
        for _ in range(50):
            traffic.wait_for(3)
            ended += end_sessions(owner)
    trail.close()
    assert ended > 25
    traffic.check(database)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_no_record_is_lost_or_doubled_while_the_server_restarts(
    database: Database, opened: Callable[..., AuditTrail], how: signal.Signals
) -> None:
    trail = opened()
    with Traffic(trail).flowing() as traffic:
        for _ in range(3):
            traffic.wait_for(100)
            database.server.stop(how)
            database.server.start()
        traffic.wait_for(100)
    trail.close()
    traffic.check(database)


def test_a_commit_that_the_server_could_not_confirm_is_not_made_twice(
    database: Database, opened: Callable[..., AuditTrail]
) -> None:
    with proxied(database.server.port) as proxy:
        trail = opened(database.url().replace(f":{database.server.port}/", f":{proxy.port}/"))
        write(trail, "before")
        for n in range(5):
            proxy.swallow(b"COPY 1")
            write(trail, f"run{n}")
            assert proxy.wait_until_broken(PATIENCE)
        trail.close()
    assert proxy.broken == 5
    assert intents(database) == ["before", *(f"run{n}" for n in range(5))]


def test_a_commit_the_server_is_still_busy_with_is_not_made_twice(
    database: Database, opened: Callable[..., AuditTrail], busy_commits: Callable[[bool], None]
) -> None:
    """The first commit is under way in a session nobody listens to; who looks does not see it yet."""
    with proxied(database.server.port) as proxy:
        trail = opened(database.url().replace(f":{database.server.port}/", f":{proxy.port}/"), timeout=0.2)
        write(trail, "before")
        busy_commits(True)
        with pytest.raises(AuditUnavailable):
            write(trail, "in doubt")
        soon(lambda: waiting_sessions(database, "SyncRep") == 1)
        proxy.cut()
        for n in range(3):
            with pytest.raises(AuditUnavailable):
                write(trail, f"later{n}")
        soon(lambda: waiting_sessions(database, "transactionid") + waiting_sessions(database, "SyncRep") == 2)
        busy_commits(False)
        soon(lambda: "later2" in intents(database))
        trail.close()
    assert intents(database) == ["before", "in doubt", "later0", "later1", "later2"]


def test_a_checkpoint_the_server_is_still_busy_with_does_not_fork_the_chain(
    database: Database, opened: Callable[..., AuditTrail], busy_commits: Callable[[bool], None]
) -> None:
    """No record of the batch that follows has the key of the checkpoint that is under way."""
    with proxied(database.server.port) as proxy:
        trail = opened(database.url().replace(f":{database.server.port}/", f":{proxy.port}/"), timeout=0.2)
        write(trail, "before")
        busy_commits(True)
        with pytest.raises(AuditUnavailable):
            trail.checkpoint()
        soon(lambda: waiting_sessions(database, "SyncRep") == 1)
        proxy.cut()
        with pytest.raises(AuditUnavailable):
            write(trail, "later")
        soon(lambda: waiting_sessions(database, "transactionid") + waiting_sessions(database, "SyncRep") == 2)
        busy_commits(False)
        soon(lambda: "later" in intents(database))
        trail.close()
    assert [record.kind for record in stored(database)][:3] == ["intent", "checkpoint", "intent"]


def waiting_sessions(database: Database, event: str) -> int:
    with closing(database.connect()) as owner:
        query = "SELECT pid FROM pg_stat_activity WHERE usename = %s AND wait_event = %s"
        return len(owner.execute(query, [WRITER, event]).fetchall())


@pytest.fixture
def busy_commits(database: Database) -> Iterator[Callable[[bool], None]]:
    """Has commits wait for a replica that is not there, or no longer."""

    def busy(wait: bool) -> None:
        with closing(database.connect()) as owner:
            owner.execute("SET synchronous_commit = local")
            owner.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{'replica' if wait else ''}'")
            owner.execute("SELECT pg_reload_conf()")
            wanted = ("replica" if wait else "",)
            soon(lambda: owner.execute("SHOW synchronous_standby_names").fetchone() == wanted)

    yield busy
    busy(False)


@pytest.mark.parametrize("mode", MODES)
def test_without_a_server_no_tool_runs_where_failures_deny_and_the_intent_follows(
    database: Database, opened: Callable[..., AuditTrail], mode: str
) -> None:
    trail = opened(timeout=0.2)
    write(trail, "before")
    with stopped(database):
        assert tools_that_run(trail, "deny", mode) == 0
    soon(lambda: "gap" in kinds(database))
    trail.close()
    assert decisions(database) == ["denied"]


@pytest.mark.parametrize("mode", MODES)
def test_without_a_server_tools_run_where_failures_warn_and_a_gap_is_recorded_afterwards(
    database: Database, opened: Callable[..., AuditTrail], mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    trail = opened(timeout=0.2)
    write(trail, "before")
    with stopped(database):
        assert tools_that_run(trail, "warn", mode) == 1
    soon(lambda: "gap" in kinds(database))
    trail.close()
    assert decisions(database) == ["allowed"]
    (gap,) = (record.fields for record in stored(database) if record.kind == "gap")
    assert gap["late"] >= 1
    assert gap["lost"] == 0
    assert database.server.password not in caplog.text


@contextmanager
def stopped(database: Database) -> Iterator[None]:
    database.server.stop()
    try:
        yield
    finally:
        database.server.start()


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


def decisions(database: Database) -> list[str]:
    return [record.fields["decision"] for record in stored(database) if record.kind == "decision"]


def test_a_server_that_has_gone_silent_holds_up_no_caller_and_loses_nothing(
    database: Database, opened: Callable[..., AuditTrail]
) -> None:
    trail = opened(timeout=0.2)
    write(trail, "before")
    with closing(database.connect()) as owner:
        ((pid,),) = owner.execute("SELECT pid FROM pg_stat_activity WHERE usename = %s", [WRITER]).fetchall()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(AuditUnavailable):
            write(trail, "silent")
    finally:
        os.kill(pid, signal.SIGCONT)
    soon(lambda: "silent" in intents(database))
    trail.close()
    assert intents(database) == ["before", "silent"]


def breakage(database: Database, trail: AuditTrail, caplog: pytest.LogCaptureFixture) -> str:
    """Return all that is said about a store that cannot be written; no password is in it."""
    with pytest.raises(AuditUnavailable) as caught:
        write(trail, "one")
    said = f"{caught.value!r} {caught.value} {caught.value.__context__} {trail!r} {caplog.text}"
    assert database.server.password not in said
    assert "wrong-password" not in said
    return said


def test_a_wrong_password_is_told_and_not_shown(
    database: Database, opened: Callable[..., AuditTrail], caplog: pytest.LogCaptureFixture
) -> None:
    trail = opened(database.url(WRITER, "wrong-password"), timeout=0.5)
    assert "password" in breakage(database, trail, caplog)


def test_a_missing_table_is_told_with_the_sql_that_makes_it(
    database: Database, opened: Callable[..., AuditTrail], caplog: pytest.LogCaptureFixture
) -> None:
    trail = opened(database.server.url("postgres", WRITER), timeout=0.5)
    assert "deploy/audit/postgresql.sql" in breakage(database, trail, caplog)


def test_a_role_that_may_not_write_is_told_what_it_lacks(
    database: Database, opened: Callable[..., AuditTrail], caplog: pytest.LogCaptureFixture
) -> None:
    trail = opened(database.url(READER), timeout=0.5)
    assert "deploy/audit/postgresql.sql" in breakage(database, trail, caplog)


def test_a_server_store_without_a_key_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACED_TOOLS_AUDIT_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="TRACED_TOOLS_AUDIT_KEY"):
        write(AuditTrail(database.url()), "one")


def test_many_loops_share_commits(database: Database, opened: Callable[..., AuditTrail]) -> None:
    trail = opened()

    async def loop(name: str) -> None:
        for n in range(10):
            await trail.write(intent(f"{name}-{n}")).arun()

    async def loops() -> None:
        await asyncio.gather(*(loop(f"loop{n}") for n in range(100)))

    write(trail, "before")
    before = commits(database)
    asyncio.run(loops())
    assert len(intents(database)) == 1001
    assert commits(database) - before < 200


def commits(database: Database) -> int:
    """Return how many transactions have written records."""
    with closing(database.connect()) as owner:
        return len(owner.execute("SELECT DISTINCT xmin::text FROM audit_records").fetchall())
