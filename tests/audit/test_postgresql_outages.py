"""The trail on a real PostgreSQL, while the server does what servers do: end connections, restart, stay away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from tests.audit.postgresql import WRITER, Database
from tests.audit.postgresql_trails import LONG, intents, settle, soon, stored, tools_that_run, write
from tests.audit.proxy import proxied
from tests.modes import MODES
from tests.waiting import PATIENCE
from traced_tools.audit.trail import AuditTrail
from traced_tools.errors import AuditUnavailable

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("emptied")]


def kinds(database: Database) -> list[str]:
    return [record.kind for record in stored(database)]


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


@pytest.mark.slow
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
        settle(trail, "before")
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
        settle(trail, "before")
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
        soon(lambda: commits_wait(database) is wait)

    yield busy
    busy(False)


def commits_wait(database: Database) -> bool:
    """Report whether a commit waits for a replica.

    Each process of the server reads the new configuration in its own time, and commits wait as soon as the
    checkpointer has read it. So ask a commit, not a session's settings.
    """
    notices: list[str] = []
    with closing(database.connect()) as owner:
        owner.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        canceller = threading.Timer(0.1, owner.cancel)
        canceller.start()
        with suppress(psycopg.errors.QueryCanceled):  # canceled before its commit, so ask again
            owner.execute("SELECT pg_logical_emit_message(true, 'test', '')")  # writes to the log, as a record does
        canceller.cancel()
        canceller.join()
    return any("synchronous replication" in notice for notice in notices)


@pytest.mark.parametrize("mode", MODES)
def test_with_deny_no_tool_runs_without_a_server_and_the_intent_follows(
    database: Database, opened: Callable[..., AuditTrail], mode: str
) -> None:
    trail = opened(timeout=0.2)
    settle(trail, "before")
    with stopped(database):
        assert tools_that_run(trail, "deny", mode) == 0
    soon(lambda: "gap" in kinds(database))
    trail.close()
    assert decisions(database) == ["denied"]


@pytest.mark.parametrize("mode", MODES)
def test_with_warn_tools_run_without_a_server_and_a_gap_is_recorded_afterwards(
    database: Database, opened: Callable[..., AuditTrail], mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    trail = opened(timeout=0.2)
    settle(trail, "before")
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


def decisions(database: Database) -> list[str]:
    return [record.fields["decision"] for record in stored(database) if record.kind == "decision"]


def test_a_silent_server_blocks_no_caller_beyond_the_time_out_and_loses_nothing(
    database: Database, opened: Callable[..., AuditTrail]
) -> None:
    trail = opened(timeout=0.2)
    settle(trail, "before")
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
