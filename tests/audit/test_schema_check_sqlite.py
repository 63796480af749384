"""`verify` proves that a file's schema and indexes are what readers may trust, before it looks at records."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from tests.audit.made import Chain, write
from tests.audit.tampered import by_hand, filled, found
from traced_tools.audit.reading.reader import AuditReader
from traced_tools.audit.schema import RECORDS
from traced_tools.audit.verifying.walk import verify

TABLE = str(CreateTable(RECORDS).compile(dialect=sqlite.dialect()))
SCHEMA, DAMAGED = ("schema", None, None), ("damaged store", None, None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One chain with three allowed calls and one denied."""
    chain = filled(Chain(), 3)
    chain.call("refund", run_id="run-denied", call_id="call-denied", decision="denied")
    path = write(tmp_path / "audit.db", chain)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def denied(store: Path) -> int:
    return len(AuditReader(store).calls(decision="denied"))


def made_again(store: Path, name: str, before: str, after: str) -> None:
    """Make an index again from other text, and put the old text back."""
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", [name]).fetchone()
        assert before in sql
        connection.execute(f"DROP INDEX {name}")
        connection.execute(sql.replace(before, after))
        schema_text(connection, name, sql)


def schema_text(connection: sqlite3.Connection, name: str, sql: str) -> None:
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", [sql, name])


def built_again(store: Path, before: str, after: str) -> None:
    """Build the table again from other text, with its records and indexes."""
    assert before in TABLE
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        indexes = connection.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        ).fetchall()
        connection.execute("PRAGMA legacy_alter_table = ON")
        connection.execute("ALTER TABLE audit_records RENAME TO old")
        connection.execute(TABLE.replace(before, after, 1))
        connection.execute(f"INSERT INTO audit_records SELECT {', '.join(RECORDS.columns.keys())} FROM old")
        connection.execute("DROP TABLE old")
        for (sql,) in indexes:
            connection.execute(sql)


def page_of(store: Path, name: str) -> tuple[int, int]:
    """Return where the root page of an index or a table begins and ends."""
    with closing(sqlite3.connect(store)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [name]).fetchone()
    return (page - 1) * size, page * size


def overwrite(store: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    begin, end = page_of(store, name)
    data = bytearray(store.read_bytes())
    data[begin:end] = change(bytes(data[begin:end]))
    store.write_bytes(data)


def test_an_index_without_a_refusal_is_found_although_its_text_is_restored(store: Path) -> None:
    made_again(store, "audit_decisions", "'decision'", "'decision' AND decision <> 'denied'")
    assert denied(store) == 0
    assert found(store) == DAMAGED
    assert "audit_decisions" in verify(store).problem.text  # type: ignore[union-attr]


def test_one_changed_byte_in_an_index_page_is_found(store: Path) -> None:
    overwrite(store, "audit_decisions", lambda page: page.replace(b"denied", b"Denied"))
    assert denied(store) == 0
    assert found(store) == DAMAGED


def test_destroyed_index_pages_are_found(store: Path) -> None:
    overwrite(store, "audit_intents", lambda page: b"\xa5" * len(page))
    assert found(store) == DAMAGED


def test_exchanged_roots_of_the_primary_key_and_another_index_are_found(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        exchanged = ("sqlite_autoindex_audit_records_1", "audit_checkpoints")
        roots = [
            connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [name]).fetchone()[0]
            for name in exchanged
        ]
        for name, root in zip(exchanged, reversed(roots), strict=True):
            connection.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", [root, name])
    assert found(store) == DAMAGED


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@pytest.mark.parametrize(
    ("statements", "named"),
    [
        (["ALTER TABLE audit_records RENAME TO a", "CREATE VIEW audit_records AS SELECT * FROM a"], "belongs to a"),
        (["DROP TABLE audit_records", f"CREATE VIEW audit_records AS {ENDLESS}"], "is a view, not a table"),
        (["CREATE TRIGGER t AFTER INSERT ON audit_records BEGIN SELECT 1; END"], "trigger t"),
        (["CREATE INDEX more ON audit_records (tool) WHERE decision <> 'denied'"], "index more"),
        (["CREATE VIEW denied AS SELECT * FROM [Audit_Records]"], "view denied"),
        (["DROP INDEX audit_outcomes"], "audit_outcomes is missing"),
        (
            ["DROP INDEX audit_calls", "CREATE INDEX audit_calls ON audit_records (call_id)"],
            "the index audit_calls is declared otherwise: call_id follows (, where run_id belongs",
        ),
        (
            ["ALTER TABLE audit_records RENAME TO a", "ALTER TABLE a RENAME TO Audit_Records"],
            "Audit_Records",
        ),
        (["ALTER TABLE audit_records ADD COLUMN more AS (upper(tool))"], "table audit_records"),
    ],
    ids=["view", "endless view", "trigger", "index", "other view", "dropped", "other index", "case", "generated"],
)
def test_a_schema_that_this_version_does_not_write_is_named(store: Path, statements: list[str], named: str) -> None:
    by_hand(store, *statements)
    assert found(store) == SCHEMA
    assert named in verify(store).problem.text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("time BIGINT", "time REAL"),
        ("decision TEXT", "decision TEXT COLLATE NOCASE"),
        ("tool TEXT", "tool TEXT CHECK (length(tool) < 9)"),
        ("hash TEXT NOT NULL", "hash TEXT"),
        ("PRIMARY KEY (chain_id, sequence)\n)", "PRIMARY KEY (chain_id, sequence)\n) WITHOUT ROWID"),
        ("PRIMARY KEY (chain_id, sequence)", "PRIMARY KEY (chain_id, sequence DESC)"),
    ],
    ids=["type", "collation", "check", "null", "without rowid", "order"],
)
def test_a_table_with_a_different_declaration_is_named(store: Path, before: str, after: str) -> None:
    built_again(store, before, after)
    assert found(store) == SCHEMA


