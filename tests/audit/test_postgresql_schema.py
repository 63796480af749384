"""The SQL of `deploy/audit` makes the store in a real PostgreSQL: its table, its partitions, its two roles."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, LockNotAvailable, UniqueViolation
from sqlalchemy import create_engine, inspect

from tests.audit.postgresql import OWNER, READER, SQL, WRITER, Database, Server
from tests.waiting import PATIENCE
from traced_tools.audit import schema
from traced_tools.audit.indexes import INDEXES

INSERT = (
    "INSERT INTO audit_records (chain_id, sequence, time, kind, hash, body) VALUES (%s, %s, %s, 'intent', 'h', 'b')"
)
REFUSED = {
    WRITER: (
        "UPDATE audit_records SET body = ''",
        "DELETE FROM audit_records",
        "TRUNCATE audit_records",
        "DROP TABLE audit_records",
        "ALTER TABLE audit_records DISABLE TRIGGER ALL",
        "CREATE TRIGGER t BEFORE INSERT ON audit_records EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "SELECT body FROM audit_records",
        "SELECT * FROM audit_records",
        "SELECT tool FROM audit_records",
        "COPY audit_records TO STDOUT",
        "INSERT INTO audit_records (chain_id, sequence, time, kind, hash, body) VALUES ('c', 1, 1, 'intent', 'h', 'b')"
        " ON CONFLICT (chain_id, sequence, time) DO UPDATE SET body = ''",
        "INSERT INTO audit_records (chain_id, sequence, time, kind, hash, body) VALUES ('c', 1, 1, 'intent', 'h', 'b')"
        " RETURNING body",
        "SELECT FROM audit_records_default",
        "UPDATE audit_records_default SET body = ''",
        "DELETE FROM audit_records_default",
        "SELECT audit_make_partitions()",
        "SELECT audit_detach_partitions(now())",
        "CREATE TABLE audit_records_2199_01 (n integer)",
    ),
    READER: (
        "INSERT INTO audit_records (chain_id, sequence, time, kind, hash, body) VALUES ('c', 1, 1, 'intent', 'h', 'b')",
        "UPDATE audit_records SET body = ''",
        "DELETE FROM audit_records",
        "TRUNCATE audit_records",
        "SELECT FROM audit_records FOR UPDATE",
        "DELETE FROM audit_records_default",
        "SELECT audit_make_partitions()",
        "SELECT audit_detach_partitions(now())",
    ),
}


def ns(year: int, month: int, day: int = 1) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) * 10**9


def partitions(connection: psycopg.Connection[Any]) -> set[str]:
    found = connection.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'audit_records'::regclass"
    )
    return {name for (name,) in found}


def where(connection: psycopg.Connection[Any], chain: str) -> dict[int, str]:
    found = connection.execute(
        "SELECT sequence, tableoid::regclass::text FROM audit_records WHERE chain_id = %s", [chain]
    )
    return dict(found.fetchall())


def number(connection: psycopg.Connection[Any], query: LiteralString, *values: str) -> int:
    """Return the only value of the only row."""
    ((found,),) = connection.execute(query, values).fetchall()
    return int(found)


@pytest.fixture
def owner(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with closing(database.connect()) as connection:
        yield connection


@pytest.fixture
def writer(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with closing(database.connect(WRITER)) as connection:
        yield connection


def structure(url: str, primary_key: list[str]) -> dict[str, Any]:
    """Return what PostgreSQL says of the table, which must have that primary key."""
    engine = create_engine(url)
    try:
        seen = inspect(engine)
        assert seen.get_pk_constraint("audit_records")["constrained_columns"] == primary_key
        indexes = {
            each["name"]: (each["column_names"], each["unique"], each["dialect_options"]["postgresql_where"])
            for each in seen.get_indexes("audit_records")
        }
        columns = seen.get_columns("audit_records")
    finally:
        engine.dispose()
    described = [(each["name"], str(each["type"]), each["nullable"], each["default"]) for each in columns]
    return {"columns": described, "indexes": indexes}


def test_the_sql_creates_the_table_of_the_package(server: Server, database: Database) -> None:
    with closing(server.connect(OWNER)) as connection:
        connection.execute("CREATE DATABASE of_the_package")
    engine = create_engine(server.url("of_the_package"))
    schema.METADATA.create_all(engine)
    engine.dispose()
    ours = structure(server.url("of_the_package"), ["chain_id", "sequence"])
    assert len(ours["indexes"]) == len(INDEXES)
    assert structure(database.url(OWNER), ["chain_id", "sequence", "time"]) == ours


@pytest.mark.parametrize(("role", "statement"), [(role, statement) for role in REFUSED for statement in REFUSED[role]])
def test_a_role_is_refused_what_it_has_no_right_to(database: Database, role: str, statement: str) -> None:
    with closing(database.connect(role)) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement)


def test_a_writer_adds_records_and_reads_where_chains_ended(writer: psycopg.Connection[Any]) -> None:
    writer.execute(INSERT, ["heads", 1, ns(2026, 1)])
    heads = writer.execute("SELECT chain_id, max(sequence), max(hash) FROM audit_records WHERE time > 0 GROUP BY 1")
    assert ("heads", 1, "h") in heads.fetchall()


def test_a_reader_reads_whole_records(database: Database, writer: psycopg.Connection[Any]) -> None:
    writer.execute(INSERT, ["read", 1, ns(2026, 1)])
    with closing(database.connect(READER)) as reader:
        assert reader.execute("SELECT body FROM audit_records WHERE chain_id = 'read'").fetchall() == [("b",)]


def test_a_record_that_is_inserted_twice_is_refused(writer: psycopg.Connection[Any]) -> None:
    writer.execute(INSERT, ["again", 1, ns(2026, 1)])
    with pytest.raises(UniqueViolation):
        writer.execute(INSERT, ["again", 1, ns(2026, 1)])


def test_a_record_lands_in_the_partition_of_its_month_or_in_the_default_one(
    owner: psycopg.Connection[Any], writer: psycopg.Connection[Any]
) -> None:
    now = number(owner, "SELECT extract(epoch FROM now())::bigint * 1000000000")
    times = {1: now, 2: ns(1999, 12, 31), 3: 2**63 - 1, 4: -1}
    for sequence, time in times.items():
        writer.execute(INSERT, ["landing", sequence, time])
    found = where(owner, "landing")
    assert found.pop(1) == f"{datetime.fromtimestamp(now // 10**9, UTC):audit_records_%Y_%m}"
    assert set(found.values()) == {"audit_records_default"}
    owner.execute("DELETE FROM audit_records WHERE chain_id = 'landing'")


def test_months_begin_and_end_in_utc_whatever_the_zone_of_the_session(
    owner: psycopg.Connection[Any], writer: psycopg.Connection[Any]
) -> None:
    owner.execute("SET TimeZone = 'Pacific/Kiritimati'")
    times = {1: ns(2010, 2) - 1, 2: ns(2010, 2), 3: ns(2010, 3) - 1, 4: ns(2010, 3)}
    for sequence, time in times.items():
        writer.execute(INSERT, ["edges", sequence, time])
    owner.execute("SELECT audit_make_partitions()")
    names = {1: "2010_01", 2: "2010_02", 3: "2010_02", 4: "2010_03"}
    assert where(owner, "edges") == {sequence: f"audit_records_{name}" for sequence, name in names.items()}


def test_more_partitions_are_made_and_take_records_out_of_the_default_one(server: Server) -> None:
    database = Database(server, "more_partitions")
    with closing(database.connect()) as owner, closing(database.connect(WRITER)) as writer:
        check_that_more_partitions_take_their_records(owner, writer)


def check_that_more_partitions_take_their_records(
    owner: psycopg.Connection[Any], writer: psycopg.Connection[Any]
) -> None:
    before = partitions(owner)
    for sequence, time in {1: ns(2005, 7), 2: ns(2005, 7, 31), 3: ns(2006, 1)}.items():
        writer.execute(INSERT, ["moved", sequence, time])
    assert set(where(owner, "moved").values()) == {"audit_records_default"}
    assert owner.execute("SELECT audit_make_partitions(14)").fetchone() == (4,)
    assert where(owner, "moved") == {
        n: f"audit_records_{name}" for n, name in {1: "2005_07", 2: "2005_07", 3: "2006_01"}.items()
    }
    made = partitions(owner) - before
    assert {"audit_records_2005_07", "audit_records_2006_01"} < made
    assert len(made) == 4
    assert owner.execute("SELECT audit_make_partitions(14)").fetchone() == (0,)


def test_a_new_partition_has_the_indexes_of_the_table_and_nobody_else_has_rights_on_it(
    owner: psycopg.Connection[Any], writer: psycopg.Connection[Any]
) -> None:
    owner.execute("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC")
    writer.execute(INSERT, ["indexed", 1, ns(2007, 1)])
    owner.execute("SELECT audit_make_partitions()")
    owner.execute("ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM PUBLIC")
    indexed = "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass AND indisvalid"
    assert number(owner, indexed, "audit_records_2007_01") == number(owner, indexed, "audit_records") > 1
    with pytest.raises(InsufficientPrivilege):
        writer.execute("DELETE FROM audit_records_2007_01")


def test_a_query_for_a_time_reads_its_partition_alone(owner: psycopg.Connection[Any]) -> None:
    owner.execute("SELECT audit_make_partitions()")
    plan = owner.execute(f"EXPLAIN SELECT FROM audit_records WHERE time BETWEEN {ns(2011, 1)} AND {ns(2011, 2)}")
    assert "audit_records_default" in str(plan.fetchall())
    assert "audit_records_20" not in str(owner.execute("EXPLAIN SELECT FROM audit_records WHERE time < 0").fetchall())


def test_months_that_ended_by_then_are_detached_and_their_records_kept(
    owner: psycopg.Connection[Any], writer: psycopg.Connection[Any]
) -> None:
    for sequence, time in {1: ns(2001, 1), 2: ns(2001, 2), 3: ns(2001, 3)}.items():
        writer.execute(INSERT, ["old", sequence, time])
    owner.execute("SELECT audit_make_partitions()")
    detached = owner.execute("SELECT audit_detach_partitions('2001-03-31T23:59:59Z')").fetchall()
    assert detached == [("audit_records_2001_01",), ("audit_records_2001_02",)]
    assert where(owner, "old") == {3: "audit_records_2001_03"}
    assert owner.execute("SELECT sequence FROM audit_records_2001_01").fetchall() == [(1,)]
    with pytest.raises(InsufficientPrivilege):
        writer.execute("SELECT FROM audit_records_2001_01")


def test_a_record_of_a_detached_month_stays_in_the_default_partition(
    owner: psycopg.Connection[Any], writer: psycopg.Connection[Any]
) -> None:
    writer.execute(INSERT, ["late", 1, ns(2002, 1)])
    owner.execute("SELECT audit_make_partitions()")
    owner.execute("SELECT audit_detach_partitions('2002-02-01T00:00:00Z')").fetchall()
    writer.execute(INSERT, ["late", 2, ns(2002, 1, 2)])
    assert owner.execute("SELECT audit_make_partitions()").fetchone() == (0,)
    assert where(owner, "late") == {2: "audit_records_default"}
    owner.execute("DROP TABLE audit_records_2002_01")
    assert owner.execute("SELECT audit_make_partitions()").fetchone() == (1,)
    assert where(owner, "late") == {2: "audit_records_2002_01"}


def test_detaching_gives_up_before_a_long_query_blocks_writers(
    database: Database, owner: psycopg.Connection[Any], writer: psycopg.Connection[Any]
) -> None:
    writer.execute(INSERT, ["busy", 1, ns(2003, 1)])
    owner.execute("SELECT audit_make_partitions()")
    with closing(database.connect(READER)) as reader, reader.transaction():
        reader.execute("SELECT FROM audit_records LIMIT 1")
        with pytest.raises(LockNotAvailable):
            owner.execute("SELECT audit_detach_partitions('2004-01-01T00:00:00Z')")
    assert "audit_records_2003_01" in partitions(owner)


def test_the_sql_run_again_changes_nothing_and_puts_privileges_back(
    database: Database, owner: psycopg.Connection[Any], writer: psycopg.Connection[Any]
) -> None:
    writer.execute(INSERT, ["twice", 1, ns(2026, 1)])
    owner.execute("SELECT audit_make_partitions()")  # for what other tests have left, too
    dumped, made = structure(database.url(OWNER), ["chain_id", "sequence", "time"]), partitions(owner)
    owner.execute("GRANT ALL ON audit_records TO traced_tools_audit_writer, PUBLIC")
    owner.execute("GRANT UPDATE (body) ON audit_records TO traced_tools_audit_reader")
    owner.execute("GRANT SELECT, UPDATE ON audit_records_2026_01 TO traced_tools_audit_writer")
    owner.execute("GRANT EXECUTE ON FUNCTION audit_detach_partitions TO traced_tools_audit_writer")
    writer.execute("UPDATE audit_records SET body = 'forged' WHERE chain_id = 'twice'")
    database.set_up()
    assert (structure(database.url(OWNER), ["chain_id", "sequence", "time"]), partitions(owner)) == (dumped, made)
    for role in (WRITER, READER):
        with closing(database.connect(role)) as connection, pytest.raises(InsufficientPrivilege):
            connection.execute("UPDATE audit_records SET body = 'forged' WHERE chain_id = 'twice'")
    for statement in ("UPDATE audit_records_2026_01 SET body = ''", "SELECT audit_detach_partitions(now())"):
        with pytest.raises(InsufficientPrivilege):
            writer.execute(statement)
    writer.execute(INSERT, ["twice", 2, ns(2026, 1)])
    assert len(where(owner, "twice")) == 2


def test_the_sql_runs_statement_by_statement_in_a_transaction_and_in_psql(server: Server) -> None:
    for name, alone in {"alone": True, "together": False}.items():
        with closing(server.connect(OWNER)) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        for _ in range(2):
            server.psql(name, SQL, *([] if alone else ["--single-transaction"]))
        with closing(server.connect(name)) as connection:
            assert len(partitions(connection)) == 14


def test_the_owner_may_be_an_ordinary_user_and_the_schema_a_private_one(server: Server) -> None:
    with closing(server.connect(OWNER)) as connection:
        connection.execute(f"CREATE ROLE owner LOGIN CREATEROLE PASSWORD '{server.password}'")
        connection.execute("CREATE DATABASE owned OWNER owner")
    with closing(server.connect("owned", "owner")) as connection:
        connection.execute("CREATE SCHEMA trail")
        connection.execute("ALTER DATABASE owned SET search_path = trail")
    with closing(server.connect("owned", "owner")) as connection:
        connection.execute(SQL.read_bytes())
        connection.execute("RESET ALL")
        connection.execute("SET search_path = public")
        assert connection.execute("SELECT trail.audit_make_partitions(13)").fetchone() == (1,)
    with closing(server.connect("owned", WRITER)) as writer:
        writer.execute(INSERT, ["owned", 1, ns(2026, 1)])


def test_two_runs_at_once_make_each_partition_once(database: Database) -> None:
    results: list[int] = []

    def make() -> None:
        with closing(database.connect()) as connection:
            results.extend(connection.execute("SELECT audit_make_partitions(40)").fetchone() or ())

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(results)[:3] == [0, 0, 0]
    assert max(results) > 20
