"""Reading calls, runs and records from a store, and the errors if there is none."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from tests.audit.made import NOON, SECOND, Chain, content, insert, many, write
from tests.audit.postgresql import WRITER, Database
from traced_tools.audit.reading import read_connection as opening
from traced_tools.audit.reading.queries import CallFilter
from traced_tools.audit.reading.reader import AuditReader, count_calls
from traced_tools.audit.schema import RECORDS, searchable
from traced_tools.audit.verifying.walk import verify
from traced_tools.errors import AuditError, ConfigurationError

NOON_TIME = datetime.fromtimestamp(NOON // SECOND, UTC)


DIGEST = "0123456789abcdef"


def story() -> Chain:
    """Six calls of three runs, a record a second from noon on."""
    chain = Chain()
    oslo: dict[str, Any] = {"run_id": "run-1", "agent": "planner", "conversation_id": "oslo"}
    chain.call("search", **oslo)
    chain.call("search", **oslo, iteration=2, outcome="error")
    chain.call("book", **oslo, iteration=2, batch_index=1, decision="denied", policy_digest=DIGEST)
    chain.checkpoint()
    chain.call("book", run_id="run-2", agent="clerk", decision="approved", advisor="approval", policy_digest=DIGEST)
    chain.call("mail", run_id="run-2", agent="clerk", iteration=2, outcome=None)
    chain.call("mail", run_id="run-3", agent="clerk", decision=None)
    return chain


@pytest.fixture
def reader(tmp_path: Path) -> AuditReader:
    return AuditReader(write(tmp_path / "audit.db", story()))


def lines_of(reader: AuditReader, **wanted: Any) -> list[str]:
    return [f"{call.run_id}/{call.iteration}/{call.batch_index} {call.state}" for call in reader.calls(**wanted)]


ALL = [
    "run-3/1/0 unfinished",
    "run-2/2/0 unfinished",
    "run-2/1/0 ok",
    "run-1/2/1 denied",
    "run-1/2/0 error",
    "run-1/1/0 ok",
]
QUESTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ALL),
    ({"limit": 2}, ALL[:2]),
    ({"tool": "book"}, ["run-2/1/0 ok", "run-1/2/1 denied"]),
    ({"policy_digest": DIGEST}, ["run-2/1/0 ok", "run-1/2/1 denied"]),
    ({"policy_digest": DIGEST, "decision": "denied"}, ["run-1/2/1 denied"]),
    ({"tool": "nothing"}, []),
    ({"agent": "clerk", "tool": "mail"}, ALL[:2]),
    ({"conversation": "oslo"}, ALL[3:]),
    ({"decision": "denied"}, ["run-1/2/1 denied"]),
    ({"decision": "allowed"}, ["run-2/2/0 unfinished", "run-1/2/0 error", "run-1/1/0 ok"]),
    ({"outcome": "ok"}, ["run-2/1/0 ok", "run-1/1/0 ok"]),
    ({"outcome": "ok", "decision": "approved"}, ["run-2/1/0 ok"]),
    ({"outcome": "ok", "decision": "allowed"}, ["run-1/1/0 ok"]),
    ({"outcome": "timeout"}, []),
    ({"outcome": "unfinished"}, ALL[:2]),
    ({"outcome": "unfinished", "limit": 1}, ALL[:1]),
    ({"outcome": "unfinished", "decision": "allowed"}, ["run-2/2/0 unfinished"]),
    ({"outcome": "unfinished", "tool": "book"}, []),
    ({"since": NOON_TIME + timedelta(seconds=7)}, ALL[:4]),
    ({"until": NOON_TIME + timedelta(seconds=7)}, ALL[4:]),
    ({"since": NOON_TIME + timedelta(seconds=4), "until": NOON_TIME + timedelta(seconds=7)}, ALL[4:5]),
]


@pytest.mark.parametrize(("wanted", "expected"), QUESTIONS, ids=lambda each: str(each)[:60])
def test_calls_are_found_newest_first(reader: AuditReader, wanted: dict[str, Any], expected: list[str]) -> None:
    assert lines_of(reader, **wanted) == expected


@pytest.fixture(scope="module")
def filled_server(database: Database) -> Database:
    engine = create_engine(database.url(WRITER))
    with engine.begin() as connection:
        connection.execute(RECORDS.insert(), story().rows)
    engine.dispose()
    return database


@pytest.mark.parametrize(("wanted", "expected"), QUESTIONS, ids=lambda each: str(each)[:60])
def test_calls_are_found_on_a_server_with_the_reading_role(
    filled_server: Database, wanted: dict[str, Any], expected: list[str]
) -> None:
    assert lines_of(AuditReader(filled_server.url("my_auditor")), **wanted) == expected


def test_a_server_returns_runs_records_and_run_ids_by_prefix(filled_server: Database) -> None:
    reader = AuditReader(filled_server.url("my_auditor").replace("postgresql+psycopg", "postgresql"))
    assert len(reader.run("run-1").calls) == 3
    assert reader.run_ids("run-") == ["run-1", "run-2", "run-3"]
    assert [record.sequence for record in reader.records()] == list(range(1, len(story().rows) + 1))


def test_a_missing_table_and_a_wrong_password_are_reported_without_the_password(database: Database) -> None:
    for url in (database.server.url("postgres"), database.url("my_auditor", password="s3cret")):
        with pytest.raises(AuditError) as caught:
            AuditReader(url).calls()
        assert "s3cret" not in str(caught.value)
        assert database.server.password not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_call_has_the_fields_of_its_records(reader: AuditReader) -> None:
    (call,) = reader.calls(decision="approved")
    assert [record.kind for record in call.records] == ["intent", "decision", "outcome"]
    assert call.fields("decision")["advisor"] == "approval"
    assert call.shared_field("agent") == "clerk"
    assert call.when == NOON_TIME + timedelta(seconds=10)
    assert call.fields("outcome")["duration"] == 0.25


def test_a_run_has_its_calls_in_order_of_iteration_and_position(reader: AuditReader) -> None:
    run = reader.run("run-1")
    assert [(call.iteration, call.batch_index) for call in run.calls] == [(1, 0), (2, 0), (2, 1)]


def test_a_missing_run_is_an_error(reader: AuditReader) -> None:
    with pytest.raises(AuditError, match=r"has no run 'run-\\x1b'"):
        reader.run("run-\x1b")


def test_runs_are_found_by_the_prefix_of_their_ids(reader: AuditReader) -> None:
    assert reader.run_ids("run-") == ["run-1", "run-2", "run-3"]
    assert reader.run_ids("run-", limit=2) == ["run-1", "run-2"]
    assert reader.run_ids("run-2") == ["run-2"]
    assert reader.run_ids("RUN") == reader.run_ids("run-_") == reader.run_ids("run-%") == []


def test_records_come_chain_by_chain_and_in_order(tmp_path: Path) -> None:
    other = Chain("chain-0", time=NOON + 99 * SECOND)
    other.call()
    reader = AuditReader(write(tmp_path / "audit.db", story(), other))
    places = [(record.chain_id, record.sequence) for record in reader.records()]
    assert places == sorted(places)
    assert len(places) == len(story().rows) + 3


def test_records_are_filtered_by_the_calls_they_belong_to(reader: AuditReader) -> None:
    def kinds(**wanted: Any) -> list[str]:
        return [f"{record.fields['tool']} {record.kind}" for record in reader.records(**wanted)]

    assert kinds(decision="denied") == ["book intent", "book decision"]
    assert kinds(outcome="error") == ["search intent", "search decision", "search outcome"]
    assert kinds(outcome="unfinished") == ["mail intent", "mail decision", "mail intent"]
    assert kinds(tool="mail", decision="allowed") == ["mail intent", "mail decision"]
    assert kinds(until=NOON_TIME + timedelta(seconds=2)) == ["search intent"]


@pytest.mark.parametrize(
    "wanted",
    [{"outcome": "denied"}, {"decision": "ok"}, {"since": datetime(2026, 1, 1)}, {"until": datetime(2026, 1, 1)}],
    ids=str,
)
def test_an_invalid_filter_is_refused(reader: AuditReader, wanted: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        reader.calls(**wanted)
    with pytest.raises(ConfigurationError):
        reader.records(**wanted)


def test_a_limit_below_one_is_refused(reader: AuditReader) -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        reader.calls(limit=0)


HOSTILE = ["'; DROP TABLE audit_records; --", "\x00", "\udcff", "%", "_", "\x1b[2J", "é" * 600]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_looked_for_as_it_is_stored(tmp_path: Path, name: str) -> None:
    chain = story()
    chain.call(searchable(name), run_id="run-9", agent=searchable(name), conversation_id=searchable(name))
    reader = AuditReader(write(tmp_path / "audit.db", chain))
    for wanted in ({"tool": name}, {"agent": name}, {"conversation": name}):
        assert [call.run_id for call in reader.calls(**wanted)] == ["run-9"]


def test_calls_with_damaged_records_are_listed_as_damaged(tmp_path: Path) -> None:
    store = write(tmp_path / "audit.db", story())
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE audit_records SET body = x'ff' WHERE kind = 'decision'")
        connection.execute("UPDATE audit_records SET body = '{\"outcome\": [}' WHERE kind = 'outcome'")
    assert {state for line in lines_of(AuditReader(store)) for state in line.split()[1:]} == {"damaged", "unfinished"}


@pytest.mark.parametrize("number", ["'x'", "x'ff'", "1.5", "NULL"])
@pytest.mark.parametrize("column", ["iteration", "batch_index"])
def test_calls_whose_position_is_not_a_number_are_damaged(tmp_path: Path, column: str, number: str) -> None:
    store = write(tmp_path / "audit.db", story())
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(f"UPDATE audit_records SET {column} = {number} WHERE sequence <= 3")
    calls = AuditReader(store).run("run-1").calls
    assert sorted(call.state for call in calls) == ["damaged", "denied", "error"]


def test_calls_are_found_among_many_without_a_numeric_iteration(tmp_path: Path) -> None:
    chain = Chain()
    for number in range(20):
        chain.call(run_id=f"run-{number:02}", iteration=1)
    store = write(tmp_path / "audit.db", chain)
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE audit_records SET iteration = CAST(run_id AS BLOB) WHERE run_id > 'run-00'")
    calls = AuditReader(store).calls()
    assert [call.state for call in calls] == [*["damaged"] * 19, "ok"]


def test_a_call_without_its_intent_is_part_of_its_run(tmp_path: Path) -> None:
    store = write(tmp_path / "audit.db", story())
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("DELETE FROM audit_records WHERE kind = 'intent'")
    first, *_ = AuditReader(store).run("run-1").calls
    assert (first.intent, first.state, first.shared_field("tool")) == (None, "ok", "search")


def contradicted() -> Chain:
    """A call that was denied, and records behind it that say otherwise."""
    chain = story()
    call: dict[str, Any] = {"run_id": "run-1", "iteration": 2, "batch_index": 1, "agent": "planner"}
    chain.add("intent", **call, tool="other", arguments=content("{}"), time=NOON)
    chain.add("decision", **call, tool="book", decision="approved", time=NOON + 1)
    return chain


def test_the_first_intent_and_decision_of_a_call_count_and_later_ones_conflict(tmp_path: Path) -> None:
    reader = AuditReader(write(tmp_path / "audit.db", contradicted()))
    for call in (*reader.calls(decision="approved", tool="book", agent="planner"), reader.run("run-1").calls[2]):
        assert (call.state, call.shared_field("tool")) == ("denied", "book")
        assert [(each.sequence, each.kind) for each in call.conflicting] == [(16, "intent"), (17, "decision")]
    assert not any(call.conflicting for call in reader.run("run-2").calls)


def test_two_audit_advisors_on_one_trail_do_not_conflict(tmp_path: Path) -> None:
    chain = Chain()
    for each in ("intent", "decision", "outcome"):
        for time in (None, chain.time + SECOND):  # both records have the same time
            chain.add(each, run_id="run-1", iteration=1, batch_index=0, decision="allowed", time=time)
    (call,) = AuditReader(write(tmp_path / "audit.db", chain)).run("run-1").calls
    assert call.conflicting == ()
    assert [record.sequence for record in call.records] == [1, 4, 6]


@pytest.mark.parametrize(
    ("wanted", "calls"),
    [
        ({"until": datetime.max.replace(tzinfo=UTC)}, len(ALL)),
        ({"since": datetime.min.replace(tzinfo=UTC)}, len(ALL)),
        ({"since": datetime.max.replace(tzinfo=UTC)}, 0),
        ({"limit": 10**30}, len(ALL)),
        ({"limit": 10**30, "outcome": "unfinished"}, 2),
    ],
    ids=str,
)
def test_times_and_limits_out_of_range_are_clamped(
    reader: AuditReader, filled_server: Database, wanted: dict[str, Any], calls: int
) -> None:
    for each in (reader, AuditReader(filled_server.url("my_auditor"))):
        assert len(each.calls(**wanted)) == calls
    assert len(reader.run_ids("run-", limit=10**30)) == 3


# Stores that are none.


def test_a_missing_store_is_reported_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no audit store at"):
        AuditReader(tmp_path / "audit.db").calls()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"no database at all, " * 9, b""], ids=["text", "empty"])
def test_a_file_that_is_not_a_trail_is_reported(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "audit.db").write_bytes(data)
    with pytest.raises(AuditError, match=r"no SQLite database|holds no audit trail"):
        AuditReader(tmp_path / "audit.db").calls()
    assert (tmp_path / "audit.db").read_bytes() == data


def test_a_database_without_a_trail_is_reported(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "audit.db")) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(AuditError, match="no table audit_records"):
        AuditReader(tmp_path / "audit.db").calls()


def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    store = write(tmp_path / "audit.db", *(_long(f"chain-{number}") for number in range(3)))
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(store.read_bytes())
    data[8192:] = b"\xa5" * (len(data) - 8192)
    store.write_bytes(data)
    with pytest.raises(AuditError, match="cannot be read"):
        list(AuditReader(store).records())


def _long(chain_id: str) -> Chain:
    chain = Chain(chain_id)
    for number in range(20):
        chain.call(run_id=f"{chain_id}-{number}", reason=content("x" * 900, stored=True))
    return chain


def test_a_url_that_cannot_be_used_does_not_show_its_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        AuditReader("mysql://me:s3cret@localhost/audit").calls()
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(AuditReader("postgresql://me:s3cret@localhost/audit"))


def test_a_store_may_be_named_by_url(tmp_path: Path) -> None:
    write(tmp_path / "audit.db", story())
    assert lines_of(AuditReader(f"sqlite:///{tmp_path}/audit.db")) == ALL


def test_reading_takes_no_lock_and_sees_what_is_committed(tmp_path: Path) -> None:
    store = write(tmp_path / "audit.db", story())
    with closing(sqlite3.connect(store, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM audit_records")
        assert lines_of(AuditReader(store)) == ALL
        records = AuditReader(store).records()
        next(records)
        writer.execute("COMMIT")  # in the middle of a reading that sees what was
        assert len(list(records)) == len(story().rows) - 1
    assert lines_of(AuditReader(store)) == []


def test_a_half_read_iterator_of_records_is_closed_when_it_is_collected(reader: AuditReader) -> None:
    half_read = reader.records()
    next(half_read)
    circle: list[Any] = [half_read]
    circle.append(circle)
    del half_read, circle
    gc.collect()
    assert not opening._OPEN


def test_a_large_store_verifies(tmp_path: Path) -> None:
    insert(tmp_path / "audit.db", many(5_000, chains=2))
    result = verify(tmp_path / "audit.db")
    assert (result.problem, result.chains) == (None, 2)
    assert 5_000 <= result.records < 5_100
    assert len(AuditReader(tmp_path / "audit.db").calls(decision="denied")) > 10


def test_calls_and_records_are_found_by_the_policy_that_decided_and_not_by_one_that_was_only_evaluated(
    tmp_path: Path,
) -> None:
    digest, other = DIGEST, "fedcba9876543210"
    evaluated = [{"advisor": "next", "decision": "deny", "policy_digest": digest, "becomes": "denied"}]
    chain = Chain()
    chain.call("pay", run_id="run-1", policy_digest=digest)
    chain.call("pay", run_id="run-2", policy_digest=other, evaluated=evaluated, attributes={"policy_digest": digest})
    chain.call("pay", run_id="run-3", decision="denied", policy_digest=digest)
    chain.call("pay", run_id="run-4")
    reader = AuditReader(write(tmp_path / "audit.db", chain))
    assert lines_of(reader, policy_digest=digest) == ["run-3/1/0 denied", "run-1/1/0 ok"]
    assert lines_of(reader, policy_digest=digest, outcome="ok") == ["run-1/1/0 ok"]
    assert lines_of(reader, policy_digest=other, decision="allowed") == ["run-2/1/0 ok"]
    assert [each.kind for each in reader.records(policy_digest=digest)] == [
        *("intent", "decision", "outcome"),
        *("intent", "decision"),
    ]
    assert count_calls(reader, CallFilter(policy_digest=digest)) == 2
    for invalid in ("", "0123", digest.upper(), f"{digest}%"):
        with pytest.raises(ConfigurationError, match="16 hexadecimal digits"):
            reader.calls(policy_digest=invalid)
