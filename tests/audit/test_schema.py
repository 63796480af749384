"""A column of the store is declared once; what cannot follow from the declaration is named by a test."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

from tests.audit.made import Chain
from traced_tools.audit.indexes import INDEXES
from traced_tools.audit.records import AuditRecord, Subject
from traced_tools.audit.schema import RECORD_COLUMNS, RECORDS
from traced_tools.audit.verifying.walk import verify

WITH_ANOTHER_COLUMN = """
import csv, io, sqlite3, sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

spec = find_spec("traced_tools.audit.schema")
declared = Path(spec.origin).read_text("utf-8")
with_region = declared.replace('Column("outcome", Text),', 'Column("outcome", Text), Column("region", Text),')
assert with_region != declared
schema = sys.modules[spec.name] = module_from_spec(spec)
exec(with_region, schema.__dict__)

from traced_tools.audit import AuditReader, AuditTrail, read_verified, verify
from traced_tools.audit.reading.exporting import export
from traced_tools.audit.records import Draft, Subject

store = sys.argv[1]
with AuditTrail(store, key=b"a key for the tests, long enough") as trail:
    trail.submit(Draft("intent", 5, Subject("planner", "run-1", "call_1", "search", 1, 0), {"region": "north"}))

print(sqlite3.connect(store).execute("SELECT region FROM audit_records WHERE kind = 'intent'").fetchone()[0])
print(verify(store).problem)
with read_verified(store) as reader:
    print(len(reader.run("run-1").calls))
file = io.BytesIO()
export(AuditReader(store).records(), "csv", file)
print(next(csv.DictReader(io.StringIO(file.getvalue().decode())))["region"])
sqlite3.connect(store).execute("UPDATE audit_records SET region = 'south'").connection.commit()
print(verify(store).problem.text)
"""
EXISTING = """
CREATE TABLE audit_records (
    chain_id TEXT NOT NULL, sequence BIGINT NOT NULL, time BIGINT NOT NULL, kind TEXT NOT NULL, run_id TEXT,
    iteration INTEGER, batch_index INTEGER, call_id TEXT, tool TEXT, agent TEXT, conversation_id TEXT, decision TEXT,
    outcome TEXT, hash TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (chain_id, sequence)
);
CREATE INDEX audit_calls ON audit_records (run_id, iteration, batch_index, kind, decision) WHERE run_id IS NOT NULL;
CREATE INDEX audit_intents ON audit_records (time, tool, agent, conversation_id) WHERE kind = 'intent';
CREATE INDEX audit_decisions ON audit_records (decision, time, tool, agent, conversation_id) WHERE kind = 'decision';
CREATE INDEX audit_outcomes ON audit_records (outcome, time, tool, agent, conversation_id) WHERE kind = 'outcome';
CREATE INDEX audit_conversations ON audit_records (conversation_id, time)
    WHERE kind = 'intent' AND conversation_id IS NOT NULL;
CREATE INDEX audit_checkpoints ON audit_records (chain_id, sequence) WHERE kind = 'checkpoint';
"""
"""The schema of the SQLite stores that are in use: it never changes here."""


def test_a_declared_column_is_written_verified_copied_and_exported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITH_ANOTHER_COLUMN, str(tmp_path / "audit.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["north", "None", "1", "north", "its column region says other than its body"], (
        done.stderr
    )


def test_the_postgresql_script_declares_every_column() -> None:
    script = files("traced_tools.audit").joinpath("postgresql.sql").read_text("utf-8")
    table = re.search(r"CREATE TABLE IF NOT EXISTS audit_records \((.*?)\n\)", script, re.DOTALL)
    assert table is not None
    missing = [column.name for column in RECORDS.columns if not re.search(rf"\n    {column.name} ", table[1])]
    assert missing == [], (
        f"add {missing} to CREATE TABLE audit_records in deploy/audit/postgresql.sql, and ALTER TABLE audit_records "
        "ADD COLUMN IF NOT EXISTS for the tables that exist"
    )


def test_existing_sqlite_stores_are_verified(tmp_path: Path) -> None:
    chain = Chain()
    chain.call()
    path = tmp_path / "audit.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(EXISTING)
        names = [row[1] for row in connection.execute("PRAGMA table_info(audit_records)")]
        values = f"INSERT INTO audit_records VALUES ({', '.join(f':{name}' for name in names)})"
        connection.executemany(values, chain.rows)
    missing = [column.name for column in RECORDS.columns if column.name not in names]
    assert verify(path).problem is None, (
        f"existing stores lack the columns {missing}: have a writer add them to an existing table (`Store.writing`), "
        "and have `structure` accept tables without them until then; the same holds for new indexes "
        f"({[index.name for index in INDEXES if str(index.name) not in EXISTING]})"
    )


def test_a_record_has_every_attribute_of_its_subject() -> None:
    values: dict[str, Any] = {name: {"tenant": "acme"} for name in Subject.__dataclass_fields__}
    fields: dict[str, Any] = {}
    Subject(**values).add_to(fields)
    assert fields == values


def test_a_row_of_the_record_columns_is_a_record() -> None:
    assert tuple(column.name for column in RECORD_COLUMNS) == tuple(AuditRecord.__dataclass_fields__)
