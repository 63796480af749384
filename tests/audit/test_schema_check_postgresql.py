"""`verify` proves that the tables and indexes of a server are what readers may trust, before it looks at records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from tests.audit.made import COLUMNS, NOON, Chain
from tests.audit.postgresql import READER, Database, Server
from tests.audit.tampered import filled
from tests.audit.test_postgresql_schema import INSERT, ns
from traced_tools.audit import UnverifiedError, read_verified
from traced_tools.audit import schema_check_postgresql as structure
from traced_tools.audit.verifying.walk import verify


def fill(database: Database) -> None:
    chain = filled(Chain(time=NOON), 3)
    chain.call("refund", run_id="run-denied", call_id="call-denied", decision="denied")
    with closing(database.connect()) as owner:
        owner.execute("TRUNCATE audit_records")
        for row in chain.rows:
            marks = ", ".join(["%s"] * len(COLUMNS))
            owner.execute(f"INSERT INTO audit_records ({', '.join(COLUMNS)}) VALUES ({marks})", [*row.values()])
        owner.execute("SELECT audit_make_partitions()")


@pytest.fixture(scope="module")
def filled_database(database: Database) -> Database:
    fill(database)
    return database


@pytest.fixture
def owner(filled_database: Database) -> Iterator[psycopg.Connection[Any]]:
    with closing(filled_database.connect()) as connection:
        yield connection


def problem(database: Database) -> tuple[str, str] | None:
    found = verify(database.url(READER)).problem
    return None if found is None else (found.finding, found.text)


CASES = {
    "view": (
        "ALTER TABLE audit_records RENAME TO hidden; CREATE VIEW audit_records AS SELECT * FROM hidden;"
        " GRANT SELECT ON audit_records TO PUBLIC",
        "DROP VIEW audit_records; ALTER TABLE hidden RENAME TO audit_records",
        "audit_records is a view, not a partitioned table",
    ),
    "rule": (
        "CREATE RULE r AS ON INSERT TO audit_records DO INSTEAD NOTHING",
        "DROP RULE r ON audit_records",
        "the rule r of the table audit_records",
    ),
    "row security": (
        "ALTER TABLE audit_records ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE audit_records DISABLE ROW LEVEL SECURITY",
        "the table audit_records has row security",
    ),
    "trigger": (
        "CREATE TRIGGER t BEFORE INSERT ON audit_records_default FOR EACH ROW"
        " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TRIGGER t ON audit_records_default",
        "the trigger t of the table audit_records_default",
    ),
    "check": (
        "ALTER TABLE audit_records_2026_01 ADD CONSTRAINT c CHECK (tool IS NOT NULL) NOT VALID",
        "ALTER TABLE audit_records_2026_01 DROP CONSTRAINT c",
        "the constraint c of the table audit_records_2026_01",
    ),
    "unlogged": (
        "ALTER TABLE audit_records_2026_01 SET UNLOGGED",
        "ALTER TABLE audit_records_2026_01 SET LOGGED",
        "the table audit_records_2026_01 is unlogged",
    ),
    "sub-partition": (
        "CREATE TABLE odd PARTITION OF audit_records FOR VALUES FROM (1) TO (2) PARTITION BY RANGE (time)",
        "DROP TABLE odd",
        "odd is a partitioned table, not a table",
    ),
    "generated": (
        "ALTER TABLE audit_records ADD COLUMN more text GENERATED ALWAYS AS (tool) STORED",
        "ALTER TABLE audit_records DROP COLUMN more",
        "the column more of the table",
    ),
    "type": (
        "ALTER TABLE audit_records ALTER COLUMN call_id TYPE varchar(99)",
        "ALTER TABLE audit_records ALTER COLUMN call_id TYPE text",
        "the column call_id of the table audit_records is declared otherwise: character varying(99)",
    ),
    "collation": (
        'ALTER TABLE audit_records ALTER COLUMN agent TYPE text COLLATE "POSIX"',
        "ALTER TABLE audit_records ALTER COLUMN agent TYPE text",
        "the column agent",
    ),
    "null": (
        "ALTER TABLE audit_records ALTER COLUMN body DROP NOT NULL",
        "ALTER TABLE audit_records ALTER COLUMN body SET NOT NULL",
        "the column body",
    ),
    "partial index": (
        "DROP INDEX audit_decisions; CREATE INDEX audit_decisions ON audit_records (decision, time, tool, agent,"
        " conversation_id) WHERE kind = 'decision' AND decision <> 'denied'",
        "DROP INDEX audit_decisions; CREATE INDEX audit_decisions ON audit_records (decision, time, tool, agent,"
        " conversation_id) WHERE kind = 'decision'",
        "the index audit_decisions of the table audit_records is no part of a trail",
    ),
    "missing index": (
        "DROP INDEX audit_checkpoints",
        "CREATE INDEX audit_checkpoints ON audit_records (chain_id, sequence) WHERE kind = 'checkpoint'",
        "the table audit_records lacks the index audit_checkpoints",
    ),
    "invalid index": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'audit_records_2026_01_pkey'::regclass",
        "UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'audit_records_2026_01_pkey'::regclass",
        "the index audit_records_2026_01_pkey of the table audit_records_2026_01 is invalid",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_structure_that_the_sql_does_not_make_is_named(
    filled_database: Database, owner: psycopg.Connection[Any], case: str
) -> None:
    before, after, named = CASES[case]
    owner.execute(before)  # type: ignore[arg-type]
    try:
        finding, words = problem(filled_database) or ("nothing", "")
    finally:
        owner.execute(after)  # type: ignore[arg-type]
    assert finding == "schema"
    assert named in words
    assert problem(filled_database) is None


def test_defaults_of_columns_and_names_of_indexes_do_not_matter(
    filled_database: Database, owner: psycopg.Connection[Any]
) -> None:
    owner.execute("ALTER TABLE audit_records ALTER COLUMN agent SET DEFAULT 'somebody'")
    owner.execute("ALTER INDEX audit_calls RENAME TO calls_of_runs")
    assert problem(filled_database) is None
    owner.execute("ALTER INDEX calls_of_runs RENAME TO audit_calls")


DECISIONS = "(decision, time, tool, agent, conversation_id) WHERE kind = 'decision'"


def test_an_index_without_a_refusal_is_found_although_the_catalog_hides_it(
    filled_database: Database, owner: psycopg.Connection[Any]
) -> None:
    owner.execute("DROP INDEX audit_decisions")
    owner.execute(f"CREATE INDEX less ON audit_records_2026_01 {DECISIONS} AND decision <> 'denied'")
    owner.execute(f"CREATE INDEX whole ON audit_records_2026_01 {DECISIONS}")
    owner.execute(
        "UPDATE pg_index SET indpred = whole.indpred FROM pg_index AS whole"
        " WHERE pg_index.indexrelid = 'less'::regclass AND whole.indexrelid = 'whole'::regclass"
    )
    owner.execute("DROP INDEX whole")
    owner.execute(f"CREATE INDEX audit_decisions ON audit_records {DECISIONS}")
    found = problem(filled_database)
    with pytest.raises(UnverifiedError), read_verified(filled_database.url(READER)):
        pass
    owner.execute("DROP INDEX audit_decisions")
    owner.execute(f"CREATE INDEX audit_decisions ON audit_records {DECISIONS}")
    assert found == ("damaged store", "the index audit_decisions disagrees with the records; no record was looked at")
    assert problem(filled_database) is None


@pytest.mark.slow
@pytest.mark.parametrize("amcheck", [False, True])
def test_one_changed_byte_in_a_page_of_an_index_is_found(server: Server, amcheck: bool) -> None:
    database = Database(server, f"changed_byte_{amcheck}".lower())
    fill(database)
    with closing(database.connect()) as owner:
        index = "audit_records_2026_01_decision_time_tool_agent_conversation_idx"
        file = owner.execute("SELECT pg_relation_filepath(%s::regclass)", [index]).fetchone()
        if amcheck:
            owner.execute("CREATE EXTENSION amcheck")
            owner.execute("GRANT EXECUTE ON FUNCTION bt_index_check(regclass, boolean) TO PUBLIC")
    assert problem(database) is None
    assert file is not None
    path = server._data / file[0]
    server.stop()
    path.write_bytes(path.read_bytes().replace(b"denied", b"denien"))
    server.start()
    found = problem(database)
    assert found is not None
    assert found[0] == "damaged store"


def test_a_record_in_the_partition_of_another_month_is_found(server: Server) -> None:
    database = Database(server, "another_month")
    with closing(database.connect()) as owner:
        owner.execute("CREATE TABLE odd (LIKE audit_records INCLUDING ALL)")
        owner.execute(INSERT.replace("audit_records", "odd"), ["c", 1, ns(2026, 1)])  # type: ignore[arg-type]
        owner.execute("ALTER TABLE odd ADD CONSTRAINT lie CHECK (time >= 1 AND time < 2) NOT VALID")
        owner.execute("UPDATE pg_constraint SET convalidated = true WHERE conname = 'lie'")
        owner.execute("ALTER TABLE audit_records ATTACH PARTITION odd FOR VALUES FROM (1) TO (2)")
        owner.execute("ALTER TABLE odd DROP CONSTRAINT lie")
        assert owner.execute(f"SELECT count(*) FROM audit_records WHERE time = {ns(2026, 1)}").fetchone() == (0,)
    finding, words = problem(database) or ("nothing", "")
    assert (finding, words.split(";")[0]) == (
        "damaged store",
        "the partition odd holds records of other times than its own",
    )


def test_verified_answers_of_a_server_come_from_its_records(filled_database: Database) -> None:
    with read_verified(filled_database.url(READER)) as reader:
        assert [call.run_id for call in reader.calls(decision="denied")] == ["run-denied"]
        assert reader.run("run-1").calls[0].state == "ok"
        assert reader.verification.records == 11


def test_the_plans_that_compare_an_index_read_it(filled_database: Database) -> None:
    engine = create_engine(filled_database.url(READER))
    with engine.connect() as connection:
        structure.pin_schema(connection)
        structure._set(connection, structure._BY_INDEX, "off")
        for name, columns, where in structure._indexes():
            words = {"columns": ", ".join(columns), "hashed": structure._hashed(columns), "where": where}
            for only, sql in (("on", structure._SUM_OF_INDEX), ("off", structure._SUM_OF_RECORDS)):
                structure._set(connection, ["enable_indexonlyscan"], only)
                plan = "\n".join(connection.execute(text(f"EXPLAIN {sql.format(**words)}")).scalars())
                assert ("Index Only Scan using" if only == "on" else "Index Scan using") in plan, name
                assert "Seq Scan" not in plan
                assert "  Sort  " not in plan
    engine.dispose()
