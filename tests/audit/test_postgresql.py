"""The trail on a real PostgreSQL: what is stored there and read again, and what is said where it cannot be."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.audit.commanded import complaint, printed
from tests.audit.postgresql import READER, WRITER, Database
from tests.audit.postgresql_trails import KEY, LONG, intent, intents, stored, tools_that_run, write
from tests.audit.trails import unavailable
from tests.modes import MODES
from traced_tools import AuditAdvisor, ChatClient, ToolCall, tool
from traced_tools.audit import receipt, verify_receipt
from traced_tools.audit.keys import KEY_VARIABLE
from traced_tools.audit.reading.queries import CallFilter
from traced_tools.audit.reading.reader import AuditReader, count_calls, find_waiting
from traced_tools.audit.trail import AuditTrail
from traced_tools.errors import AuditError, ConfigurationError
from traced_tools.testing import ScriptedChatModel

pytestmark = pytest.mark.usefixtures("emptied")


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


def test_a_receipt_is_written_with_the_reading_role(
    emptied: None, database: Database, opened: Callable[..., AuditTrail], tmp_path: Path
) -> None:
    trail = opened()
    write(trail, "one", "two")
    trail.close()
    text = receipt(database.url(READER), "c1", run_id="one")
    assert verify_receipt(text, checkpoints=tmp_path / "checkpoints").ok


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


def test_unfinished_calls_are_found_newest_runs_first(database: Database, opened: Callable[..., AuditTrail]) -> None:
    trail = opened()
    for number in range(250):
        tool = "rare" if number % 100 == 0 else "usual"
        trail.submit(intent(f"run-{number:03}", tool=tool))
    trail.close(LONG)
    reader = AuditReader(database.url(READER))
    runs = [call.run_id for call in reader.calls(outcome="unfinished", limit=1000)]
    assert runs == [f"run-{number:03}" for number in reversed(range(250))]
    assert [call.run_id for call in reader.calls(outcome="unfinished", limit=3)] == runs[:3]
    assert [call.run_id for call in reader.calls(outcome="unfinished", tool="rare", limit=2)] == ["run-200", "run-100"]


def test_all_calls_are_returned_and_counted_and_those_that_wait_are_found(
    database: Database, opened: Callable[..., AuditTrail]
) -> None:
    trail = opened()
    for number, decision in enumerate(["pending", "pending", "approved"]):
        record = intent(f"run-{number}", call_id=f"c{number % 2}")
        trail.submit(record)
        trail.submit(replace(record, kind="decision", fields={"decision": decision}, contents={}))
    for number in range(150):
        trail.submit(intent(f"other-{number}", tool="other"))
    trail.close(LONG)
    reader = AuditReader(database.url(READER))
    calls = reader.calls()
    assert len(calls) == count_calls(reader, CallFilter()) == 153
    assert count_calls(reader, CallFilter(tool="other")) == 150
    assert [call.run_id for call in find_waiting(reader, calls)] == ["run-1"]


def test_the_command_lists_the_calls_of_a_principal_with_the_reading_role(
    database: Database, opened: Callable[..., AuditTrail], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    trail = opened()
    for person in ("ana", "bob", None):
        model = ScriptedChatModel([[ToolCall("pay", {}, id="c1")], "done"])
        ChatClient(model, tools=[pay], advisors=[AuditAdvisor(trail)]).prompt("?", principal=person).call()
    trail.close()
    store = ("--store", database.url(READER))
    assert "TRACED_TOOLS_AUDIT_KEY" in complaint("list", "--principal", "ana", *store)
    monkeypatch.setenv(KEY_VARIABLE, KEY.decode())
    (call,) = json.loads(printed("list", "--json", "--principal", "ana", *store))
    assert call["tool"] == "pay"
    assert re.fullmatch("pseudonym:[0-9a-f]{16}", call["principal"])
    headings, row, _, summary = printed("list", "--principal", "ana", *store).splitlines()
    assert headings.split()[2:4] == ["run", "principal"]
    assert call["principal"] in row
    assert summary == "1 call, 0 refused, 0 pending, 0 unfinished"
    monkeypatch.delenv(KEY_VARIABLE)
    assert json.loads(printed("list", "--json", "--principal", call["principal"], *store)) == [call]
    assert json.loads(printed("list", "--json", "--principal", "pseudonym:0123456789abcdef", *store)) == []


@tool
def pay() -> str:
    """Pay."""
    return "paid"


def test_the_writing_role_cannot_verify(database: Database, opened: Callable[..., AuditTrail]) -> None:
    trail = opened()
    write(trail, "one")
    trail.checkpoint()
    with pytest.raises(AuditError, match="InsufficientPrivilege"):
        trail.verify()


@pytest.mark.slow
def test_two_processes_write_one_database(database: Database) -> None:
    with ProcessPoolExecutor(3, get_context("spawn")) as pool:
        list(pool.map(write_many, [database.url()] * 3, ["a", "b", "c"], timeout=2 * LONG))
    found = stored(database)
    assert len({record.chain_id for record in found}) == 3
    assert sorted(intents(database)) == sorted(f"{name}{n}" for name in "abc" for n in range(200))


def write_many(url: str, name: str) -> None:
    with AuditTrail(url, key=KEY, checkpoint_every=50) as trail:
        write(trail, *(f"{name}{n}" for n in range(200)))


def test_hostile_texts_are_stored_and_block_no_later_record(
    database: Database, opened: Callable[..., AuditTrail]
) -> None:
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
        names = {"agent": text, "call_id": text, "tool": text, "conversation_id": text}
        trail.write(intent("hostile", **names)).run()
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


def breakage(database: Database, trail: AuditTrail, caplog: pytest.LogCaptureFixture) -> str:
    """Return all that is said about a store that cannot be written; no password is in it."""
    error = unavailable(trail, intent("one"))
    said = f"{error!r} {error} {error.__context__} {trail!r} {caplog.text}"
    assert database.server.password not in said
    assert "wrong-password" not in said
    return said


def test_a_wrong_password_is_reported_and_not_shown(
    database: Database, opened: Callable[..., AuditTrail], caplog: pytest.LogCaptureFixture
) -> None:
    trail = opened(database.url(WRITER, "wrong-password"))
    assert "password" in breakage(database, trail, caplog)


def test_a_missing_table_is_reported_with_the_sql_that_creates_it(
    database: Database, opened: Callable[..., AuditTrail], caplog: pytest.LogCaptureFixture
) -> None:
    trail = opened(database.server.url("postgres", WRITER))
    assert "`traced-tools audit sql`" in breakage(database, trail, caplog)


def test_a_role_that_may_not_write_is_reported_with_the_command_to_run(
    database: Database, opened: Callable[..., AuditTrail], caplog: pytest.LogCaptureFixture
) -> None:
    trail = opened(database.url(READER))
    assert "`traced-tools audit sql`" in breakage(database, trail, caplog)


def test_a_check_says_whether_the_role_may_append_and_appends_nothing(
    database: Database, opened: Callable[..., AuditTrail]
) -> None:
    def problem_of(url: str) -> str | None:
        client = ChatClient(ScriptedChatModel([]), advisors=[AuditAdvisor(opened(url))])
        (found,) = client.check()
        assert asyncio.run(client.acheck()) == [found]
        assert database.server.password not in str(found)
        return found.problem

    assert problem_of(database.url(WRITER)) is None
    assert "`traced-tools audit sql`" in str(problem_of(database.url(READER)))
    assert "`traced-tools audit sql`" in str(problem_of(database.server.url("postgres", WRITER)))
    assert "password" in str(problem_of(database.url(WRITER, "wrong-password")))
    assert stored(database) == []


def test_a_server_store_without_a_key_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACED_TOOLS_AUDIT_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="TRACED_TOOLS_AUDIT_KEY"):
        write(AuditTrail(database.url()), "one")