@pytest.mark.parametrize(
    "sql",
    ["CREATE INDEX audit_calls ON audit_records (nothing)", "no SQL", "CREATE INDEX other ON audit_records (tool)"],
)
def test_a_schema_entry_that_sqlite_cannot_read_is_named(store: Path, sql: str) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        schema_text(connection, "audit_calls", sql)
    assert found(store) == SCHEMA
    assert "the index audit_calls" in verify(store).problem.text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("table", "sql"),
    [
        ("audit_records", "CAST(? AS BLOB)"),
        ("audit_records\0", "?"),
        ("other", "? || char(0)"),
        (None, "?"),
    ],
    ids=["blob", "NUL in the table", "NUL in the statement", "NULL"],
)
def test_a_schema_entry_that_sqlite_reads_differently_is_named(store: Path, table: str | None, sql: str) -> None:
    by_hand(store, "CREATE TABLE other (x)")
    trigger = "CREATE TRIGGER t BEFORE UPDATE ON other BEGIN SELECT 1; END"
    if table != "other":
        trigger = trigger.replace("other", "audit_records")
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            f"INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) VALUES ('trigger', 't', ?, 0, {sql})",
            [table, trigger],
        )
    assert found(store) == SCHEMA
    assert "schema's entry t " in verify(store).problem.text  # type: ignore[union-attr]


def test_a_malformed_entry_of_another_table_is_damage(store: Path) -> None:
    by_hand(store, "CREATE TABLE songs (name TEXT)")
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        schema_text(connection, "songs", "CREATE TABLE songs (")
    assert found(store) == DAMAGED


def test_a_second_table_whose_name_differs_in_case_is_named(store: Path) -> None:
    by_hand(store, TABLE.replace("audit_records", "decoy"))
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET name = 'AUDIT_RECORDS', tbl_name = 'AUDIT_RECORDS', "
            "sql = replace(sql, 'decoy', 'AUDIT_RECORDS') WHERE name = 'decoy'"
        )
    assert found(store) == SCHEMA
    assert "AUDIT_RECORDS" in verify(store).problem.text  # type: ignore[union-attr]


def test_an_encoding_that_hides_runs_from_a_prefix_search_is_named(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(store)) as connection:
        script = "\n".join(connection.iterdump())
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16le'")
        connection.executescript(script)
    assert found(other) == SCHEMA


def test_a_null_where_there_must_be_a_value_is_found(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        schema_text(connection, "audit_records", TABLE.strip().replace("body TEXT NOT NULL", "body TEXT"))
    by_hand(store, "UPDATE audit_records SET body = NULL WHERE sequence = 3")
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        schema_text(connection, "audit_records", TABLE.strip())
    assert found(store) == DAMAGED


@pytest.mark.parametrize(("column", "type"), [("iteration", "INTEGER"), ("sequence", "BIGINT"), ("time", "BIGINT")])
def test_a_fraction_where_readers_expect_an_integer_is_named(store: Path, column: str, type: str) -> None:
    built_again(store, f"{column} {type}", f"{column} BLOB")  # which converts nothing
    by_hand(store, f"UPDATE audit_records SET {column} = CAST({column} AS REAL)")
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        schema_text(connection, "audit_records", TABLE.strip())
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute(f"SELECT typeof({column}) FROM audit_records").fetchone() == ("real",)
    assert not verify(store).ok


def test_other_tables_and_views_may_be_in_the_file(store: Path) -> None:
    by_hand(
        store,
        *("CREATE TABLE songs (name TEXT CHECK (name <> ''))", "CREATE VIEW s AS SELECT name FROM songs", "ANALYZE"),
        *("UPDATE sqlite_stat1 SET stat = '1 1 1'", "PRAGMA user_version = 7"),
    )
    assert verify(store).ok


def test_declarations_of_other_tables_are_not_evaluated(store: Path) -> None:
    by_hand(
        store, "CREATE TABLE songs (name TEXT)", "CREATE INDEX by_name ON songs (name)", "INSERT INTO songs VALUES (1)"
    )
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        schema_text(connection, "by_name", "CREATE INDEX by_name ON songs (instr(zeroblob(name + 1), x'01'))")
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() != ("ok",)
    assert verify(store).ok


def test_a_vacuumed_or_copied_store_verifies(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("VACUUM")
        connection.execute(f"VACUUM INTO '{copy}'")
    assert verify(store).ok
    assert verify(copy).ok


def test_a_declaration_that_differs_only_in_white_space_case_and_quotes_is_accepted(
    tmp_path: Path, store: Path
) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        other = " ".join(TABLE.split()).replace("TEXT", "text").replace("hash", '"hash"')
        schema_text(connection, "audit_records", other)
    assert verify(store).ok
